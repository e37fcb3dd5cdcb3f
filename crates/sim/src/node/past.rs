//! The checkpoint of a history: blocks are copied to a file of the checkpoint before they are replaced, as `perigee_node`
//! does it. What is to be kept, and which rows a record brings along, decides [`perigee_meta::past::Keeping`], in both.

use crate::model::{
    BLOCKS, BLOCKS_PER_FILE, FILE_LEN, FILES, Op, PastRow, Record, blocks_in, blocks_of_file,
    file_of, inode, is_kept_file, kept_block, kept_inode, kept_token, number_of, range_of,
};
use crate::oracle::Mark;
use crate::world::{Event, SECOND, Scenario, World};
use perigee_meta::past::{Due, KeptNow, Sum, UNIT, Units};
use perigee_replica::Plant;
use perigee_types::{ByteRange, CheckpointId, InodeId, Version};

const AT: CheckpointId = CheckpointId(1);
/// What is kept has a record by then.
const RECORD_US: u64 = 30_000;
/// Stands for the content of a block that was lost before it could be kept.
const LOST: u64 = 1 << 45;

/// Whether there is a checkpoint in a seed's history: in some of them chunks move, too, or ownership does.
pub(crate) const fn has_checkpoint(seed: u64, scenario: Scenario) -> bool {
    matches!(scenario, Scenario::Chaos) && (seed % 8 == 4 || seed % 16 == 7 || seed % 32 == 13)
}

impl World {
    /// A checkpoint is to be made, by the session of some host.
    pub(crate) fn ask_for_checkpoint(&mut self) {
        if self.calm || self.oracle.checkpoint.is_some() {
            return;
        }
        let mut dice = self.numbered.by_clock();
        let next = SECOND / 10 + dice.rng.below(SECOND / 2);
        self.after(next, Event::Checkpoint);
        let node = dice.rng.below(self.nodes.len() as u64) as usize;
        let host = &self.nodes[node];
        let idle = host.session.waiting_for.is_none() && host.paused_until <= self.now;
        if host.run.is_some() && idle {
            self.begin_op(node, Op::Checkpoint);
        }
    }

    /// A file, and where its content is that the checkpoint has of it.
    pub(crate) fn with_kept(&self, node: usize, file: usize) -> Vec<InodeId> {
        let checkpoint = self.running_ref(node).newest.checkpoint;
        let kept = checkpoint.then(|| kept_inode(file));
        std::iter::once(inode(file)).chain(kept).collect()
    }

    fn know_kept(&mut self, node: usize, inode: InodeId) {
        let run = self.running(node);
        if run.keeping.knows(inode, AT) {
            return;
        }
        let file = number_of(inode);
        let mut units = Units::default();
        for block in blocks_of_file(file).filter(|block| run.newest.kept[*block].is_some()) {
            units.add(unit_of(block));
        }
        let now = KeptNow {
            file: Some(kept_inode(file)),
            size: BLOCKS_PER_FILE as u64 * UNIT,
            mine: units.clone(),
            units,
        };
        run.keeping.know(inode, now);
    }

    /// Whether all of a file is kept that a checkpoint has, on every disk.
    pub(crate) fn has_kept(&mut self, node: usize, inode: InodeId) -> bool {
        if !self.running_ref(node).newest.checkpoint {
            return true;
        }
        self.know_kept(node, inode);
        let run = self.running_ref(node);
        let settled = run.unsettled.last(kept_inode(number_of(inode))).is_none();
        settled && run.keeping.missing(inode, ByteRange::ALL).is_empty()
    }

    /// Copies what blocks are about to lose, if a checkpoint has it and it is not kept yet. False: it is not here.
    pub(crate) fn keep(&mut self, node: usize, blocks: &[usize]) -> bool {
        let checkpoint = self.running_ref(node).newest.checkpoint;
        if !checkpoint || self.planted(Plant::ReplacedUnkept) {
            return true;
        }
        for &block in blocks {
            let (inode, range) = (file_of(block), range_of(block));
            self.know_kept(node, inode);
            let hasty = self.planted(Plant::ReplacedBeforeKept);
            let run = self.running(node);
            if run.keeping.missing(inode, bytes_of(block)).is_empty() {
                let kept = kept_block(block);
                let (file, place) = (file_of(kept), range_of(kept));
                if run.pull.awaits(file, place) && !hasty {
                    run.pull.want(file, place);
                    return false;
                }
                continue;
            }
            if !run.pull.is_valid(inode, range) {
                run.pull.want(inode, range);
                return false;
            }
            let Some(token) = self.read_block(node, block) else {
                return false;
            };
            self.log(60, node, || format!("keeps block {block}: {token}"));
            self.note(Mark::Kept);
            let (kept, token) = (kept_block(block), kept_token(block, token));
            self.put_in_place(node, &[(kept, token)]);
            let run = self.running(node);
            run.unrecorded.insert(kept, token);
            run.keeping.kept(inode, due(block, token));
            let life = self.nodes[node].incarnation;
            self.after(RECORD_US, Event::RecordDue { node, life });
        }
        true
    }

    /// Whether members may do at once what an operation does to a file without bytes: what was kept of it is on every disk.
    pub(crate) fn may_cut(&mut self, node: usize, op: Op) -> bool {
        let Op::Punch { block, .. } = op else {
            return true;
        };
        let block = usize::from(block);
        let (kept, file) = (kept_block(block), kept_inode(number_of(file_of(block))));
        let run = self.running_ref(node);
        let settled = !run.unrecorded.contains_key(&kept) && run.unsettled.last(file).is_none();
        if !settled {
            self.record_kept(node);
        }
        settled || self.planted(Plant::CutBeforeKept)
    }

    /// What is in place of these blocks becomes their content, though nobody knows what it was before: what the checkpoint
    /// has of them, and was not kept, is lost.
    pub(crate) fn lose_in_past(&mut self, node: usize, blocks: &[usize]) {
        let checkpoint = self.running_ref(node).newest.checkpoint;
        if !checkpoint || self.planted(Plant::RevertUnkept) {
            return;
        }
        for &block in blocks.iter().filter(|block| **block < BLOCKS) {
            let inode = file_of(block);
            self.know_kept(node, inode);
            let keeping = &self.running_ref(node).keeping;
            if keeping.missing(inode, bytes_of(block)).is_empty() {
                continue;
            }
            self.log(61, node, || {
                format!("what the checkpoint has of block {block} is lost")
            });
            let kept = kept_block(block);
            let record = Record {
                data: vec![(kept as u8, kept_token(block, LOST))],
                ..Record::default()
            };
            if let Some(version) = self.propose(node, record) {
                if self.planted(Plant::LostIsOwn) {
                    self.distrust(node, std::iter::once(kept));
                } else {
                    self.running(node).pull.on_ordered_lost(version);
                }
                let run = self.running(node);
                let (file, range) = (file_of(kept), range_of(kept));
                run.invalid_next.push((file, range, Version::default()));
                if let Some(job) = &mut run.sync {
                    job.sound = false;
                }
                let keeping = &mut self.running(node).keeping;
                keeping.kept(inode, due(block, kept_token(block, LOST)));
            }
        }
    }

    /// The blocks of a range of a checkpoint's file that are in place, or were until now in the file that it is about: what
    /// they are known by tells.
    pub(super) fn prove_kept(
        &mut self,
        node: usize,
        inode: InodeId,
        range: ByteRange,
    ) -> Vec<(u8, u64)> {
        let mut proven = Vec::new();
        if !is_kept_file(inode) || self.planted(Plant::KeptUnproven) {
            return proven;
        }
        for kept in blocks_in(inode, range) {
            let block = kept - BLOCKS;
            let Some(known) = self.running_ref(node).newest.kept[block] else {
                continue;
            };
            let trusting = self.planted(Plant::AnySumFits);
            let disk = &self.nodes[node].disk;
            let here = disk.fits(kept) && (disk.cache[kept] == known || trusting);
            let still = disk.fits(block) && kept_token(block, disk.cache[block]) == known;
            if !here && still {
                self.note(Mark::KeptStill);
                self.nodes[node].disk.write(kept, known);
            }
            if here || still {
                proven.push((kept as u8, self.content(node, kept)));
            }
        }
        proven
    }

    /// The record of a change tells of what was kept before it, and comes after the record of that.
    pub(super) fn tell_of_kept(&mut self, node: usize, record: &mut Record) {
        let checkpoint = self.running_ref(node).newest.checkpoint;
        if !checkpoint || self.planted(Plant::KeptUnrecorded) {
            return;
        }
        for file in (0..FILES).map(inode) {
            let changes = record
                .blocks()
                .any(|(block, _)| file_of(usize::from(block)) == file);
            if changes {
                let rows = self.due_rows(node, file);
                record.past.extend(rows);
            }
        }
    }

    fn due_rows(&mut self, node: usize, inode: InodeId) -> Vec<PastRow> {
        let Some(kept) = self.running_ref(node).keeping.is_due(inode) else {
            return Vec::new();
        };
        self.record_writes(node, Some(kept));
        let run = self.running(node);
        let waits = |block| run.unrecorded.contains_key(&block);
        if blocks_in(kept, ByteRange::new(0, FILE_LEN)).any(waits) {
            // Without the lease the change gets no record either.
            return Vec::new();
        }
        let first = blocks_of_file(number_of(inode)).start as u64;
        let due = run.keeping.take_due(inode).into_iter();
        let row = |Due { unit, sum }| PastRow::Kept((first + unit) as u8, token_of(sum));
        due.map(row).collect()
    }

    /// Makes records of all that is kept and of which none tells.
    pub(super) fn record_kept(&mut self, node: usize) {
        let local = self.local(node);
        let run = self.running_ref(node);
        if run.chain.lease_until(local).is_none() {
            return;
        }
        for (inode, _) in run.keeping.all_due() {
            let past = self.due_rows(node, inode);
            if past.is_empty() {
                continue;
            }
            let record = Record {
                past,
                ..Record::default()
            };
            self.propose(node, record);
        }
    }

    /// Where the content of a block as of the checkpoint is, as an owner knows.
    pub(crate) fn place_in_past(&self, node: usize, block: usize) -> usize {
        let run = self.running_ref(node);
        let file = run.keeping.file_of(file_of(block), unit_of(block));
        let kept = run.newest.kept[block].is_some() || file.is_some_and(is_kept_file);
        if kept { kept_block(block) } else { block }
    }
}

/// Whether a block's content is that nobody has what a checkpoint has of it.
pub(super) const fn says_lost(kept: usize, token: u64) -> bool {
    kept >= BLOCKS && token == kept_token(kept - BLOCKS, LOST)
}

/// What a block that is kept is known by.
fn due(block: usize, token: u64) -> Due {
    let mut sum = [0; 32];
    sum[..8].copy_from_slice(&token.to_le_bytes());
    Due {
        unit: unit_of(block),
        sum: Some(Sum(sum)),
    }
}

fn token_of(sum: Option<Sum>) -> u64 {
    let token = sum.and_then(|sum| sum.0.first_chunk::<8>().copied());
    u64::from_le_bytes(token.unwrap_or_default())
}

/// The unit that a block stands for, in its file.
const fn unit_of(block: usize) -> u64 {
    (block % BLOCKS_PER_FILE) as u64
}

/// Its bytes, as [`Keeping`](perigee_meta::past::Keeping) knows them.
const fn bytes_of(block: usize) -> ByteRange {
    ByteRange::with_len(unit_of(block) * UNIT, UNIT)
}
