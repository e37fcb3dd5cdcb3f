//! Finds a smaller history that breaks the same law: leaves out strikes, then operations, in ever smaller parts, as long
//! as the law is still broken without them (delta debugging; Zeller and Hildebrandt, 2002), and ends the chaos early.

use crate::numbered::{Happening, Kind, LeftOut, Numbers};
use crate::oracle::Violation;
use std::collections::BTreeSet;

/// The most histories that are tried: some seconds.
const RUNS_MAX: u32 = 8_000;
/// How many draws of delays and the like are tried for each part that is left out: what is left may need luck.
const WEATHERS: u64 = 8;
/// How closely the end of the chaos is looked for: halvings of the time.
const HALVINGS: u32 = 8;

/// A history that breaks a law.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Broken {
    /// The law.
    pub violation: Violation,
    /// What took place.
    pub happened: Vec<Happening>,
}

impl Broken {
    fn numbers(&self, kind: Kind) -> BTreeSet<u64> {
        let of_kind = self.happened.iter().filter(|h| h.kind == kind);
        of_kind.map(|happening| happening.number).collect()
    }

    /// How many strikes, or operations, took place.
    #[must_use]
    pub fn count(&self, kind: Kind) -> usize {
        self.numbers(kind).len()
    }
}

/// A history that could not be made smaller, or not in the time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shrunk {
    /// What it leaves out.
    pub left_out: LeftOut,
    /// What is left.
    pub broken: Broken,
    /// How many histories were tried.
    pub runs: u32,
}

/// Shrinks `first`. `run` tells how the history goes without something, if it breaks a law.
pub fn shrink(first: Broken, run: impl FnMut(&LeftOut) -> Option<Broken>) -> Shrunk {
    let mut search = Search {
        run,
        best: Shrunk {
            left_out: LeftOut::default(),
            broken: first,
            runs: 0,
        },
    };
    loop {
        let fewer = search.reduce(Kind::Strike) | search.reduce(Kind::Operation);
        if !(search.end_early() | fewer) || search.best.runs >= RUNS_MAX {
            search.leave_out_the_rest();
            return search.best;
        }
    }
}

struct Search<R> {
    run: R,
    best: Shrunk,
}

impl<R: FnMut(&LeftOut) -> Option<Broken>> Search<R> {
    /// Whether the same law is broken without something; if the history is `wanted`, it is the best so far.
    fn attempt(&mut self, left_out: &LeftOut, wanted: impl Fn(&Broken, &Broken) -> bool) -> bool {
        let mut weathers: Vec<u64> = (0..WEATHERS).filter(|w| *w != left_out.weather).collect();
        weathers.insert(0, left_out.weather);
        for weather in weathers {
            if self.best.runs >= RUNS_MAX {
                return false;
            }
            self.best.runs += 1;
            let left_out = LeftOut {
                weather,
                ..left_out.clone()
            };
            let best = &self.best.broken;
            let broken = (self.run)(&left_out).filter(|broken| {
                broken.violation.law == best.violation.law && wanted(broken, best)
            });
            if let Some(broken) = broken {
                self.best.left_out = left_out;
                self.best.broken = broken;
                return true;
            }
        }
        false
    }

    /// Leaves out parts of what took place: halves, then quarters, down to one by one.
    fn reduce(&mut self, kind: Kind) -> bool {
        let mut fewer = false;
        let mut size = self.best.broken.count(kind);
        while size > 0 {
            let kept: Vec<u64> = self.best.broken.numbers(kind).into_iter().collect();
            // From the end: what was last before the law broke is the likeliest to matter, and is met first.
            let mut found = false;
            for part in kept.rchunks(size) {
                let now = self.best.broken.numbers(kind);
                let less: BTreeSet<u64> =
                    now.iter().filter(|n| !part.contains(n)).copied().collect();
                if less.len() == now.len() {
                    continue;
                }
                let numbers = Numbers::all_but(&less);
                let mut left_out = self.best.left_out.clone();
                match kind {
                    Kind::Strike => left_out.strikes = numbers,
                    Kind::Operation => left_out.operations = numbers,
                }
                let is_less = |new: &Broken, old: &Broken| {
                    let fewer = new.count(kind) < old.count(kind);
                    // Operations matter less: they do not come back as strikes.
                    fewer
                        && (kind == Kind::Strike
                            || new.count(Kind::Strike) <= old.count(Kind::Strike))
                };
                found |= self.attempt(&left_out, is_less);
            }
            fewer |= found;
            if size == 1 && !found {
                break;
            }
            size = (size / 2).max(1);
        }
        fewer
    }

    /// Leaves out by number what does not take place anyway, since what led to it is left out.
    fn leave_out_the_rest(&mut self) {
        let numbers = |kind| Numbers::all_but(&self.best.broken.numbers(kind));
        let left_out = LeftOut {
            strikes: numbers(Kind::Strike),
            operations: numbers(Kind::Operation),
            ..self.best.left_out.clone()
        };
        if (self.run)(&left_out).as_ref() == Some(&self.best.broken) {
            self.best.left_out = left_out;
        }
    }

    /// Lets the chaos end as early as possible.
    fn end_early(&mut self) -> bool {
        let mut earlier = false;
        let (mut from, mut to) = (0, self.best.broken.violation.at);
        for _ in 0..HALVINGS {
            let middle = u64::midpoint(from, to);
            let left_out = LeftOut {
                calm_from_us: Some(middle),
                ..self.best.left_out.clone()
            };
            let sooner = |new: &Broken, old: &Broken| new.violation.at < old.violation.at;
            if self.attempt(&left_out, sooner) {
                earlier = true;
                to = middle;
            } else {
                from = middle;
            }
        }
        earlier
    }
}
