//! How the log lies among the keys: the records of one write share rows, since a row costs the engine more than the bytes
//! of a small record.

use perigee_replica::{Entry, LogWrite};
use perigee_store::{Space, Store, StoreError, WriteBatch};
use perigee_types::{ContainerId, Seq};
use std::collections::BTreeSet;

/// Bytes of records in a row, unless one alone has more: with its key and its header it fits four of the engine's pages.
const ROW_BYTES: usize = 15 << 10;
/// Rows read at once.
const PAGE: usize = 256;
/// Ends the key of a row of many records. Without it there is one, as format 3 wrote it.
const MANY: u8 = 0;

/// Where rows begin.
#[derive(Debug, Default)]
pub(super) struct LogRows {
    starts: BTreeSet<Seq>,
}

/// The log of a container as its rows tell it.
pub(super) struct StoredLog {
    pub(super) rows: LogRows,
    pub(super) entries: Vec<Entry>,
}

fn key(seq: Seq) -> [u8; 9] {
    let mut key = [MANY; 9];
    key[..8].copy_from_slice(&seq.0.to_be_bytes());
    key
}

impl LogRows {
    /// Adds what a write does to the log.
    pub(super) fn put(&mut self, id: ContainerId, write: &LogWrite, batch: &mut WriteBatch) {
        let space = Space::Log(id);
        if let Some(from) = write.truncate_from {
            batch.delete_range(space, &from.0.to_be_bytes(), None);
            self.starts.split_off(&from);
            // The row before may go on beyond it: one that begins here ends it.
            let ended = write.append.first().map(|entry| entry.version.seq) == Some(from);
            if !self.starts.is_empty() && !ended {
                self.put_row(space, from, &[], batch);
            }
        }
        // Nothing lies behind the end of the log; were it so, it would count as later than what comes there now.
        if let Some(first) = write.append.first().map(|entry| entry.version.seq)
            && !self.starts.split_off(&first).is_empty()
        {
            batch.delete_range(space, &first.0.to_be_bytes(), None);
        }
        let mut rest = write.append.as_slice();
        while let Some(first) = rest.first() {
            let mut bytes = 0;
            let fits = |entry: &&Entry| {
                bytes += entry.payload.len() + 16;
                bytes <= ROW_BYTES
            };
            let many = rest.iter().take_while(fits).count().max(1);
            let (row, after) = rest.split_at(many);
            self.put_row(space, first.version.seq, row, batch);
            rest = after;
        }
        if let Some(through) = write.trim_through {
            // The row with the first record that stays is not changed for those before it.
            let keep = self.starts.range(..=through.next()).next_back().copied();
            let keep = keep.unwrap_or(through.next());
            batch.delete_range(space, &[], Some(&keep.0.to_be_bytes()));
            self.starts = self.starts.split_off(&keep);
        }
    }

    fn put_row(&mut self, space: Space, first: Seq, row: &[Entry], batch: &mut WriteBatch) {
        batch.put(space, &key(first), &perigee_proto::encode(&row));
        self.starts.insert(first);
    }
}

/// Reads the log behind `base`.
pub(super) fn read(store: &Store, id: ContainerId, base: Seq) -> Result<StoredLog, StoreError> {
    let (mut rows, mut entries) = (LogRows::default(), Vec::<Entry>::new());
    let mut from = Vec::new();
    loop {
        let page = store.scan(Space::Log(id), &from, None, PAGE)?;
        let full = page.len() == PAGE;
        for (key, value) in page {
            let damaged = || StoreError::Damaged {
                what: format!("log row {key:02x?} of {id}"),
            };
            let (first, row) = row_of(&key, &value).ok_or_else(damaged)?;
            // What a row before says of these places was truncated.
            while entries.pop_if(|entry| entry.version.seq >= first).is_some() {}
            let stays = row.into_iter().filter(|entry| entry.version.seq > base);
            entries.extend(stays);
            rows.starts.insert(first);
            from = key.to_vec();
            from.push(0);
        }
        if !full {
            return Ok(StoredLog { rows, entries });
        }
    }
}

fn row_of(key: &[u8], value: &[u8]) -> Option<(Seq, Vec<Entry>)> {
    let (seq, kind) = key.split_first_chunk()?;
    let row = match kind {
        [] => vec![perigee_proto::decode(value).ok()?],
        [MANY] => perigee_proto::decode(value).ok()?,
        _ => return None,
    };
    Some((Seq(u64::from_be_bytes(*seq)), row))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a panic is how a test fails")]
mod tests {
    use super::super::empty_store;
    use super::*;
    use bytes::Bytes;
    use perigee_types::{Epoch, Rng, Version};

    const C: ContainerId = ContainerId(3);

    /// A log without rows.
    #[derive(Default)]
    struct Plain {
        base: Seq,
        epoch: u64,
        entries: Vec<Entry>,
    }

    impl Plain {
        fn last(&self) -> Seq {
            let last = self.entries.last();
            last.map_or(self.base, |entry| entry.version.seq)
        }

        /// Does something to it, and says what write of the log that is.
        fn change(&mut self, rng: &mut Rng) -> LogWrite {
            let mut write = LogWrite {
                truncate_from: None,
                append: Vec::new(),
                promised: None,
                complete: true,
                view: None,
                committed: self.base,
                trim_through: None,
            };
            if rng.chance(1, 4) {
                let from = Seq(self.base.0 + 1 + rng.below(self.entries.len() as u64 + 1));
                self.entries.retain(|entry| entry.version.seq < from);
                self.epoch += 1;
                write.truncate_from = Some(from);
            }
            for _ in 0..rng.below(40) {
                let version = Version {
                    epoch: Epoch(self.epoch),
                    seq: self.last().next(),
                };
                let len = match rng.below(8) {
                    0 => rng.below(40_000),
                    _ => rng.below(300),
                };
                let payload = Bytes::from(vec![rng.below(256) as u8; len as usize]);
                let entry = Entry { version, payload };
                write.append.push(entry.clone());
                self.entries.push(entry);
            }
            if rng.chance(1, 3) && !self.entries.is_empty() {
                self.base = Seq(self.base.0 + rng.below(self.entries.len() as u64 + 1));
                self.entries.retain(|entry| entry.version.seq > self.base);
                write.trim_through = Some(self.base);
            }
            write
        }
    }

    #[test]
    fn a_log_is_read_as_it_was_written() {
        let (_dir, store) = empty_store();
        for seed in 1..=20 {
            let mut rng = Rng::new(seed);
            let id = ContainerId(seed as u32);
            let (mut plain, mut rows) = (Plain::default(), LogRows::default());
            for step in 0..30 {
                let mut batch = WriteBatch::default();
                rows.put(id, &plain.change(&mut rng), &mut batch);
                store.commit(batch).unwrap();
                let found = read(&store, id, plain.base).unwrap();
                assert_eq!(found.entries, plain.entries, "seed {seed}, step {step}");
                if rng.chance(1, 3) {
                    rows = found.rows;
                }
            }
        }
    }

    #[test]
    fn rows_of_one_record_each_are_read_too() {
        let (_dir, store) = empty_store();
        let mut rng = Rng::new(5);
        let mut plain = Plain::default();
        while plain.entries.len() < 10 {
            plain.change(&mut rng);
        }
        let mut batch = WriteBatch::default();
        for entry in &plain.entries {
            let key = entry.version.seq.0.to_be_bytes();
            batch.put(Space::Log(C), &key, &perigee_proto::encode(entry));
        }
        store.commit(batch).unwrap();
        let mut found = read(&store, C, plain.base).unwrap();
        assert_eq!(found.entries, plain.entries);
        for _ in 0..20 {
            let mut batch = WriteBatch::default();
            found.rows.put(C, &plain.change(&mut rng), &mut batch);
            store.commit(batch).unwrap();
            let now = read(&store, C, plain.base).unwrap();
            assert_eq!(now.entries, plain.entries);
        }
    }
}
