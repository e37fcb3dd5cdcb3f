//! Bytes that nobody would write: for tests of what decodes what comes from a disk, a peer, the kernel or a person.
//!
//! Promises: every input follows from a seed, which is printed when a run fails, with the input. Only tests call this.
//! A decoder passes when it takes every example, refuses something, and neither panics nor takes long.
#![forbid(unsafe_code)]

mod mutate;

use perigee_types::Rng;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

/// Inputs for each decoder where the environment does not say.
const RUNS: u64 = 20_000;
/// The variable with their number: `make fuzz` sets it.
const RUNS_VARIABLE: &str = "PERIGEE_FUZZ_RUNS";
/// The variable with the seed, to repeat a run.
const SEED_VARIABLE: &str = "PERIGEE_FUZZ_SEED";
/// No decoder works longer on one input. Far above what any takes, for machines are busy.
const PATIENCE: Duration = Duration::from_secs(5);
/// Inputs that were taken and are mutated further.
const CORPUS_MAX: usize = 512;

/// What a decoder made of an input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It is something.
    Taken,
    /// It is an error.
    Refused,
}

impl<T, E> From<Result<T, E>> for Verdict {
    fn from(result: Result<T, E>) -> Self {
        if result.is_ok() {
            Self::Taken
        } else {
            Self::Refused
        }
    }
}

impl<T> From<Option<T>> for Verdict {
    fn from(found: Option<T>) -> Self {
        if found.is_some() {
            Self::Taken
        } else {
            Self::Refused
        }
    }
}

/// Gives a decoder inputs made from `examples`, which it must take.
///
/// # Panics
/// The decoder panics, takes too long, refuses an example, or refuses nothing.
pub fn assault(what: &str, examples: &[Vec<u8>], mut decode: impl FnMut(&[u8]) -> Verdict) {
    let (runs, seed) = (number(RUNS_VARIABLE, RUNS), number(SEED_VARIABLE, 1));
    let mut corpus = examples.to_vec();
    assert!(
        (1..CORPUS_MAX).contains(&corpus.len()),
        "{what}: {} examples",
        corpus.len()
    );
    let mut attempt = |input: &[u8]| {
        let shown = Shown { what, seed, input };
        let began = Instant::now();
        let verdict = decode(input);
        assert!(began.elapsed() < PATIENCE, "{what}: slow");
        // It passed: there is nothing to show.
        std::mem::forget(shown);
        verdict
    };
    for example in examples {
        assert_eq!(attempt(example), Verdict::Taken, "{what}: an example");
    }
    let mut rng = Rng::new(seed);
    let mut refused = 0_u64;
    for _ in 0..runs {
        let input = mutate::mutate(&corpus, &mut rng);
        match attempt(&input) {
            Verdict::Refused => refused += 1,
            // What is taken leads to more that is: the decoder's later steps are reached by it.
            Verdict::Taken if corpus.len() < CORPUS_MAX => corpus.push(input),
            Verdict::Taken => {
                let at = examples.len() + rng.below((CORPUS_MAX - examples.len()) as u64) as usize;
                corpus[at] = input;
            }
        }
    }
    assert!(refused > 0, "{what}: took all of {runs} inputs");
    println!("{what}: {runs} inputs, {refused} refused, none harmful (seed {seed})");
}

/// The same for a decoder of plain records without an example at hand: equal bytes of the right number are one.
///
/// # Panics
/// As [`assault`], and when no such bytes are taken.
pub fn assault_plain(what: &str, mut decode: impl FnMut(&[u8]) -> Verdict) {
    let plain = [0, 1]
        .into_iter()
        .flat_map(|byte| (0..400).map(move |len| vec![byte; len]));
    let examples: Vec<Vec<u8>> = plain
        .filter(|bytes| decode(bytes) == Verdict::Taken)
        .take(CORPUS_MAX / 4)
        .collect();
    assault(what, &examples, decode);
}

fn number(variable: &str, default: u64) -> u64 {
    match std::env::var(variable) {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("{variable} is `{text}`, not a number")),
        Err(_) => default,
    }
}

/// Shows an input when the decoder panics on it.
struct Shown<'a> {
    what: &'a str,
    seed: u64,
    input: &'a [u8],
}

impl Drop for Shown<'_> {
    fn drop(&mut self) {
        let mut hex = String::new();
        for byte in self.input {
            // Writing to a string cannot fail.
            _ = write!(hex, "{byte:02x}");
        }
        println!("{}: harmed by {hex} (seed {})", self.what, self.seed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes two bytes that are equal, the first below 200.
    fn pair(input: &[u8]) -> Verdict {
        let [a, b] = *input else {
            return Verdict::Refused;
        };
        assert!(a < 200 || a != b, "the bug");
        (a == b).then_some(()).into()
    }

    #[test]
    #[should_panic(expected = "the bug")]
    fn a_decoder_that_panics_is_found() {
        assault("pair", &[vec![3, 3]], pair);
    }

    #[test]
    #[should_panic(expected = "took all")]
    fn a_decoder_that_refuses_nothing_is_none() {
        assault("all", &[vec![3]], |_| Verdict::Taken);
    }

    #[test]
    #[should_panic(expected = "an example")]
    fn examples_are_taken() {
        assault("none", &[vec![3]], |_| Verdict::Refused);
    }
}
