//! What chaos and sessions do has numbers. Each strike and each session draws from a stream of its own, so that a history
//! can be run again without some of it, and the rest is drawn as before.

use perigee_types::Rng;
use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// Aimed strikes have numbers from here on: no history has that many by the clock.
const AIMED_FROM: u64 = 1_000;
/// Those aimed at a change of an owner's own chain, from here on.
const AT_CHANGE_FROM: u64 = 1_000_000;
/// Those at a moment that one fault needs and that comes seldom, from here on.
const RARE_FROM: u64 = 2_000_000;

/// A set of numbers, written as `3,5-9,20-`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Numbers(Vec<(u64, u64)>);

/// Text that is no set of numbers.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("`{0}` is neither a number nor a range such as 5-9 or 20-")]
pub struct NotNumbers(String);

impl Numbers {
    /// Every number but these; numbers begin with 1.
    #[must_use]
    pub fn all_but(kept: &BTreeSet<u64>) -> Self {
        let mut ranges = Vec::new();
        let mut from = 1;
        for &number in kept {
            if from < number {
                ranges.push((from, number - 1));
            }
            from = number.saturating_add(1);
        }
        ranges.push((from, u64::MAX));
        Self(ranges)
    }

    /// Whether a number is in the set.
    #[must_use]
    pub fn contains(&self, number: u64) -> bool {
        self.0
            .iter()
            .any(|(from, to)| (*from..=*to).contains(&number))
    }

    /// Whether no number is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromStr for Numbers {
    type Err = NotNumbers;

    fn from_str(text: &str) -> Result<Self, NotNumbers> {
        let wrong = |part: &str| NotNumbers(part.to_owned());
        let mut ranges = Vec::new();
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let number = |text: &str| text.parse::<u64>().map_err(|_| wrong(part));
            let range = match part.split_once('-') {
                None => (number(part)?, number(part)?),
                Some((from, "")) => (number(from)?, u64::MAX),
                Some((from, to)) => (number(from)?, number(to)?),
            };
            if range.0 > range.1 {
                return Err(wrong(part));
            }
            ranges.push(range);
        }
        Ok(Self(ranges))
    }
}

impl fmt::Display for Numbers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, (from, to)) in self.0.iter().enumerate() {
            let comma = if place == 0 { "" } else { "," };
            match to {
                to if from == to => write!(f, "{comma}{from}")?,
                &u64::MAX => write!(f, "{comma}{from}-")?,
                to => write!(f, "{comma}{from}-{to}")?,
            }
        }
        Ok(())
    }
}

/// What a run leaves out of all that its seed draws.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// Strikes.
    pub strikes: Numbers,
    /// Operations of sessions.
    pub operations: Numbers,
    /// The chaos ends then at the latest: in microseconds from the beginning.
    pub calm_from_us: Option<u64>,
    /// Another draw of all that has no number: delays, and what a crash leaves. 0 is the seed's own.
    pub weather: u64,
}

/// What a run tells beside how it went.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Detail {
    /// Nothing.
    #[default]
    Quiet,
    /// [`Happening`]s.
    Listed,
    /// Each event, printed as it happens.
    Traced,
}

/// What has a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Something that goes wrong.
    Strike,
    /// Something that a session does.
    Operation,
}

/// A strike or an operation that took place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Happening {
    /// Which of the two.
    pub kind: Kind,
    /// Its number.
    pub number: u64,
    /// When, in microseconds of true time.
    pub at: u64,
    /// What, in words.
    pub what: String,
}

impl fmt::Display for Happening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = self.at as f64 / 1e6;
        let kind = match self.kind {
            Kind::Strike => "strike",
            Kind::Operation => "operation",
        };
        write!(f, "{at:>10.6}  {kind} {}: {}", self.number, self.what)
    }
}

/// One number, and the randomness of what has it.
#[derive(Debug)]
pub struct Dice {
    /// The number.
    pub number: u64,
    /// Nobody else draws from it.
    pub rng: Rng,
}

/// Gives the numbers, leaves out what is to be left out, and lists the rest.
#[derive(Debug)]
pub struct Numbered {
    seed: u64,
    by_clock: u64,
    aimed: u64,
    at_change: u64,
    rare: u64,
    left_out: LeftOut,
    detail: Detail,
    happened: Vec<Happening>,
}

impl Numbered {
    /// Of the history of `seed`.
    #[must_use]
    pub fn new(seed: u64, left_out: LeftOut, detail: Detail) -> Self {
        Self {
            seed,
            by_clock: 0,
            aimed: AIMED_FROM,
            at_change: AT_CHANGE_FROM,
            rare: RARE_FROM,
            left_out,
            detail,
            happened: Vec::new(),
        }
    }

    /// The next strike by the clock, or one that lasts from the beginning.
    pub fn by_clock(&mut self) -> Dice {
        self.by_clock += 1;
        self.dice(self.by_clock)
    }

    /// The next strike at a moment that is good for one.
    pub fn aimed(&mut self) -> Dice {
        self.aimed += 1;
        self.dice(self.aimed)
    }

    /// The next strike at a moment when an owner's own chain has changed.
    pub fn at_change(&mut self) -> Dice {
        self.at_change += 1;
        self.dice(self.at_change)
    }

    /// The next strike at a moment that one fault needs, and that comes seldom.
    pub fn rare(&mut self) -> Dice {
        self.rare += 1;
        self.dice(self.rare)
    }

    fn dice(&self, number: u64) -> Dice {
        let rng = stream(self.seed, number);
        Dice { number, rng }
    }

    /// The randomness of a session, by any number that is its own.
    #[must_use]
    pub fn session(&self, number: u64) -> Rng {
        stream(!self.seed, number)
    }

    /// Whether something takes place; it is listed then.
    pub fn takes_place(
        &mut self,
        (kind, number): (Kind, u64),
        at: u64,
        what: impl FnOnce() -> String,
    ) -> bool {
        let left_out = match kind {
            Kind::Strike => &self.left_out.strikes,
            Kind::Operation => &self.left_out.operations,
        };
        if left_out.contains(number) {
            return false;
        }
        if self.detail != Detail::Quiet {
            let what = what();
            self.happened.push(Happening {
                kind,
                number,
                at,
                what,
            });
        }
        true
    }

    /// When the chaos ends that would last for `length_us`.
    #[must_use]
    pub fn chaos_length(&self, length_us: u64) -> u64 {
        let most = self.left_out.calm_from_us.unwrap_or(u64::MAX);
        length_us.min(most)
    }

    /// The randomness of all that has no number: the seed's own, unless another one is asked for.
    #[must_use]
    pub fn weather(&self, own: Rng) -> Rng {
        match self.left_out.weather {
            0 => own,
            other => stream(self.seed.rotate_left(32), other),
        }
    }

    /// Whether each event is printed.
    #[must_use]
    pub fn is_traced(&self) -> bool {
        self.detail == Detail::Traced
    }

    /// What took place, in order.
    #[must_use]
    pub fn into_happened(self) -> Vec<Happening> {
        self.happened
    }
}

/// An independent generator for each pair of numbers.
fn stream(seed: u64, number: u64) -> Rng {
    let mixed =
        seed.wrapping_mul(0xd6e8_feb8_6659_fd93) ^ number.wrapping_mul(0xa076_1d64_78bd_642f);
    Rng::new(mixed).fork()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_they_are_written() {
        let kept = BTreeSet::from([2, 3, 7, 1_004]);
        let numbers = Numbers::all_but(&kept);
        assert_eq!(numbers.to_string(), "1,4-6,8-1003,1005-");
        assert_eq!(numbers.to_string().parse(), Ok(numbers.clone()));
        for number in [1, 4, 6, 8, 1_003, 1_005, u64::MAX] {
            assert!(numbers.contains(number) && !kept.contains(&number));
        }
        assert!(kept.iter().all(|number| !numbers.contains(*number)));
        assert_eq!("3,5-9".parse::<Numbers>().map(|n| n.contains(4)), Ok(false));
    }

    #[test]
    fn what_is_no_set_of_numbers_is_refused() {
        for text in ["x", "3-2", "-5", "3-5-9", "1..2"] {
            let read = text.parse::<Numbers>();
            assert_eq!(read, Err(NotNumbers(text.to_owned())));
        }
    }

    #[test]
    fn each_number_has_a_stream_of_its_own() {
        let firsts: BTreeSet<u64> = (0..10_000).map(|n| stream(7, n).next_u64()).collect();
        assert_eq!(firsts.len(), 10_000);
    }
}
