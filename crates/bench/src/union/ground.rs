//! What both benchmarks do with hosts: run programs on them, mount and unmount, and end it all when it hangs.

use perigee_testbed::process::Identity;
use perigee_testbed::ssh_hosts::{SshHosts, User};
use perigee_testbed::{Call, CheckError, Checked, program, wait};
use rustix::process::Signal;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use crate::note;

/// Where things are mounted; every host has temporary files of its own.
pub(super) const POINT: &str = "/tmp/mnt";
/// The host that the user sits at.
pub(super) const HERE: u32 = 0;
/// A command that takes longer hangs, in seconds.
const COMMAND_LIMIT: &str = "120";
/// What served a mount ends within this after the unmount.
const QUIET: Duration = Duration::from_secs(60);

/// Runs a program of a host as root, and gives what it printed.
///
/// Errors: it fails, or takes too long.
pub(super) fn run(hosts: &SshHosts, host: u32, words: &[&str]) -> Checked<String> {
    let mut command = hosts.command(host, User::Root, "timeout")?;
    command.arg(COMMAND_LIMIT).args(words);
    let ended = command
        .output()
        .call(|| format!("run `{}`", words.join(" ")))?;
    if ended.status.success() {
        return Ok(String::from_utf8_lossy(&ended.stdout).into_owned());
    }
    Err(CheckError::Command {
        command: words.join(" "),
        status: ended.status,
        stderr: String::from_utf8_lossy(&ended.stderr).trim().to_owned(),
    })
}

/// Makes a directory on host 0, if it is not there.
pub(super) fn make_point(hosts: &SshHosts, point: &str) -> Checked {
    run(hosts, HERE, &["mkdir", "-p", point]).map(drop)
}

/// `HOST:DIR`, as `ssh` and its like are told.
pub(super) fn target(hosts: &SshHosts, host: u32) -> Checked<String> {
    let directory = hosts.directory(host)?;
    Ok(format!("{}:{}", hosts.name(host), directory.display()))
}

/// Mounts the union of the disks of all hosts at [`POINT`]. Hosts keep the program: to send it is no part of what is measured.
///
/// Errors: those of `perigee union`.
pub(super) fn mount_union(hosts: &SshHosts, options: &[&str]) -> Checked {
    make_point(hosts, POINT)?;
    let targets = (1..=hosts.count()).map(|host| target(hosts, host));
    let targets = targets.collect::<Checked<Vec<_>>>()?;
    let program = perigee()?;
    let mut words = vec![program.as_str(), "union", "--keep"];
    words.extend(options);
    words.extend(targets.iter().map(String::as_str));
    words.push(POINT);
    run(hosts, HERE, &words).map(drop)
}

/// Takes it away, and waits until nothing of it runs on any host.
///
/// Errors: those of `perigee umount`, or something goes on.
pub(super) fn unmount_union(hosts: &SshHosts) -> Checked {
    run(hosts, HERE, &[&perigee()?, "umount", POINT])?;
    quiet(hosts)
}

fn perigee() -> Checked<String> {
    Ok(program::perigee()?.to_string_lossy().into_owned())
}

/// Waits until nothing runs on any host.
///
/// Errors: something goes on.
pub(super) fn quiet(hosts: &SshHosts) -> Checked {
    for host in 0..=hosts.count() {
        let ended = wait::until("what served a mount has ended", QUIET, || {
            Ok(hosts.processes(host)?.is_empty().then_some(()))
        });
        ended.map_err(|error| {
            let left = hosts.processes(host).unwrap_or_default();
            error.followed_by(&format!("on host {host}: {left:?}"))
        })?;
    }
    Ok(())
}

/// All that runs on hosts, as the machine counts.
pub(super) fn pids(hosts: &SshHosts) -> Checked<Vec<i32>> {
    let mut all = Vec::new();
    for host in 0..=hosts.count() {
        all.extend(hosts.processes(host)?.into_iter().map(|(pid, _)| pid));
    }
    Ok(all)
}

/// Where this process finds what host 0 has at a place.
pub(super) fn seen(hosts: &SshHosts, path: impl AsRef<Path>) -> Checked<PathBuf> {
    hosts.path_of(HERE, path.as_ref())
}

/// Does something that uses mounts of hosts. When it takes longer than `limit`, what runs on the hosts is ended, so that every
/// call into a mount is answered, if with an error.
///
/// Errors: what `work` says.
pub(super) fn watched<T>(
    hosts: &SshHosts,
    limit: Duration,
    work: impl FnOnce() -> Checked<T>,
) -> Checked<T> {
    std::thread::scope(|scope| {
        let (done, wait) = channel::<()>();
        scope.spawn(move || {
            if wait.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                note(&format!("not done within {limit:?}: all is ended"));
                end_all(hosts);
            }
        });
        let outcome = work();
        drop(done);
        outcome
    })
}

fn end_all(hosts: &SshHosts) {
    // One that cannot be ended is ended with its host, or left to be reported by it.
    let identities = pids(hosts).unwrap_or_default().into_iter();
    for identity in identities.filter_map(Identity::of) {
        _ = identity.signal(Signal::KILL);
    }
}
