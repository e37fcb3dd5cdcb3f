//! Histories run again without some of what happens in them, and the search for the smallest that still breaks a law.

use perigee_sim::numbered::Kind;
use perigee_sim::shrink::{Broken, Shrunk, shrink};
use perigee_sim::{Detail, Drift, LeftOut, Mark, Numbers, Report, Scenario, Violation, names};
use std::collections::BTreeMap;

fn chain(seed: u64, plant: Option<perigee_replica::Plant>, left_out: &LeftOut) -> Report {
    perigee_sim::run(perigee_sim::Options {
        scenario: Scenario::Chaos,
        seed,
        plant,
        drift: Drift::of(seed),
        left_out: left_out.clone(),
        detail: Detail::Listed,
    })
}

fn names(seed: u64, plant: Option<perigee_meta::Plant>, left_out: &LeftOut) -> names::Report {
    names::run(names::Options {
        seed,
        plant,
        drift: Drift::of(seed),
        left_out: left_out.clone(),
        detail: Detail::Listed,
    })
}

fn only(text: &str) -> Numbers {
    text.parse().expect("a set of numbers")
}

/// The first seed whose history has many strikes before it breaks a law.
fn seed(run: impl Fn(u64, &LeftOut) -> Option<Broken>) -> u64 {
    let eventful = |broken: Broken| broken.count(Kind::Strike) > 8;
    let found = (1..500).find(|seed| run(*seed, &LeftOut::default()).is_some_and(eventful));
    found.expect("a history with many strikes breaks a law")
}

/// A search, and what it began with.
fn search(mut run: impl FnMut(&LeftOut) -> Option<Broken>) -> (Broken, Shrunk) {
    let first = run(&LeftOut::default()).expect("the seed breaks a law");
    let shrunk = shrink(first.clone(), run);
    (first, shrunk)
}

/// It is a third of the strikes and half of the operations at most, breaks the same law, and does so again.
fn check(
    name: &str,
    (first, shrunk): &(Broken, Shrunk),
    again: impl FnOnce(&LeftOut) -> Option<Violation>,
) {
    let [before, after] = [first, &shrunk.broken].map(|broken| broken.count(Kind::Strike));
    assert!(after * 3 <= before, "{name}: {after} of {before} strikes");
    let [before, after] = [first, &shrunk.broken].map(|broken| broken.count(Kind::Operation));
    assert!(
        after * 2 <= before,
        "{name}: {after} of {before} operations"
    );
    assert_eq!(shrunk.broken.violation.law, first.violation.law, "{name}");
    let again = again(&shrunk.left_out);
    assert_eq!(again.as_ref(), Some(&shrunk.broken.violation), "{name}");
}

#[test]
fn a_history_that_breaks_a_law_shrinks_to_what_breaks_it() {
    use perigee_replica::Plant;
    for plant in [Plant::LongLease, Plant::NoInvalidationOnTruncation] {
        let broken = |seed, left_out: &LeftOut| {
            let report = chain(seed, Some(plant), left_out);
            report.violation.map(|violation| Broken {
                violation,
                happened: report.happened,
            })
        };
        let seed = seed(broken);
        let again = |left_out: &LeftOut| chain(seed, Some(plant), left_out).violation;
        let found = search(|left_out| broken(seed, left_out));
        check(Plant::name(plant), &found, again);
    }
}

#[test]
fn a_history_of_names_that_breaks_a_law_shrinks_to_what_breaks_it() {
    use perigee_meta::Plant;
    for plant in [Plant::RepeatRunsAgain, Plant::IntentsForgotten] {
        let broken = |seed, left_out: &LeftOut| {
            let report = names(seed, Some(plant), left_out);
            report.violation.map(|violation| Broken {
                violation,
                happened: report.happened,
            })
        };
        let seed = seed(broken);
        let again = |left_out: &LeftOut| names(seed, Some(plant), left_out).violation;
        let found = search(|left_out| broken(seed, left_out));
        check(Plant::name(plant), &found, again);
    }
}

#[test]
fn leaving_nothing_out_changes_nothing() {
    // No history has a thousand strikes by the clock.
    let nothing = LeftOut {
        strikes: only("900-1000"),
        operations: only("1000000-"),
        calm_from_us: Some(u64::MAX),
        weather: 0,
    };
    for seed in 1..=20 {
        let whole = chain(seed, None, &LeftOut::default());
        assert!(!whole.happened.is_empty());
        assert_eq!(chain(seed, None, &nothing), whole);
        let whole = names(seed, None, &LeftOut::default());
        assert!(!whole.happened.is_empty());
        assert_eq!(names(seed, None, &nothing), whole);
    }
}

#[test]
fn what_is_left_out_does_not_take_place_and_the_rest_does() {
    for seed in 1..=20 {
        let whole = chain(seed, None, &LeftOut::default());
        let quiet = LeftOut {
            strikes: only("1-"),
            ..LeftOut::default()
        };
        let calm = chain(seed, None, &quiet);
        assert_eq!(calm.violation, None);
        assert_eq!(calm.marks.0[Mark::Crash as usize], 0);
        assert!(calm.happened.iter().all(|h| h.kind == Kind::Operation));
        // An operation is the same whatever goes wrong, but for what names its bytes.
        let operations = |report: &Report| -> BTreeMap<u64, String> {
            let all = report.happened.iter();
            let all = all.filter(|h| h.kind == Kind::Operation);
            let short = |what: &str| {
                let until = what.find(", token").or(what.find(", value"));
                what[..until.unwrap_or(what.len())].to_owned()
            };
            all.map(|h| (h.number, short(&h.what))).collect()
        };
        let (all, some) = (operations(&calm), operations(&whole));
        let both: Vec<_> = some.keys().filter(|n| all.contains_key(n)).collect();
        assert!(both.len() > 20);
        assert!(both.iter().all(|n| all.get(n) == some.get(n)));
        let idle = LeftOut {
            operations: only("1-"),
            ..LeftOut::default()
        };
        assert!(operations(&chain(seed, None, &idle)).is_empty());
        assert_eq!(names(seed, None, &quiet).violation, None);
    }
}
