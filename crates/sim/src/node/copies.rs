//! Reads of other copies than the owner's, under its word: a host's own, or that of another member.
//!
//! As in the daemon, the owner gives its word with the answer to a read, once all copies have what there is of the file, and
//! calls it back before it changes the file, gives it to a holder, or cedes (`meta::lease`). What a host makes of the word is
//! [`Reads`], in both.

use super::hold::{Asks, wanted};
use super::{Packet, Waiting};
use crate::model::{Op, Outcome, chunk, file_of, inode, number_of, range_of};
use crate::oracle::Mark;
use crate::world::{Event, Scenario, World, host_of, id_of};
use perigee_meta::Touched;
use perigee_meta::lease::{Holder, TERM};
use perigee_replica::chunk::Access;
use perigee_replica::reads::{AskedToRead, ReadLease};
use perigee_replica::{Input, Plant, Role};
use perigee_types::{Epoch, InodeId, SessionId, Span, Tick};

/// An owner waits this much longer than until a word is over by itself.
const AFTER_TERM_US: u64 = 1_000;
/// The longest that a word is on its way, if it is late.
const LATE_US: u64 = 500_000;
/// A lease that is about to end sooner is asked for anew while reads go on under it.
const RENEWED: Span = Span::from_millis(1_000);
/// A chunk is given away so long after those were called back who could read it.
const GIVE_AGAIN_US: u64 = 20_000;

/// Where a copy is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum At {
    /// At the host that reads.
    Own,
    /// At a member.
    Member {
        /// Which.
        node: usize,
        /// In this epoch.
        epoch: Epoch,
    },
}

/// The owner's word, with its answer to a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Word {
    /// For how long, from the moment when it was asked for.
    pub(crate) ttl: Span,
    /// Which copy may be read.
    pub(crate) copy: At,
}

/// A read that a host has asked its owner for.
#[derive(Debug, Clone, Copy)]
pub struct Asked {
    sent: Tick,
    inode: InodeId,
    asked: AskedToRead,
}

/// A read of a member's copy that is under way.
#[derive(Debug, Clone, Copy)]
pub struct Under {
    lease: ReadLease<At>,
    block: u8,
}

/// What waits until others read no copies under the owner's word any more.
#[derive(Debug)]
pub struct Recall {
    /// An operation; or nothing that is known of here.
    then: Option<(u64, Waiting, Op, Asks)>,
    /// Who is to say so: by the number of the question.
    left: Vec<(u64, Holder)>,
}

/// Whether hosts read copies in a seed's history.
pub(crate) const fn reads_copies(seed: u64, scenario: Scenario) -> bool {
    // In some of these ownership moves, or chunks do.
    matches!(scenario, Scenario::Chaos) && (seed % 4 == 2 || seed % 16 == 13 || seed % 16 == 11)
}

impl World {
    /// Reads another copy than the owner's, where the session may. False: the owner is to be asked.
    pub(crate) fn read_copy(&mut self, node: usize, id: u64, op: Op) -> bool {
        let Op::Read { block } = op else {
            return false;
        };
        let (local, session) = (self.local(node), self.session_of(node));
        let (inode, range) = (file_of(usize::from(block)), range_of(usize::from(block)));
        let lease = self.running_ref(node).reads.lease(session, inode);
        let Some(lease) = lease.filter(|lease| local < lease.until) else {
            return false;
        };
        self.renew(node, lease, (inode, op));
        let run = self.running_ref(node);
        match lease.copy {
            At::Own => {
                let member = matches!(run.chain.role(), Role::Replica { .. });
                let valid = member && run.pull.is_valid(inode, range);
                let read = || self.read_block(node, usize::from(block));
                let Some(token) = valid.then(read).flatten() else {
                    return false;
                };
                self.note(Mark::OwnCopyRead);
                self.finish(node, id, Outcome::Ok(token));
            }
            At::Member { node: at, epoch } => {
                self.nodes[node].session.under = Some(Under { lease, block });
                self.send(node, at, Packet::ReadCopy { id, block, epoch });
            }
        }
        true
    }

    /// A lease that a session reads under is about to end: it is asked for anew, while the session goes on.
    fn renew(&mut self, node: usize, lease: ReadLease<At>, (inode, op): (InodeId, Op)) {
        let (local, session) = (self.local(node), self.session_of(node));
        let run = self.running(node);
        let soon = lease.until.since(local) < RENEWED;
        let owner = run.owner().filter(|owner| *owner != node);
        if let Some(owner) = owner
            && soon
            && run.reads.renews(session, inode, lease.copy)
        {
            self.next_request += 1;
            let id = self.next_request;
            self.request_of(node, owner, id, op);
        }
    }

    /// A host asks for a member's copy.
    pub(crate) fn serve_copy(
        &mut self,
        node: usize,
        from: usize,
        id: u64,
        block: u8,
        epoch: Epoch,
    ) {
        let (inode, range) = (file_of(usize::from(block)), range_of(usize::from(block)));
        let run = self.running_ref(node);
        let here = run.chain.view().is_some_and(|view| view.epoch == epoch);
        let member = matches!(run.chain.role(), Role::Replica { .. });
        let own = run.holding.keeps(inode, range);
        let valid = run.pull.is_valid(inode, range);
        let gives = here && member && !own && valid;
        let read = || self.read_block(node, usize::from(block));
        let value = gives.then(read).flatten();
        self.send(node, from, Packet::CopyIs { id, value });
    }

    /// It has come, or not.
    pub(crate) fn copy_is(&mut self, node: usize, id: u64, value: Option<u64>) {
        if self.nodes[node].session.waiting_for != Some(id) {
            return;
        }
        let Some(under) = self.nodes[node].session.under.take() else {
            return;
        };
        let (local, session) = (self.local(node), self.session_of(node));
        let inode = file_of(usize::from(under.block));
        let reads = &mut self.running(node).reads;
        match value {
            Some(value) if reads.stands(session, inode, under.lease, local) => {
                self.note(Mark::MembersCopyRead);
                self.finish(node, id, Outcome::Ok(value));
            }
            value => {
                if value.is_none() {
                    reads.forget(session, inode);
                }
                self.ask_owner(node, id, Op::Read { block: under.block });
            }
        }
    }

    /// The host is about to ask the owner for something.
    pub(crate) fn note_asked(&mut self, node: usize, id: u64, op: Op) {
        let sent = self.local(node);
        if let Op::Read { block } = op {
            let inode = file_of(usize::from(block));
            let asked = self.running_ref(node).reads.asks(inode);
            let asked = Asked { sent, inode, asked };
            self.nodes[node].session.asked.insert(id, asked);
        }
        if let Some(inode) = changed(op) {
            self.note_own_change(node, inode);
            self.nodes[node].session.changes = Some(inode);
        }
    }

    /// The host changes a file, or has just been told that it did.
    pub(crate) fn note_own_change(&mut self, node: usize, inode: InodeId) {
        let session = self.session_of(node);
        if let Some(run) = &mut self.nodes[node].run {
            run.reads.own_change(inode, [session], At::lags);
        }
    }

    /// The owner's word has come with its answer.
    pub(crate) fn take_word(&mut self, node: usize, id: u64, word: Option<Word>) {
        let asked = self.nodes[node].session.asked.remove(&id);
        let (Some(word), Some(asked)) = (word, asked) else {
            return;
        };
        let (local, session) = (self.local(node), self.session_of(node));
        let term = (local, asked.sent + word.ttl);
        let reads = &mut self.running(node).reads;
        reads.given((session, asked.inode, word.copy), term, asked.asked);
    }

    /// The owner's word for a session of another host, whose read is about to be answered: all that it was shown is in place
    /// on every member.
    pub(crate) fn give_word(&mut self, node: usize, to: usize, op: Op) -> Option<Word> {
        let Op::Read { block } = op else {
            return None;
        };
        if !self.reads_copies {
            return None;
        }
        let of_unsettled = self.planted(Plant::ReadsOfUnsettled);
        let (local, session) = (self.local(node), self.session_of(to));
        let inode = file_of(usize::from(block));
        let run = self.running_ref(node);
        let until = run.chain.lease_until(local)?;
        let view = run.chain.view()?.clone();
        let mut unrecorded = run.unrecorded.keys();
        let settled = run.unsettled.last(inode).is_none()
            && !unrecorded.any(|block| file_of(*block) == inode);
        let hold = run.holds.holder(chunk(number_of(inode)));
        let may_keep = hold.is_none_or(|hold| hold.holder == session);
        if !(settled || of_unsettled) || !may_keep {
            return None;
        }
        let copy = match view.lists(id_of(to)) {
            true => At::Own,
            false => {
                let members = view.chain.get(1..).filter(|members| !members.is_empty())?;
                let node = host_of(members[self.rng.below(members.len() as u64) as usize]);
                let epoch = view.epoch;
                At::Member { node, epoch }
            }
        };
        let leases = &mut self.running(node).leases;
        let limit = leases.limit(local, session, until);
        let ttl = leases.grant(local, inode, session, limit);
        if ttl == Span::ZERO {
            return None;
        }
        self.note(Mark::WordGiven);
        Some(Word { ttl, copy })
    }

    /// Answers a session of another host.
    pub(crate) fn answer_with_word(
        &mut self,
        node: usize,
        (to, id): (usize, u64),
        outcome: Outcome,
        op: Op,
    ) {
        let word = self.give_word(node, to, op);
        let packet = Packet::Reply { id, outcome, word };
        match word {
            Some(_) if self.rng.chance(1, 3) => {
                let late = self.rng.below(LATE_US);
                self.send_slowly(late, node, to, packet);
            }
            _ => self.send(node, to, packet),
        }
    }

    /// Where a change is in place before it is answered: on its session's host, if that may read a copy of its own.
    pub(crate) fn at_writer(&self, node: usize, who: Waiting, op: Op) -> Option<(usize, InodeId)> {
        let (Waiting::Remote { node: writer, .. }, Some(inode)) = (who, changed(op)) else {
            return None;
        };
        let view = self.running_ref(node).chain.view()?;
        let member = self.reads_copies && view.lists(id_of(writer));
        (member && !self.planted(Plant::ReadsBeforeInPlace)).then_some((writer, inode))
    }

    /// Whether nobody else reads copies of what an operation changes. Otherwise these are called back, and it is carried out
    /// later.
    pub(crate) fn passes_readers(
        &mut self,
        node: usize,
        (id, who, op): (u64, Waiting, Op),
        asks: &Asks,
    ) -> bool {
        let Some(inode) = changed(op) else {
            return true;
        };
        if self.planted(Plant::ReadsNotCalledBack) {
            return true;
        }
        let (local, touched) = (self.local(node), [Touched::Data(inode)]);
        let leases = &mut self.running(node).leases;
        if !leases.is_kept(local, asks.session, &touched) {
            return true;
        }
        let holders = leases.recall(local, asks.session, &touched);
        if who == Waiting::Home {
            self.nodes[node].session.waited = true;
        }
        self.call_back(node, holders, Some((id, who, op, asks.clone())));
        false
    }

    fn call_back(
        &mut self,
        node: usize,
        holders: Vec<Holder>,
        then: Option<(u64, Waiting, Op, Asks)>,
    ) {
        let life = self.nodes[node].incarnation;
        let mut left = Vec::new();
        for holder in holders {
            self.note(Mark::CalledBack);
            let id = self.running(node).fresh_id();
            let (session, inodes) = (holder.session, holder.inodes().collect());
            let to = host_of(session.node());
            let packet = Packet::Revoke {
                id,
                session,
                inodes,
            };
            self.send(node, to, packet);
            let at = self.nodes[node].clock.when(holder.until).max(self.now);
            self.at(at + AFTER_TERM_US, Event::RecallDue { node, life, id });
            left.push((id, holder));
        }
        if !left.is_empty() {
            self.running(node).recalls.push(Recall { then, left });
        }
    }

    /// The owner calls its word back.
    pub(crate) fn revoke(
        &mut self,
        node: usize,
        from: usize,
        id: u64,
        session: SessionId,
        inodes: &[InodeId],
    ) {
        let reads = &mut self.running(node).reads;
        reads.revoked(session, inodes.iter().copied());
        self.send(node, from, Packet::Revoked { id });
    }

    /// A session reads no copies of that any more: it says so, or its lease is over.
    pub(crate) fn revoked(&mut self, node: usize, id: u64) {
        let local = self.local(node);
        let run = self.running(node);
        let of = |recall: &Recall| recall.left.iter().position(|(number, _)| *number == id);
        let found = run.recalls.iter().enumerate();
        let found = found
            .filter_map(|(at, recall)| Some((at, of(recall)?)))
            .next();
        let Some((at, which)) = found else {
            return;
        };
        let (_, holder) = run.recalls[at].left.remove(which);
        run.leases.revoked(local, &holder);
        if !run.recalls[at].left.is_empty() {
            return;
        }
        let recall = run.recalls.remove(at);
        match recall.then {
            Some((id, who, op, asks)) => self.execute(node, id, who, op, asks),
            None => self.step(node, Input::Tick),
        }
    }

    /// A reign begins, or is over: leases are the owner's to give.
    pub(crate) fn drop_words(&mut self, node: usize) {
        let run = self.running(node);
        run.leases.clear();
        for recall in std::mem::take(&mut run.recalls) {
            if let Some((id, who, ..)) = recall.then {
                self.answer(node, who, id, Outcome::Refused);
            }
        }
    }

    /// The owner is about to cede: nobody is to read copies under its word then.
    pub(crate) fn call_all_back(&mut self, node: usize) {
        if self.planted(Plant::ReadsOutliveCession) {
            return;
        }
        let local = self.local(node);
        let leases = &mut self.running(node).leases;
        leases.close();
        let holders = leases.recall_all(local);
        self.call_back(node, holders, None);
    }

    /// Whether nobody reads copies under the owner's word.
    pub(crate) fn has_no_readers(&self, node: usize) -> bool {
        let local = self.local(node);
        self.planted(Plant::ReadsOutliveCession) || self.running_ref(node).leases.is_free(local)
    }

    /// Whether a chunk may move to a session: nobody else reads copies of it. Otherwise they are called back, and it moves
    /// later.
    pub(crate) fn may_move(&mut self, node: usize, by: SessionId, file: usize) -> bool {
        let (local, touched) = (self.local(node), [Touched::Data(inode(file))]);
        let leases = &mut self.running(node).leases;
        if !leases.is_kept(local, by, &touched) {
            return true;
        }
        let holders = leases.recall(local, by, &touched);
        self.call_back(node, holders, None);
        let life = self.nodes[node].incarnation;
        let event = Event::Give {
            node,
            life,
            by,
            file,
        };
        self.after(GIVE_AGAIN_US, event);
        false
    }

    /// When a process that starts takes changes, if its disk says that it may have been an owner before: others may read copies
    /// under its word until then.
    pub(crate) fn changes_from(&self, node: usize) -> u64 {
        let promised = self.nodes[node].disk.hard.promised;
        let first = promised == Epoch(0) || self.planted(Plant::ReadsOutliveRestart);
        match self.reads_copies && !first {
            true => self.nodes[node].clock.when(self.local(node) + TERM),
            false => 0,
        }
    }
}

impl At {
    /// Whether a change may be in place there later than the owner's answer says.
    fn lags(&self) -> bool {
        *self != Self::Own
    }
}

/// The file that an operation changes.
fn changed(op: Op) -> Option<InodeId> {
    let (block, access) = wanted(op)?;
    (access == Access::Change).then(|| file_of(block))
}
