//! Rounds: every group on every target, by turns, so that the machine's moods meet all alike.

use crate::jobs;
use crate::row::Group;
use crate::{Figure, Row, Settings, Target};
use perigee_testbed::Checked;
use std::collections::BTreeMap;
use std::time::Duration;

/// All values of one target.
pub type Series = BTreeMap<Row, Vec<Figure>>;

/// The median of a row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Median {
    /// In the row's unit.
    pub value: f64,
    /// CPU time of an operation.
    pub cpu: Duration,
}

/// Measures `groups` on all targets, and gives a series for each; `tell` hears of each group that is done.
///
/// Errors: the first failure on any.
pub fn run(
    settings: &Settings,
    groups: &[Group],
    targets: &[Target],
    mut tell: impl FnMut(u32, Group, &Target),
) -> Checked<Vec<Series>> {
    let mut series = vec![Series::new(); targets.len()];
    for round in 1..=settings.rounds {
        for (position, group) in groups.iter().enumerate() {
            // Who comes first changes: the second may find the disk busy with the first one's blocks.
            let first = round as usize + position;
            for turn in 0..targets.len() {
                let index = (first + turn) % targets.len();
                let target = &targets[index];
                let figures = jobs::run(*group, settings, target)
                    .map_err(|error| error.during(&format!("{group:?} on {}", target.label)))?;
                for (row, figure) in figures {
                    series[index].entry(row).or_default().push(figure);
                }
                tell(round, *group, target);
            }
        }
    }
    Ok(series)
}

/// The median of plain numbers; 0 of none.
#[must_use]
pub fn middle(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    // Two in the middle of an even number; the same one twice of an odd one.
    let at = |place: usize| values.get(place).copied().unwrap_or_default();
    f64::midpoint(at(values.len().saturating_sub(1) / 2), at(values.len() / 2))
}

/// The median of values, and of CPU times, each by itself; `None` of none.
#[must_use]
pub fn median(figures: &[Figure]) -> Option<Median> {
    let values: Vec<f64> = figures.iter().map(|figure| figure.value).collect();
    let mut cpus: Vec<Duration> = figures.iter().map(|figure| figure.cpu).collect();
    cpus.sort_unstable();
    let (low, high) = (cpus.len().checked_sub(1)? / 2, cpus.len() / 2);
    Some(Median {
        value: middle(&values),
        cpu: (*cpus.get(low)? + *cpus.get(high)?) / 2,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_ignores_one_outlier() {
        let figure = |value, micros| Figure {
            value,
            cpu: Duration::from_micros(micros),
        };
        let median = median(&[figure(5.0, 900), figure(7.0, 3), figure(900.0, 4)]);
        assert_eq!(
            median,
            Some(Median {
                value: 7.0,
                cpu: Duration::from_micros(4)
            })
        );
    }

    #[test]
    fn every_row_is_measured_on_both_sides() {
        if !rustix::process::geteuid().is_root() {
            return; // Cold rows drop the kernel's caches.
        }
        let directory = tempfile();
        let settings = Settings {
            rounds: 1,
            file_bytes: 1 << 20,
            random: Duration::from_millis(10),
            cold_rest: Duration::ZERO,
            small_files: 40,
            tree_files: 45,
        };
        let target = |label: &str| Target {
            label: label.to_owned(),
            directory: directory.path().to_owned(),
            one_copy: None,
            daemons: Vec::new(),
        };
        let series = run(
            &settings,
            &Group::ALL,
            &[target("one"), target("two")],
            |_, _, _| (),
        )
        .unwrap();
        for side in &series {
            for row in Row::ALL {
                assert_eq!(side[&row].len(), 1, "{row:?}");
                assert!(side[&row][0].value > 0.0 && side[&row][0].cpu > Duration::ZERO);
            }
        }
        let left = std::fs::read_dir(directory.path()).unwrap().count();
        assert_eq!(left, 1, "more is left than the folder's mark of its owner");
    }

    fn tempfile() -> perigee_testbed::leftover::Workspace {
        perigee_testbed::leftover::Workspace::new().unwrap()
    }
}
