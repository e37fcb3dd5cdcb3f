//! The member's side: takes the owner's records, and answers once they are on disk.
//!
//! An acknowledgement grants the owner a lease, so it is refused to an older epoch, and withheld while this
//! node's own proposal may be winning.

use super::{Answer, Chain, Part, Storage, planted};
use crate::log::{Fit, follows};
use crate::message::{ChainView, Entry, Fault, Message, Output, Refusal};
use perigee_types::{Epoch, NodeId, Seq, Tick, Version};

/// What a follower knows of its owner's log.
#[derive(Debug)]
pub(super) struct Follow {
    /// Equal to the owner's log up to here.
    matched: Seq,
    /// The owner says that this is committed.
    commit: Seq,
    /// This node will be listed once it has everything up to here.
    admit: Option<Seq>,
    /// Whether this view's owner has sent anything.
    heard: bool,
    /// When the newest message that was acknowledged was sent: the owner may list this node for what that said.
    answered: Option<Tick>,
    /// The owner's records did not fit last.
    misfits: bool,
    /// The owner has ceded to this node, whose proposal may win.
    pub(super) ceded: bool,
}

impl Follow {
    /// Committed records are in every owner's log.
    pub(super) fn new(committed: Seq) -> Self {
        Self {
            matched: committed,
            commit: committed,
            admit: None,
            heard: false,
            answered: None,
            misfits: false,
            ceded: false,
        }
    }

    /// Whether anything was acknowledged that the owner sent after this moment of its clock.
    pub(super) fn has_answered_after(&self, sent_at: Tick) -> bool {
        self.answered > Some(sent_at)
    }

    pub(super) fn has_heard(&self) -> bool {
        self.heard
    }
}

/// Records as they arrive.
pub(super) struct Run {
    pub(super) prev: Version,
    pub(super) entries: Vec<Entry>,
    pub(super) commit: Seq,
    pub(super) admit: Option<Seq>,
}

impl Run {
    /// Whether the records follow each other, and none is from an epoch after the sender's.
    fn is_sound(&self, view: &ChainView) -> bool {
        let mut last = self.prev;
        self.entries.iter().all(|entry| {
            let sound = follows(last, entry.version) && entry.version.epoch <= view.epoch;
            last = entry.version;
            sound
        })
    }
}

impl Chain {
    pub(super) fn on_append(
        &mut self,
        from: NodeId,
        view: ChainView,
        run: Run,
        sent_at: Tick,
        out: &mut Vec<Output>,
    ) {
        if !run.is_sound(&view) {
            return;
        }
        let answer = Answer {
            to: from,
            epoch: view.epoch,
            sent_at,
        };
        if !self.admits(view, answer, out) {
            return;
        }
        if self.installing {
            return self.refuse(answer, Refusal::Installing, out);
        }
        self.match_run(run, answer, out);
    }

    /// Whether the sender of `view` is the owner that this node follows now; becomes so if the view is new.
    fn admits(&mut self, view: ChainView, answer: Answer, out: &mut Vec<Output>) -> bool {
        if view.owner() != Some(answer.to) || answer.to == self.me {
            return false;
        }
        if self.storage == Storage::Partial && self.view.is_none() {
            return false;
        }
        let known = self
            .view
            .as_ref()
            .map_or(self.promised, |v| v.epoch)
            .max(self.promised);
        if view.epoch < known && !planted!(self, NoFence) {
            let promised = known;
            self.refuse(answer, Refusal::StaleEpoch { promised }, out);
            return false;
        }
        if view.epoch > known || self.view.is_none() {
            self.adopt(view, out);
        } else if view.epoch == known && self.view.as_ref() != Some(&view) {
            return false;
        }
        let listed = self.view.as_ref().is_some_and(|v| v.lists(self.me));
        if listed && self.storage != Storage::Complete && !planted!(self, WipedMemberVotes) {
            if self.storage == Storage::Completing {
                return false;
            }
            self.refuse(answer, Refusal::Lost, out);
            return false;
        }
        if self.proposals.is_open() && !planted!(self, GrantWhileProposing) {
            return false;
        }
        matches!(self.part, Part::Follow(_))
    }

    fn match_run(&mut self, run: Run, answer: Answer, out: &mut Vec<Output>) {
        let Part::Follow(follow) = &mut self.part else {
            return;
        };
        follow.heard = true;
        let rises = answer.epoch > self.promised;
        self.promised = self.promised.max(answer.epoch);
        if planted!(self, EmptyStorageTrusted) && self.storage == Storage::Partial {
            self.storage = Storage::Completing;
        }
        let (conflict, new_from) = match self.log.fit(run.prev, &run.entries) {
            Fit::Gap => return self.misfit(rises, answer, Misfit::Gap, out),
            Fit::Mismatch => {
                return self.misfit(rises, answer, Misfit::Mismatch(run.prev.seq), out);
            }
            Fit::Fits { conflict, new_from } => (conflict, new_from),
        };
        if let Some(from) = conflict {
            if from <= self.committed {
                let held = self.log.version_at(from).unwrap_or(self.log.base());
                let epoch = answer.epoch;
                return self.halt(Fault::CommittedConflict { held, epoch }, out);
            }
            self.truncate(from, out);
        }
        let end = Seq(run.prev.seq.0 + run.entries.len() as u64);
        let gained = new_from < run.entries.len();
        for entry in run.entries.into_iter().skip(new_from) {
            self.log.push(entry);
        }
        if let Part::Follow(follow) = &mut self.part {
            follow.matched = follow.matched.max(end);
            follow.commit = follow.commit.max(run.commit);
            follow.misfits = false;
            follow.admit = run.admit.max(follow.admit);
        }
        self.complete_storage(out);
        self.follow_commit(out);
        self.answer_after_disk(rises || gained, conflict, answer, out);
    }

    /// Persists what is new, and acknowledges when everything that the answer promises is on disk.
    fn answer_after_disk(
        &mut self,
        write: bool,
        conflict: Option<Seq>,
        answer: Answer,
        out: &mut Vec<Output>,
    ) {
        if write {
            self.persist(conflict, Some(answer), out);
        }
        // A heartbeat is answered although records are still on their way to the disk: it says how far they are.
        if planted!(self, AckBeforePersist) {
            self.durable = self.written;
            self.promised_durable = self.promised;
            self.acknowledge(answer, out);
        } else if !write && self.promised_durable >= answer.epoch {
            self.acknowledge(answer, out);
        } else if !write && let Some(last) = self.writes.back_mut() {
            last.answer = Some(answer);
        }
    }

    /// Refuses records that do not fit. The promise of a new epoch is persisted first by an own write; the
    /// refusal itself promises nothing.
    fn misfit(&mut self, rises: bool, answer: Answer, misfit: Misfit, out: &mut Vec<Output>) {
        if rises {
            self.persist(None, None, out);
        }
        if let Part::Follow(follow) = &mut self.part {
            follow.misfits = true;
        }
        let reason = match misfit {
            Misfit::Gap => Refusal::Gap {
                last: self.log.last(),
            },
            Misfit::Mismatch(at) => Refusal::Mismatch {
                at,
                committed: self.committed,
                last: self.log.last(),
            },
        };
        self.refuse(answer, reason, out);
    }

    /// Sends the acknowledgement if this node still follows that owner; this grants a lease.
    pub(super) fn acknowledge(&mut self, answer: Answer, out: &mut Vec<Output>) {
        let Part::Follow(follow) = &self.part else {
            return;
        };
        let follows = self.promised == answer.epoch || planted!(self, NoFence);
        let current =
            self.view.as_ref().is_some_and(|v| v.epoch == answer.epoch) || planted!(self, NoFence);
        let open = self.proposals.is_open() && !planted!(self, GrantWhileProposing);
        if !follows || !current || open {
            return;
        }
        let mut durable = self.durable.min(follow.matched);
        if planted!(self, AckUnmatched) {
            durable = self.durable;
        }
        if self.installing && !planted!(self, StateDiscardsAcked) {
            // The state that is on its way replaces these records: no more of them is promised.
            durable = durable.min(self.acknowledged);
        }
        self.granted = Some(self.now);
        self.acknowledged = self.acknowledged.max(durable);
        if let Part::Follow(follow) = &mut self.part {
            follow.answered = follow.answered.max(Some(answer.sent_at));
        }
        out.push(Output::Send {
            to: answer.to,
            message: Message::AppendAck {
                epoch: answer.epoch,
                durable,
                data: self.told_data(),
                sent_at: answer.sent_at,
            },
        });
    }

    pub(super) fn on_data_through(&mut self, seq: Seq, out: &mut Vec<Output>) {
        self.data = seq.min(self.log.last().seq);
        self.complete_storage(out);
    }

    /// Notes on disk that this storage is complete, once it has all that its owner named.
    pub(super) fn complete_storage(&mut self, out: &mut Vec<Output>) {
        let Part::Follow(follow) = &self.part else {
            return;
        };
        if self.installing && !planted!(self, StateDiscardsData) {
            return;
        }
        let equal = self.durable.min(follow.matched).min(self.data);
        let complete = follow.admit.is_some_and(|admit| equal >= admit);
        if complete && self.storage == Storage::Partial {
            self.storage = Storage::Completing;
            self.persist(None, None, out);
        }
    }

    /// What this node may say about its data: a joiner not that it can be listed, before its disk says so.
    fn told_data(&self) -> Seq {
        if self.installing && !planted!(self, StateDiscardsData) {
            // The state that is on its way discards it.
            return Seq::ZERO;
        }
        match &self.part {
            Part::Follow(follow) if self.storage != Storage::Complete => {
                let below = |admit: Seq| Seq(admit.0.saturating_sub(1));
                follow
                    .admit
                    .map_or(Seq::ZERO, |admit| self.data.min(below(admit)))
            }
            Part::Follow(_) | Part::Reign(_) => self.data,
        }
    }

    /// Applies what the owner says is committed, as far as it is equal and on disk here.
    pub(super) fn follow_commit(&mut self, out: &mut Vec<Output>) {
        if self.installing {
            return;
        }
        if let Part::Follow(follow) = &self.part {
            let through = follow.commit.min(follow.matched).min(self.durable);
            self.commit_through(through, out);
        }
    }

    pub(super) fn on_state_needed(
        &mut self,
        from: NodeId,
        view: ChainView,
        (last, sent_at): (Version, Tick),
        out: &mut Vec<Output>,
    ) {
        let listed = view.lists(self.me);
        let current = self.view.as_ref().is_some_and(|v| *v == view);
        // A new view arrives with an Append first: nothing is installed on the word of a node that may be old.
        if listed || !current || view.owner() != Some(from) {
            return;
        }
        // The owner counts what was acknowledged since it sent this, and may list this node for the data that it had. One
        // that comes once more finds records that fit, or another log than the one that did not: a process before this one
        // may have had that, and acknowledged more since.
        let late = match &self.part {
            Part::Follow(follow) => {
                let answered = follow.answered >= Some(sent_at);
                !follow.misfits || answered || self.log.last() != last
            }
            Part::Reign(_) => true,
        };
        let obeys = [
            planted!(self, StateDiscardsData),
            planted!(self, StateDiscardsAcked),
        ];
        if (late || self.installing) && !obeys.contains(&true) {
            return;
        }
        self.installing = true;
        out.push(Output::NeedState { from });
    }

    pub(super) fn on_installed(&mut self, base: Version, out: &mut Vec<Output>) {
        if !self.installing {
            return;
        }
        let accepted = self.accepts_state(base);
        self.installing = false;
        if !accepted {
            let committed = self.committed.max(self.acknowledged);
            return self.halt(Fault::StateTooOld { base, committed }, out);
        }
        self.log.reset(base);
        // A driver may make room for a state by removing everything.
        self.viewed = Epoch(0);
        self.written = base.seq;
        self.durable = base.seq;
        self.committed = base.seq;
        self.handed = base.seq;
        self.data = Seq::ZERO;
        self.synced = base.seq;
        let emptied = !planted!(self, StateDiscardsData);
        if emptied {
            // It has no data: a view that lists this node before it has is about what it had.
            self.storage = Storage::Partial;
        }
        for write in &mut self.writes {
            write.through = base.seq;
            write.completes &= !emptied;
        }
        if let Part::Follow(follow) = &mut self.part {
            follow.misfits = false;
            follow.admit = None;
            follow.matched = base.seq;
            follow.commit = follow.commit.max(base.seq);
        }
    }

    fn refuse(&self, answer: Answer, reason: Refusal, out: &mut Vec<Output>) {
        out.push(Output::Send {
            to: answer.to,
            message: Message::AppendRefused {
                epoch: answer.epoch,
                reason,
                sent_at: answer.sent_at,
            },
        });
    }
}

#[derive(Clone, Copy)]
enum Misfit {
    Gap,
    Mismatch(Seq),
}
