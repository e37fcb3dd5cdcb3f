//! A fixed share of the histories of locks that `sim --locks` runs by the million, and each deliberate fault once.

use perigee_meta::lock::plant::Plant;
use perigee_sim::locks::{Mark, Marks, Options, Report, run};
use perigee_sim::{Detail, LeftOut};

fn history(seed: u64, plant: Option<Plant>) -> Report {
    run(Options {
        seed,
        plant,
        left_out: LeftOut::default(),
        detail: Detail::Quiet,
    })
}

#[test]
fn no_law_of_locks_is_broken_and_everything_worth_seeing_is_met() {
    let mut marks = Marks::default();
    for seed in 1..=400 {
        let report = history(seed, None);
        let replay = format!("replay: sim --locks --seed {seed} --trace");
        assert_eq!(report.violation, None, "{replay}");
        marks.add(&report.marks);
    }
    for (mark, text) in Mark::ALL {
        assert!(marks.0[*mark as usize] > 0, "never met: {text}");
    }
}

#[test]
fn one_seed_is_one_history_of_locks() {
    for seed in 1..=20 {
        assert_eq!(history(seed, None), history(seed, None));
    }
    assert_ne!(history(1, None).hash, history(2, None).hash);
}

/// Each deliberate fault, and the first seed that finds it. After a change of the simulator: `sim --locks --plants`.
const FOUND_BY: &[(Plant, u64)] = &[
    (Plant::LockOvertakes, 1),
    (Plant::LongCycleMissed, 36),
    (Plant::CycleOverFilesMissed, 5),
    (Plant::GrantNotReplicated, 31),
    (Plant::LocksEndWithOwner, 2),
    (Plant::SilentSessionEnds, 1),
    (Plant::FenceNotChecked, 77),
    (Plant::FencesNotRestored, 77),
    (Plant::EndedLockForgotten, 722),
    (Plant::TokenUsedAgain, 1),
    (Plant::KeptOverCall, 1),
    (Plant::RefusedUncalled, 1),
    (Plant::RefusedForSilence, 8),
    (Plant::KeptBeyondLife, 948),
    (Plant::GrantOutlivesLapse, 181),
    (Plant::CoverEndsBare, 2),
    (Plant::CoverBeyondLife, 77),
    (Plant::CoverOverRequest, 65),
    (Plant::WaitsUntold, 5269),
    (Plant::EndNotReplicated, 155),
    (Plant::EarlyCallForgotten, 1),
];

#[test]
fn every_deliberate_fault_of_locks_is_found() {
    for &plant in Plant::ALL {
        let name = plant.name();
        let known = FOUND_BY.iter().find(|(known, _)| *known == plant);
        let Some((_, seed)) = known.copied() else {
            panic!("no seed finds {name}: {}", plant.text());
        };
        let found = history(seed, Some(plant)).violation;
        let hint = "see `sim --locks --plants`";
        assert!(found.is_some(), "seed {seed} finds {name} no more: {hint}");
        let without = history(seed, None).violation;
        assert_eq!(without, None, "seed {seed} without {name}");
    }
}
