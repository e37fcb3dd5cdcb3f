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
const BAD_DISKS_RARE: [u64; 3] = [1_244, 5_686, 6_683];

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
    (Plant::NoFence, 11),
    (Plant::AckBeforePersist, 1),
    (Plant::PromiseNotPersisted, 18),
    (Plant::ViewNotWritten, 27),
    (Plant::RemoteReadUnreplicated, 1),
    (Plant::CommitWithoutAll, 1),
    (Plant::JoinerListedEarly, 7),
    (Plant::JoinerNotAwaited, 2),
    (Plant::LeaseWithoutJoiner, 57),
    (Plant::LongLease, 7),
    (Plant::EagerTakeover, 7),
    (Plant::GrantWhileProposing, 277),
    (Plant::FetchedWithoutAsOf, 1),
    (Plant::DurableIsEnough, 2),
    (Plant::NoInvalidationOnTruncation, 3),
    (Plant::RestartedOwnerKeepsEpoch, 1),
    (Plant::EpochBackward, 1392),
    (Plant::WipedMemberVotes, 7),
    (Plant::UnknownIsLost, 57),
    (Plant::AckUnmatched, 720),
    (Plant::DurableAfterTruncation, 199),
    (Plant::RevertUnlogged, 4),
    (Plant::UnsyncedTrusted, 1),
    (Plant::SyncUnfenced, 50),
    (Plant::SyncForgetsReplaced, 27),
    (Plant::StaleFrontier, 1220),
    (Plant::StateDiscardsAcked, 19),
    (Plant::StateDiscardsData, 177),
    (Plant::ContentTooOld, 39),
    (Plant::NewestNotCounted, 3),
    (Plant::CommitsForgotten, 2),
    (Plant::EmptyStorageTrusted, 59),
    (Plant::HolesMadeAgain, 1242),
    (Plant::HandOverEarly, 7),
    (Plant::CededEarly, 5),
    (Plant::CededServing, 813),
    (Plant::LateCessionTaken, 389),
    (Plant::CessionToNextLife, 2173),
    (Plant::ChecksumIgnored, 9),
    (Plant::CorruptNotFetched, 153),
    (Plant::ChecksumMoves, 9),
    (Plant::WriteNotNoted, 53),
    (Plant::NoteGoesEarly, 11),
    (Plant::NoteForgetsLater, 871),
    (Plant::NotedTrusted, 3),
    (Plant::UnsummedTrusted, 60),
    (Plant::GivenUpTooOld, 9203),
    (Plant::OwnWriteFetchedOver, 847),
    (Plant::LostWriteTrusted, 57),
    (Plant::OlderAfterLost, 569),
    (Plant::LateFlushTaken, 363),
    (Plant::FlushesDisordered, 7851),
    (Plant::HolderNotAsked, 223),
    (Plant::RightNotAwaited, 271),
    (Plant::RightTooLong, 3743),
    (Plant::GivenUnrecorded, 3055),
    (Plant::FlushUnfenced, 5915),
    (Plant::FlushUnreplicated, 2043),
    (Plant::UnsentTrusted, 3),
    (Plant::KeptGivenOut, 35),
    (Plant::OwnRecordFetchedOver, 43),
    (Plant::CallUnheeded, 3679),
    (Plant::FirstPartReported, 4383),
    (Plant::CheckpointUnrecorded, 148),
    (Plant::CheckpointLacks, 71),
    (Plant::CheckpointBesideHolder, 12871),
    (Plant::ReplacedUnkept, 4),
    (Plant::KeptUnrecorded, 4),
    (Plant::KeptNotSettled, 23),
    (Plant::KeptHoleIsContent, 39),
    (Plant::KeptUnproven, 5444),
    (Plant::AnySumFits, 36),
    (Plant::RevertUnkept, 429),
    (Plant::LostIsOwn, 109),
    (Plant::GivenUnkept, 11895),
    (Plant::CarriedTrimmed, 13),
    (Plant::CarriedNotRedone, 115),
    (Plant::CarriedReplacedBare, 5),
    (Plant::CarriedOverNewer, 2),
    (Plant::CarriedOverUncertain, 1894),
    (Plant::CarriedIsAll, 2),
    (Plant::CarriedUncommitted, 1),
    (Plant::ReadsCrossRevocation, 86),
    (Plant::ReadsBesideOwnChange, 1178),
    (Plant::ReadsBeforeInPlace, 358),
    (Plant::ReadsNotCalledBack, 34),
    (Plant::ReadsOfUnsettled, 1802),
    (Plant::ReadsOutliveCession, 48701),
    (Plant::ReadsOutliveRestart, 74074),
    (Plant::CutBeforeKept, 84),
    (Plant::ReplacedBeforeKept, 13),
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
