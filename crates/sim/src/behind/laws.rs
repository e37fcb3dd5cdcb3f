//! What programs may rely on, and what they have seen.
//!
//! - **register**: a read gives of each block what a write has put there, and nothing that was overwritten before the read began: no
//!   write to it began after that one was answered, and was answered before the read began. Writes that were refused later, or were
//!   under way when their host crashed, may be missing. What was refused is seen by nobody.
//! - **refused**: a write that its program was answered for is refused only where the row was removed for its holder's silence;
//!   and a holder is silent only while it is cut off or down.
//! - **waited**: when a program has waited for what its host had under way, that is in the state.
//! - **closed**: what a host hears of as ordered an owner has ordered; and when a program has waited until what its host had under way is
//!   with the owner, the one that it was sent to last has ordered it. It outlives its host where that owner goes on.
//! - **calm**: in the end everything that was begun ends, and all hosts read the same.
//!
//! Moments are events, counted: no two things happen at once.

use super::Run;
use super::world::World;
use perigee_types::Version;
use std::collections::{BTreeMap, BTreeSet};

/// A write of a program.
#[derive(Debug, Clone, Copy)]
pub struct Written {
    /// Of which host, in which of its lives.
    pub by: (usize, u32),
    /// Where.
    pub run: Run,
    /// When its program asked for it.
    pub began: u64,
    /// In which owner's reign that was.
    pub reign: u64,
    /// When that was answered.
    pub answered: Option<u64>,
    /// The owner that it was sent to last.
    pub sent: u64,
    /// The last owner that has ordered it.
    pub ordered: Option<u64>,
    /// The owner that its host has last heard of having ordered it.
    pub left: Option<u64>,
    /// Its host was told that it does not count.
    pub refused: bool,
    /// It was under way when its host crashed, and no owner that goes on has it.
    pub lost: bool,
}

/// What a read gave.
#[derive(Debug, Clone)]
pub struct Seen {
    run: Run,
    values: Vec<u64>,
    host: usize,
    began: u64,
    at: u64,
}

/// What there is to look back at.
#[derive(Debug, Default)]
pub struct Past {
    /// By what they write.
    pub writes: BTreeMap<u64, Written>,
    reads: Vec<Seen>,
    /// The rows that were removed for their holders' silence.
    pub silent: BTreeSet<Version>,
}

impl World {
    /// A program's read has ended.
    pub(super) fn saw(&mut self, host: usize, run: Run, began: u64, values: Vec<u64>) {
        let at = self.now;
        self.past.reads.push(Seen {
            run,
            values,
            host,
            began,
            at,
        });
    }

    /// A host hears that a write does not count. `token`: of the row by which it was sent.
    pub(super) fn heard_refusal(&mut self, host: usize, id: u64, token: Option<Version>) {
        if let Some(write) = self.past.writes.get_mut(&id) {
            write.refused = true;
        }
        if token.is_none_or(|token| !self.past.silent.contains(&token)) {
            let what = format!(
                "write {id} of n{} is refused, which was not silent",
                host + 1
            );
            self.accuse("refused", what);
        }
    }

    /// A program has waited for what its host had under way when it began to wait.
    pub(super) fn waited(&mut self, by: (usize, u32), began: u64) {
        let mut missing = self.past.writes.iter().filter(|(id, write)| {
            let before = write.by == by && write.answered.is_some_and(|at| at < began);
            before && !write.refused && !self.committed.carried_out.contains(id)
        });
        if let Some((id, _)) = missing.next() {
            let what = format!("n{} was told that write {id} has arrived", by.0 + 1);
            self.accuse("waited", what);
        }
    }

    /// A host has heard that the owner of this reign has ordered a write.
    pub(super) fn left(&mut self, id: u64, epoch: u64) {
        if let Some(write) = self.past.writes.get_mut(&id) {
            write.left = Some(epoch);
            if write.ordered.is_none_or(|ordered| ordered < epoch) {
                let what = format!("the owner of reign {epoch} has not ordered write {id}");
                self.accuse("closed", what);
            }
        }
    }

    /// A program has waited until the owner had ordered what its host had under way when it began to wait.
    pub(super) fn closed(&mut self, by: (usize, u32), began: u64) {
        let mut missing = self.past.writes.iter().filter(|(id, write)| {
            let before = write.by == by && write.answered.is_some_and(|at| at < began);
            let ordered = write.ordered.is_some_and(|ordered| ordered >= write.sent);
            let there = ordered || self.committed.carried_out.contains(id);
            before && !write.refused && !there
        });
        if let Some((id, _)) = missing.next() {
            let what = format!("n{} was told that write {id} is with the owner", by.0 + 1);
            self.accuse("closed", what);
        }
    }

    /// Looks back, once nothing is under way any more.
    pub(super) fn look_back(&mut self) {
        let refused = |(id, write): &(&u64, &Written)| {
            write.refused && self.committed.carried_out.contains(id)
        };
        if let Some((id, _)) = self.past.writes.iter().find(refused) {
            let what = format!("write {id} was refused, and carried out");
            self.accuse("register", what);
        }
        for seen in std::mem::take(&mut self.past.reads) {
            let mut pairs = seen.run.blocks().zip(seen.values.iter().copied());
            let wrong = |(block, value)| self.wrong(block, value, seen.began);
            if let Some(what) = pairs.find_map(wrong) {
                self.now = seen.at;
                return self.accuse("register", format!("n{} read {what}", seen.host + 1));
            }
        }
    }

    /// What is wrong with what a read that began then has seen of a block.
    fn wrong(&self, block: usize, value: u64, began: u64) -> Option<String> {
        let writes = &self.past.writes;
        let there = |write: &&Written| write.run.blocks().contains(&block);
        // What was there in the beginning was answered before everything.
        let answered = match (value, writes.get(&value).filter(there)) {
            (0, _) => Some(0),
            (_, None) => return Some(format!("{value} in block {block}, which nobody wrote")),
            (_, Some(write)) if write.refused => {
                return Some(format!("{value} in block {block}, which was refused"));
            }
            (_, Some(write)) => write.answered,
        };
        let answered = answered?;
        let newer = writes.iter().find(|(_, write)| {
            let counts = there(write) && !write.refused && !write.lost;
            counts && write.began > answered && write.answered.is_some_and(|at| at < began)
        });
        newer.map(|(newer, _)| format!("{value} in block {block}, after {newer} was written there"))
    }

    /// Everything has to have ended.
    pub(super) fn settled(&mut self) {
        for host in 0..self.hosts.len() {
            if let Some(what) = self.hosts[host].unsettled() {
                return self.accuse("calm", format!("n{} is at {what}", host + 1));
            }
        }
    }

    /// All hosts have read everything, and the same.
    pub(super) fn same_everywhere(&mut self) {
        self.settled();
        let count = self.hosts.len();
        let reads = &self.past.reads;
        let last = reads.iter().skip(reads.len().saturating_sub(count));
        let mut differs = last.filter(|seen| seen.values != self.committed.blocks);
        if let Some(seen) = differs.next() {
            let what = format!("n{} reads {:?} in the end", seen.host + 1, seen.values);
            self.accuse("calm", what);
        }
    }
}
