//! Bytes in records: which ones an owner puts there, and how they get into place.

use super::past::says_lost;
use crate::disk::Disk;
use crate::law;
use crate::model::{Record, blocks_in, file_of, range_of};
use crate::oracle::Mark;
use crate::world::World;
use perigee_replica::pull::Carried;
use perigee_replica::{Plant, Standing};
use perigee_types::{ByteRange, InodeId, Seq};

/// Whether records carry bytes in a seed's history: in a third of them none does, and other things happen more often.
pub(crate) const fn carries(seed: u64) -> bool {
    !seed.is_multiple_of(3)
}

impl World {
    /// Which blocks a record carries: those that it has to, and others as it comes.
    pub(crate) fn choose_carried(&mut self, node: usize, record: &mut Record) {
        if record.data.is_empty() {
            return;
        }
        let all = self.carries && self.rng.chance(1, 3);
        let unsettled = &self.running_ref(node).unsettled;
        let open = |block: usize| {
            let open = unsettled.to_carry(file_of(block), range_of(block));
            !open.is_empty()
        };
        let there = |(block, token): &&(u8, u64)| !says_lost(usize::from(*block), *token);
        let blocks = record.data.iter().filter(there).map(|(block, _)| *block);
        let blocks = blocks.filter(|block| all || open(usize::from(*block)));
        record.carried = blocks.collect();
        if !record.carried.is_empty() {
            self.note(Mark::Carried);
        }
    }

    /// Puts in place what committed records have brought; now and then the disk has no room for some of it yet.
    pub(crate) fn install_carried(&mut self, node: usize) {
        let run = self.running(node);
        let committed = run.chain.committed_version();
        run.pull.note_committed(committed);
        for carried in run.pull.take_carried() {
            if self.rng.chance(1, 4) {
                self.running(node).pull.on_carried_failed(carried);
            } else {
                self.install_one(node, &carried);
            }
        }
    }

    fn install_one(&mut self, node: usize, carried: &Carried) {
        let run = self.running(node);
        let parts = run.pull.carried_parts(carried);
        let seq = carried.version.seq;
        let found = run.chain.entries(seq, seq).next();
        let found = found.filter(|entry| entry.version == carried.version);
        let Some(record) = found.map(|entry| Record::decode(&entry.payload)) else {
            // Only a fault trims what is needed.
            return run.pull.on_carried_lost(carried);
        };
        self.put_carried(node, carried, &parts, &record);
    }

    fn put_carried(
        &mut self,
        node: usize,
        carried: &Carried,
        parts: &[ByteRange],
        record: &Record,
    ) {
        let mut done = Vec::new();
        for block in parts
            .iter()
            .flat_map(|part| blocks_in(carried.inode, *part))
        {
            if let Some(token) = record.carried_token(block) {
                self.log(64, node, || {
                    format!("block {block} is {token}, of {}", carried.version)
                });
                law::checkpoint::on_replaced(self, node, block, token);
                self.nodes[node].disk.write(block, token);
                done.push(range_of(block));
                self.note(Mark::CarriedInstalled);
            }
        }
        let run = self.running(node);
        let as_of = run.chain.committed_version();
        run.pull.on_carried_installed(carried.inode, done, as_of);
        run.stirred = true;
        run.data_unsaid = true;
    }

    /// A deliberate fault: what has come into the log is put in place at once.
    pub(crate) fn install_uncommitted(&mut self, node: usize, record: &Record) {
        for block in record.carried.iter().map(|block| usize::from(*block)) {
            if let Some(token) = record.carried_token(block) {
                self.nodes[node].disk.write(block, token);
            }
        }
    }

    /// Leaves those of some files whose bytes are awaited, once the records are: what records carry is safe with them.
    pub(crate) fn retain_lacking(&mut self, node: usize, files: &mut Vec<InodeId>) {
        let unsettled = &self.running_ref(node).unsettled;
        let all = files.len();
        files.retain(|file| unsettled.lacking(*file).is_some());
        if files.len() < all {
            self.note(Mark::CarriedAwaited);
        }
    }

    /// What the members have said of their data, and this node's own disk.
    pub(crate) fn forget_settled(&mut self, node: usize) {
        let run = self.running(node);
        if run.reign.is_none() || run.unsettled.is_empty() {
            return;
        }
        let others = run.chain.member_progress().into_iter().filter(|member| {
            matches!(
                member.standing,
                Standing::Member | Standing::Admitting { .. }
            )
        });
        let through = others.map(|member| member.data).min();
        let through = through.map_or(run.synced, |seq| seq.min(run.synced));
        run.unsettled.on_all_settled(through);
    }

    /// What this owner does not know to be in place everywhere: all that its log has.
    pub(crate) fn take_over_unsettled(&mut self, node: usize) {
        let run = self.running(node);
        let base = run.chain.base().seq;
        run.unsettled.begin(base);
        let (from, to) = (base.next(), run.chain.last().seq);
        for entry in run.chain.entries(from, to) {
            let record = Record::decode(&entry.payload);
            for command in record.commands() {
                let carried = record.carried_by(&command);
                run.unsettled.note(entry.version.seq, &command, &carried);
            }
        }
    }

    /// Up to which record a sync of now leaves nothing in the log alone.
    pub(crate) fn storable_through(&self, node: usize) -> Seq {
        let run = self.running_ref(node);
        let committed = run.chain.committed();
        match run.pull.carried_from() {
            Some(first) if !self.planted(Plant::CarriedTrimmed) => {
                committed.min(Seq(first.0.saturating_sub(1)))
            }
            _ => committed,
        }
    }

    /// What a restart of this node would put in a block from its log, by the committed history.
    pub(crate) fn redone(&self, disk: &Disk, block: usize) -> Option<u64> {
        let mut found = None;
        for entry in &disk.hard.entries {
            let committed = self.oracle.at(entry.version.seq);
            if committed.map(|committed| committed.version) != Some(entry.version) {
                break;
            }
            if entry.version.seq <= disk.objects.through {
                continue;
            }
            let record = Record::decode(&entry.payload);
            let mut changed = record.blocks().filter(|(b, _)| usize::from(*b) == block);
            if changed.next().is_some() {
                let punched = record.holes.iter().any(|(b, _)| usize::from(*b) == block);
                let token = record.carried_token(block);
                found = token.filter(|_| !punched || found.is_some());
            }
        }
        found
    }
}
