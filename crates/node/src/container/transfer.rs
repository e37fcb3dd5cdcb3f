//! A container's whole state on its way to a node that joins.

use super::drive::Stored;
use super::in_place::sha256;
use super::log_rows::LogRows;
use super::uncertain::Uncertain;
use super::{Container, Elsewhere, Failed, State};
use bytes::Bytes;
use perigee_meta::{Key, Kind};
use perigee_proto::message::data::{Place, RowsInPlace, StatePage, StateRows};
use perigee_replica::Input;
use perigee_store::{Snapshot, Space, StoreError, WriteBatch};
use perigee_types::{ByteRange, ContainerId, Errno, InodeId, NodeId, Seq, Tick, Version};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tracing::{error, info, warn};

/// Rows of one page; with their sizes' bound a page stays far below a frame's limit.
const PAGE_ROWS: usize = 2_000;
/// Bytes of one page.
const PAGE_BYTES: usize = 512 << 10;
/// Pages that a joining node tells of at a time.
const IN_PLACE_MAX: usize = 64;
/// A snapshot that nobody asks about for so long is dropped.
const SNAPSHOT_IDLE_MICROS: u64 = 60_000_000;
/// Set in the local space while a transfer replaces the state.
pub(super) const RECEIVING: &[u8] = b"receiving";

/// When a page ends.
#[derive(Debug, Clone, Copy)]
struct Most {
    rows: usize,
    /// The row that passes it is the last.
    bytes: usize,
}

/// Of a page that travels.
const WHOLE: Most = Most {
    rows: PAGE_ROWS,
    bytes: PAGE_BYTES,
};
/// Of one that may be the same at both ends: what has changed is told apart by them.
const PART: Most = Most {
    rows: 250,
    bytes: 64 << 10,
};

/// Rows that follow each other.
#[derive(Debug, Default)]
struct Page {
    rows: Vec<(Bytes, Bytes)>,
    /// None follow.
    last: bool,
}

impl Page {
    /// The rows after a key.
    fn read(
        snapshot: &Snapshot,
        container: ContainerId,
        after: Option<&[u8]>,
        most: Most,
    ) -> Result<Self, StoreError> {
        let from = after.map_or_else(Vec::new, next_key);
        let mut rows = snapshot.scan(Space::State(container), &from, None, most.rows)?;
        let full = rows.len() == most.rows;
        let mut bytes = 0;
        let fits = rows.iter().position(|(key, value)| {
            bytes += key.len() + value.len();
            bytes >= most.bytes
        });
        rows.truncate(fits.map_or(most.rows, |last| last + 1));
        let last = !full && fits.is_none();
        Ok(Self { rows, last })
    }

    fn through(&self) -> Option<&Bytes> {
        self.rows.last().map(|(key, _)| key)
    }

    fn told(&self) -> Option<RowsInPlace> {
        let through = self.through()?.to_vec();
        let sha256 = hash(&self.rows);
        Some(RowsInPlace { through, sha256 })
    }

    fn owned(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        let rows = self.rows.iter();
        rows.map(|(key, value)| (key.to_vec(), value.to_vec()))
            .collect()
    }
}

/// The first key that could follow.
fn next_key(key: &[u8]) -> Vec<u8> {
    let mut next = key.to_vec();
    next.push(0);
    next
}

fn hash(rows: &[(Bytes, Bytes)]) -> [u8; 32] {
    let parts = rows.iter().flat_map(|(key, value)| [key, value]);
    let lens: Vec<[u8; 8]> = parts
        .clone()
        .map(|part| (part.len() as u64).to_le_bytes())
        .collect();
    let told = lens.iter().zip(parts);
    sha256(told.flat_map(|(len, part)| [&len[..], &part[..]]))
}

/// What a joining node is told.
#[derive(Debug, Default)]
struct Compared {
    in_place: Vec<Place>,
    rows: Vec<(Vec<u8>, Vec<u8>)>,
    last: bool,
}

impl Compared {
    fn sent(self, snapshot: u64, base: Version, content: Option<u64>) -> StateRows {
        StateRows {
            snapshot,
            base,
            in_place: self.in_place,
            rows: self.rows,
            last: self.last,
            content,
        }
    }
}

/// The next part of a snapshot, for a joining node.
fn answer(
    snapshot: &Snapshot,
    container: ContainerId,
    request: &StatePage,
) -> Result<Compared, StoreError> {
    let compared = compare(snapshot, container, request)?;
    if !compared.in_place.is_empty() {
        return Ok(compared);
    }
    let page = Page::read(snapshot, container, request.after.as_deref(), WHOLE)?;
    Ok(Compared {
        rows: page.owned(),
        last: page.last,
        in_place: Vec::new(),
    })
}

/// Compares the pages that a joining node tells of to the snapshot's, until so much differs that it fills an answer. Nothing is
/// said where the first differs by more than that.
fn compare(
    snapshot: &Snapshot,
    container: ContainerId,
    request: &StatePage,
) -> Result<Compared, StoreError> {
    let mut compared = Compared::default();
    let mut from = request.after.as_deref().map_or_else(Vec::new, next_key);
    let mut bytes = 0;
    for told in &request.in_place {
        let to = next_key(&told.through);
        let rows = snapshot.scan(Space::State(container), &from, Some(&to), PAGE_ROWS + 1)?;
        from = to;
        if rows.len() <= PAGE_ROWS && hash(&rows) == told.sha256 {
            compared.in_place.push(Place::Same);
            continue;
        }
        bytes += rows.iter().map(|(k, v)| k.len() + v.len()).sum::<usize>();
        if rows.len() > PAGE_ROWS || bytes > PAGE_BYTES {
            break;
        }
        compared.in_place.push(Place::Rows(rows.len()));
        let last = true;
        compared.rows.extend(Page { rows, last }.owned());
    }
    Ok(compared)
}

/// The next rows of a state.
#[derive(Debug)]
struct TakenOver {
    rows: Vec<(Vec<u8>, Vec<u8>)>,
    /// There are no others up to this key.
    through: Option<Vec<u8>>,
}

/// What a joining node takes over: rows that came, and what it had where that is the same. `None`: the answer is about other
/// pages than were told of.
fn rows_taken_over(had: &[Page], answer: StateRows) -> Option<TakenOver> {
    let mut came = answer.rows.into_iter();
    let mut rows = Vec::new();
    let mut through = None;
    for (number, place) in answer.in_place.iter().enumerate() {
        let page = had.get(number)?;
        match place {
            Place::Same => rows.extend(page.owned()),
            Place::Rows(count) => {
                let before = rows.len();
                rows.extend(came.by_ref().take(*count));
                if rows.len() - before != *count {
                    return None;
                }
            }
        }
        through = page.through().map(|key| key.to_vec());
    }
    rows.extend(came);
    let last = rows.last().map(|(key, _)| key.clone());
    let through = through.max(last);
    Some(TakenOver { rows, through })
}

/// Reads what a joining node has of the rows after a key. What cannot be read is not there.
fn pages_in_place(snapshot: &Snapshot, id: ContainerId, after: Option<&[u8]>) -> Vec<Page> {
    let mut pages: Vec<Page> = Vec::new();
    while pages.len() < IN_PLACE_MAX && pages.last().is_none_or(|page| !page.last) {
        let through = pages.last().and_then(Page::through);
        let after = through.map(|key| &key[..]).or(after);
        match Page::read(snapshot, id, after, PART) {
            Ok(page) if !page.rows.is_empty() => pages.push(page),
            Ok(_) => break,
            Err(error) => {
                warn!(container = %id, %error, "rows in place are not read");
                break;
            }
        }
    }
    pages
}

struct Open {
    snapshot: Arc<Snapshot>,
    base: Version,
    used: Tick,
}

/// The snapshots that joining nodes read from.
#[derive(Default)]
pub(super) struct Snapshots {
    next: u64,
    open: BTreeMap<u64, Open>,
}

impl Container {
    /// Gives a joining node the next page of a snapshot.
    pub(crate) fn state_page(&self, request: &StatePage) -> Result<StateRows, Failed> {
        let now = self.env.clock.now();
        Self::reign(&self.state.lock(), now)?;
        if request.in_place.len() > IN_PLACE_MAX {
            return Err(Errno::EINVAL.into());
        }
        let (number, snapshot, base) = self.open_snapshot(request.snapshot, now)?;
        let refused = |error: StoreError| self.store_refused(&error);
        let answer = answer(&snapshot, self.id, request).map_err(refused)?;
        if answer.last {
            self.snapshots.lock().open.remove(&number);
        }
        let content = self.env.rooms.content_of(self.id, self.taken());
        Ok(answer.sent(number, base, content))
    }

    fn open_snapshot(
        &self,
        number: Option<u64>,
        now: Tick,
    ) -> Result<(u64, Arc<Snapshot>, Version), Failed> {
        let mut snapshots = self.snapshots.lock();
        snapshots
            .open
            .retain(|_, open| now.since(open.used).as_micros() < SNAPSHOT_IDLE_MICROS);
        if let Some(number) = number {
            let open = snapshots.open.get_mut(&number).ok_or(Elsewhere::NotReady)?;
            open.used = now;
            return Ok((number, open.snapshot.clone(), open.base));
        }
        let snapshot = Arc::new(
            self.env
                .store
                .snapshot()
                .map_err(|error| self.store_refused(&error))?,
        );
        let base = match snapshot.get(Space::Local(self.id), super::drive::HARD) {
            Ok(Some(bytes)) => {
                let stored: Stored = perigee_proto::decode(&bytes).map_err(|_| Errno::EIO)?;
                stored.applied
            }
            Ok(None) => return Err(Elsewhere::NotReady.into()),
            Err(error) => return Err(self.store_refused(&error).into()),
        };
        snapshots.next += 1;
        let number = snapshots.next;
        snapshots.open.insert(
            number,
            Open {
                snapshot: snapshot.clone(),
                base,
                used: now,
            },
        );
        Ok((number, snapshot, base))
    }

    /// Begins to fetch the state from the owner, unless that is under way.
    pub(super) fn receive_state(self: &Arc<Self>, st: &mut State, from: NodeId) {
        if std::mem::replace(&mut st.receiving, true) {
            return;
        }
        // Nothing is committed here until the state has come: no older row follows it to the disk.
        self.apply_now(st);
        let me = self.clone();
        self.env.runtime.spawn(async move {
            let mut replaced = Replaced::Nothing;
            let received = me.fetch_state(from, &mut replaced).await;
            if let (Err(error), Replaced::APart) = (&received, replaced) {
                warn!(container = %me.id, %from, %error, "a part of the state was received, and no more");
                return me.leave_torn();
            }
            me.state.lock().receiving = false;
            match received {
                Ok(base) => {
                    info!(container = %me.id, %from, %base, "state received");
                    me.step(Input::StateInstalled { base });
                    me.refill.notify_one();
                }
                Err(error) => {
                    warn!(container = %me.id, %from, %error, "state not received");
                    me.step(Input::StateFailed);
                }
            }
        });
    }

    /// What the disk has is no state and no log any more, and the process must not go on with what it knows of them: this
    /// node leaves the container, and joins it again with nothing, as after a restart.
    fn leave_torn(self: &Arc<Self>) {
        self.env.torn.lock().insert(self.id);
        self.step(Input::PersistFailed);
    }

    async fn fetch_state(
        self: &Arc<Self>,
        from: NodeId,
        replaced: &mut Replaced,
    ) -> Result<Version, String> {
        let mut request = StatePage {
            container: self.id,
            snapshot: None,
            after: None,
            in_place: Vec::new(),
        };
        // What this node has from an earlier time is taken as if it had come, where the owner says that it is the same.
        let had = self
            .env
            .store
            .snapshot()
            .map_err(|error| error.to_string())?;
        let had = Arc::new(had);
        let (mut came, mut all) = (0, 0);
        let mut files: BTreeMap<InodeId, u64> = BTreeMap::new();
        let mut batch = WriteBatch::default();
        batch.put(Space::Local(self.id), RECEIVING, &[1]);
        batch.delete_range(Space::State(self.id), &[], None);
        batch.delete_range(Space::Log(self.id), &[], None);
        loop {
            let (id, snapshot, after) = (self.id, had.clone(), request.after.clone());
            let reading = self
                .env
                .runtime
                .spawn_blocking(move || pages_in_place(&snapshot, id, after.as_deref()));
            let in_place = reading.await.map_err(|error| error.to_string())?;
            request.in_place = in_place.iter().filter_map(Page::told).collect();
            let page = self
                .env
                .ask(from, &request, Bytes::new(), Duration::from_secs(10))
                .await
                .map_err(|error| error.to_string())?
                .0;
            if !self.state.lock().chain.accepts_state(page.base) {
                return Err("it is not wanted any more".to_owned());
            }
            let (number, base, last) = (page.snapshot, page.base, page.last);
            if let Some(bytes) = page.content {
                self.note_content(bytes);
            }
            came += page.rows.len();
            let TakenOver { rows, through } = rows_taken_over(&in_place, page)
                .ok_or("the answer is about other rows than were told of")?;
            all += rows.len();
            for (key, value) in &rows {
                if let Some((inode, size)) = file_of(self.id, key, value) {
                    files.insert(inode, size);
                }
                batch.put(Space::State(self.id), key, value);
            }
            request.snapshot = Some(number);
            request.after = through.or(request.after);
            *replaced = Replaced::APart;
            if last {
                self.finish_receiving(std::mem::take(&mut batch), base, &files)
                    .await?;
                info!(container = %self.id, rows = all, came, "rows received");
                return Ok(base);
            }
            self.put_on_disk(std::mem::take(&mut batch)).await?;
        }
    }

    /// The last rows are here: they become the state, and every file's bytes are to be fetched.
    async fn finish_receiving(
        self: &Arc<Self>,
        mut batch: WriteBatch,
        base: Version,
        files: &BTreeMap<InodeId, u64>,
    ) -> Result<(), String> {
        let keep: BTreeSet<InodeId> = files.keys().copied().collect();
        let installs = self.installs.write();
        self.env
            .store
            .retain_objects(self.id, &keep)
            .map_err(|error| error.to_string())?;
        for (inode, size) in files {
            let file = self.file(*inode).map_err(|error| error.to_string())?;
            file.object
                .resize(*size)
                .map_err(|error| error.to_string())?;
            file.object
                .spoil_in(&mut batch, ByteRange::new(0, *size), base)
                .map_err(|error| error.to_string())?;
        }
        let promised = {
            let mut st = self.state.lock();
            st.applied = base;
            st.extracted = base.seq;
            st.synced = Seq::ZERO;
            st.data_done = base.seq;
            st.unapplied.clear();
            st.unsubmitted = None;
            st.log_rows = LogRows::default();
            st.overlay.clear(base.seq);
            st.distrusted_through = base.seq;
            st.uncertain = Uncertain::default();
            st.held.clear();
            st.marks = WriteBatch::default();
            st.pull
                .on_state_installed(base, files.iter().map(|(inode, size)| (*inode, *size)));
            st.complete = false;
            st.chain.promised()
        };
        drop(installs);
        let stored = Stored {
            promised,
            complete: false,
            committed: base.seq,
            base,
            applied: base,
            data_done: base.seq,
        };
        batch.put(
            Space::Local(self.id),
            super::drive::HARD,
            &perigee_proto::encode(&stored),
        );
        batch.delete(Space::Local(self.id), RECEIVING);
        self.put_on_disk(batch).await
    }

    async fn put_on_disk(&self, batch: WriteBatch) -> Result<(), String> {
        let (sender, receiver) = tokio::sync::oneshot::channel::<Result<(), StoreError>>();
        // The receiver waits below; it is gone only when this task is.
        self.env
            .store
            .submit(batch, Box::new(move |result| _ = sender.send(result)));
        match receiver.await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err("the store was closed".to_owned()),
        }
    }
}

/// What of the state and the log on the disk was replaced by what came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Replaced {
    Nothing,
    APart,
}

/// A regular file with content, if this row is its record: the inode, and its length.
fn file_of(container: ContainerId, key: &[u8], value: &[u8]) -> Option<(InodeId, u64)> {
    let Some(Key::Inode(index)) = Key::decode(key) else {
        return None;
    };
    let inode = InodeId::new(container, index);
    match perigee_meta::stored_attr(inode, value) {
        Ok(attr) if attr.kind == Kind::File && attr.size > 0 => Some((inode, attr.size)),
        Ok(_) => None,
        Err(error) => {
            error!(%inode, %error, "received inode record is unreadable");
            None
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a panic is how a test fails")]
mod tests {
    use super::super::empty_store;
    use super::*;
    use perigee_types::Rng;

    const C: ContainerId = ContainerId(3);

    type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

    fn snapshot_of(rows: &Rows) -> (tempfile::TempDir, Snapshot) {
        let (dir, store) = empty_store();
        let mut batch = WriteBatch::default();
        for (key, value) in rows {
            batch.put(Space::State(C), key, value);
        }
        store.commit(batch).unwrap();
        let snapshot = store.snapshot().unwrap();
        (dir, snapshot)
    }

    /// Rows as two nodes have them: most are the same.
    fn sides(rng: &mut Rng) -> (Rows, Rows) {
        let count = rng.below(4_000);
        let row = |number: u64| (number.to_be_bytes().to_vec(), vec![number as u8; 60]);
        let one: Rows = (0..count).map(|number| row(number * 3)).collect();
        let mut two = one.clone();
        for _ in 0..rng.below(6) {
            let at = rng.below(count * 3 + 1);
            match rng.below(4) {
                0 => _ = two.insert(at.to_be_bytes().to_vec(), b"changed".to_vec()),
                1 => _ = two.remove((at / 3 * 3).to_be_bytes().as_slice()),
                2 => two.retain(|key, _| *key < at.to_be_bytes().to_vec()),
                // So many new ones that they fill more than an answer.
                _ => two.extend((0..3_000).map(|new| {
                    let mut key = at.to_be_bytes().to_vec();
                    key.extend(u64::to_be_bytes(new));
                    (key, vec![7; 200])
                })),
            }
        }
        (one, two)
    }

    /// Has a node with `had` take over the rows of another one; gives them, and the bytes that came.
    fn taken_over(had: &Snapshot, owner: &Snapshot) -> (Rows, usize) {
        let mut request = StatePage {
            container: C,
            snapshot: None,
            after: None,
            in_place: Vec::new(),
        };
        let (mut rows, mut bytes) = (Rows::new(), 0);
        for _ in 0..10_000 {
            let had = pages_in_place(had, C, request.after.as_deref());
            request.in_place = had.iter().filter_map(Page::told).collect();
            let answer = answer(owner, C, &request).unwrap();
            let last = answer.last;
            let came = answer
                .rows
                .iter()
                .map(|(key, value)| key.len() + value.len());
            bytes += came.sum::<usize>();
            let page = rows_taken_over(&had, answer.sent(1, Version::default(), None)).unwrap();
            rows.extend(page.rows);
            request.after = page.through.or(request.after);
            if last {
                return (rows, bytes);
            }
        }
        panic!("it does not end");
    }

    #[test]
    fn a_state_is_taken_over_whatever_was_there_and_what_is_the_same_stays() {
        let mut rng = Rng::new(7);
        for _ in 0..40 {
            let (one, two) = sides(&mut rng);
            let (_dirs, had, owner) = {
                let (first, had) = snapshot_of(&one);
                let (second, owner) = snapshot_of(&two);
                ((first, second), had, owner)
            };
            let (taken, bytes) = taken_over(&had, &owner);
            assert!(taken == two);
            if one == two {
                assert_eq!(bytes, 0);
            }
        }
        let rows: Rows = (0..3_000_u64)
            .map(|number| (number.to_be_bytes().to_vec(), vec![1; 100]))
            .collect();
        let mut changed = rows.clone();
        changed.insert(1_500_u64.to_be_bytes().to_vec(), vec![2; 100]);
        let ((_one, had), (_two, owner)) = (snapshot_of(&rows), snapshot_of(&changed));
        let (taken, bytes) = taken_over(&had, &owner);
        assert!(taken == changed);
        assert!(bytes <= PART.bytes, "{bytes}");
        let (_none, had) = snapshot_of(&Rows::new());
        assert!(taken_over(&had, &owner).0 == changed);
    }
}
