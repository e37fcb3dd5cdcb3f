//! A fixed share of the histories that `sim` runs by the million, and each deliberate fault once.

use perigee_replica::Plant;
use perigee_sim::{Detail, Drift, LeftOut, Mark, Marks, Options, Report, Scenario, run};

fn history(seed: u64, plant: Option<Plant>) -> Report {
    run(Options {
        scenario: Scenario::of(seed),
        seed,
        plant,
        drift: Drift::of(seed),
        left_out: LeftOut::default(),
        detail: Detail::Quiet,
    })
}

/// Seeds that have broken a law, as long as their histories are the same.
const ONCE_BROKEN: [u64; 14] = [
    3_245,
    30_569_261,
    30_698_889,
    30_925_705,
    40_061_566,
    40_723_977,
    50_020_927,
    50_804_803,
    51_051_332,
    60_101_092,
    62_255_648,
    64_413_580,
    64_498_133,
    110_030_766,
];

#[test]
fn no_law_is_broken_and_everything_worth_seeing_is_met() {
    let mut marks = Marks::default();
    for seed in (1..=300).chain(ONCE_BROKEN) {
        let report = history(seed, None);
        assert_eq!(report.violation, None, "replay: sim --seed {seed} --trace");
        marks.add(&report.marks);
    }
    // What is seldom met where few disks are bad is looked for below.
    for (mark, text) in Mark::ALL
        .iter()
        .filter(|(mark, _)| !matches!(mark, Mark::Found | Mark::TookOlder))
    {
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
            drift: Drift::Within,
            left_out: LeftOut::default(),
            detail: Detail::Quiet,
        });
        assert_eq!(report.violation, None, "seed {seed}");
        done += report.marks.0[Mark::RemoteOk as usize];
    }
    assert!(done > 1_000, "only {done} operations");
}

#[test]
fn nothing_acknowledged_is_lost_when_clocks_run_away() {
    let mut marks = Marks::default();
    for seed in 1..=200 {
        let report = run(Options {
            scenario: Scenario::Chaos,
            seed,
            plant: None,
            drift: Drift::Beyond,
            left_out: LeftOut::default(),
            detail: Detail::Quiet,
        });
        let replay = format!("replay: sim --drift --seed {seed} --trace");
        assert_eq!(report.violation, None, "{replay}");
        marks.add(&report.marks);
    }
    // The leases themselves did not hold, or this has shown nothing.
    for mark in [Mark::ClockJump, Mark::TwoLeases, Mark::FsyncOk] {
        assert!(marks.0[mark as usize] > 100, "{mark:?}");
    }
}

/// Of histories with bad disks: an owner that was killed before its disk knew that a block was whole again took older
/// content of a member.
const BAD_DISKS_RARE: [u64; 4] = [107_910, 108_822, 109_081, 111_529];

#[test]
fn what_disks_spoil_is_never_shown_and_always_mended() {
    let mut marks = Marks::default();
    for seed in (1..=500).chain(BAD_DISKS_RARE) {
        let report = run(Options {
            scenario: Scenario::BadDisks,
            seed,
            plant: None,
            drift: Drift::Within,
            left_out: LeftOut::default(),
            detail: Detail::Quiet,
        });
        let replay = format!("replay: sim --bad-disks --seed {seed} --trace");
        assert_eq!(report.violation, None, "{replay}");
        marks.add(&report.marks);
    }
    for mark in [
        Mark::Rot,
        Mark::Torn,
        Mark::Misdirected,
        Mark::Unreadable,
        Mark::Lost,
        Mark::LostElsewhere,
        Mark::Found,
        Mark::TookOlder,
    ] {
        assert!(marks.0[mark as usize] > 2, "{mark:?}");
    }
}

/// Each deliberate fault, and the first seed that finds it. After a change of the simulator: `sim --plants`.
const FOUND_BY: &[(Plant, u64)] = &[
    (Plant::NoFence, 18),
    (Plant::AckBeforePersist, 1),
    (Plant::PromiseNotPersisted, 11),
    (Plant::ViewNotWritten, 49),
    (Plant::RemoteReadUnreplicated, 1),
    (Plant::CommitWithoutAll, 1),
    (Plant::JoinerListedEarly, 10),
    (Plant::JoinerNotAwaited, 4),
    (Plant::LeaseWithoutJoiner, 617),
    (Plant::LongLease, 13),
    (Plant::EagerTakeover, 4),
    (Plant::GrantWhileProposing, 1944),
    (Plant::FetchedWithoutAsOf, 3),
    (Plant::DurableIsEnough, 2),
    (Plant::NoInvalidationOnTruncation, 3),
    (Plant::RestartedOwnerKeepsEpoch, 1),
    (Plant::EpochBackward, 291),
    (Plant::WipedMemberVotes, 6),
    (Plant::UnknownIsLost, 131),
    (Plant::AckUnmatched, 167),
    (Plant::DurableAfterTruncation, 115),
    (Plant::RevertUnlogged, 3),
    (Plant::UnsyncedTrusted, 1),
    (Plant::SyncUnfenced, 111),
    (Plant::SyncForgetsReplaced, 7),
    (Plant::StaleFrontier, 133),
    (Plant::StateDiscardsAcked, 82),
    (Plant::StateDiscardsData, 10),
    (Plant::ContentTooOld, 79),
    (Plant::NewestNotCounted, 3),
    (Plant::CommitsForgotten, 1),
    (Plant::EmptyStorageTrusted, 71),
    (Plant::HolesMadeAgain, 30),
    (Plant::HandOverEarly, 51),
    (Plant::CededEarly, 5),
    (Plant::CededServing, 77),
    (Plant::LateCessionTaken, 237),
    (Plant::CessionToNextLife, 269),
    (Plant::ChecksumIgnored, 9),
    (Plant::CorruptNotFetched, 57),
    (Plant::ChecksumMoves, 25),
    (Plant::WriteNotNoted, 23),
    (Plant::NoteGoesEarly, 3),
    (Plant::NoteForgetsLater, 35),
    (Plant::NotedTrusted, 3),
    (Plant::UnsummedTrusted, 18),
    (Plant::GivenUpTooOld, 1732),
    (Plant::OwnWriteFetchedOver, 22),
    (Plant::LostWriteTrusted, 271),
    (Plant::OlderAfterLost, 777),
    (Plant::LateFlushTaken, 2323),
    (Plant::FlushesDisordered, 1699),
    (Plant::HolderNotAsked, 199),
    (Plant::RightNotAwaited, 271),
    (Plant::RightTooLong, 271),
    (Plant::GivenUnrecorded, 395),
    (Plant::FlushUnfenced, 2259),
    (Plant::FlushUnreplicated, 1135),
    (Plant::UnsentTrusted, 59),
    (Plant::KeptGivenOut, 27),
    (Plant::OwnRecordFetchedOver, 99),
    (Plant::CallUnheeded, 1863),
    (Plant::FirstPartReported, 2383),
    (Plant::CheckpointUnrecorded, 55),
    (Plant::CheckpointLacks, 3132),
    (Plant::CheckpointBesideHolder, 4263),
    (Plant::ReplacedUnkept, 4),
    (Plant::KeptUnrecorded, 1005),
    (Plant::KeptNotSettled, 4),
    (Plant::KeptHoleIsContent, 7),
    (Plant::KeptUnproven, 188),
    (Plant::AnySumFits, 7),
    (Plant::RevertUnkept, 188),
    (Plant::LostIsOwn, 7),
    (Plant::GivenUnkept, 839),
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
