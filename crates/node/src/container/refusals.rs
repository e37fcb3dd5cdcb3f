//! Members that have no room for data which somebody waits for.

use perigee_types::{NodeId, Span, Tick};
use std::collections::BTreeMap;

/// What it means to who waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoRoom {
    /// He is told: it is his write, or he makes room.
    Told,
    /// He reads, and has nothing to do with it: he waits, and a member that goes on so loses its place.
    Outlasted,
}

/// For so long a reader waits before a member loses its place: as long as for one that is silent.
const PATIENCE: Span = Span::from_millis(3_000);
/// After so long he is told all the same: nobody else has what that member has, or the chain cannot be changed now.
const LIMIT: Span = Span::from_millis(20_000);
/// A member that has not refused for so long has had room meanwhile.
const APART: Span = Span::from_millis(5_000);

/// What is to be done about one that refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// It is asked again.
    Wait,
    /// It is to lose its place; it is asked again meanwhile.
    Dismiss,
    /// Who waits is told.
    Tell,
}

/// Who has refused one reader.
#[derive(Debug, Default)]
pub(super) struct Refusals(BTreeMap<NodeId, Refused>);

#[derive(Debug, Clone, Copy)]
struct Refused {
    since: Tick,
    last: Tick,
}

impl Refusals {
    /// A member says at `now` that it has no room.
    pub(super) fn heard(&mut self, node: NodeId, now: Tick) -> Next {
        let new = Refused {
            since: now,
            last: now,
        };
        let refused = self.0.entry(node).or_insert(new);
        if now.since(refused.last) > APART {
            *refused = new;
        }
        refused.last = now;
        match now.since(refused.since) {
            long if long >= LIMIT => Next::Tell,
            long if long >= PATIENCE => Next::Dismiss,
            _ => Next::Wait,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_loses_its_place_when_it_goes_on_refusing() {
        let mut refusals = Refusals::default();
        let mut heard = |node, ms| refusals.heard(NodeId(node), Tick(0) + Span::from_millis(ms));
        assert_eq!(heard(2, 1_000), Next::Wait);
        assert_eq!(heard(2, 3_900), Next::Wait);
        assert_eq!(
            heard(3, 3_900),
            Next::Wait,
            "one has nothing to do with another"
        );
        assert_eq!(heard(2, 4_000), Next::Dismiss);
        for ms in (5_000..20_000).step_by(1_000) {
            assert_eq!(heard(2, ms), Next::Dismiss);
        }
        assert_eq!(heard(2, 21_000), Next::Tell);
        assert_eq!(heard(3, 9_000), Next::Wait, "it had room meanwhile");
    }
}
