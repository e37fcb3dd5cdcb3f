//! Disks that spoil what they were given: blocks that rot, that a crash tears, or that are written to another one's place.
//!
//! One copy is spoiled while another member has a good one, and no process ends until all copies are good again. With the
//! last good copy the content would be gone: its readers would get errors for ever, and rightly. Seldom the copy of a
//! member that is alone is spoiled, and others have older ones at best: these must not pass for it.

use crate::disk::{Astray, NOISE_FROM, Torn};
use crate::model::{BLOCKS, file_of, range_of};
use crate::oracle::Mark;
use crate::strike::Strike;
use crate::world::{Scenario, World, host_of, id_of};
use perigee_replica::Plant;
use perigee_types::{Rng, Seq};

/// The slowest that a disk gets: nobody takes the place of its node meanwhile.
const SLOW_US: u64 = 300_000;

impl World {
    /// What goes wrong next where disks are bad.
    pub(crate) fn disk_strike(&self, node: usize, rng: &mut Rng) -> Option<Strike> {
        let slow = self.nodes[node].slow_disk_us == 0;
        let most = 10_000 + rng.below(SLOW_US - 10_000);
        let block = rng.below(BLOCKS as u64) as usize;
        match rng.below(8) {
            0..=2 => self
                .may_spoil(node, block)
                .then_some(Strike::Rot(node, block)),
            3 | 4 => Some(Strike::Misdirect(node)),
            5 => Some(Strike::Slow(node, slow.then_some(most))),
            6 => self.is_sound().then_some(Strike::Kill(node)),
            _ => {
                let mut torn =
                    (0..self.nodes.len()).filter(|node| self.tears(*node).next().is_some());
                let node = torn.next().filter(|_| self.is_sound())?;
                Some(Strike::Kill(node))
            }
        }
    }

    /// Whether every node runs, is a member, and has nothing bad on its disk.
    pub(crate) fn is_sound(&self) -> bool {
        let sound = |block: usize| self.nodes.iter().all(|node| node.disk.is_sound(block));
        self.all_are_members() && (0..BLOCKS).all(sound)
    }

    fn all_are_members(&self) -> bool {
        let run = self.nodes.iter().all(|node| node.run.is_some());
        run && self.store.view.chain.len() == self.nodes.len()
    }

    /// Whether a block is valid on a member, and another one's disk has it, too.
    fn may_spoil(&self, node: usize, block: usize) -> bool {
        if self.calm || self.scenario != Scenario::BadDisks || !self.all_are_members() {
            return false;
        }
        let valid = |member: usize| {
            let pull = &self.running_ref(member).pull;
            pull.is_valid(file_of(block), range_of(block))
        };
        let content = self.content(node, block);
        let has_it = |other: usize| {
            let disk = &self.nodes[other].disk;
            let lasts = disk.is_sound(block) && !disk.dirty[block];
            valid(other) && lasts && self.content(other, block) == content
        };
        valid(node) && (0..self.nodes.len()).any(|other| other != node && has_it(other))
    }

    /// Content that no write has made.
    fn noise(&mut self) -> u64 {
        NOISE_FROM + self.fresh_token()
    }

    pub(crate) fn rot(&mut self, node: usize, block: usize) {
        if self.may_spoil(node, block) {
            let noise = self.noise();
            self.nodes[node].disk.spoil(block, noise);
            self.note(Mark::Rot);
        }
    }

    /// Whether a block is valid on the only member.
    pub(crate) fn may_spoil_alone(&self, node: usize, block: usize) -> bool {
        let alone = self.store.view.chain.as_slice() == [id_of(node)];
        if self.calm || self.scenario != Scenario::BadDisks || !alone {
            return false;
        }
        let Some(run) = &self.nodes[node].run else {
            return false;
        };
        let disk = &self.nodes[node].disk;
        let lasts = disk.is_sound(block) && !disk.dirty[block];
        // A write that has no record yet is its owner's alone.
        let recorded = self.oracle.committed_origin(self.content(node, block));
        recorded.is_some() && run.pull.is_valid(file_of(block), range_of(block)) && lasts
    }

    /// Whether no other disk has what a node has of a block.
    fn is_newer(&self, node: usize, block: usize) -> bool {
        let content = self.content(node, block);
        let mut others = (0..self.nodes.len()).filter(|other| *other != node);
        others.all(|other| self.nodes[other].disk.files[block] != content)
    }

    /// A block of the only member rots: one that the others have older content of, if there is any.
    pub(crate) fn rot_alone(&mut self, node: usize, block: usize) {
        let newer =
            |block: &usize| self.may_spoil_alone(node, *block) && self.is_newer(node, *block);
        let block = (0..BLOCKS).find(newer).unwrap_or(block);
        if self.may_spoil_alone(node, block) {
            let origins = self.oracle.origin.get(&self.content(node, block));
            let origin = origins.and_then(|origins| origins.first());
            self.oracle.gone[block] = origin.map_or(Seq::ZERO, |version| version.seq);
            let noise = self.noise();
            self.nodes[node].disk.spoil(block, noise);
            self.note(Mark::Rot);
            self.note_unkept();
        }
    }

    /// Something has changed for the worse: of some blocks no member may have a good copy any more.
    pub(crate) fn note_unkept(&mut self) {
        if self.scenario != Scenario::BadDisks {
            return;
        }
        for block in 0..BLOCKS {
            let members = self.store.view.chain.iter().copied().map(host_of);
            let kept = |member: usize| {
                let disk = &self.nodes[member].disk;
                let (inode, range) = (file_of(block), range_of(block));
                let valid = match &self.nodes[member].run {
                    Some(run) => run.pull.is_valid(inode, range),
                    None => !disk.objects.invalid.contains_key(&inode),
                };
                valid && !disk.wiped && disk.fits(block)
            };
            if !members.into_iter().any(kept) {
                self.oracle.unkept[block] = true;
            }
        }
    }

    /// Which of the blocks that are being synced goes elsewhere.
    pub(crate) fn misdirect(&mut self, node: usize, blocks: &[(usize, u64)]) -> Option<Astray> {
        if !std::mem::take(&mut self.nodes[node].disk.misdirects) {
            return None;
        }
        let &(block, token) = blocks.first()?;
        let to = self.rng.below(BLOCKS as u64) as usize;
        let synced = blocks.iter().any(|(other, _)| *other == to);
        let newest = self.nodes[node].disk.cache[block] == token;
        let spoils = newest && !synced && self.may_spoil(node, block) && self.may_spoil(node, to);
        if !spoils {
            return None;
        }
        self.note(Mark::Misdirected);
        let takes_sum = self.planted(Plant::ChecksumMoves);
        Some(Astray {
            block,
            to,
            takes_sum,
        })
    }

    /// The blocks that a crash of a node may tear: it is writing them.
    fn tears(&self, node: usize) -> impl Iterator<Item = usize> + '_ {
        let dirty = move |block: &usize| self.nodes[node].disk.dirty[*block];
        (0..BLOCKS)
            .filter(dirty)
            .filter(move |block| self.may_spoil(node, *block))
    }

    /// What a crash may leave of them.
    pub(crate) fn torn(&mut self, node: usize) -> Torn {
        let mut torn = Torn::default();
        let blocks: Vec<usize> = self.tears(node).collect();
        for block in blocks {
            torn[block] = Some(self.noise());
        }
        torn
    }
}
