//! Where the binaries under test lie.

use crate::error::{CheckError, Checked};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The `perigee` binary: `$PERIGEE_BIN`, or the one that cargo built beside this executable.
///
/// Errors: `NotBuilt` names the places.
pub fn perigee() -> Checked<PathBuf> {
    find("perigee", "PERIGEE_BIN")
}

/// The testbed's own binary, which runs the sides of a check as separate processes.
///
/// Errors: `NotBuilt` names the places.
pub fn testbed() -> Checked<PathBuf> {
    find("perigee-testbed", "PERIGEE_TESTBED_BIN")
}

/// Another build of `perigee`: `$PERIGEE_OTHER_BIN`, where it is given.
#[must_use]
pub fn other_perigee() -> Option<PathBuf> {
    std::env::var_os("PERIGEE_OTHER_BIN").map(PathBuf::from)
}

fn find(name: &'static str, variable: &'static str) -> Checked<PathBuf> {
    if let Some(path) = std::env::var_os(variable) {
        let path = PathBuf::from(path);
        if path.is_file() {
            return Ok(path);
        }
        return Err(CheckError::NotBuilt {
            name,
            looked: path.display().to_string(),
            variable,
        });
    }
    let places = beside_this_executable(name);
    let found = places.iter().find(|place| place.is_file()).cloned();
    found.ok_or_else(|| CheckError::NotBuilt {
        name,
        looked: places
            .iter()
            .map(|p| p.display().to_string())
            .collect::<Vec<_>>()
            .join(", "),
        variable,
    })
}

/// A test lies in `target/PROFILE/deps`, a binary in `target/PROFILE`; the other profile comes last.
fn beside_this_executable(name: &str) -> Vec<PathBuf> {
    let Ok(this) = std::env::current_exe() else {
        return Vec::new();
    };
    let Some(mut folder) = this.parent() else {
        return Vec::new();
    };
    if folder.ends_with("deps") {
        folder = folder.parent().unwrap_or(folder);
    }
    let target = folder.parent().unwrap_or(Path::new("/"));
    vec![
        folder.join(name),
        target.join("release").join(name),
        target.join("debug").join(name),
    ]
}

/// Why a real cluster cannot run here, where it cannot: mounting needs root and `/dev/fuse`.
fn why_no_cluster() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("skipped: mounting needs root".to_owned());
    }
    if !Path::new("/dev/fuse").exists() {
        return Some("skipped: there is no /dev/fuse".to_owned());
    }
    None
}

/// The right to start a cluster: one at a time, since three nodes are all that a small machine bears. None where no cluster
/// can run, which is said.
#[must_use]
pub fn alone() -> Option<MutexGuard<'static, ()>> {
    static ALONE: Mutex<()> = Mutex::new(());
    if let Some(reason) = why_no_cluster() {
        eprintln!("{reason}");
        return None;
    }
    Some(ALONE.lock().unwrap_or_else(PoisonError::into_inner))
}
