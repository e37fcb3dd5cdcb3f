//! A fixed share of the histories of hosts that write behind, which `sim --behind` runs by the million, and each deliberate fault once.

use perigee_replica::chunk::behind_plant::Plant;
use perigee_sim::Detail;
use perigee_sim::behind::{Mark, Marks, Options, Report, run};

fn history(seed: u64, plant: Option<Plant>) -> Report {
    run(&Options {
        seed,
        plant,
        detail: Detail::Quiet,
    })
}

#[test]
fn nobody_can_tell_who_writes_behind_and_everything_worth_seeing_is_met() {
    let mut marks = Marks::default();
    for seed in 1..=300 {
        let report = history(seed, None);
        let replay = format!("replay: sim --behind --seed {seed} --trace");
        assert_eq!(report.violation, None, "{replay}");
        marks.add(&report.marks);
    }
    for (mark, text) in Mark::ALL {
        assert!(marks.0[*mark as usize] > 0, "never met: {text}");
    }
}

#[test]
fn one_seed_is_one_history_of_hosts_that_write_behind() {
    for seed in 1..=20 {
        assert_eq!(history(seed, None), history(seed, None));
    }
    assert_ne!(history(1, None).hash, history(2, None).hash);
}

/// Each deliberate fault, and a seed that finds it. After a change of the simulator: `sim --behind --plants`.
const FOUND_BY: &[(Plant, u64)] = &[
    (Plant::WithoutRight, 1),
    (Plant::Overtakes, 5),
    (Plant::Unheeding, 1),
    (Plant::ReportsEarly, 5),
    (Plant::Unfenced, 11),
    (Plant::Unasked, 5),
    (Plant::RowUncommitted, 280),
    (Plant::OldRowBelieved, 5),
    (Plant::LeavesEarly, 1),
    (Plant::StaysOrdered, 299),
    (Plant::ToldUnordered, 3),
];

#[test]
fn every_deliberate_fault_of_writing_behind_is_found() {
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
