//! Holders that do not answer.
//!
//! Silence is a session's, not a chunk's: a host that is gone may have held many chunks, and who wants all of them waits for
//! it once.

use perigee_types::{SessionId, Span, Tick};
use std::collections::BTreeMap;

/// A call that was not answered says nothing of what came so much later.
const GAP: Span = Span::from_millis(3_000);
/// Nor does it make the next one superfluous after so long.
const FRESH: Span = Span::from_millis(1_000);
/// One call is no more silence than this, however late this node itself looked: it may have been stopped.
const EACH_MAX: Span = Span::from_millis(1_600);

/// What was heard of them, and for how long nothing was.
#[derive(Debug, Default)]
pub(super) struct Silent(BTreeMap<SessionId, Word>);

#[derive(Debug, Clone, Copy, Default)]
struct Word {
    heard: Option<Tick>,
    /// When the last call that was not answered ended.
    unanswered: Option<Tick>,
    silence: Span,
}

impl Silent {
    /// A call that began then was not answered up to now.
    pub(super) fn on_unanswered(&mut self, session: SessionId, began: Tick, now: Tick) {
        let word = self.0.entry(session).or_default();
        let last = word.unanswered.replace(now);
        let goes_on = last.filter(|last| began.since(*last) <= GAP);
        if goes_on.is_none() {
            word.silence = Span::ZERO;
        }
        let from = goes_on.unwrap_or(began).max(word.heard.unwrap_or(began));
        word.silence = word.silence + now.since(from).min(EACH_MAX);
    }

    /// Something came from it: an answer, a question, or a write.
    pub(super) fn on_heard(&mut self, session: SessionId, now: Tick) {
        let heard = Some(now);
        let word = Word {
            heard,
            ..Word::default()
        };
        self.0.insert(session, word);
    }

    /// Whether a session that was asked a moment ago has said nothing for so long.
    pub(super) fn is_silent(&self, session: SessionId, now: Tick, long: Span) -> bool {
        let Some(word) = self.0.get(&session) else {
            return false;
        };
        let asked = word.unanswered.is_some_and(|at| now.since(at) <= FRESH);
        asked && word.silence >= long
    }

    /// Forgets what says nothing any more.
    pub(super) fn retain(&mut self, now: Tick) {
        let recent = |at: Option<Tick>| at.is_some_and(|at| now.since(at) <= GAP);
        self.0
            .retain(|_, word| recent(word.heard) || recent(word.unanswered));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use perigee_types::NodeId;

    const LONG: Span = Span::from_millis(2_500);

    fn at(millis: u64) -> Tick {
        Tick(0) + Span::from_millis(millis)
    }

    fn host() -> SessionId {
        SessionId::new(NodeId(2), 1)
    }

    #[test]
    fn who_answers_none_of_the_calls_of_some_time_is_silent_until_it_says_something() {
        let mut silent = Silent::default();
        silent.on_unanswered(host(), at(0), at(1_500));
        assert!(
            !silent.is_silent(host(), at(1_500), LONG),
            "one may be lost"
        );
        silent.on_unanswered(host(), at(1_520), at(3_020));
        assert!(silent.is_silent(host(), at(3_020), LONG));
        silent.on_heard(host(), at(3_030));
        assert!(!silent.is_silent(host(), at(3_030), LONG));
    }

    #[test]
    fn what_was_heard_during_a_call_counts() {
        let mut silent = Silent::default();
        silent.on_heard(host(), at(1_400));
        silent.on_unanswered(host(), at(0), at(1_500));
        silent.on_unanswered(host(), at(1_520), at(3_020));
        assert!(!silent.is_silent(host(), at(3_020), LONG));
        silent.on_unanswered(host(), at(3_040), at(4_540));
        assert!(silent.is_silent(host(), at(4_540), LONG));
    }

    #[test]
    fn calls_that_were_lost_far_apart_are_no_silence_nor_is_one_in_which_this_node_stood_still() {
        let mut silent = Silent::default();
        silent.on_unanswered(host(), at(0), at(1_500));
        silent.on_unanswered(host(), at(60_000), at(70_000));
        assert!(!silent.is_silent(host(), at(70_000), LONG));
        silent.on_unanswered(host(), at(70_020), at(71_520));
        assert!(silent.is_silent(host(), at(71_520), LONG));
        assert!(
            !silent.is_silent(host(), at(73_000), LONG),
            "it is asked again"
        );
        silent.retain(at(75_000));
        assert!(silent.0.is_empty());
    }
}
