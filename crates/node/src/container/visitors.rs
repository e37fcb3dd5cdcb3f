//! Whether programs of other hosts may have files of a container open. A file that nobody has open goes with its last name,
//! in one record; of others the reaper asks every host.

use perigee_types::{Span, Tick};

/// Where somebody has a file open, the next question waits for so long.
const AGAIN: Span = Span::from_millis(1_000);

/// What the owner knows of it.
#[derive(Debug, Default)]
pub(super) struct Visitors {
    /// Nobody has, since all hosts said so, or since there has been a file at all.
    absent: bool,
    /// Counts what makes an older answer worthless.
    came: u64,
    /// A file was left to the reaper because of them since they were asked about.
    in_the_way: bool,
    ask_from: Tick,
}

/// A question to all hosts.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked {
    came: u64,
}

impl Visitors {
    /// A session of another node works here.
    pub(super) const fn came(&mut self) {
        self.absent = false;
        self.came += 1;
    }

    /// Another owner has reigned, or will: who came to it is not known here.
    pub(super) const fn forget(&mut self) {
        self.came();
        self.in_the_way = false;
        self.ask_from = Tick(0);
    }

    /// The container has never had a file.
    pub(super) const fn begin_empty(&mut self) {
        self.absent = true;
    }

    /// Whether any may have a file open that is about to go.
    pub(super) const fn may_have_open(&mut self) -> bool {
        if !self.absent {
            self.in_the_way = true;
        }
        !self.absent
    }

    /// Whether it is worth a question. None of them may keep names under a lease meanwhile: it could open what it keeps.
    pub(super) fn ask(&self, now: Tick) -> Option<Asked> {
        let due = self.in_the_way && !self.absent && now >= self.ask_from;
        due.then_some(Asked { came: self.came })
    }

    /// All hosts have said that they have none.
    pub(super) fn none_has_any(&mut self, asked: Asked) {
        if asked.came == self.came {
            self.absent = true;
        }
        self.in_the_way = false;
    }

    /// One has some.
    pub(super) fn some_have(&mut self, now: Tick) {
        self.in_the_way = false;
        self.ask_from = now + AGAIN;
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a panic is how a test fails")]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_absent_who_has_not_said_so_since_anybody_came() {
        let now = Tick(5_000_000);
        let mut visitors = Visitors::default();
        assert!(visitors.ask(now).is_none(), "nothing waits for the answer");
        assert!(visitors.may_have_open());
        let asked = visitors.ask(now).unwrap();
        visitors.came();
        visitors.none_has_any(asked);
        assert!(visitors.may_have_open(), "one came after the question");
        let asked = visitors.ask(now).unwrap();
        visitors.none_has_any(asked);
        assert!(!visitors.may_have_open());
        visitors.forget();
        assert!(visitors.may_have_open(), "another owner reigned");
        visitors.none_has_any(asked);
        assert!(visitors.may_have_open(), "the answer is older");
        visitors.some_have(now);
        assert!(visitors.may_have_open());
        assert!(visitors.ask(now).is_none());
        assert!(visitors.ask(now + AGAIN).is_some());
        visitors.begin_empty();
        assert!(!visitors.may_have_open());
    }
}
