//! A temporary folder that leaves nothing behind: no process, no mount, no file.
//!
//! What belongs to a test is known by three marks only: the folder's own random name in a process's
//! command line, the identities recorded in its `pids` file, and the folder that a host of its own
//! has mounted. Folders whose test has died are swept by the next one.

use crate::error::{Call, Checked};
use crate::process::{self, Identity};
use crate::{mounts, slow, ssh_hosts, wait};
use rustix::process::Signal;
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Every folder's name begins so; nothing else is ever swept.
const PREFIX: &str = "perigee-testbed-";
/// File with the identity of the test that owns the folder.
const OWNER: &str = "owner";
/// File with the identities of processes that the test started.
const PIDS: &str = "pids";
/// A killed process is gone at once, unless its disk is very slow.
const DEATH: Duration = Duration::from_secs(20);

/// A folder with all that runs in it.
#[derive(Debug)]
pub struct Workspace {
    path: PathBuf,
}

impl Workspace {
    /// Sweeps what dead tests left, then makes a fresh folder.
    ///
    /// Errors: those of making it.
    pub fn new() -> Checked<Self> {
        sweep();
        let path = tempfile::Builder::new()
            .prefix(PREFIX)
            .tempdir()
            .call(|| "make a temporary folder".to_owned())?
            .keep();
        let this = i32::try_from(std::process::id())
            .ok()
            .and_then(Identity::of);
        let line = this.map(line_of).unwrap_or_default();
        std::fs::write(path.join(OWNER), line).call(|| "write the owner file".to_owned())?;
        Ok(Self { path })
    }

    /// The folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Notes the processes that name this folder, so that they are found again even when they
    /// change their command line.
    ///
    /// Errors: those of writing the list.
    pub fn record(&self) -> Checked {
        let mut known = recorded(&self.path);
        known.extend(process::mentioning(&self.path.to_string_lossy()));
        let text: String = known.into_iter().map(line_of).collect();
        std::fs::write(self.path.join(PIDS), text).call(|| "write the pid list".to_owned())
    }

    /// Ends the processes and detaches the mounts; keeps the files.
    ///
    /// Errors: a process or a mount that resists.
    pub fn stop(&self) -> Checked {
        stop(&self.path)
    }
}

impl Drop for Workspace {
    fn drop(&mut self) {
        if let Err(error) = remove(&self.path) {
            report(&format!(
                "testbed: {} is left behind: {error}",
                self.path.display()
            ));
        }
    }
}

fn line_of(identity: Identity) -> String {
    format!("{} {}\n", identity.pid, identity.started)
}

fn read_identities(file: &Path) -> BTreeSet<Identity> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    text.lines()
        .filter_map(|line| {
            let (pid, started) = line.split_once(' ')?;
            Some(Identity {
                pid: pid.parse().ok()?,
                started: started.parse().ok()?,
            })
        })
        .collect()
}

fn recorded(folder: &Path) -> BTreeSet<Identity> {
    read_identities(&folder.join(PIDS))
}

fn stop(folder: &Path) -> Checked {
    let mut all = recorded(folder);
    all.extend(process::mentioning(&folder.to_string_lossy()));
    let hosts = ssh_hosts::folder(folder);
    if hosts.is_dir() {
        all.extend(process::with_mounts_in(&hosts));
    }
    for identity in &all {
        identity
            .signal(Signal::KILL)
            .call(|| format!("kill process {}", identity.pid))?;
    }
    mounts::detach_below(folder).call(|| format!("detach mounts below {}", folder.display()))?;
    wait::until("the killed processes are gone", DEATH, || {
        Ok(all.iter().all(|identity| !identity.lives()).then_some(()))
    })
}

fn remove(folder: &Path) -> Checked {
    stop(folder)?;
    let mounted = mounts::below(folder).call(|| "read the mount table".to_owned())?;
    if !mounted.is_empty() {
        // Removing through a mount would delete the files of a file system, not the folder's.
        let error = io::Error::from(io::ErrorKind::ResourceBusy);
        return Err(error).call(|| format!("{} is still mounted", mounted[0].display()));
    }
    if let Some(name) = folder.file_name() {
        slow::sweep(&name.to_string_lossy());
    }
    std::fs::remove_dir_all(folder).call(|| format!("remove {}", folder.display()))
}

/// Clears the folders of tests that no longer live.
fn sweep() {
    let Ok(entries) = std::fs::read_dir(std::env::temp_dir()) else {
        return;
    };
    for entry in entries.flatten() {
        if !entry
            .file_name()
            .as_encoded_bytes()
            .starts_with(PREFIX.as_bytes())
        {
            continue;
        }
        let owners = read_identities(&entry.path().join(OWNER));
        // A folder without an owner may be one that another test is just making.
        if owners.is_empty() || owners.iter().any(|owner| owner.lives()) {
            continue;
        }
        if let Err(error) = remove(&entry.path()) {
            report(&format!(
                "testbed: cannot sweep {}: {error}",
                entry.path().display()
            ));
        }
    }
}

/// Says something on standard error; a test that loses its standard error has other troubles.
pub(crate) fn report(line: &str) {
    use std::io::Write as _;
    _ = writeln!(io::stderr(), "{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dead_tests_folder_is_swept_and_a_living_ones_is_not() {
        let living = Workspace::new().unwrap();
        let dead = std::env::temp_dir().join(format!("{PREFIX}dead-{}", std::process::id()));
        std::fs::create_dir_all(dead.join("sub")).unwrap();
        std::fs::write(dead.join(OWNER), format!("{} 1\n", std::process::id())).unwrap();
        sweep();
        assert!(living.path().is_dir());
        assert!(!dead.exists());
    }

    #[test]
    fn a_recorded_process_ends_with_its_folder_and_no_other_does() {
        let workspace = Workspace::new().unwrap();
        let path = workspace.path().to_owned();
        let mut recorded = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let mut other = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let identity = Identity::of(i32::try_from(recorded.id()).unwrap()).unwrap();
        std::fs::write(path.join(PIDS), line_of(identity)).unwrap();
        drop(workspace);
        assert!(!recorded.wait().unwrap().success());
        assert!(other.try_wait().unwrap().is_none());
        other.kill().unwrap();
        other.wait().unwrap();
        assert!(!path.exists());
    }
}
