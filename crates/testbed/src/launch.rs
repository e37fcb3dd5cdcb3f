//! How a cluster's daemons are started: as usual, with another clock, or from another build.

use crate::cluster::{COMMAND, Cluster, DEGRADED, run};
use crate::error::{Call, CheckError, Checked};
use crate::process::Identity;
use crate::{links, wait};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// How daemons are started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Launch {
    /// As users do it.
    Usual,
    /// Where `CLOCK_MONOTONIC` shows so many seconds more or less than elsewhere: in a time namespace, which takes root.
    /// There is none for `CLOCK_REALTIME`; and by `CLOCK_BOOTTIME` processes are told from older ones of their number.
    Ahead(i64),
    /// From another build of the binary.
    Build(PathBuf),
}

impl Launch {
    /// The words before the arguments of `perigee`.
    fn words(&self, perigee: &Path) -> Vec<String> {
        let program = |path: &Path| path.to_string_lossy().into_owned();
        match self {
            Self::Usual => vec![program(perigee)],
            Self::Ahead(seconds) => {
                let seconds = seconds.to_string();
                let unshare = ["unshare", "--time", "--fork", "--monotonic", &seconds];
                let unshare = unshare.map(str::to_owned).into_iter();
                unshare.chain([program(perigee)]).collect()
            }
            Self::Build(other) => vec![program(other)],
        }
    }
}

impl Cluster {
    /// The same with other circumstances for what is started now.
    ///
    /// Errors: those of [`Cluster::up`].
    pub fn up_as(&mut self, launch: &Launch) -> Checked {
        let entered = launch.words(&self.perigee);
        match self.links.take() {
            None => {
                let (size, dir) = (self.size.to_string(), self.dir());
                let up = ["up", "--nodes", &size, "--dir", &dir.to_string_lossy()];
                let started = self.started(&entered, &up);
                self.workspace.record()?;
                started?;
            }
            Some(links) => {
                let mut hosts = 1..=self.size;
                let started = hosts.try_for_each(|host| {
                    let mut words = vec![links::ENTER.to_owned(), links.entry(host)?];
                    words.extend(entered.clone());
                    let dir = self.machine(host);
                    self.started(&words, &["up", "--dir", &dir.to_string_lossy()])?;
                    self.workspace.record()
                });
                self.links = Some(links);
                started?;
            }
        }
        wait::until("every node has a daemon", COMMAND, || {
            let nodes = self.status()?;
            let daemons: BTreeMap<u32, Identity> = nodes
                .iter()
                .filter_map(|node| Some((node.id, Identity::of(node.pid?)?)))
                .collect();
            let all = daemons.len() == self.size as usize;
            self.daemons = daemons;
            Ok(all.then_some(()))
        })?;
        self.workspace.record()
    }

    /// Whether the daemon of node `id` was started so.
    ///
    /// Errors: it has none.
    pub fn runs_as(&self, id: u32, launch: &Launch) -> Checked<bool> {
        let Some(daemon) = self.daemons.get(&id) else {
            return Err(CheckError::violated(format!("node {id} has no daemon")));
        };
        let of = |what: &str| std::fs::read_link(what).call(|| format!("look at {what}"));
        let clock = of(&format!("/proc/{}/ns/time", daemon.pid))?;
        let program = of(&format!("/proc/{}/exe", daemon.pid))?;
        let usual = of("/proc/self/ns/time")?;
        let is = |path: &Path| path.canonicalize().is_ok_and(|path| path == program);
        Ok(match launch {
            Launch::Usual => clock == usual && is(&self.perigee),
            Launch::Ahead(_) => clock != usual && is(&self.perigee),
            Launch::Build(other) => is(other),
        })
    }

    /// Runs a program of several words, which has to succeed.
    fn started(&mut self, program: &[String], arguments: &[&str]) -> Checked {
        self.commands += 1;
        let base = self.path().join(format!("command-{}", self.commands));
        let own = program.iter().skip(1).map(String::as_str);
        let all: Vec<&str> = own.chain(arguments.iter().copied()).collect();
        let name = program.first().map_or("", String::as_str);
        let ended = run(Path::new(name), &all, &base, COMMAND)?;
        if ended.status.success() || ended.status.code() == Some(DEGRADED) {
            return Ok(());
        }
        Err(CheckError::Command {
            command: format!("{name} {}", all.join(" ")),
            status: ended.status,
            stderr: ended.stderr,
        })
    }
}
