//! `perigee umount`: through the node that serves the mount, or without it when it is dead.

use crate::admin_client::{CHANGE_TIME, ask, nobody_listens, unexpected};
use crate::mounts::{self, Mount};
use crate::output::Report;
use crate::pid_file;
use crate::process::ends_within;
use clap::Args;
use perigee_proto::admin::{AdminPath, Answer, Failure, Request};
use rustix::mount::{UnmountFlags, unmount};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// How long a process that was killed may take to end: it frees its memory, and closes its files, on the way.
const DYING: Duration = Duration::from_secs(5);

/// Unmount the file system.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  perigee umount /mnt/perigee
  perigee umount --lazy /mnt/perigee   even while files are open there")]
pub struct Umount {
    /// The mount point
    #[arg(value_name = "M")]
    mountpoint: PathBuf,
    /// Detach at once; it ends when the last file there is closed
    #[arg(long, short)]
    lazy: bool,
}

impl Umount {
    /// Unmounts.
    pub fn run(self) -> Result<Report, Failure> {
        let mount = find(&self.mountpoint)?;
        let served_by = mount
            .data_dir()
            .and_then(|dir| pid_file::running(&dir).map(|process| (dir, process)));
        match served_by {
            Some((dir, process)) => {
                let request = Request::Umount {
                    mountpoint: AdminPath::from(&mount.mountpoint),
                    lazy: self.lazy,
                };
                match ask(&dir, &request, CHANGE_TIME) {
                    Ok(Answer::Done) => {}
                    Ok(other) => return Err(unexpected(&other)),
                    // The process of a union ends with its mount, perhaps before it has said so.
                    Err(_) if find(&self.mountpoint).is_err() => {}
                    // A process that was killed a moment ago answers no more, and is still there.
                    Err(_) if nobody_listens(&dir) && ends_within(&process, DYING) => {
                        detach(&mount.mountpoint, UnmountFlags::DETACH)?;
                    }
                    Err(failure) => return Err(failure),
                }
            }
            // a mount without its process has nothing to save
            None => detach(&mount.mountpoint, UnmountFlags::DETACH)?,
        }
        Ok(Report::silent())
    }
}

fn find(mountpoint: &Path) -> Result<Mount, Failure> {
    // a dead mount cannot be looked into, so only what lies above is resolved
    let full = match (
        mountpoint.canonicalize(),
        mountpoint.parent(),
        mountpoint.file_name(),
    ) {
        (Ok(full), ..) => full,
        (Err(_), Some(parent), Some(name)) => {
            let parent = if parent.as_os_str().is_empty() {
                Path::new(".")
            } else {
                parent
            };
            parent
                .canonicalize()
                .unwrap_or_else(|_| parent.to_path_buf())
                .join(name)
        }
        (Err(_), ..) => mountpoint.to_path_buf(),
    };
    let mounts = mounts::table()?;
    let found = mounts
        .into_iter()
        .rev()
        .find(|mount| mount.mountpoint == full);
    found
        .filter(|mount| mount.fstype == mounts::FSTYPE)
        .ok_or_else(|| {
            Failure::new(
                format!("cannot unmount `{}`", mountpoint.display()),
                "it is not a mount of Perigee",
            )
            .hint("`perigee status` lists the mounts")
        })
}

/// Removes the mounts that a node left behind when it was killed.
pub fn clear_dead_mounts(data_dir: &Path) -> Result<(), Failure> {
    if pid_file::running(data_dir).is_some() {
        return Ok(());
    }
    for mount in mounts::of_node(&mounts::table()?, data_dir) {
        // A thread of the dead process may wait for a page whose reader waits for that process: only an end of all
        // requests frees both.
        detach(
            &mount.mountpoint,
            UnmountFlags::DETACH | UnmountFlags::FORCE,
        )?;
    }
    Ok(())
}

/// Detaches a mount without its process: as root by the system call, else by fusermount3.
fn detach(mountpoint: &Path, flags: UnmountFlags) -> Result<(), Failure> {
    let what = || format!("cannot unmount `{}`", mountpoint.display());
    if rustix::process::geteuid().is_root() {
        return unmount(mountpoint, flags).map_err(|error| Failure::new(what(), error));
    }
    let output = Command::new("fusermount3")
        .args(["-u", "-z", "--"])
        .arg(mountpoint)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| {
            Failure::new(what(), format!("fusermount3 does not start: {error}"))
                .hint("install the package fuse3")
        })?;
    if output.status.success() {
        return Ok(());
    }
    Err(Failure::new(
        what(),
        String::from_utf8_lossy(&output.stderr).trim(),
    ))
}
