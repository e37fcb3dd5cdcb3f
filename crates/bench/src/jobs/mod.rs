//! The work itself: each job makes its files in a fresh directory of a target, and removes them.

mod large_file;
mod small_files;
mod tree;
mod work;

use crate::row::Group;
use crate::{Figure, Row, Settings, Target};
use perigee_testbed::{Call, Checked};
use std::path::Path;

/// Values of the rows of one group.
pub type Figures = Vec<(Row, Figure)>;

/// Runs one group on one target.
///
/// Errors: the first call that fails, or content that is not what was written.
pub fn run(group: Group, settings: &Settings, target: &Target) -> Checked<Figures> {
    let directory = target
        .place_of(group)
        .join(format!("bench-{}", std::process::id()));
    std::fs::create_dir(&directory).call(|| format!("mkdir {}", directory.display()))?;
    let figures = run_in(group, settings, target, &directory);
    std::fs::remove_dir_all(&directory).call(|| format!("remove {}", directory.display()))?;
    figures
}

fn run_in(
    group: Group,
    settings: &Settings,
    target: &Target,
    directory: &Path,
) -> Checked<Figures> {
    match group {
        Group::File => large_file::run(settings, target, &directory.join("large")),
        Group::OneCopy => large_file::write_only(settings, target, &directory.join("large")),
        Group::Small => small_files::run(settings, target, directory),
        Group::SmallFour => small_files::run_by_four(settings, target, directory),
        Group::Tree => tree::run(settings, target, directory),
        Group::Work => work::run(target, directory),
    }
}
