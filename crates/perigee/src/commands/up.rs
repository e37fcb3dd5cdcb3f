//! `perigee up`: a cluster on this machine, every node a process of its own.
//!
//! Idempotent: what runs is left alone. When a process does not start, those that this call has
//! started are stopped again.

use super::{DirArg, JsonArg};
use crate::admin_client::{CHANGE_TIME, ask, listens, unexpected};
use crate::config::NodeConfig;
use crate::layout::{Layout, NODES_MAX, NodeDir, make_private_dir};
use crate::mount_options::Options;
use crate::mounts::{self, Entries};
use crate::output::Report;
use crate::{daemon, human, local_port, pid_file, process};
use clap::Args;
use perigee_cluster::Admits;
use perigee_net::Merging;
use perigee_proto::admin::{Answer, Failure, NodeState, Request};
use serde::Serialize;
use std::fs::{File, TryLockError};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long the token of a node of this machine is good for. It is used at once.
const TOKEN_TIME: Duration = Duration::from_secs(600);
/// How long `up` waits until the nodes see each other: as long as a sign of life lasts.
const SEEN: Duration = Duration::from_secs(5);
/// How long another command on the same directory is waited for. The lock of one that was killed stays
/// with the process that it was about to start until that runs its own program.
const LETS_GO: Duration = Duration::from_secs(2);
/// How often it is looked at meanwhile.
const LOOKS_AGAIN: Duration = Duration::from_millis(10);

/// Start a cluster on this machine, or what of it is not running.
///
/// A new cluster has one node, or as many as --nodes says; each is a process of its own with its own
/// data directory. A cluster that is there already is started as it is.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  perigee up --mount /mnt/perigee
  perigee up --dir /tmp/try --nodes 3 --mount /tmp/p")]
pub struct Up {
    #[command(flatten)]
    dir: DirArg,
    /// Nodes, each a process; more than there are adds the missing ones
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(NODES_MAX)))]
    nodes: Option<u32>,
    /// Mount the file system there, through the first node
    #[arg(long, value_name = "M")]
    mount: Option<PathBuf>,
    #[command(flatten)]
    json: JsonArg,
}

/// What `up` has done.
#[derive(Debug, Serialize)]
struct Summary {
    dir: PathBuf,
    nodes: Vec<Started>,
    mount: Option<PathBuf>,
    elapsed_ms: u128,
}

#[derive(Debug, Serialize)]
struct Started {
    name: String,
    pid: Option<u32>,
    /// Whether this call started it.
    started: bool,
}

impl Up {
    /// Starts what is not running, and mounts.
    pub fn run(self) -> Result<Report, Failure> {
        let begun = Instant::now();
        let before = Layout::look(&self.dir.path())?;
        self.wanted_nodes(&before)?;
        self.mountpoint(&before)?;
        make_private_dir(&before.dir)?;
        let _only = lock(&before.dir)?;
        let layout = Layout::look(&before.dir)?;
        let wanted = self.wanted_nodes(&layout)?;
        let mountpoint = self.mountpoint(&layout)?;
        let (layout, started) = bring_up(&layout, wanted)?;
        wait_until_seen(&layout, &started)?;
        if let Mountpoint::New(path) = &mountpoint {
            let first = first_node(&layout)?;
            super::mount::mount(first, path, &Options::none()?)?;
        }
        let summary = Summary {
            nodes: layout
                .nodes
                .iter()
                .map(|node| Started {
                    name: node.name(),
                    pid: pid_file::running(&node.path).map(|process| process.pid),
                    started: started.contains(node),
                })
                .collect(),
            dir: layout.dir,
            mount: mountpoint.into_path(),
            elapsed_ms: begun.elapsed().as_millis(),
        };
        Report::either(self.json.json, &summary, || summary.text())
    }

    fn wanted_nodes(&self, layout: &Layout) -> Result<u32, Failure> {
        let there = layout.nodes.len() as u32;
        let wanted = self.nodes.unwrap_or(there.max(1));
        if wanted < there {
            let why = format!("it has {}", human::plural(layout.nodes.len(), "node"));
            return Err(Failure::new(
                format!("cannot start `{}` with {wanted}", layout.dir.display()),
                why,
            )
            .hint("leave out --nodes: a cluster starts with the nodes that it has"));
        }
        if wanted > there && there > 0 && !layout.control().is_dir() {
            return Err(Failure::new(
                format!("cannot add nodes in `{}`", layout.dir.display()),
                "its control store is on another machine",
            )
            .hint("`perigee token` there, then `perigee join TOKEN --dir OTHER` here"));
        }
        Ok(wanted)
    }

    /// Checked before anything starts. Asking again for a mount that is there is fine.
    fn mountpoint(&self, layout: &Layout) -> Result<Mountpoint, Failure> {
        let Some(path) = &self.mount else {
            return Ok(Mountpoint::None);
        };
        if let Ok(full) = path.canonicalize() {
            let here = |mount: &mounts::Mount| {
                mount.mountpoint == full
                    && mount
                        .data_dir()
                        .is_some_and(|dir| layout.nodes.iter().any(|node| node.path == dir))
            };
            if mounts::table()?.iter().any(here) {
                return Ok(Mountpoint::There(full));
            }
        }
        mounts::check_mountpoint(path, Entries::Refuse).map(Mountpoint::New)
    }
}

enum Mountpoint {
    None,
    There(PathBuf),
    New(PathBuf),
}

impl Mountpoint {
    fn into_path(self) -> Option<PathBuf> {
        match self {
            Self::None => None,
            Self::There(path) | Self::New(path) => Some(path),
        }
    }
}

impl Summary {
    fn text(&self) -> String {
        let names = |started: bool| -> Vec<&str> {
            let nodes = self.nodes.iter().filter(|node| node.started == started);
            nodes.map(|node| node.name.as_str()).collect()
        };
        let (new, old) = (names(true), names(false));
        let mut text = match (new.is_empty(), old.is_empty()) {
            (true, _) => format!("{} ran already\n", human::plural(old.len(), "node")),
            (false, true) => format!("started {}\n", new.join(", ")),
            (false, false) => format!(
                "started {}; {} ran already\n",
                new.join(", "),
                old.join(", ")
            ),
        };
        if let Some(mount) = &self.mount {
            text.push_str(&format!("mounted on {}\n", mount.display()));
        }
        let elapsed = Duration::from_millis(u64::try_from(self.elapsed_ms).unwrap_or(u64::MAX));
        text.push_str(&format!(
            "ready in {}; data in {}\n",
            human::time(elapsed),
            self.dir.display()
        ));
        text
    }
}

/// Keeps two calls on one directory apart: waits for another one a moment. What was read of the
/// directory before may be old by then.
///
/// Errors: another one has it for longer.
pub fn lock(dir: &Path) -> Result<File, Failure> {
    lock_within(dir, LETS_GO)
}

fn lock_within(dir: &Path, limit: Duration) -> Result<File, Failure> {
    let what = || format!("cannot use the directory `{}`", dir.display());
    let file = File::open(dir).map_err(|error| Failure::new(what(), error))?;
    let began = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) if began.elapsed() < limit => {
                std::thread::sleep(LOOKS_AGAIN);
            }
            Err(TryLockError::WouldBlock) => {
                return Err(Failure::new(
                    what(),
                    "another `perigee` command starts or stops it right now",
                )
                .hint("try again when that one has ended"));
            }
            Err(TryLockError::Error(error)) => return Err(Failure::new(what(), error)),
        }
    }
}

/// Starts what exists and does not run: the control store if it is here, and every node.
pub fn start_missing(layout: &Layout) -> Result<(), Failure> {
    let _only = lock(&layout.dir)?;
    let layout = Layout::look(&layout.dir)?;
    let nodes = layout.nodes.len() as u32;
    bring_up(&layout, nodes).map(drop)
}

/// Starts one node of this machine.
pub fn start_node(layout: &Layout, node: &NodeDir) -> Result<(), Failure> {
    let _only = lock(&layout.dir)?;
    let mut undo = Undo::default();
    let started = start_nodes(std::slice::from_ref(node), &mut undo);
    if started.is_err() {
        undo.stop_all();
    }
    started.map(drop)
}

/// Brings the cluster to `wanted` running nodes, and says which ones it started.
fn bring_up(layout: &Layout, wanted: u32) -> Result<(Layout, Vec<NodeDir>), Failure> {
    let mut undo = Undo::default();
    let done = try_bring_up(layout, wanted, &mut undo);
    if done.is_err() {
        undo.stop_all();
    }
    done
}

/// Directories of the processes that this call started, in order.
#[derive(Default)]
pub(super) struct Undo {
    dirs: Vec<PathBuf>,
}

impl Undo {
    fn stop_all(&self) {
        for dir in self.dirs.iter().rev() {
            // the first error is the one that is reported
            let _ = process::terminate(dir, Duration::from_secs(5));
        }
    }
}

fn try_bring_up(
    layout: &Layout,
    wanted: u32,
    undo: &mut Undo,
) -> Result<(Layout, Vec<NodeDir>), Failure> {
    let token = match layout.nodes.is_empty() {
        true => Some(first_token(layout)?),
        false => None,
    };
    daemon::put_identities(layout)?;
    start_control(layout, undo)?;
    let mut nodes = layout.nodes.clone();
    let mut started = start_nodes(&nodes, undo)?;
    let missing = (wanted as usize).saturating_sub(nodes.len());
    let mut new: Vec<NodeDir> = (1..=NODES_MAX)
        .map(|number| layout.node_dir(number))
        .filter(|node| !nodes.contains(node))
        .take(missing)
        .collect();
    if let (Some(token), false) = (token, new.is_empty()) {
        // the first is alone until it can be asked to let the others in
        let first = new.remove(0);
        make_node(&first, &token)?;
        started.extend(start_nodes(std::slice::from_ref(&first), undo)?);
        nodes.push(first);
    }
    if let Some(asked) = nodes.first() {
        for node in &new {
            make_node(node, &ask_token(asked)?)?;
        }
    }
    started.extend(start_nodes(&new, undo)?);
    Ok((Layout::look(&layout.dir)?, started))
}

/// Starts the control store where it is on this machine.
pub(super) fn start_control(layout: &Layout, undo: &mut Undo) -> Result<(), Failure> {
    let dir = layout.control();
    if !daemon::is_control(&dir) {
        return Ok(());
    }
    let address = daemon::address_of_control(&dir)?;
    let serves = || TcpStream::connect(address).is_ok();
    if process::ensure("serve-control", &dir, serves)? == process::Run::Started {
        undo.dirs.push(dir);
    }
    Ok(())
}

/// Starts those that do not run, all at once, and waits for each.
fn start_nodes(nodes: &[NodeDir], undo: &mut Undo) -> Result<Vec<NodeDir>, Failure> {
    let mut waiting = Vec::new();
    let (running, stopped): (Vec<&NodeDir>, Vec<&NodeDir>) = nodes
        .iter()
        .partition(|node| pid_file::running(&node.path).is_some());
    for node in stopped {
        // a mount that a killed node left behind would answer nothing but errors
        super::umount::clear_dead_mounts(&node.path)?;
        daemon::settle_join(&node.path)?;
        waiting.push((process::start("serve", &node.path)?, node.clone()));
        undo.dirs.push(node.path.clone());
    }
    let mut started = Vec::new();
    for (starting, node) in waiting {
        match starting.wait().or_else(|failure| elsewhere(&node, failure)) {
            Ok(()) => started.push(node),
            // one that an earlier call has started was faster
            Err(_) if pid_file::running(&node.path).is_some() => {
                undo.dirs.retain(|dir| *dir != node.path);
                serving(&node)?;
            }
            Err(failure) => return Err(failure),
        }
    }
    for node in running {
        if serving(node)? == process::Run::Started {
            undo.dirs.push(node.path.clone());
            started.push(node.clone());
        }
    }
    Ok(started)
}

/// Starts a node that has failed to start once more, at another port, where a program that is not of this node has taken
/// the one that was chosen for it. Its peers are told where it listens at each start.
fn elsewhere(node: &NodeDir, failure: Failure) -> Result<(), Failure> {
    let known = match NodeConfig::load(&node.config()) {
        Ok(known) if pid_file::running(&node.path).is_none() => known,
        _ => return Err(failure),
    };
    if !local_port::is_chosen_and_taken(known.listen) {
        return Err(failure);
    }
    let config = NodeConfig {
        listen: local_port::for_node()?,
        ..known
    };
    config.save(&node.config())?;
    process::start("serve", &node.path)?.wait()
}

/// Waits until the node that commands ask knows those that were started: its watch of the control store may be a moment
/// behind. One that fell again meanwhile is for `status` to tell.
fn wait_until_seen(layout: &Layout, started: &[NodeDir]) -> Result<(), Failure> {
    let asked = first_node(layout)?;
    let deadline = Instant::now() + SEEN;
    loop {
        let Answer::Status(status) = ask(&asked.path, &Request::Status, CHANGE_TIME)? else {
            return Ok(());
        };
        let up = |name: &str| {
            let mut named = status.nodes.iter().filter(|node| node.name == name);
            named.any(|node| node.state != NodeState::Down)
        };
        if started.iter().all(|node| up(&node.name())) || Instant::now() > deadline {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Waits for a node that somebody else has started.
fn serving(node: &NodeDir) -> Result<process::Run, Failure> {
    process::ensure("serve", &node.path, || listens(&node.path))
}

/// Makes the cluster if there is none, and a token for its first node.
fn first_token(layout: &Layout) -> Result<String, Failure> {
    let control = layout.control();
    if !daemon::is_control(&control) {
        return daemon::init_control(&layout.dir, local_port::for_control()?, None);
    }
    // an earlier call was cut off before it had a node; its control store may still run
    process::terminate(&control, Duration::from_secs(5))?;
    daemon::first_token(&layout.dir)
}

/// A token from a node that runs.
fn ask_token(asked: &NodeDir) -> Result<String, Failure> {
    let request = Request::Token {
        ttl_secs: TOKEN_TIME.as_secs(),
        admits: Admits::Anybody,
    };
    match ask(&asked.path, &request, CHANGE_TIME)? {
        Answer::Token(token) => Ok(token.token),
        other => Err(unexpected(&other)),
    }
}

/// Makes the data directory of a new node of this machine, or completes one that was cut off.
fn make_node(node: &NodeDir, token: &str) -> Result<(), Failure> {
    if let Some(config) = daemon::cut_off(&node.path)? {
        return daemon::join(&node.path, &config, token);
    }
    let config = NodeConfig {
        name: node.name(),
        listen: local_port::for_node()?,
        control: daemon::control_address(token)?,
        site: None,
        storage: true,
        log: "info".to_owned(),
        merging: Merging::default(),
    };
    daemon::join(&node.path, &config, token)
}

/// The first node of this machine.
pub fn first_node(layout: &Layout) -> Result<&NodeDir, Failure> {
    layout.nodes.first().ok_or_else(|| {
        Failure::new(
            format!("cannot find a node in `{}`", layout.dir.display()),
            "there is none",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_commands_on_one_directory_do_not_meet() {
        let temp = tempfile::tempdir().unwrap();
        let held = lock(temp.path()).unwrap();
        assert!(lock_within(temp.path(), Duration::ZERO).is_err());
        drop(held);
        lock_within(temp.path(), Duration::ZERO).unwrap();
    }

    /// A process that a killed command was about to start has its lock for as long.
    #[test]
    fn a_command_waits_a_moment_for_another() {
        let temp = tempfile::tempdir().unwrap();
        let held = lock(temp.path()).unwrap();
        let copy = held.try_clone().unwrap();
        drop(held);
        std::thread::scope(|scope| {
            let second = scope.spawn(|| lock(temp.path()));
            std::thread::sleep(2 * LOOKS_AGAIN);
            drop(copy);
            second.join().unwrap().unwrap();
        });
    }
}
