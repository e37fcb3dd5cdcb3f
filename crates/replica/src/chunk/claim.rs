//! The holder's side of the right to a chunk, whatever it does with that.

use super::Hold;
use super::holder::Report;
use perigee_types::{SessionId, Span, Tick};

/// No answer is on its way for longer.
const LATELY: Span = Span::from_millis(30_000);

/// A row that a node has heard of, and the right by it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Claim {
    pub(super) hold: Hold,
    /// Until then, by this node's clock.
    right: Option<Tick>,
    asked: u64,
    /// Answers to earlier questions say nothing any more.
    answers_from: u64,
    stopping: bool,
}

impl Claim {
    pub(super) const fn new(hold: Hold) -> Self {
        Self {
            hold,
            right: None,
            asked: 0,
            answers_from: 0,
            stopping: false,
        }
    }

    pub(super) fn is_of(&self, session: SessionId) -> bool {
        self.hold.holder == session
    }

    /// Nothing begins by this row any more. It stays known, so that a late word does not bring it back.
    pub(super) const fn is_stopping(&self) -> bool {
        self.stopping
    }

    /// Whether the right lasts at that time.
    pub(super) fn lasts_at(&self, at: Tick) -> bool {
        self.right.is_some_and(|until| at < until)
    }

    /// Whether there is a right, or was one so lately that an answer to a question for it may be on its way.
    pub(super) fn lasted_lately(&self, now: Tick) -> bool {
        self.right.is_some_and(|until| now < until + LATELY)
    }

    /// The row and the number of one more question for the right; `None` where none is to be expected.
    pub(super) fn ask(&mut self) -> Option<(Hold, u64)> {
        (!self.stopping).then(|| {
            self.asked += 1;
            (self.hold, self.asked)
        })
    }

    /// The owner has granted by `hold`, for so long, what was asked as the `number`th question, at `asked_at`.
    pub(super) fn on_right(&mut self, hold: Hold, (number, asked_at): (u64, Tick), lasts: Span) {
        if self.hold == hold && !self.stopping && number >= self.answers_from {
            self.right = self.right.max(Some(asked_at + lasts));
        }
    }

    /// Nothing begins by this row any more.
    pub(super) fn stop(&mut self) {
        self.stopping = true;
        self.right = None;
    }

    /// It is said that nothing begins any more, and not kept: a deliberate fault.
    pub(super) fn only_say_stop(&mut self) {
        self.stopping = true;
    }

    /// Nothing begins before it has asked once more.
    pub(super) fn rest(&mut self) -> Report {
        self.right = None;
        self.answers_from = self.asked + 1;
        Report::Rests { asked: self.asked }
    }
}
