//! A fixed share of the histories of a striped file that `sim --stripes` runs by the million, and each deliberate fault once.

use perigee_meta::stripe::plant::Plant;
use perigee_sim::Detail;
use perigee_sim::stripes::{Mark, Marks, Options, Report, run};

fn history(seed: u64, plant: Option<Plant>) -> Report {
    run(&Options {
        seed,
        plant,
        detail: Detail::Quiet,
    })
}

#[test]
fn a_striped_file_is_one_file_and_everything_worth_seeing_is_met() {
    let mut marks = Marks::default();
    let mut undecided = 0;
    for seed in 1..=300 {
        let report = history(seed, None);
        let replay = format!("replay: sim --stripes --seed {seed} --trace");
        assert_eq!(report.violation, None, "{replay}");
        marks.add(&report.marks);
        undecided += u32::from(report.undecided);
    }
    for (mark, text) in Mark::ALL {
        assert!(marks.0[*mark as usize] > 0, "never met: {text}");
    }
    assert!(undecided < 15, "of {undecided} histories nothing is known");
}

#[test]
fn one_seed_is_one_history_of_a_striped_file() {
    for seed in 1..=20 {
        assert_eq!(history(seed, None), history(seed, None));
    }
    assert_ne!(history(1, None).hash, history(2, None).hash);
}

/// Each deliberate fault, and a seed that finds it. After a change of the simulator: `sim --stripes --plants`.
const FOUND_BY: &[(Plant, u64)] = &[
    (Plant::StaleAdmitted, 2),
    (Plant::GrowthBesideBytes, 1),
    (Plant::CutEndedEarly, 2),
    (Plant::CutAnsweredEarly, 4),
    (Plant::CutIsNoBarrier, 5),
    (Plant::ReadBeyondCut, 16),
    (Plant::GrowthLeftOut, 1),
    (Plant::GrantedBesideCut, 15),
    (Plant::FencedIsTold, 10),
    (Plant::FencedInPart, 15),
    (Plant::PlaceOutlivesCut, 62),
];

#[test]
fn every_deliberate_fault_of_striped_files_is_found() {
    for &plant in Plant::ALL {
        let known = FOUND_BY.iter().find(|(known, _)| *known == plant);
        let Some((_, seed)) = known else {
            panic!("no seed is known that finds {}", plant.name());
        };
        let name = plant.name();
        assert!(history(*seed, Some(plant)).violation.is_some(), "{name}");
        assert_eq!(history(*seed, None).violation, None, "{name}");
    }
}
