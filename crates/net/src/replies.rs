//! At most once: what one process of a peer has called here, and what it was answered.
//!
//! Invariant: an id is admitted once. A repeat waits for the running call, is answered from here, or is told that the
//! answer is forgotten; it is never run again.

use parking_lot::Mutex;
use perigee_proto::Priority;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::budget::{Budget, Charge};
use crate::connection;
use crate::error::{Fault, Refusal};
use crate::frame::{FLAG_FAULT, FLAG_REFUSED, Kind};
use crate::limits::Merging;
use crate::queue::{Outgoing, SendQueue};
use crate::service::Answer;

/// Ids that one process of a peer may have in use at once: more than its budget lets run. Beyond it the oldest
/// unconfirmed answer is forgotten.
const IDS_MAX: usize = 128 << 10;

#[derive(Debug)]
pub(crate) struct Replies {
    inner: Mutex<Inner>,
    bytes_max: usize,
}

#[derive(Debug, Default)]
struct Inner {
    /// An id below that is not in `entries` is done, or forgotten.
    floor: u64,
    entries: BTreeMap<u64, Entry>,
    /// Ids in the order in which they were answered; some may be gone since.
    answered: VecDeque<u64>,
    bytes: usize,
    /// Calls that run.
    running: usize,
    /// Where answers go; `None` while the peer is not connected.
    link: Option<Arc<SendQueue>>,
}

#[derive(Debug)]
enum Entry {
    Running,
    /// Runs, and nobody waits for it.
    Cancelled,
    Answered(Outgoing),
    Forgotten,
}

/// What to do with a call that arrived.
#[derive(Debug)]
pub(crate) enum Admission {
    /// Run it.
    Run,
    /// It runs already; its answer will go to the newest connection.
    Running,
    /// It has run; this is its answer.
    Answered(Outgoing),
}

/// What came of a call.
pub(crate) enum Outcome {
    Answered(Answer),
    Refused(Refusal),
    Fault(Fault),
}

impl Outcome {
    pub(crate) fn frame(self, id: u64, priority: Priority) -> Outgoing {
        let frame = |method, flags| {
            let mut frame = Outgoing::new(Kind::Answer, priority, method, id);
            frame.flags = flags;
            frame
        };
        match self {
            Self::Answered(answer) => frame(0, 0).with_content(answer.body, answer.payload),
            Self::Refused(refusal) => {
                frame(refusal.code, FLAG_REFUSED).with_content(refusal.detail, Default::default())
            }
            Self::Fault(fault) => frame(fault.number(), FLAG_FAULT),
        }
    }
}

impl Replies {
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self {
            inner: Mutex::default(),
            bytes_max,
        }
    }

    /// Answers go to `queue` from now on.
    pub(crate) fn attach(&self, queue: Arc<SendQueue>) {
        self.inner.lock().link = Some(queue);
    }

    /// `queue`'s connection is gone.
    pub(crate) fn detach(&self, queue: &Arc<SendQueue>) {
        let mut inner = self.inner.lock();
        if inner
            .link
            .as_ref()
            .is_some_and(|link| Arc::ptr_eq(link, queue))
        {
            inner.link = None;
        }
    }

    pub(crate) fn admit(&self, id: u64, priority: Priority) -> Admission {
        let forgotten =
            || Admission::Answered(Outcome::Fault(Fault::Forgotten).frame(id, priority));
        let mut inner = self.inner.lock();
        match inner.entries.get(&id) {
            Some(Entry::Running | Entry::Cancelled) => return Admission::Running,
            Some(Entry::Answered(answer)) => return Admission::Answered(answer.again()),
            Some(Entry::Forgotten) => return forgotten(),
            None if id < inner.floor => return forgotten(),
            None => {}
        }
        inner.entries.insert(id, Entry::Running);
        inner.running += 1;
        inner.forget_beyond(IDS_MAX);
        Admission::Run
    }

    /// A call has run. Its answer is kept for repeats, and sent if the peer is connected; until it is written it counts
    /// against the peer's budget, in the place of `request`.
    /// `merging`: of this process's connections.
    pub(crate) fn finish(
        &self,
        answer: Outgoing,
        request: Charge,
        budget: &Arc<Budget>,
        merging: Merging,
    ) {
        let mut inner = self.inner.lock();
        let haste = connection::haste(merging, inner.running);
        inner.running = inner.running.saturating_sub(1);
        let Some(entry) = inner.entries.get_mut(&answer.id) else {
            return; // confirmed as done: the caller gave it up
        };
        if matches!(entry, Entry::Cancelled) {
            *entry = Entry::Forgotten;
            return;
        }
        *entry = Entry::Answered(answer.again());
        inner.bytes += answer.len();
        inner.answered.push_back(answer.id);
        inner.forget_bytes_beyond(self.bytes_max);
        let link = inner.link.clone();
        drop(inner);
        if let Some(link) = link {
            let mut answer = answer;
            answer.charge = Some(budget.charge(answer.len()));
            link.push(answer, haste);
        }
        // released only now, so that the budget never looks free in between
        drop(request);
    }

    /// The caller has given a call up.
    pub(crate) fn cancel(&self, id: u64) {
        let mut inner = self.inner.lock();
        let Some(entry) = inner.entries.get_mut(&id) else {
            return;
        };
        match entry {
            Entry::Running => *entry = Entry::Cancelled,
            Entry::Answered(_) => inner.forget(id),
            Entry::Cancelled | Entry::Forgotten => {}
        }
    }

    /// The caller is done with every id below `watermark`.
    pub(crate) fn acknowledge(&self, watermark: u64) {
        let mut inner = self.inner.lock();
        if watermark <= inner.floor {
            return;
        }
        inner.floor = watermark;
        while let Some(first) = inner.entries.first_entry()
            && *first.key() < watermark
        {
            if let Entry::Answered(answer) = first.remove() {
                inner.bytes -= answer.len();
            }
        }
        while inner.answered.front().is_some_and(|id| *id < watermark) {
            inner.answered.pop_front();
        }
    }

    #[cfg(test)]
    fn bytes(&self) -> usize {
        self.inner.lock().bytes
    }
}

impl Inner {
    fn forget(&mut self, id: u64) {
        let Some(entry) = self.entries.get_mut(&id) else {
            return;
        };
        if let Entry::Answered(answer) = std::mem::replace(entry, Entry::Forgotten) {
            self.bytes -= answer.len();
        }
    }

    fn forget_bytes_beyond(&mut self, bytes_max: usize) {
        while self.bytes > bytes_max
            && let Some(id) = self.answered.pop_front()
        {
            if matches!(self.entries.get(&id), Some(Entry::Answered(_))) {
                self.forget(id);
            }
        }
    }

    fn forget_beyond(&mut self, ids_max: usize) {
        while self.entries.len() > ids_max {
            let done = |entry: &Entry| matches!(entry, Entry::Answered(_) | Entry::Forgotten);
            let Some(id) = self
                .entries
                .iter()
                .find_map(|(id, entry)| done(entry).then_some(*id))
            else {
                return;
            };
            self.forget(id);
            self.entries.remove(&id);
            self.floor = self.floor.max(id.saturating_add(1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    struct Side {
        replies: Replies,
        budget: Arc<Budget>,
    }

    impl Side {
        fn new(bytes_max: usize) -> Self {
            Self {
                replies: Replies::new(bytes_max),
                budget: Budget::new(1 << 20),
            }
        }

        fn admit(&self, id: u64) -> Admission {
            self.replies.admit(id, Priority::Meta)
        }

        fn finish(&self, id: u64, payload_len: usize) {
            let answer = Answer {
                body: Bytes::new(),
                payload: Bytes::from(vec![0; payload_len]),
            };
            let frame = Outcome::Answered(answer).frame(id, Priority::Meta);
            self.replies
                .finish(frame, self.budget.charge(1), &self.budget, Merging::Off);
        }
    }

    fn flags(admission: &Admission) -> Option<u8> {
        match admission {
            Admission::Answered(answer) => Some(answer.flags),
            Admission::Run | Admission::Running => None,
        }
    }

    #[test]
    fn a_repeat_waits_or_is_answered_and_never_runs() {
        let side = Side::new(1000);
        assert!(matches!(side.admit(1), Admission::Run));
        assert!(matches!(side.admit(1), Admission::Running));
        side.finish(1, 10);
        assert_eq!(flags(&side.admit(1)), Some(0));
        side.replies.acknowledge(2);
        assert_eq!(flags(&side.admit(1)), Some(FLAG_FAULT));
        assert_eq!(side.replies.bytes(), 0);
    }

    #[test]
    fn an_answer_beyond_the_bound_is_forgotten_but_not_run_again() {
        let side = Side::new(250);
        for id in 1..=3 {
            assert!(matches!(side.admit(id), Admission::Run));
            side.finish(id, 60);
        }
        assert_eq!(flags(&side.admit(1)), Some(FLAG_FAULT));
        assert_eq!(flags(&side.admit(2)), Some(0));
        assert_eq!(flags(&side.admit(3)), Some(0));
        assert!(side.replies.bytes() <= 250);
    }

    #[test]
    fn answers_go_to_the_newest_connection_and_hold_the_budget_until_written() {
        let side = Side::new(1000);
        let (old, new) = (
            Arc::new(SendQueue::new(1000)),
            Arc::new(SendQueue::new(1000)),
        );
        side.replies.attach(Arc::clone(&old));
        assert!(matches!(side.admit(1), Admission::Run));
        side.replies.attach(Arc::clone(&new));
        side.replies.detach(&old);
        side.finish(1, 100);
        assert!(old.is_empty());
        assert!(side.budget.used() >= new.bytes());
        new.retain(|_| false);
        assert_eq!(side.budget.used(), 0);
    }

    #[test]
    fn a_cancelled_call_leaves_no_answer() {
        let side = Side::new(1000);
        let queue = Arc::new(SendQueue::new(1000));
        side.replies.attach(Arc::clone(&queue));
        assert!(matches!(side.admit(1), Admission::Run));
        side.replies.cancel(1);
        side.finish(1, 100);
        assert!(queue.is_empty());
        assert_eq!((side.replies.bytes(), side.budget.used()), (0, 0));
        assert_eq!(flags(&side.admit(1)), Some(FLAG_FAULT));
    }

    #[test]
    fn ids_in_use_are_bounded_and_running_ones_are_kept() {
        let side = Side::new(1 << 30);
        assert!(matches!(side.admit(1), Admission::Run));
        for id in 2..IDS_MAX as u64 + 100 {
            assert!(matches!(side.admit(id), Admission::Run));
            side.finish(id, 0);
        }
        assert_eq!(side.replies.inner.lock().entries.len(), IDS_MAX);
        assert!(matches!(side.admit(1), Admission::Running));
        assert_eq!(flags(&side.admit(2)), Some(FLAG_FAULT));
    }
}
