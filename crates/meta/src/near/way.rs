//! Which directory was gone on to last from another one, and for how long a host may answer that by itself.

use super::{Asked, KNOWN_MAX};
use crate::op::Op;
use perigee_types::{InodeId, SessionId, Span, Tick};
use std::collections::BTreeMap;

/// The longest way that is asked for at once.
const STEPS_MAX: usize = 8;
/// A step that no program has taken for so long is not asked for beforehand: its owner has to tell this host of changes there.
const RECENT: Span = Span::from_millis(30_000);

/// A name in a directory, and the directory to which it leads, or has led.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// Where the name is.
    pub parent: InodeId,
    /// The name.
    pub name: Vec<u8>,
    /// Where it leads.
    pub inode: InodeId,
}

#[derive(Debug, Clone, Default)]
struct Taken {
    /// None where only [`Taken::barred`] is known.
    step: Option<Step>,
    /// It leads there until then; what it did before is worth asking for, and nothing else.
    until: Option<Tick>,
    /// What was asked for up to then does not count.
    barred: Asked,
    /// When a program took it last.
    at: Tick,
}

/// The last step from each directory.
#[derive(Debug, Default)]
pub(super) struct Ways {
    last: BTreeMap<(SessionId, InodeId), Taken>,
    /// What was asked for up to then does not count, whatever it is about.
    barred: Asked,
}

impl Taken {
    fn is_to(&self, name: &[u8]) -> bool {
        self.step.as_ref().is_some_and(|step| step.name == name)
    }
}

impl Ways {
    /// Of one directory; `asked`: the last question so far.
    fn at(&mut self, session: SessionId, parent: InodeId, asked: Asked) -> &mut Taken {
        if self.last.len() >= KNOWN_MAX && !self.last.contains_key(&(session, parent)) {
            self.last.clear();
            self.barred = asked;
        }
        self.last.entry((session, parent)).or_default()
    }

    /// An owner has answered what was `asked`. Without `until` it is not to be kept. `last`: the last question so far.
    pub(super) fn told(
        &mut self,
        session: SessionId,
        (asked, last): (Asked, Asked),
        step: Step,
        until: Option<Tick>,
    ) {
        let barred = self.at(session, step.parent, last).barred;
        let barred = barred.max(self.barred);
        let taken = self.at(session, step.parent, last);
        let until = until.filter(|_| asked > barred);
        // An answer that does not count takes nothing away.
        if until.is_some() || taken.until.is_none() {
            taken.step = Some(step);
            taken.until = until;
        }
    }

    pub(super) fn leads(
        &self,
        now: Tick,
        session: SessionId,
        parent: InodeId,
        name: &[u8],
    ) -> Option<(InodeId, Span)> {
        let taken = self.last.get(&(session, parent))?;
        let until = taken.until.filter(|until| now < *until)?;
        let step = taken.step.as_ref().filter(|_| taken.is_to(name))?;
        Some((step.inode, until.since(now)))
    }

    /// A program has looked a name up at that time.
    pub(super) fn taken(&mut self, now: Tick, session: SessionId, parent: InodeId, name: &[u8]) {
        if let Some(taken) = self.last.get_mut(&(session, parent))
            && taken.is_to(name)
        {
            taken.at = now;
        }
    }

    /// A name leads to no directory.
    pub(super) fn lost(&mut self, session: SessionId, parent: InodeId, name: &[u8], asked: Asked) {
        if let Some(taken) = self.last.get_mut(&(session, parent))
            && taken.is_to(name)
        {
            let barred = asked;
            *taken = Taken {
                barred,
                ..Taken::default()
            };
        }
    }

    pub(super) fn from(&self, now: Tick, session: SessionId, from: InodeId) -> Vec<Step> {
        let next = |at: InodeId| {
            let taken = self.last.get(&(session, at))?;
            let recent = taken.at + RECENT > now;
            taken.step.clone().filter(|_| recent)
        };
        let mut steps: Vec<Step> = Vec::new();
        while let Some(step) = next(steps.last().map_or(from, |step| step.inode))
            && steps.len() < STEPS_MAX
        {
            steps.push(step);
        }
        steps
    }

    /// Names in a directory may lead elsewhere.
    fn change(&mut self, session: SessionId, parent: InodeId, asked: Asked) {
        let taken = self.at(session, parent, asked);
        taken.until = None;
        taken.barred = asked;
    }

    /// What is kept of a directory ends. `asked`: the last question so far.
    pub(super) fn end(&mut self, session: SessionId, parent: InodeId, asked: Asked) {
        if let Some(taken) = self.last.get_mut(&(session, parent)) {
            taken.until = None;
            taken.barred = asked;
        }
    }

    pub(super) fn end_all(&mut self) {
        for taken in self.last.values_mut() {
            taken.until = None;
        }
    }

    /// A session's own operation may have changed where names lead.
    pub(super) fn changed(&mut self, session: SessionId, op: &Op, asked: Asked) {
        match op {
            Op::Make { parent, name, .. } => {
                let taken = self.last.get(&(session, *parent));
                if taken.is_some_and(|taken| taken.is_to(name)) {
                    self.change(session, *parent, asked);
                }
            }
            Op::Unlink { parent, name, .. } | Op::Rmdir { parent, name, .. } => {
                self.change(session, *parent, asked);
                self.lost(session, *parent, name, asked);
            }
            Op::Rehome { parent, .. } => self.change(session, *parent, asked),
            Op::Rename {
                parent,
                name,
                new_parent,
                ..
            } => {
                self.change(session, *parent, asked);
                self.lost(session, *parent, name, asked);
                self.change(session, *new_parent, asked);
            }
            Op::Link { new_parent, .. } | Op::Undelete { new_parent, .. } => {
                self.change(session, *new_parent, asked);
            }
            _ => {}
        }
    }

    pub(super) fn forget(&mut self, session: SessionId) {
        self.last.retain(|(of, _), _| *of != session);
    }
}
