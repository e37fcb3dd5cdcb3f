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
const BAD_DISKS_RARE: [u64; 4] = [4_419, 20_726, 41_511, 50_943];

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
    (Plant::PromiseNotPersisted, 18),
    (Plant::ViewNotWritten, 49),
    (Plant::RemoteReadUnreplicated, 1),
    (Plant::CommitWithoutAll, 1),
    (Plant::JoinerListedEarly, 7),
    (Plant::JoinerNotAwaited, 3),
    (Plant::LeaseWithoutJoiner, 102),
    (Plant::LongLease, 7),
    (Plant::EagerTakeover, 31),
    (Plant::GrantWhileProposing, 438),
    (Plant::FetchedWithoutAsOf, 1),
    (Plant::DurableIsEnough, 1),
    (Plant::NoInvalidationOnTruncation, 7),
    (Plant::RestartedOwnerKeepsEpoch, 2),
    (Plant::EpochBackward, 59),
    (Plant::WipedMemberVotes, 11),
    (Plant::UnknownIsLost, 310),
    (Plant::AckUnmatched, 1207),
    (Plant::DurableAfterTruncation, 203),
    (Plant::RevertUnlogged, 3),
    (Plant::UnsyncedTrusted, 1),
    (Plant::SyncUnfenced, 495),
    (Plant::SyncForgetsReplaced, 35),
    (Plant::StaleFrontier, 2321),
    (Plant::StateDiscardsAcked, 107),
    (Plant::StateDiscardsData, 27),
    (Plant::ContentTooOld, 32),
    (Plant::NewestNotCounted, 2),
    (Plant::CommitsForgotten, 1),
    (Plant::EmptyStorageTrusted, 133),
    (Plant::HolesMadeAgain, 880),
    (Plant::HandOverEarly, 13),
    (Plant::CededEarly, 5),
    (Plant::CededServing, 6381),
    (Plant::LateCessionTaken, 7733),
    (Plant::CessionToNextLife, 637),
    (Plant::ChecksumIgnored, 9),
    (Plant::CorruptNotFetched, 9),
    (Plant::ChecksumMoves, 9),
    (Plant::WriteNotNoted, 59),
    (Plant::NoteGoesEarly, 15),
    (Plant::NoteForgetsLater, 699),
    (Plant::NotedTrusted, 15),
    (Plant::UnsummedTrusted, 24),
    (Plant::GivenUpTooOld, 2803),
    (Plant::OwnWriteFetchedOver, 306),
    (Plant::LostWriteTrusted, 241),
    (Plant::OlderAfterLost, 777),
    (Plant::LateFlushTaken, 1947),
    (Plant::FlushesDisordered, 5979),
    (Plant::HolderNotAsked, 15),
    (Plant::RightNotAwaited, 687),
    (Plant::RightTooLong, 10687),
    (Plant::GivenUnrecorded, 4303),
    (Plant::FlushUnfenced, 10307),
    (Plant::FlushUnreplicated, 2075),
    (Plant::UnsentTrusted, 51),
    (Plant::KeptGivenOut, 235),
    (Plant::OwnRecordFetchedOver, 15),
    (Plant::CallUnheeded, 207),
    (Plant::FirstPartReported, 2767),
    (Plant::CheckpointUnrecorded, 84),
    (Plant::CheckpointLacks, 519),
    (Plant::CheckpointBesideHolder, 4263),
    (Plant::ReplacedUnkept, 4),
    (Plant::KeptUnrecorded, 20),
    (Plant::KeptNotSettled, 4),
    (Plant::KeptHoleIsContent, 148),
    (Plant::KeptUnproven, 1252),
    (Plant::AnySumFits, 7),
    (Plant::RevertUnkept, 1244),
    (Plant::LostIsOwn, 148),
    (Plant::GivenUnkept, 4775),
    (Plant::CarriedTrimmed, 73),
    (Plant::CarriedNotRedone, 8),
    (Plant::CarriedReplacedBare, 1),
    (Plant::CarriedOverNewer, 1),
    (Plant::CarriedOverUncertain, 1894),
    (Plant::CarriedIsAll, 4),
    (Plant::CarriedUncommitted, 1),
    (Plant::ReadsCrossRevocation, 494),
    (Plant::ReadsBesideOwnChange, 2014),
    (Plant::ReadsBeforeInPlace, 158),
    (Plant::ReadsNotCalledBack, 61),
    (Plant::ReadsOfUnsettled, 22),
    (Plant::ReadsOutliveCession, 13565),
    (Plant::ReadsOutliveRestart, 45130),
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
