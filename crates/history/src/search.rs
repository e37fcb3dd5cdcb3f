//! The search for an order (Wing and Gong, with Lowe's memory of what was tried).
//!
//! A configuration is the set of calls that have taken effect, and the state that they have made. From each the search
//! goes on with any call that began before the first of the others ended. It never looks at a configuration twice, and
//! at no more of them than its budget allows.

use crate::model::{Model, Told};
use crate::record::{CallOf, End, History, Moment};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// How many configurations may be looked at, for each object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget(pub usize);

/// What a search came to.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum Verdict {
    /// There is an order that explains every answer.
    Explained,
    /// There is none.
    Impossible(Stuck),
    /// The budget was spent before either was known: this says nothing.
    NoResult,
}

/// How far the search came that explained most.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stuck {
    /// The object whose calls cannot be explained.
    pub object: String,
    /// How many of its answers could be explained at most, of all.
    pub explained: usize,
    /// All answers of the object.
    pub answers: usize,
    /// The state that they lead to.
    pub state: String,
    /// Some of the calls that could have come next, and do not fit.
    pub next: Vec<String>,
    /// The last calls that began before one of those ended, and all with an unknown outcome, in the order in which they
    /// began.
    pub calls: Vec<String>,
}

/// Calls that are told of in a [`Stuck`] as the next ones.
const NEXT_TOLD: usize = 8;
/// Answered calls that are told of in a [`Stuck`] for whoever looks for the cause.
const CALLS_TOLD: usize = 40;

impl fmt::Display for Stuck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "no order explains the answers of object {}: at most {} of {}, which lead to {}; then none of {} fits",
            self.object,
            self.explained,
            self.answers,
            self.state,
            self.next.join(", ")
        )?;
        for call in &self.calls {
            write!(f, "\n  {call}")?;
        }
        Ok(())
    }
}

/// Looks for an order of each object's calls. One that is impossible counts before one without a result.
pub fn check<M: Model>(model: &M, history: &History<M>, budget: Budget) -> Verdict {
    let mut parts: BTreeMap<M::Object, Vec<&CallOf<M>>> = BTreeMap::new();
    for call in &history.calls {
        parts.entry(model.object(&call.op)).or_default().push(call);
    }
    let mut verdict = Verdict::Explained;
    for (object, calls) in &parts {
        match Search::new(model, object, calls).run(budget) {
            Verdict::Explained => {}
            Verdict::NoResult => verdict = Verdict::NoResult,
            stuck @ Verdict::Impossible(_) => return stuck,
        }
    }
    verdict
}

/// A call with an answer.
struct Answered<'a, M: Model> {
    call: &'a CallOf<M>,
    at: Moment,
    answer: &'a M::Answer,
}

struct Search<'a, M: Model> {
    model: &'a M,
    object: &'a M::Object,
    /// In the order in which they began.
    answered: Vec<Answered<'a, M>>,
    /// In the same order.
    unknown: Vec<&'a CallOf<M>>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Configuration<S> {
    /// So many of the answered calls have taken effect, from the first on,
    prefix: usize,
    /// and these of the later ones, in order,
    beyond: Vec<usize>,
    /// and these of the others, in order.
    taken: Vec<usize>,
    state: S,
}

impl<S> Configuration<S> {
    fn explained(&self) -> usize {
        self.prefix + self.beyond.len()
    }

    fn has(&self, index: usize) -> bool {
        index < self.prefix || self.beyond.binary_search(&index).is_ok()
    }
}

impl<'a, M: Model> Search<'a, M> {
    fn new(model: &'a M, object: &'a M::Object, calls: &[&'a CallOf<M>]) -> Self {
        let (mut answered, mut unknown) = (Vec::new(), Vec::new());
        for call in calls.iter().copied() {
            match &call.end {
                End::Answered { at, answer } => answered.push(Answered {
                    call,
                    at: *at,
                    answer,
                }),
                End::Unknown => unknown.push(call),
            }
        }
        Self {
            model,
            object,
            answered,
            unknown,
        }
    }

    fn run(&self, budget: Budget) -> Verdict {
        let first = Configuration {
            prefix: 0,
            beyond: Vec::new(),
            taken: Vec::new(),
            state: self.model.first(self.object),
        };
        let mut best = first.clone();
        let mut seen = BTreeSet::from([first.clone()]);
        let mut left = vec![first];
        while let Some(at) = left.pop() {
            if at.explained() == self.answered.len() {
                return Verdict::Explained;
            }
            if at.explained() > best.explained() {
                best = at.clone();
            }
            for next in self.after(&at) {
                if seen.contains(&next) {
                    continue;
                }
                if seen.len() >= budget.0 {
                    return Verdict::NoResult;
                }
                seen.insert(next.clone());
                left.push(next);
            }
        }
        Verdict::Impossible(self.stuck(&best))
    }

    /// The answered calls that may take effect next, and when the first of them ended: none that began later may.
    fn open(&self, at: &Configuration<M::State>) -> (Vec<usize>, Option<Moment>) {
        let mut first_end: Option<Moment> = None;
        let mut open = Vec::new();
        for (index, one) in self.answered.iter().enumerate().skip(at.prefix) {
            if first_end.is_some_and(|end| end < one.call.invoked) {
                break;
            }
            if !at.has(index) {
                first_end = Some(first_end.map_or(one.at, |end| end.min(one.at)));
                open.push(index);
            }
        }
        (open, first_end)
    }

    /// The configurations that can follow; the likeliest is the last.
    fn after(&self, at: &Configuration<M::State>) -> Vec<Configuration<M::State>> {
        let (mut open, first_end) = self.open(at);
        let mut after = Vec::new();
        for (index, call) in self.unknown.iter().enumerate() {
            if first_end.is_none_or(|end| end < call.invoked) {
                break;
            }
            let Err(place) = at.taken.binary_search(&index) else {
                continue;
            };
            if let Some(state) = self.model.step(&at.state, &call.op, Told::Nothing)
                && state != at.state
            {
                let mut next = at.clone();
                next.taken.insert(place, index);
                next.state = state;
                after.push(next);
            }
        }
        // What ended first most often took effect first.
        open.sort_by_key(|index| std::cmp::Reverse(self.answered[*index].at));
        for index in open {
            let one = &self.answered[index];
            let instead = self.model.instead(&at.state, &one.call.op, one.answer);
            let told = Told::Answer(one.answer);
            let done = self.model.step(&at.state, &one.call.op, told);
            for state in instead.into_iter().chain(done) {
                let mut next = at.clone();
                next.state = state;
                let place = next.beyond.partition_point(|other| *other < index);
                next.beyond.insert(place, index);
                let whole = next.beyond.iter().zip(next.prefix..);
                let whole = whole.take_while(|(index, wanted)| *index == wanted).count();
                next.beyond.drain(..whole);
                next.prefix += whole;
                after.push(next);
            }
        }
        after
    }

    fn stuck(&self, best: &Configuration<M::State>) -> Stuck {
        let (open, first_end) = self.open(best);
        let told = |index: usize| {
            let one = &self.answered[index];
            let (client, op) = (one.call.client.0, &one.call.op);
            format!("client {client}'s {op:?} that gave {:?}", one.answer)
        };
        Stuck {
            object: format!("{:?}", self.object),
            explained: best.explained(),
            answers: self.answered.len(),
            state: format!("{:?}", best.state),
            next: open.into_iter().take(NEXT_TOLD).map(told).collect(),
            calls: self.last_calls(first_end),
        }
    }

    fn last_calls(&self, end: Option<Moment>) -> Vec<String> {
        let before = |call: &CallOf<M>| end.is_none_or(|end| call.invoked <= end);
        let count = self.answered.iter().filter(|one| before(one.call)).count();
        let answered = self.answered[..count].iter().map(|one| one.call);
        let answered = answered.skip(count.saturating_sub(CALLS_TOLD));
        let unknown = self.unknown.iter().copied().filter(|call| before(call));
        let mut calls: Vec<&CallOf<M>> = answered.chain(unknown).collect();
        calls.sort_by_key(|call| call.invoked);
        calls.into_iter().map(ToString::to_string).collect()
    }
}
