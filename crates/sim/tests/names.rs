//! A fixed share of the histories of names that `sim --names` runs by the million, and each deliberate fault once.

use perigee_meta::Plant;
use perigee_sim::names::{Mark, Marks, Options, Report, run};

fn history(seed: u64, plant: Option<Plant>) -> Report {
    run(Options {
        seed,
        plant,
        trace: false,
    })
}

#[test]
fn no_law_is_broken_and_everything_worth_seeing_is_met() {
    let mut marks = Marks::default();
    let mut answered = 0;
    for seed in 1..=1_000 {
        let report = history(seed, None);
        let replay = format!("replay: sim --names --seed {seed} --trace");
        assert_eq!(report.violation, None, "{replay}");
        marks.add(&report.marks);
        answered += report.answered;
    }
    for (mark, text) in Mark::ALL {
        assert!(marks.0[*mark as usize] > 0, "never met: {text}");
    }
    assert!(answered > 10_000, "only {answered} operations");
}

#[test]
fn one_seed_is_one_history() {
    for seed in 1..=40 {
        assert_eq!(history(seed, None), history(seed, None));
    }
    assert_ne!(history(1, None).hash, history(2, None).hash);
}

/// Each deliberate fault, and the first seed that finds it. After a change of the simulator: `sim --names --plants`.
const FOUND_BY: &[(Plant, u64)] = &[
    (Plant::VoteBeforeReplicated, 43),
    (Plant::ReadsNotChecked, 5),
    (Plant::PreparedNotLocked, 1),
    (Plant::OwnPartNotLocked, 2),
    (Plant::LocksNotRestored, 163),
    (Plant::IntentsForgotten, 3),
    (Plant::DecidedBeforeReplicated, 19),
    (Plant::DecidedWithoutAll, 5),
    (Plant::UndecidedIsAborted, 9),
    (Plant::DecisionForgotten, 216),
    (Plant::EndedBeforeReplicated, 353),
    (Plant::NumberUsedAgain, 1057),
    (Plant::RepeatRunsAgain, 5),
    (Plant::RepeatRunsBeside, 5),
    (Plant::RepeatNotReplicated, 211),
    (Plant::AnswersNotRestored, 17),
    (Plant::ForeignReadNotReplicated, 662),
    (Plant::AnswerNotReadAgain, 10),
    (Plant::LockedIsShown, 5),
    (Plant::AnswerBeforeRevoked, 10),
    (Plant::RevocationOvertaken, 19),
    (Plant::LeaseFromAnswer, 407),
    (Plant::RecentNotForgotten, 1),
    (Plant::RecentOutlivesReign, 164),
    (Plant::PartRevokesNothing, 72),
];

#[test]
fn every_deliberate_fault_is_found() {
    for &plant in Plant::ALL {
        let name = plant.name();
        let known = FOUND_BY.iter().find(|(known, _)| *known == plant);
        let Some((_, seed)) = known.copied() else {
            panic!("no seed finds {name}: {}", plant.text());
        };
        let found = history(seed, Some(plant)).violation;
        let hint = "see `sim --names --plants`";
        assert!(found.is_some(), "seed {seed} finds {name} no more: {hint}");
        let without = history(seed, None).violation;
        assert_eq!(without, None, "seed {seed} without {name}");
    }
}
