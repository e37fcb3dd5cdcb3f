//! A host's namespaces: they live as long as the process that holds them, and that one ends with the test. Nothing has a
//! name, and nothing is left.

use crate::error::{Call, Checked};
use crate::leftover::report;
use crate::process::Identity;
use crate::wait;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The program that runs others in a namespace.
pub const ENTER: &str = "nsenter";
/// A host is gone at once, unless one of its processes waits for a slow disk, or nobody buries it.
const DEATH: Duration = Duration::from_secs(20);
/// Says to those outside which process this is, and ends with its input. Whoever is orphaned in it leaves no zombie, which a
/// shell would not see to.
const HOLD: &str = "read -r pid _ < /proc/self/stat; echo \"$pid\"; \
                    exec env --ignore-signal=CHLD cat - \"$0\" > /dev/null 2>&1";

/// What a host has for itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Own {
    /// Network devices, addresses and ports.
    Network,
    /// Mounts, too, and its name.
    Files,
    /// Process numbers, too: all that runs in it ends with its holder, however the test ends.
    Processes,
}

impl Own {
    /// Kinds of namespaces, as options call them and as `/proc` does.
    fn kinds(self) -> &'static [(&'static str, &'static str)] {
        const ALL: [(&str, &str); 5] = [
            ("net", "net"),
            ("mount", "mnt"),
            ("uts", "uts"),
            ("ipc", "ipc"),
            ("pid", "pid"),
        ];
        match self {
            Self::Network => &ALL[..1],
            Self::Files => &ALL[..4],
            Self::Processes => &ALL,
        }
    }

    /// What `unshare` is told to make them.
    pub(crate) fn options(self) -> Vec<String> {
        let kinds = self.kinds().iter().map(|(option, _)| *option);
        let more: &[&str] = match self {
            Self::Network | Self::Files => &[],
            Self::Processes => &["fork", "kill-child"],
        };
        let all = kinds.chain(more.iter().copied());
        all.map(|option| format!("--{option}")).collect()
    }
}

/// Namespaces of one host.
#[derive(Debug)]
pub(crate) struct Namespace {
    own: Own,
    /// Ends when its input does, and so with this process.
    holder: Child,
    /// The process in them; the holder itself, where it has the same process numbers.
    inner: Option<Identity>,
}

impl Namespace {
    /// Makes them. `folder` marks their process.
    ///
    /// Errors: no right to, or the system has no `unshare`.
    pub(crate) fn new(folder: &Path, own: Own) -> Checked<Self> {
        let what = || "make a network namespace".to_owned();
        let mut holder = Command::new("unshare")
            .args(own.options())
            .args(["sh", "-c", HOLD])
            .arg(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .call(what)?;
        let output = holder.stdout.take();
        let mut namespace = Self {
            own,
            holder,
            inner: None,
        };
        let mut line = String::new();
        if let Some(output) = output {
            BufReader::new(output).read_line(&mut line).call(what)?;
        }
        namespace.inner = line.trim().parse().ok().and_then(Identity::of);
        crate::ensure!(namespace.inner.is_some(), "cannot make a network namespace");
        Ok(namespace)
    }

    /// The process in them, as those outside count.
    pub(crate) fn pid(&self) -> i32 {
        self.inner.map_or(0, |inner| inner.pid)
    }

    /// Whether it has process numbers of its own.
    pub(crate) fn has_processes(&self) -> bool {
        self.own == Own::Processes
    }

    /// Whether a process is there only to hold them.
    pub(crate) fn is_held_by(&self, pid: i32) -> bool {
        pid == self.pid() || u32::try_from(pid) == Ok(self.holder.id())
    }

    fn file(&self, kind: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/ns/{kind}", self.pid()))
    }

    /// Where its network is.
    pub(crate) fn place(&self) -> PathBuf {
        self.file("net")
    }

    /// What [`ENTER`] is told to enter the network alone.
    pub(crate) fn entry(&self) -> String {
        format!("--net={}", self.place().display())
    }

    /// What [`ENTER`] is told to enter all of them.
    pub(crate) fn entries(&self) -> Vec<String> {
        let kinds = self.own.kinds().iter();
        let entry = |(option, kind): &(&str, &str)| {
            let file = self.file(kind);
            format!("--{option}={}", file.display())
        };
        kinds.map(entry).collect()
    }

    /// Makes sure of them before something is done in them that must not be done to the machine: there are at least those
    /// of `least`, and they are not this process's own, as they would be when their holder had ended and another process
    /// had its number.
    ///
    /// Errors: it is not so.
    pub(crate) fn ensure_apart(&self, least: Own) -> Checked {
        let lives = self.inner.is_some_and(Identity::lives);
        crate::ensure!(lives && self.own >= least, "a host's namespaces are gone");
        for (_, kind) in self.own.kinds() {
            let look = |file: &Path| {
                std::fs::read_link(file).call(|| format!("look at {}", file.display()))
            };
            let theirs = look(&self.file(kind))?;
            let own = look(&Path::new("/proc/self/ns").join(kind))?;
            crate::ensure!(theirs != own, "a host has the machine's own {kind}");
        }
        Ok(())
    }

    /// Runs lines of `sh` in them.
    ///
    /// Errors: they fail.
    pub(crate) fn run(&self, script: &str) -> Checked {
        self.run_with(script, &[])
    }

    /// The same with arguments.
    ///
    /// Errors: they fail.
    pub(crate) fn run_with(&self, script: &str, arguments: &[&Path]) -> Checked {
        let what = || format!("`{script}` in a network namespace");
        let mut command = Command::new(ENTER);
        command
            .args(self.entries())
            .args(["sh", "-c", script, "sh"]);
        let ended = command.args(arguments).output().call(what)?;
        let said = String::from_utf8_lossy(&ended.stderr);
        crate::ensure!(ended.status.success(), "{}: {said}", what());
        Ok(())
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // It ends with its input; where it waits for the inner one itself, only when everything in there has ended.
        drop(self.holder.stdin.take());
        if self.inner.is_none() {
            // It has ended already, or it does not listen.
            _ = self.holder.kill();
        }
        let ended = wait::until("a host is gone", DEATH, || {
            let ended = self.holder.try_wait();
            Ok(ended.call(|| "wait for a host".to_owned())?.map(drop))
        });
        if let Err(error) = ended {
            report(&format!("testbed: {error}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::leftover::Workspace;
    use rustix::process::Signal;

    #[test]
    fn what_is_the_machines_or_gone_is_not_apart() {
        if !rustix::process::geteuid().is_root() {
            return eprintln!("skipped: namespaces need root");
        }
        let workspace = Workspace::new().unwrap();
        let namespace = |own| Namespace::new(workspace.path(), own).unwrap();
        namespace(Own::Network).ensure_apart(Own::Network).unwrap();
        namespace(Own::Network)
            .ensure_apart(Own::Files)
            .unwrap_err();
        let mut ends = namespace(Own::Processes);
        ends.ensure_apart(Own::Files).unwrap();
        let inner = ends.inner.unwrap();
        inner.signal(Signal::KILL).unwrap();
        wait::until("it has ended", Duration::from_secs(20), || {
            Ok((!inner.lives()).then_some(()))
        })
        .unwrap();
        ends.ensure_apart(Own::Network).unwrap_err();
        ends.inner = Identity::of(i32::try_from(std::process::id()).unwrap());
        ends.ensure_apart(Own::Network).unwrap_err();
    }
}
