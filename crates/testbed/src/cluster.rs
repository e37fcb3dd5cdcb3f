//! A real cluster: the built `perigee` binary, its processes and its mounts, in one folder.
//!
//! Everything is done as a user does it, by the command line; only signals go to pids directly.
//! Dropping a [`Cluster`] leaves nothing behind, also when the test panics or hangs: a watchdog
//! kills the daemons at a limit, which ends every call that waits for them.

use crate::error::{Call, CheckError, Checked};
use crate::etcd::Etcd;
use crate::launch::Launch;
use crate::leftover::{Workspace, report};
use crate::links::Links;
use crate::process::Identity;
use crate::{mounts, program, wait};
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// The node on whose host the control store is, where each has one of its own.
pub const CONTROL_HOST: u32 = 1;

/// A command of the product ends within this: `up` of three nodes on a loaded machine is the
/// longest, and has five seconds as its own goal.
pub(crate) const COMMAND: Duration = Duration::from_secs(60);
/// A node that came back is whole again within this.
const SETTLE: Duration = Duration::from_secs(120);
/// A test that runs longer hangs.
const WATCHDOG: Duration = Duration::from_secs(900);

/// One node as `perigee status --json` tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// The number in its identity.
    pub id: u32,
    /// Its daemon, where one runs.
    pub pid: Option<i32>,
    /// The state in the cluster's words.
    pub state: String,
    /// Where it listens.
    pub address: String,
}

/// Exit code of a command that did its work on a cluster which misses something.
pub(crate) const DEGRADED: i32 = 3;

/// How a command of the product ended.
#[derive(Debug, Clone)]
pub struct Ended {
    /// Its exit status.
    pub status: ExitStatus,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

/// A running cluster.
#[derive(Debug)]
pub struct Cluster {
    pub(crate) perigee: PathBuf,
    pub(crate) workspace: Arc<Workspace>,
    pub(crate) size: u32,
    pub(crate) daemons: BTreeMap<u32, Identity>,
    pub(crate) commands: u32,
    /// Where each node is a host of its own.
    pub(crate) links: Option<Links>,
    /// Where the record is in one: [`Cluster::move_to_etcd`].
    pub(crate) etcd: Option<Etcd>,
    /// Options of mounts, with commas between; at first those of `PERIGEE_TEST_MOUNT_OPTIONS`.
    pub mount_options: Option<String>,
    _watchdog: Sender<()>,
}

impl Cluster {
    /// Starts `nodes` nodes and waits until `status` finds nothing missing.
    ///
    /// Errors: no binary, or one that does not bring the cluster up.
    pub fn start(nodes: u32) -> Checked<Self> {
        Self::start_within(nodes, WATCHDOG)
    }

    /// The same with another limit for the watchdog.
    ///
    /// Errors: those of [`Cluster::start`].
    pub fn start_within(nodes: u32, limit: Duration) -> Checked<Self> {
        Self::start_prepared(nodes, limit, |_| Ok(()))
    }

    /// The same once `prepare` has had [`Cluster::dir`] to itself; what it mounts there is detached at the end.
    ///
    /// Errors: those of `prepare`, and of [`Cluster::start`].
    pub fn start_prepared(
        nodes: u32,
        limit: Duration,
        prepare: impl FnOnce(&Path) -> Checked,
    ) -> Checked<Self> {
        let mut cluster = Self::unstarted(nodes, limit)?;
        prepare(&cluster.dir())?;
        cluster.up()?;
        cluster.settle()?;
        Ok(cluster)
    }

    pub(crate) fn unstarted(nodes: u32, limit: Duration) -> Checked<Self> {
        let perigee = program::perigee()?;
        let workspace = Arc::new(Workspace::new()?);
        Ok(Self {
            perigee,
            _watchdog: watch(&workspace, limit),
            workspace,
            size: nodes,
            daemons: BTreeMap::new(),
            commands: 0,
            links: None,
            etcd: None,
            mount_options: std::env::var("PERIGEE_TEST_MOUNT_OPTIONS").ok(),
        })
    }

    /// The links between the nodes' hosts.
    ///
    /// Errors: all nodes are on one.
    pub fn links(&self) -> Checked<&Links> {
        let links = self.links.as_ref();
        links.ok_or_else(|| CheckError::violated("the nodes are on one host"))
    }

    /// The folder of this cluster's mounts and files.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.workspace.path()
    }

    /// The directory given to every command as `--dir`.
    #[must_use]
    pub fn dir(&self) -> PathBuf {
        self.path().join("c")
    }

    /// The node ids, in order, of the daemons that the last start left running.
    #[must_use]
    pub fn ids(&self) -> Vec<u32> {
        self.daemons.keys().copied().collect()
    }

    /// Runs `perigee ARGUMENTS` and tells how it ended, well or not.
    ///
    /// Errors: it could not be started, or did not end in time.
    pub fn command<S: AsRef<OsStr>>(&mut self, arguments: &[S]) -> Checked<Ended> {
        self.commands += 1;
        let base = self.path().join(format!("command-{}", self.commands));
        run(&self.perigee, arguments, &base, COMMAND)
    }

    /// Runs `perigee ARGUMENTS --dir DIR` and tells how it ended, well or not.
    ///
    /// Errors: those of [`Cluster::command`].
    pub fn on_this(&mut self, arguments: &[&str]) -> Checked<Ended> {
        let dir = self.dir().to_string_lossy().into_owned();
        let mut all = arguments.to_vec();
        all.extend(["--dir", &dir]);
        self.command(&all)
    }

    /// Runs `perigee ARGUMENTS --dir DIR`, which has to succeed, and gives its standard output.
    ///
    /// Errors: `Command` with the standard error.
    pub fn perigee(&mut self, arguments: &[&str]) -> Checked<String> {
        self.must(arguments).map(|ended| ended.stdout)
    }

    /// The same with how it ended: done, or degraded.
    fn must(&mut self, arguments: &[&str]) -> Checked<Ended> {
        let ended = self.on_this(arguments)?;
        if ended.status.success() || ended.status.code() == Some(DEGRADED) {
            return Ok(ended);
        }
        let command = format!("perigee {}", arguments.join(" "));
        Err(CheckError::Command {
            command,
            status: ended.status,
            stderr: ended.stderr,
        })
    }

    /// What `perigee status --json` says of the nodes.
    ///
    /// Errors: the command failed, or its output is not of the agreed form.
    pub fn status(&mut self) -> Checked<Vec<Node>> {
        parse_status(&self.perigee(&["status", "--json"])?)
    }

    /// The chains of all containers, each from its owner on, in the order of the containers.
    ///
    /// Errors: those of [`Cluster::status`].
    pub fn chains(&mut self) -> Checked<Vec<Vec<u32>>> {
        let text = self.perigee(&["status", "--json"])?;
        let broken = || CheckError::violated(format!("`status --json`: no chains: {text}"));
        let value: serde_json::Value = serde_json::from_str(&text).map_err(|_| broken())?;
        let containers = value["containers"].as_array().ok_or_else(broken)?;
        let chain = |container: &serde_json::Value| {
            let nodes = container["chain"].as_array().ok_or_else(broken)?;
            nodes
                .iter()
                .map(|node| number(node).ok_or_else(broken))
                .collect()
        };
        containers.iter().map(chain).collect()
    }

    /// The owner of a file or directory.
    ///
    /// Errors: the command failed, or its output is not of the agreed form.
    pub fn owner(&mut self, path: &Path) -> Checked<u32> {
        let path = path.to_string_lossy();
        let ended = self.command(&["where", "--json", &*path])?;
        let value: Option<serde_json::Value> = serde_json::from_str(&ended.stdout).ok();
        let owner = value.and_then(|value| number(&value["owner"]));
        owner.ok_or_else(|| {
            let (said, error) = (&ended.stdout, &ended.stderr);
            CheckError::violated(format!("`where --json {path}`: no owner: {said}{error}"))
        })
    }

    /// Starts what is missing, as after a crash, and waits until every node has a daemon.
    ///
    /// Errors: `up` failed, or a node stays away.
    pub fn up(&mut self) -> Checked {
        self.up_as(&Launch::Usual)
    }

    /// Waits until `status` finds nothing missing: every node is up, every container has its copies.
    ///
    /// Errors: `Deadline`.
    pub fn settle(&mut self) -> Checked {
        wait::until("nothing is missing in the cluster", SETTLE, || {
            let ended = self.must(&["status", "--json"])?;
            let whole = parse_status(&ended.stdout)?.len() == self.size as usize;
            Ok((ended.status.success() && whole).then_some(()))
        })
    }

    /// Stops the cluster as a user does; its data stays.
    ///
    /// Errors: `down` failed, or a daemon is still there.
    pub fn down(&mut self) -> Checked {
        self.perigee(&["down"])?;
        let left = self
            .daemons
            .values()
            .filter(|daemon| daemon.lives())
            .count();
        crate::ensure!(left == 0, "{left} daemons live on after `down`");
        self.daemons.clear();
        Ok(())
    }

    /// Pids of all processes of this cluster, the control store included.
    #[must_use]
    pub fn pids(&self) -> Vec<i32> {
        let named = crate::process::mentioning(&self.dir().to_string_lossy());
        let mut pids: Vec<i32> = named
            .iter()
            .chain(self.daemons.values())
            .map(|p| p.pid)
            .collect();
        pids.sort_unstable();
        pids.dedup();
        pids
    }

    /// Where node `id` is mounted.
    #[must_use]
    pub fn mount_point(&self, id: u32) -> PathBuf {
        self.path().join(format!("m{id}"))
    }

    /// Mounts node `id`, in place of a dead mount where there is one.
    ///
    /// Errors: `mount` failed, or nothing is mounted after it.
    pub fn mount(&mut self, id: u32) -> Checked<PathBuf> {
        let point = self.mount_point(id);
        mounts::detach_below(&point).call(|| format!("detach {}", point.display()))?;
        std::fs::create_dir_all(&point).call(|| format!("make {}", point.display()))?;
        let (target, node) = (point.to_string_lossy().into_owned(), id.to_string());
        let mut words = vec!["mount", &target, "--node", &node];
        let options = self.mount_options.clone();
        words.extend(options.iter().flat_map(|options| ["-o", options]));
        self.perigee(&words)?;
        self.workspace.record()?;
        wait::until("the mount is in the kernel's table", COMMAND, || {
            Ok(mounts::is_mounted(&point).then_some(()))
        })?;
        Ok(point)
    }

    /// Unmounts node `id` cleanly.
    ///
    /// Errors: `umount` failed, or the mount is still there.
    pub fn umount(&mut self, id: u32) -> Checked {
        let point = self.mount_point(id);
        let target = point.to_string_lossy().into_owned();
        self.command(&["umount", &target])?;
        crate::ensure!(
            !mounts::is_mounted(&point),
            "{target} is still mounted after umount"
        );
        Ok(())
    }

    /// Kills every daemon that lives, and waits for none.
    pub fn kill_all(&self) {
        for daemon in self.daemons.values() {
            // One that has ended meanwhile takes no signal.
            _ = daemon.signal(Signal::KILL);
        }
    }

    /// Shows the ends of the daemons' logs on standard error.
    pub fn show_logs(&self) {
        show_logs(&self.dir());
        let place = self.path().to_string_lossy();
        report(&format!(
            "--- threads\n{}",
            crate::process::whereabouts(&place)
        ));
    }

    /// Sends `signal` to node `id`'s daemon; with KILL or TERM waits until it is gone.
    ///
    /// Errors: there is no such daemon, or it does not die.
    pub fn kill(&self, id: u32, signal: Signal) -> Checked {
        let Some(daemon) = self.daemons.get(&id).copied() else {
            return Err(CheckError::violated(format!("node {id} has no daemon")));
        };
        crate::ensure!(daemon.lives(), "node {id} died before it was killed");
        daemon.signal(signal).call(|| format!("signal node {id}"))?;
        if !matches!(signal, Signal::KILL | Signal::TERM) {
            return Ok(());
        }
        wait::until("the killed node is gone", COMMAND, || {
            Ok((!daemon.lives()).then_some(()))
        })?;
        // One that stays inside the kernel would keep the mount alive, and whoever touches it would hang.
        wait::until("its threads are gone", LETS_GO, || {
            Ok((daemon.threads() <= 1).then_some(()))
        })
    }
}

/// How long the threads of a killed process may take.
const LETS_GO: Duration = Duration::from_secs(5);

impl Drop for Cluster {
    fn drop(&mut self) {
        for daemon in self.daemons.values() {
            // A stopped daemon could not answer `down`; an ended one takes no signal.
            _ = daemon.signal(Signal::CONT);
        }
        if std::thread::panicking() {
            show_logs(&self.dir());
        }
        if let Err(error) = self.perigee(&["down"]) {
            report(&format!("testbed: {error}"));
        }
        // The watchdog's thread may hold the folder a moment longer; stop it all the same.
        if let Err(error) = self.workspace.stop() {
            report(&format!("testbed: {error}"));
        }
    }
}

/// Stops everything in the folder when `limit` passes before the sender is dropped.
fn watch(workspace: &Arc<Workspace>, limit: Duration) -> Sender<()> {
    let (sender, receiver) = channel();
    let workspace = Arc::downgrade(workspace);
    std::thread::spawn(move || {
        if receiver.recv_timeout(limit) != Err(RecvTimeoutError::Timeout) {
            return;
        }
        report(&format!(
            "testbed: hangs for {limit:?}; its daemons are killed"
        ));
        if let Some(Err(error)) = workspace.upgrade().map(|workspace| workspace.stop()) {
            report(&format!("testbed: {error}"));
        }
    });
    sender
}

/// Runs a command with its output in files, since a daemon that it leaves behind would keep a pipe
/// open.
///
/// Errors: it could not be started, or did not end within `limit` (it is killed then).
pub fn run<S: AsRef<OsStr>>(
    program: &Path,
    arguments: &[S],
    base: &Path,
    limit: Duration,
) -> Checked<Ended> {
    let (out, err) = (base.with_extension("out"), base.with_extension("err"));
    let create = |path: &Path| File::create(path).call(|| format!("create {}", path.display()));
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(create(&out)?)
        .stderr(create(&err)?)
        .spawn()
        .call(|| format!("start {}", program.display()))?;
    let words: Vec<_> = arguments
        .iter()
        .map(|word| word.as_ref().to_string_lossy())
        .collect();
    let what = format!("`{} {}` ends", program.display(), words.join(" "));
    let waited = wait::until(&what, limit, || child.try_wait().call(|| what.clone()));
    if waited.is_err() {
        // It may have ended in this very moment.
        _ = child.kill();
        _ = child.wait();
    }
    let read = |path: &Path| std::fs::read(path).call(|| format!("read {}", path.display()));
    let (stdout, stderr) = (read(&out)?, read(&err)?);
    Ok(Ended {
        status: waited?,
        stdout: String::from_utf8_lossy(&stdout).into_owned(),
        stderr: String::from_utf8_lossy(&stderr).into_owned(),
    })
}

fn parse_status(text: &str) -> Checked<Vec<Node>> {
    let broken = |what: &str| CheckError::violated(format!("`status --json`: {what}: {text}"));
    let value: serde_json::Value =
        serde_json::from_str(text).map_err(|error| broken(&error.to_string()))?;
    let nodes = value["nodes"]
        .as_array()
        .ok_or_else(|| broken("no `nodes` array"))?;
    nodes
        .iter()
        .map(|node| {
            Ok(Node {
                id: number(&node["id"]).ok_or_else(|| broken("a node without `id`"))?,
                pid: node["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok()),
                state: node["state"]
                    .as_str()
                    .ok_or_else(|| broken("no `state`"))?
                    .to_owned(),
                address: node["address"]
                    .as_str()
                    .ok_or_else(|| broken("no `address`"))?
                    .to_owned(),
            })
        })
        .collect()
}

/// A node id as a number, or written as `n1`.
fn number(value: &serde_json::Value) -> Option<u32> {
    match value.as_str() {
        Some(text) => text
            .trim_start_matches(|c: char| !c.is_ascii_digit())
            .parse()
            .ok(),
        None => value.as_u64().and_then(|number| u32::try_from(number).ok()),
    }
}

/// The ends of the daemons' logs, for the one who reads the failed test.
fn show_logs(folder: &Path) {
    const TAIL: usize = 8_000;
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                folders.push(path);
            } else if path.file_name() == Some(OsStr::new("daemon.log")) {
                let bytes = std::fs::read(&path).unwrap_or_default();
                let text = folded(&String::from_utf8_lossy(&bytes));
                let tail = &text.as_bytes()[text.len().saturating_sub(TAIL)..];
                report(&format!(
                    "--- {}\n{}",
                    path.display(),
                    String::from_utf8_lossy(tail)
                ));
            }
        }
    }
}

/// A log in which lines that say the same as the one before, at another time, are counted: what came first is easily pushed
/// out of sight by them.
fn folded(log: &str) -> String {
    let what = |line: &str| line.split_once(' ').map_or("", |(_, what)| what).to_owned();
    let (mut text, mut last, mut times) = (String::new(), String::new(), 0_u32);
    let counted = |times| match times {
        0 => String::new(),
        times => format!("    and {times} more\n"),
    };
    for line in log.lines() {
        let this = what(line);
        if !this.is_empty() && this == last {
            times += 1;
            continue;
        }
        text.push_str(&counted(std::mem::take(&mut times)));
        text.push_str(line);
        text.push('\n');
        last = this;
    }
    text + &counted(times)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_log_that_repeat_are_counted() {
        let log =
            "1 INFO begins\n2 ERROR full\n3 ERROR full\n4 ERROR full\n5 INFO ends\n6 INFO ends\n";
        let text = "1 INFO begins\n2 ERROR full\n    and 2 more\n5 INFO ends\n    and 1 more\n";
        assert_eq!(folded(log), text);
    }

    #[test]
    fn status_is_read_with_numbers_or_names_as_ids() {
        let text = r#"{"nodes":[{"id":1,"pid":77,"state":"up","address":"127.0.0.1:1"},
            {"id":"n2","pid":null,"state":"down","address":"127.0.0.1:2"}]}"#;
        let nodes = parse_status(text).unwrap();
        assert_eq!((nodes[0].id, nodes[0].pid), (1, Some(77)));
        assert_eq!((nodes[1].id, nodes[1].pid), (2, None));
    }

    #[test]
    fn a_status_of_another_form_is_refused_in_words() {
        for text in ["", "{}", r#"{"nodes":[{}]}"#] {
            assert!(
                matches!(parse_status(text), Err(CheckError::Violated { .. })),
                "{text}"
            );
        }
    }

    #[test]
    fn a_command_that_does_not_end_is_killed_at_its_limit() {
        let workspace = Workspace::new().unwrap();
        let base = workspace.path().join("x");
        let limit = Duration::from_millis(200);
        let outcome = run(Path::new("/bin/sleep"), &["60"], &base, limit);
        assert!(matches!(outcome, Err(CheckError::Deadline { .. })));
    }
}
