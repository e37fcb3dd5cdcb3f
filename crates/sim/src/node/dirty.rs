//! Writes that an owner has put in place, and that have no record yet.
//!
//! The daemon does the same: a note goes on its way to the disk, then the bytes are put into the file, then a write of
//! this host's session is answered, and its record comes later: with an fsync, when another host asks for anything, when
//! a member fetches the bytes, or when it is due. A crash may come between any two of these; each block is on the disk
//! then or not. When notes come and go is decided by [`perigee_replica::Notes`], in both. Files that grow or are cut, and
//! maps, are not simulated.

use crate::disk::Disk;
use crate::law;
use crate::model::{ALL_BLOCKS, BLOCKS_PER_FILE, FILE_LEN, Record, blocks_in, file_of, range_of};
use crate::oracle::Mark;
use crate::world::{Event, World};
use perigee_replica::{Input, LogWrite, Note, Plant};
use perigee_types::{ByteRange, InodeId, Rng, Version};

/// The longest that writes wait for their record.
const RECORD_WAIT_US: u64 = 4_000_000;

/// When the record of a write is due, after the write.
fn record_wait(rng: &mut Rng) -> u64 {
    let most = [20_000, RECORD_WAIT_US][rng.below(2) as usize];
    rng.below(most)
}

impl World {
    /// Puts what a record will say of blocks in place.
    pub(crate) fn put_in_place(&mut self, node: usize, blocks: &[(usize, u64)]) {
        let version = self.next_version(node);
        for &(block, token) in blocks {
            let (inode, range) = (file_of(block), range_of(block));
            law::checkpoint::on_replaced(self, node, block, token);
            let Some(run) = self.nodes[node].put_noted(block, token) else {
                return;
            };
            if self.plant != Some(Plant::OwnWriteFetchedOver) {
                run.pull.on_own_write(inode, range);
            }
            run.stirred = true;
            self.oracle.in_place.insert(token, version);
            self.aim_at_rewritten(node, block);
        }
    }

    /// What a record of this owner would be now.
    fn next_version(&self, node: usize) -> Version {
        let run = self.running_ref(node);
        Version {
            epoch: run.reign.unwrap_or_default(),
            seq: run.chain.last().seq.next(),
        }
    }

    /// A write of this host's session: its record comes later.
    pub(crate) fn write_at_home(&mut self, node: usize, block: usize, token: u64) {
        self.put_in_place(node, &[(block, token)]);
        self.note(Mark::Unrecorded);
        let run = self.running(node);
        run.unrecorded.insert(block, token);
        let wait = record_wait(&mut self.rng);
        let life = self.nodes[node].incarnation;
        self.after(wait, Event::RecordDue { node, life });
    }

    /// Makes records of the writes that have none, of one file or of all. Without the lease they wait on.
    pub(crate) fn record_writes(&mut self, node: usize, of: Option<InodeId>) {
        let local = self.local(node);
        let run = self.running(node);
        if run.unrecorded.is_empty() || run.chain.lease_until(local).is_none() {
            return;
        }
        for file in (0..ALL_BLOCKS).step_by(BLOCKS_PER_FILE).map(file_of) {
            if of.is_some_and(|of| of != file) {
                continue;
            }
            let run = self.running(node);
            let mut writes = Vec::new();
            run.unrecorded.retain(|&block, token| {
                let others = file_of(block) != file;
                if !others {
                    writes.push((block, *token));
                }
                others
            });
            if writes.is_empty() {
                continue;
            }
            let record = Record {
                data: writes.iter().map(|(b, token)| (*b as u8, *token)).collect(),
                ..Record::default()
            };
            if self.propose(node, record).is_none() {
                self.distrust(node, writes.iter().map(|(block, _)| *block));
            }
        }
    }

    /// The record of some write is due. It goes to the disk with others, at the next heartbeat at the latest.
    pub(crate) fn record_due(&mut self, node: usize) {
        self.record_writes(node, None);
        self.record_kept(node);
        if self.rng.chance(1, 2) {
            self.step(node, Input::Flush);
        }
    }

    /// The log goes to the disk: gives the notes that go with it.
    pub(crate) fn end_notes(&mut self, node: usize, log: &LogWrite) -> Vec<Note> {
        let run = self.running(node);
        let mut ended = std::mem::take(&mut run.notes_ended);
        // Another write may have wanted it since.
        ended.retain(|note| !run.notes.wants(note));
        if let Some(last) = log.append.last() {
            let mut waiting: Vec<InodeId> =
                run.unrecorded.keys().map(|block| file_of(*block)).collect();
            waiting.extend(run.alone.keys().map(|block| file_of(*block)));
            let recorded = run
                .notes
                .on_persist(last.version.seq, |inode| waiting.contains(&inode));
            ended.extend(recorded);
        }
        if !ended.is_empty() {
            self.log(42, node, || format!("with the log {ended:?} end"));
        }
        let dirty = &self.nodes[node].disk.dirty;
        let on_disk = |note: &Note| blocks_in(note.inode, note.range(FILE_LEN)).all(|b| !dirty[b]);
        if ended.iter().any(on_disk) {
            self.aim_at_record(node);
        }
        if self.planted(Plant::NoteGoesEarly) {
            ended
                .iter()
                .for_each(|note| _ = self.nodes[node].disk.notes.remove(note));
        }
        ended
    }

    /// This node owns no more: what it wrote and has no record is not the content.
    pub(crate) fn distrust_unrecorded(&mut self, node: usize) {
        let run = self.running(node);
        let writes = std::mem::take(&mut run.unrecorded);
        if self.planted(Plant::LostWriteTrusted) {
            return;
        }
        self.distrust(node, writes.into_keys());
        let run = self.running(node);
        let alone: Vec<InodeId> = run.alone.keys().map(|block| file_of(*block)).collect();
        let ended = run.notes.forget_all(|inode| alone.contains(&inode));
        run.notes_ended.extend(ended);
    }

    /// Blocks here may be of writes without a record: the disk hears of it with the next write of the log.
    pub(super) fn distrust(&mut self, node: usize, blocks: impl Iterator<Item = usize>) {
        let too_old = self.planted(Plant::GivenUpTooOld);
        let run = self.running(node);
        let committed = match too_old {
            true => Version::default(),
            false => run.chain.committed_version(),
        };
        for block in blocks {
            let (inode, range) = (file_of(block), range_of(block));
            run.pull.on_overwritten(inode, range, committed);
            run.invalid_next.push((inode, range, Version::default()));
        }
        if let Some(job) = &mut run.sync {
            // What it would store is not so any more.
            job.sound = false;
        }
        run.stirred = true;
        run.data_unsaid = true;
    }
}

/// At a start: what the disk has noted, and what is not what its checksum says, is given up. Says whether anything was
/// noted.
pub(super) fn give_up(disk: &mut Disk, differing: &[usize], plant: Option<Plant>) -> bool {
    let noted = std::mem::take(&mut disk.notes);
    let mut given_up: Vec<(InodeId, ByteRange)> = Vec::new();
    if plant != Some(Plant::NotedTrusted) {
        given_up.extend(noted.iter().map(|note| (note.inode, note.range(FILE_LEN))));
    }
    if plant != Some(Plant::UnsummedTrusted) {
        let blocks = differing.iter().copied();
        given_up.extend(blocks.map(|block| (file_of(block), range_of(block))));
    }
    for (inode, range) in given_up {
        let map = disk.objects.invalid.entry(inode).or_default();
        map.invalidate(range, Version::default());
    }
    !noted.is_empty()
}
