//! When records that nobody waits for are sent: many together, since what a group costs on each member's disk hardly
//! grows with it (names lie in the order of their hashes, so that a few hundred touch as many pages as a thousand).

use perigee_types::{DataCommand, Span, Tick};

/// How long a record of a program on this node waits for others, when nobody waits for it.
const LINGER: Span = Span::from_millis(150);
/// So many records wait for no more.
const RECORDS: usize = 2_000;
/// So many bytes of records do not, either,
const BYTES: usize = 512 << 10;
/// nor so many bytes of content that they tell of: members do not count these against their room before they have heard
/// of them, and begin to fetch them then. A part of [`crate::room::MARGIN`].
const CONTENT_BYTES: u64 = 4 << 20;

/// Records that are not sent yet, and writes that have none yet.
#[derive(Debug, Default)]
pub(super) struct Gathering {
    since: Option<Tick>,
    /// What waits no longer than until then.
    until: Option<Tick>,
    /// Somebody waits.
    urgent: bool,
    records: usize,
    bytes: usize,
    content: u64,
}

/// What a record adds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Weight {
    /// Bytes of itself.
    pub(super) bytes: usize,
    /// Bytes of content that it tells of.
    pub(super) content: u64,
}

impl Weight {
    pub(super) fn of(bytes: usize, commands: &[DataCommand]) -> Self {
        let content = commands.iter().map(|command| match command {
            DataCommand::Written { range, .. } => range.len(),
            _ => 0,
        });
        Self {
            bytes,
            content: content.fold(0, u64::saturating_add),
        }
    }
}

impl Gathering {
    /// Something has to be sent.
    pub(super) fn begin(&mut self, now: Tick) {
        self.since.get_or_insert(now);
    }

    /// Something has to be sent, at `until` at the latest.
    pub(super) fn begin_until(&mut self, now: Tick, until: Tick) {
        self.begin(now);
        self.until = Some(self.until.map_or(until, |before| before.min(until)));
    }

    /// Somebody waits for what has to be sent, if anything has.
    pub(super) fn hurry(&mut self) {
        self.urgent = !self.is_empty();
    }

    /// A record has to be sent.
    pub(super) fn add(&mut self, now: Tick, weight: Weight) {
        self.begin(now);
        self.records += 1;
        self.bytes = self.bytes.saturating_add(weight.bytes);
        self.content = self.content.saturating_add(weight.content);
    }

    /// Bytes of the records that are not sent.
    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    const fn is_full(&self) -> bool {
        self.records >= RECORDS || self.bytes >= BYTES || self.content >= CONTENT_BYTES
    }

    /// Nothing waits.
    pub(super) const fn is_empty(&self) -> bool {
        self.since.is_none()
    }

    /// When it is to be sent, if anything is.
    pub(super) fn due(&self) -> Option<Tick> {
        let since = self.since?;
        let due = match self.urgent || self.is_full() {
            true => since,
            false => since + LINGER,
        };
        Some(self.until.map_or(due, |until| due.min(until)))
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
        let small = Weight {
            bytes: 100,
            content: 1_000,
        };
        let mut group = Gathering::default();
        assert_eq!(group.due(), None);
        group.add(BEGAN, small);
        let later = BEGAN + Span::from_millis(20);
        group.begin(later);
        assert_eq!(group.due(), Some(BEGAN + LINGER));
        for more in 1..RECORDS {
            assert_eq!(group.due(), Some(BEGAN + LINGER), "with {more}");
            group.add(later, small);
        }
        assert_eq!(group.due(), Some(BEGAN));
        group.clear();
        assert!(group.is_empty());
        group.hurry();
        group.begin(BEGAN);
        assert_eq!(group.due(), Some(BEGAN + LINGER), "nothing waited");
        group.hurry();
        assert_eq!(group.due(), Some(BEGAN));
        group.clear();
        group.begin(BEGAN);
        group.begin_until(BEGAN, later);
        group.begin_until(later, BEGAN + LINGER);
        assert_eq!(group.due(), Some(later));
        let (bytes, content) = (BYTES, CONTENT_BYTES);
        for large in [Weight { bytes, ..small }, Weight { content, ..small }] {
            group.clear();
            group.add(later, large);
            assert_eq!(group.due(), Some(later));
        }
    }
}
