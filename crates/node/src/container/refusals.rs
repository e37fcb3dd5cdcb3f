//! Disks that have no room for data which somebody waits for.

use perigee_types::{InodeId, NodeId, Span, Tick};
use std::collections::BTreeMap;

/// What it means to who waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoRoom {
    /// He is told: it is his write, or he makes room.
    Told,
    /// He reads, and has nothing to do with it: he waits, and a member that goes on so loses its place.
    Outlasted,
}

/// For so long a member is waited for before it loses its place: as long as for one that is silent.
const PATIENCE: Span = Span::from_millis(3_000);
/// After so long who waits is told all the same: nobody else has what that member has, or the chain cannot be changed now.
const LIMIT: Span = Span::from_millis(20_000);
/// One that has not refused for so long has had room meanwhile: longer than a question, and who asks once more.
const APART: Span = Span::from_millis(10_000);

/// What is to be done about one that refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// It is asked again.
    Wait,
    /// It is to lose its place, once what it holds is back; it is asked again meanwhile.
    Dismiss,
    /// It is to lose its place, and who waits is told.
    Tell,
}

/// Who refuses what, as readers hear it; whoever asks for a file again goes on where he was.
#[derive(Debug, Default)]
pub(super) struct Refusals(BTreeMap<(NodeId, InodeId), Refused>);

#[derive(Debug, Clone, Copy)]
struct Refused {
    since: Tick,
    last: Tick,
}

impl Refusals {
    /// A node says at `now` that it has no room for a file.
    pub(super) fn heard(&mut self, node: NodeId, inode: InodeId, now: Tick) -> Next {
        self.0.retain(|_, refused| now.since(refused.last) <= APART);
        let new = Refused {
            since: now,
            last: now,
        };
        let refused = self.0.entry((node, inode)).or_insert(new);
        refused.last = now;
        match now.since(refused.since) {
            long if long >= LIMIT => Next::Tell,
            long if long >= PATIENCE => Next::Dismiss,
            _ => Next::Wait,
        }
    }

    /// It has the file's data.
    pub(super) fn has_room(&mut self, node: NodeId, inode: InodeId) {
        self.0.remove(&(node, inode));
    }

    /// Whether a node has refused anything lately.
    pub(super) fn refuses(&self, node: NodeId, now: Tick) -> bool {
        let mut of = self.0.range((node, InodeId(0))..=(node, InodeId(u64::MAX)));
        of.any(|(_, refused)| now.since(refused.last) <= APART)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_loses_its_place_when_it_goes_on_refusing() {
        let mut refusals = Refusals::default();
        let at = |ms| Tick(0) + Span::from_millis(ms);
        let file = InodeId(7);
        let mut heard = |node, inode, ms| refusals.heard(NodeId(node), inode, at(ms));
        assert_eq!(heard(2, file, 1_000), Next::Wait);
        assert_eq!(heard(2, file, 3_900), Next::Wait);
        assert_eq!(heard(3, file, 3_900), Next::Wait, "another member");
        assert_eq!(heard(2, InodeId(8), 3_900), Next::Wait, "another file");
        for ms in (4_000..21_000).step_by(1_000) {
            assert_eq!(heard(2, file, ms), Next::Dismiss);
        }
        assert_eq!(heard(2, file, 21_000), Next::Tell);
        assert_eq!(
            heard(2, file, 30_000),
            Next::Tell,
            "who asks again is told at once"
        );
        assert_eq!(heard(3, file, 30_000), Next::Wait, "it had room meanwhile");
        assert!(refusals.refuses(NodeId(2), at(31_000)));
        refusals.has_room(NodeId(2), file);
        assert!(!refusals.refuses(NodeId(2), at(31_000)));
        assert!(refusals.refuses(NodeId(3), at(31_000)));
        assert!(!refusals.refuses(NodeId(3), at(41_000)));
    }
}
