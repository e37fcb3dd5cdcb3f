//! A fixed share of the histories that `sim` runs by the million, and each deliberate fault once.

use perigee_replica::Plant;
use perigee_sim::{Mark, Marks, Options, Report, Scenario, run};

fn history(seed: u64, plant: Option<Plant>) -> Report {
    run(Options {
        scenario: Scenario::Chaos,
        seed,
        plant,
        trace: false,
    })
}

#[test]
fn no_law_is_broken_and_everything_worth_seeing_is_met() {
    let mut marks = Marks::default();
    for seed in 1..=300 {
        let report = history(seed, None);
        assert_eq!(report.violation, None, "replay: sim --seed {seed} --trace");
        marks.add(&report.marks);
    }
    for (mark, text) in Mark::ALL {
        assert!(marks.0[*mark as usize] > 0, "never met: {text}");
    }
}

#[test]
fn one_seed_is_one_history() {
    for seed in 1..=40 {
        assert_eq!(history(seed, None), history(seed, None));
    }
    assert_ne!(history(1, None).hash, history(2, None).hash);
}

#[test]
fn operations_go_on_while_the_control_store_is_away() {
    let mut done = 0;
    for seed in 1..=30 {
        let report = run(Options {
            scenario: Scenario::StoreAway,
            seed,
            plant: None,
            trace: false,
        });
        assert_eq!(report.violation, None, "seed {seed}");
        done += report.marks.0[Mark::RemoteOk as usize];
    }
    assert!(done > 1_000, "only {done} operations");
}

/// Each deliberate fault, and the first seed that finds it. After a change of the simulator: `sim --plants`.
const FOUND_BY: &[(Plant, u64)] = &[
    (Plant::NoFence, 28),
    (Plant::AckBeforePersist, 1),
    (Plant::PromiseNotPersisted, 432),
    (Plant::ViewNotWritten, 76),
    (Plant::RemoteReadUnreplicated, 1),
    (Plant::CommitWithoutAll, 1),
    (Plant::JoinerListedEarly, 3),
    (Plant::JoinerNotAwaited, 5),
    (Plant::LeaseWithoutJoiner, 28),
    (Plant::LongLease, 6),
    (Plant::EagerTakeover, 2),
    (Plant::GrantWhileProposing, 1251),
    (Plant::FetchedWithoutAsOf, 2),
    (Plant::DurableIsEnough, 1),
    (Plant::NoInvalidationOnTruncation, 6),
    (Plant::RestartedOwnerKeepsEpoch, 1),
    (Plant::EpochBackward, 1182),
    (Plant::WipedMemberVotes, 12),
    (Plant::UnknownIsLost, 7),
    (Plant::AckUnmatched, 2689),
    (Plant::DurableAfterTruncation, 32),
    (Plant::RevertUnlogged, 2),
    (Plant::UnsyncedTrusted, 2),
    (Plant::SyncUnfenced, 1896),
    (Plant::SyncForgetsReplaced, 3),
    (Plant::StaleFrontier, 425),
    (Plant::StateDiscardsAcked, 2084),
    (Plant::ContentTooOld, 14),
    (Plant::CommitsForgotten, 4),
    (Plant::EmptyStorageTrusted, 33),
    (Plant::HolesMadeAgain, 380),
    (Plant::HandOverEarly, 4),
    (Plant::FsyncLocalOnly, 1),
];

#[test]
fn every_deliberate_fault_is_found() {
    for &plant in Plant::ALL {
        let seed = FOUND_BY
            .iter()
            .find(|(p, _)| *p == plant)
            .map(|(_, seed)| *seed);
        let Some(seed) = seed else {
            panic!("no seed finds {}: {}", plant.name(), plant.text());
        };
        let report = history(seed, Some(plant));
        let name = plant.name();
        assert!(
            report.violation.is_some(),
            "seed {seed} finds {name} no more: see `sim --plants`"
        );
        assert_eq!(
            history(seed, None).violation,
            None,
            "seed {seed} without {name}"
        );
    }
}
