//! Whose locks end, since their session does.

use perigee_types::SessionId;
use std::collections::BTreeSet;

/// What is known of a node whose sessions have locks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Presence {
    /// It answers: these of them are mounted.
    Answers(Vec<SessionId>),
    /// It does not answer, and its sign of life has not expired.
    Silent,
    /// It does not answer, and shows no sign of life. It may be cut off, and its programs at work.
    Gone,
    /// It has left the cluster: nobody answers it any more.
    Left,
}

/// How the locks of a session end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionEnd {
    /// It is no more.
    Over,
    /// It may be, and does not know: it is fenced.
    WithoutItsWord,
}

/// The sessions of one node whose locks end, and how. Of a node that is silent nothing is known: none. `holders`: those of
/// them that hold any; what was ended of the others waits for their end.
#[must_use]
pub fn lost(
    sessions: &[SessionId],
    holders: &BTreeSet<SessionId>,
    presence: &Presence,
) -> Vec<(SessionId, SessionEnd)> {
    let end = |session: &SessionId| match presence {
        Presence::Answers(mounted) => (!mounted.contains(session)).then_some(SessionEnd::Over),
        Presence::Silent => None,
        Presence::Gone => holders
            .contains(session)
            .then_some(SessionEnd::WithoutItsWord),
        Presence::Left => Some(SessionEnd::Over),
    };
    let ends = |session: &SessionId| Some((*session, end(session)?));
    sessions.iter().filter_map(ends).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use perigee_types::NodeId;

    #[test]
    fn only_sessions_that_are_surely_over_lose_their_locks() {
        let session = |number| SessionId::new(NodeId(2), number);
        let held = [session(1), session(2)];
        let lost = |presence| lost(&held, &BTreeSet::from([session(1)]), &presence);
        let over = |session| (session, SessionEnd::Over);
        assert_eq!(
            lost(Presence::Answers(vec![session(2)])),
            [over(session(1))]
        );
        assert_eq!(lost(Presence::Silent), []);
        assert_eq!(
            lost(Presence::Gone),
            [(session(1), SessionEnd::WithoutItsWord)]
        );
        assert_eq!(lost(Presence::Left), held.map(over));
    }
}
