//! When records that nobody waits for are sent: many together, since what a group costs on each member's disk hardly
//! grows with it (names lie in the order of their hashes, so that a few hundred touch as many pages as a thousand).

use perigee_types::{Span, Tick};

/// How long a record of a program on this node waits for others, when nobody waits for it.
pub(super) const LINGER: Span = Span::from_millis(150);
/// So many records wait for no more.
const RECORDS: usize = 1_000;
/// So many bytes of records do not, either.
const BYTES: usize = 256 << 10;

/// Records that are not sent yet, and writes that have none yet.
#[derive(Debug, Default)]
pub(super) struct Gathering {
    since: Option<Tick>,
    records: usize,
    bytes: usize,
}

/// Whether the time at which the group is due has changed: who waits for that must be woken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(super) enum Due {
    Changed,
    AsBefore,
}

impl Gathering {
    /// Something has to be sent.
    pub(super) fn begin(&mut self, now: Tick) -> Due {
        match self.since {
            Some(_) => Due::AsBefore,
            None => {
                self.since = Some(now);
                Due::Changed
            }
        }
    }

    /// A record of so many bytes has to be sent.
    pub(super) fn add(&mut self, now: Tick, bytes: usize) -> Due {
        let begun = self.begin(now);
        let was_full = self.is_full();
        self.records += 1;
        self.bytes = self.bytes.saturating_add(bytes);
        if self.is_full() && !was_full {
            return Due::Changed;
        }
        begun
    }

    const fn is_full(&self) -> bool {
        self.records >= RECORDS || self.bytes >= BYTES
    }

    /// Nothing waits.
    pub(super) const fn is_empty(&self) -> bool {
        self.since.is_none()
    }

    /// When it is to be sent, if anything is.
    pub(super) fn due(&self) -> Option<Tick> {
        let since = self.since?;
        Some(if self.is_full() {
            since
        } else {
            since + LINGER
        })
    }

    /// All of it is on its way, or nobody's any more.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEGAN: Tick = Tick(5_000_000);

    #[test]
    fn a_group_is_due_when_its_first_has_waited_or_it_is_large() {
        let mut group = Gathering::default();
        assert_eq!(group.due(), None);
        assert_eq!(group.add(BEGAN, 100), Due::Changed);
        let later = BEGAN + Span::from_millis(20);
        assert_eq!(group.begin(later), Due::AsBefore);
        assert_eq!(group.due(), Some(BEGAN + LINGER));
        let told = (0..RECORDS).map(|_| group.add(later, 100));
        assert_eq!(told.filter(|due| *due == Due::Changed).count(), 1);
        assert_eq!(group.due(), Some(BEGAN));
        group.clear();
        assert!(group.is_empty());
        assert_eq!(group.add(later, BYTES), Due::Changed);
        assert_eq!(group.due(), Some(later));
    }
}
