//! Strikes at moments that one fault needs, and that come seldom: a fault that needs several things to come together is
//! found by chance in a history of many thousands otherwise.

use crate::chaos::KILL_SOON_US;
use crate::model::{ALL_BLOCKS, BLOCKS, file_of, range_of};
use crate::node::Running;
use crate::strike::{ControlStore, Strike, Way};
use crate::world::{SECOND, World, host_of};

/// Of an owner that is killed soon, the writes without a record may have got one, or not.
const RECORD_SOON_US: u64 = 500_000;
/// Of an owner that is killed soon, members may have what it has written, or not.
const REWRITTEN_US: u64 = 30_000;

impl World {
    /// An owner orders a record while another one is on its way: the host that comes after it does not get this
    /// one, and another member does.
    pub(crate) fn aim_at_second_record(&mut self, owner: usize) {
        if self.is_kind() {
            return;
        }
        let chain = &self.running_ref(owner).chain;
        let waits = chain.last().seq > chain.committed();
        let members = chain.view().map_or(&[][..], |view| &view.chain);
        let &[_, next, _, ..] = members else { return };
        if !waits {
            return;
        }
        let mut dice = self.numbered.rare();
        if dice.rng.chance(1, 8) {
            let after = dice.rng.below(KILL_SOON_US);
            self.strike(&dice, Strike::LastWords(owner, host_of(next), after));
        }
    }

    /// Bytes of a write and their checksum are on an owner's disk, and there is no record of it: a good moment to end
    /// the owner.
    pub(crate) fn aim_at_unrecorded(&mut self, owner: usize) {
        if self.is_kind() {
            return;
        }
        let mut dice = self.numbered.rare();
        if dice.rng.chance(1, 20) {
            let after = dice.rng.below(RECORD_SOON_US);
            self.strike(&dice, Strike::KillSoon(owner, after));
        }
    }

    /// An owner has written a block of which its disk says that it is spoiled: when it ends before that is put right, what
    /// others have in place is the best that there is.
    pub(crate) fn aim_at_rewritten(&mut self, owner: usize, block: usize) {
        let known = &self.nodes[owner].disk.objects.invalid;
        let spoiled = known
            .get(&file_of(block))
            .is_some_and(|known| known.spoiled(range_of(block)).next().is_some());
        if self.calm || !spoiled || !self.is_sound() {
            return;
        }
        let mut dice = self.numbered.rare();
        let after = dice.rng.below(REWRITTEN_US);
        self.strike(&dice, Strike::KillSoon(owner, after));
    }

    /// An owner was replaced that has bytes to give up, and knows more to be committed than a member: it comes back and
    /// asks that one while the new owner has not told it more.
    pub(crate) fn aim_at_former(&mut self, owner: usize) {
        let gives_up = |node: &usize| {
            let host = &self.nodes[*node];
            let reign = host.run.as_ref().filter(|run| run.reign.is_some());
            let bytes = reign.is_some_and(|run| !run.unrecorded.is_empty());
            *node != owner && (bytes || reign.is_some() && !host.disk.notes.is_empty())
        };
        let Some(former) = (0..self.nodes.len()).find(gives_up) else {
            return;
        };
        let known = self.running_ref(former).chain.committed();
        let knows_less = |member: &usize| {
            let run = self.nodes[*member].run.as_ref();
            *member != owner && run.is_some_and(|run| run.chain.committed() < known)
        };
        let mut members = self.store.view.chain.iter().copied().map(host_of);
        let Some(member) = members.find(knows_less) else {
            return;
        };
        let mut dice = self.numbered.rare();
        if dice.rng.chance(3, 4) {
            let span = 700_000 + dice.rng.below(SECOND);
            self.strike(&dice, Strike::ComesBack(former, owner, member, span));
        }
    }

    /// The record of such a write goes to the disk: another one.
    pub(crate) fn aim_at_record(&mut self, owner: usize) {
        if self.is_kind() {
            return;
        }
        let mut dice = self.numbered.rare();
        if dice.rng.chance(1, 8) {
            let after = dice.rng.below(2_000);
            self.strike(&dice, Strike::KillSoon(owner, after));
        }
    }

    /// A host has written to a chunk that it holds: a good moment to end it or its owner, or to part them.
    pub(crate) fn aim_at_holder(&mut self, holder: usize) {
        let owner = self.running_ref(holder).owner();
        let Some(owner) = owner.filter(|owner| *owner != holder && !self.calm) else {
            return;
        };
        let mut dice = self.numbered.rare();
        if !dice.rng.chance(1, 12) {
            return;
        }
        let span = 300_000 + dice.rng.below(4 * SECOND);
        let strike = match dice.rng.below(6) {
            0 => Strike::KillSoon(holder, span / 4),
            1 => Strike::KillSoon(owner, span / 4),
            2 => Strike::CutBriefly(holder, owner, span),
            3 => Strike::CutBriefly(owner, holder, span),
            4 => Strike::Pause(holder, span),
            _ => Strike::CutPair(holder, owner, Way::Both),
        };
        self.strike(&dice, strike);
    }

    /// Something that a holder sends comes late: the owner forgets what came after it.
    pub(crate) fn aim_at_stray(&mut self, owner: usize) {
        let mut dice = self.numbered.rare();
        if dice.rng.chance(1, 3) {
            let after = SECOND + dice.rng.below(3 * SECOND);
            self.strike(&dice, Strike::KillSoon(owner, after));
        }
    }

    /// A member is alone: nobody else need have what it has.
    pub(crate) fn aim_at_last_copy(&mut self, owner: usize) {
        if !(0..BLOCKS).any(|block| self.may_spoil_alone(owner, block)) {
            return;
        }
        let mut dice = self.numbered.rare();
        if dice.rng.chance(3, 4) {
            let block = dice.rng.below(BLOCKS as u64) as usize;
            let after = dice.rng.below(3 * SECOND);
            self.strike(&dice, Strike::RotAlone(owner, block, after));
        }
    }

    /// An owner has members that took its word that nobody has a block: one of them owns next.
    pub(crate) fn aim_at_lost(&mut self, owner: usize) {
        let reigns = |run: &Running| run.reign.is_some();
        let listed = self.store.view.chain.len() > 1;
        let reigns = self.nodes[owner].run.as_ref().is_some_and(reigns);
        if self.calm
            || !listed
            || !reigns
            || !(0..ALL_BLOCKS).any(|block| self.is_lost(owner, block))
        {
            return;
        }
        let mut dice = self.numbered.rare();
        if dice.rng.chance(1, 2) {
            self.strike(&dice, Strike::CutOff(owner, ControlStore::CutOff));
        }
    }

    /// A joiner that was called to fetch the state is about to be listed.
    pub(crate) fn aim_at_listed(&mut self, joiner: usize) {
        if !self.state_calls.contains_key(&joiner) {
            return;
        }
        let mut dice = self.numbered.rare();
        if dice.rng.chance(1, 8) {
            let after = dice.rng.below(SECOND);
            self.strike(&dice, Strike::LateCall(joiner, after));
        }
    }

    /// A new owner has records that a member does not know to be committed, and fewer than it: its first words, which
    /// would replace those, are lost.
    pub(crate) fn aim_at_longer_log(&mut self, owner: usize) {
        let Some(run) = &self.nodes[owner].run else {
            return;
        };
        let last = run.chain.last().seq;
        let is_ahead = |member: &usize| {
            let run = self.nodes[*member].run.as_ref();
            run.is_some_and(|run| run.chain.last().seq > last && run.chain.committed() < last)
        };
        let mut members = self.store.view.chain.iter().copied().map(host_of);
        let Some(member) = members.find(is_ahead) else {
            return;
        };
        let mut dice = self.numbered.rare();
        if dice.rng.chance(3, 4) {
            let span = 5_000 + dice.rng.below(400_000);
            self.strike(&dice, Strike::CutBriefly(owner, member, span));
        }
    }
}
