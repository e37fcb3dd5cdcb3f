//! The strikes.

use super::DISK_MIB;
use super::ledger::Ledger;
use super::stage::Stage;
use crate::cluster::{CONTROL_HOST, Cluster};
use crate::disk::{self, Thin};
use crate::error::{Call, CheckError, Checked};
use crate::launch::Launch;
use crate::links::{Direction, both};
#[cfg(doc)]
use crate::slow;
use crate::{ensure, program};
use perigee_types::Rng;
use rustix::process::Signal;
use std::fmt;
use std::path::Path;
use std::time::Duration;

/// What is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Daemons die.
    Kill,
    /// All of them at once.
    KillAll,
    /// They sleep, while the programs on their hosts go on.
    Stop,
    /// A disk is full.
    Full,
    /// A daemon dies, and all that its node has stored is gone.
    Wipe,
    /// A host and the others no longer hear each other.
    Cut,
    /// Two hosts no longer hear each other; the others hear both.
    Part,
    /// One host no longer hears another one, which hears it.
    Deafen,
    /// A disk takes a thousandth of what it usually does.
    Slow,
    /// A disk says EIO to what is new on it, and is replaced by an empty one.
    Fail,
    /// A daemon dies, and is started again where the clock since boot shows another time.
    Jump,
    /// A daemon is stopped, and started again from another build.
    Swap,
    /// Members of the etcd die that has the cluster's record, or all of them.
    Etcd,
}

impl Kind {
    /// Each as often as it is here. Not [`Kind::Slow`], which needs more than root (see [`slow`]), and makes the rest
    /// of a campaign slow; not [`Kind::Swap`], which needs another build; not [`Kind::Etcd`], which needs one.
    pub const USUAL: [Self; 17] = [
        Self::Kill,
        Self::Kill,
        Self::Kill,
        Self::KillAll,
        Self::Stop,
        Self::Stop,
        Self::Stop,
        Self::Stop,
        Self::Full,
        Self::Wipe,
        Self::Cut,
        Self::Cut,
        Self::Cut,
        Self::Part,
        Self::Deafen,
        Self::Fail,
        Self::Jump,
    ];

    /// Whether only root can do it.
    #[must_use]
    pub const fn takes_root(self) -> bool {
        matches!(self, Self::Full | Self::Slow | Self::Fail | Self::Jump) || self.is_of_links()
    }

    /// Whether it is done to the links between hosts.
    #[must_use]
    pub const fn is_of_links(self) -> bool {
        matches!(self, Self::Cut | Self::Part | Self::Deafen)
    }

    /// Its name on the command line and in the summary.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::KillAll => "kill-all",
            Self::Stop => "stop",
            Self::Full => "full",
            Self::Wipe => "wipe",
            Self::Cut => "cut",
            Self::Part => "part",
            Self::Deafen => "deafen",
            Self::Slow => "slow",
            Self::Fail => "fail",
            Self::Jump => "jump",
            Self::Swap => "swap",
            Self::Etcd => "etcd",
        }
    }

    /// The kind of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        let mut all = Self::USUAL
            .into_iter()
            .chain([Self::Slow, Self::Swap, Self::Etcd]);
        all.find(|kind| kind.name() == name)
    }
}

/// What is done to whom.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Strike {
    /// Their daemons die, and are started again later.
    Kill(Vec<u32>),
    /// All daemons die at once.
    KillAll(Vec<u32>),
    /// Their daemons sleep for a while.
    Stop(Vec<u32>),
    /// The disk is full for a while.
    Full(u32),
    /// Its daemon dies, and is started again with an empty store.
    Wipe(u32),
    /// Silence between a host and all others, for a while.
    Cut(u32),
    /// Silence between two hosts.
    Part(u32, u32),
    /// Silence in one direction.
    Deafen(Direction),
    /// Its disk is slow for a while.
    Slow(u32),
    /// Its disk fails, and is replaced.
    Fail(u32),
    /// Its daemon dies, and is started again with a clock so many seconds ahead of the others'.
    Jump(u32, i64),
    /// Its daemon is stopped, and started again from the other build.
    Swap(u32),
    /// So many members of etcd die, and are started again.
    Etcd(usize),
}

/// Most that a node stays away, in milliseconds: longer than leases, and than the time after which the only other copies
/// are added to.
const AWAY_MAX: u64 = 12_000;

/// Longer than a node is waited for before another one takes its place.
const LONG: u64 = 34_000;

/// How far clocks jump, in seconds: back by less than this machine has been up, and on by a second, a day and ten years.
const AHEAD: [i64; 4] = [-60, 1, 86_400, 315_360_000];

/// A disk fails for at least so long, in milliseconds: something is written to it.
const FAILING_MIN: u64 = 4_000;

/// Members of the etcd that keeps the record, where one is to be struck.
pub(crate) const ETCDS: usize = 3;

/// Shorter than leases.
const SHORT_MAX: u64 = 1_500;

impl fmt::Display for Strike {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kill(nodes) => write!(f, "kill {nodes:?}"),
            Self::KillAll(_) => write!(f, "kill all"),
            Self::Stop(nodes) => write!(f, "stop {nodes:?}"),
            Self::Full(node) => write!(f, "fill the disk of [{node}]"),
            Self::Wipe(node) => write!(f, "wipe [{node}]"),
            Self::Slow(node) => write!(f, "slow the disk of [{node}] down"),
            Self::Fail(node) => write!(f, "have the disk of [{node}] fail"),
            Self::Jump(node, ahead) => write!(f, "set the clock of [{node}] ahead by {ahead} s"),
            Self::Etcd(members) => write!(f, "kill {members} of etcd"),
            Self::Swap(node) => write!(f, "give [{node}] the other build"),
            Self::Cut(node) => write!(f, "cut off [{node}]"),
            Self::Part(a, b) => write!(f, "silence between [{a}] and [{b}]"),
            Self::Deafen(Direction { from, to }) => write!(f, "silence from [{from}] to [{to}]"),
        }
    }
}

impl Strike {
    /// One that the cluster must survive: of three copies, at most two are away unless all are.
    pub fn of(kind: Kind, ids: &[u32], rng: &mut Rng) -> Self {
        let mut left = ids.to_vec();
        let mut draw = |rng: &mut Rng| left.swap_remove(rng.below(left.len() as u64) as usize);
        let victim = draw(rng);
        let mut one_or_two = |rng: &mut Rng| {
            let two = rng.chance(1, 4) && ids.len() > 3;
            std::iter::once(victim)
                .chain(two.then(|| draw(rng)))
                .collect()
        };
        match kind {
            Kind::Kill => Self::Kill(one_or_two(rng)),
            Kind::KillAll => Self::KillAll(ids.to_vec()),
            Kind::Stop => Self::Stop(one_or_two(rng)),
            Kind::Full => Self::Full(victim),
            Kind::Wipe => Self::Wipe(victim),
            Kind::Slow => Self::Slow(victim),
            Kind::Fail => Self::Fail(victim),
            Kind::Jump => Self::Jump(victim, AHEAD[rng.below(AHEAD.len() as u64) as usize]),
            Kind::Swap => Self::Swap(victim),
            Kind::Etcd => Self::Etcd(1 + rng.below(ETCDS as u64) as usize),
            Kind::Cut => Self::Cut(victim),
            Kind::Part => Self::Part(victim, draw(rng)),
            Kind::Deafen => Self::Deafen(Direction {
                from: victim,
                to: draw(rng),
            }),
        }
    }

    /// In one word.
    pub const fn kind(&self) -> Kind {
        match self {
            Self::Kill(_) => Kind::Kill,
            Self::KillAll(_) => Kind::KillAll,
            Self::Stop(_) => Kind::Stop,
            Self::Full(_) => Kind::Full,
            Self::Wipe(_) => Kind::Wipe,
            Self::Slow(_) => Kind::Slow,
            Self::Fail(_) => Kind::Fail,
            Self::Jump(..) => Kind::Jump,
            Self::Swap(_) => Kind::Swap,
            Self::Etcd(_) => Kind::Etcd,
            Self::Cut(_) => Kind::Cut,
            Self::Part(..) => Kind::Part,
            Self::Deafen(_) => Kind::Deafen,
        }
    }
}

/// Strikes, waits, and mends. Gives the longest call of a program on a node that was not struck.
///
/// Errors: the strike or the mending failed, or a program found a broken promise.
pub fn strike(
    cluster: &mut Cluster,
    stage: &Stage,
    ledger: &Ledger,
    strike: &Strike,
    rng: &mut Rng,
) -> Checked<Duration> {
    // Half of them are back before anybody misses them, and most before anybody takes their place.
    let away = match rng.below(16) {
        0..=7 => rng.below(SHORT_MAX),
        8..=14 => rng.below(AWAY_MAX),
        _ => LONG,
    };
    let away = Duration::from_millis(away);
    stage.longest();
    match strike {
        Strike::Kill(nodes) => kill(cluster, stage, nodes, || (), away)?,
        // Once nobody can be shown anything any more.
        Strike::KillAll(nodes) => kill(cluster, stage, nodes, || ledger.all_die(), Duration::ZERO)?,
        Strike::Stop(nodes) => {
            stage.strike(nodes);
            for node in nodes {
                cluster.kill(*node, Signal::STOP)?;
            }
            let watched = stage.watch(away);
            for node in nodes {
                cluster.kill(*node, Signal::CONT)?;
            }
            watched?;
            // Programs that slept with their node may be told that it had lost what they did not sync.
            stage.watch(Duration::from_secs(2))?;
            stage.heal(nodes);
        }
        Strike::Wipe(node) => {
            stage.strike(&[*node]);
            cluster.kill(*node, Signal::KILL)?;
            let store = cluster.dir().join(format!("node-{node}/store"));
            std::fs::remove_dir_all(&store).call(|| "wipe a store".to_owned())?;
            stage.watch(away)?;
            cluster.up()?;
            cluster.mount(*node)?;
            stage.heal(&[*node]);
        }
        Strike::Cut(node) => {
            let around = cluster.links()?.around(*node);
            let ids = cluster.ids();
            // Whoever has the control store goes on, and it is the others that are cut off.
            let lose = if *node == CONTROL_HOST {
                &ids[..]
            } else {
                &[*node]
            };
            silence(cluster, stage, lose, &around, away)?;
        }
        Strike::Part(a, b) => silence(cluster, stage, &[*a, *b], &both(*a, *b), away)?,
        Strike::Deafen(direction) => {
            let hosts = [direction.from, direction.to];
            silence(cluster, stage, &hosts, &[*direction], away)?;
        }
        Strike::Slow(node) => {
            stage.strike(&[*node]);
            let slow = cluster.slow_disk(*node)?;
            let watched = stage.watch(away);
            drop(slow);
            watched?;
            stage.watch(Duration::from_secs(2))?;
            stage.heal(&[*node]);
        }
        Strike::Jump(node, ahead) => {
            stage.strike(&[*node]);
            cluster.kill(*node, Signal::KILL)?;
            stage.watch(away)?;
            start_as(cluster, *node, &Launch::Ahead(*ahead))?;
            stage.heal(&[*node]);
        }
        Strike::Swap(node) => {
            let other = program::other_perigee();
            let other = other.ok_or_else(|| CheckError::violated("there is no other build"))?;
            stage.strike(&[*node]);
            cluster.kill(*node, Signal::TERM)?;
            stage.watch(away)?;
            start_as(cluster, *node, &Launch::Build(other))?;
            stage.heal(&[*node]);
        }
        Strike::Etcd(members) => {
            let etcd = cluster.etcd.as_mut();
            let etcd = etcd.ok_or_else(|| CheckError::violated("there is no etcd"))?;
            (0..*members).try_for_each(|at| etcd.kill(at))?;
            let watched = stage.watch(away);
            etcd.restart_all()?;
            watched?;
        }
        Strike::Fail(node) => fail(cluster, stage, *node, away)?,
        Strike::Full(node) => full(cluster, stage, *node, away)?,
    }
    stage.watch(Duration::from_millis(200))?;
    Ok(stage.longest())
}

/// Daemons die, and are started again. `dead` hears when all of them are.
fn kill(
    cluster: &mut Cluster,
    stage: &Stage,
    nodes: &[u32],
    dead: impl FnOnce(),
    away: Duration,
) -> Checked {
    stage.strike(nodes);
    for node in nodes {
        cluster.kill(*node, Signal::KILL)?;
    }
    dead();
    stage.watch(away)?;
    cluster.up()?;
    for node in nodes {
        cluster.mount(*node)?;
    }
    stage.heal(nodes);
    Ok(())
}

/// A disk is full for a while.
fn full(cluster: &Cluster, stage: &Stage, node: u32, away: Duration) -> Checked {
    let foreign = cluster.dir().join(format!("node-{node}/foreign"));
    stage.scarce(true);
    // An owner whose log finds no room either leaves.
    stage.leaves(node);
    disk::fill(&foreign)?;
    let watched = stage.watch(away);
    std::fs::remove_file(&foreign).call(|| "give the room back".to_owned())?;
    watched?;
    // What was refused a moment ago may be told now.
    stage.watch(Duration::from_secs(2))?;
    stage.scarce(false);
    Ok(())
}

fn start_as(cluster: &mut Cluster, node: u32, launch: &Launch) -> Checked {
    cluster.up_as(launch)?;
    let so = cluster.runs_as(node, launch)?;
    ensure!(so, "[{node}] was not started as {launch:?}");
    cluster.mount(node).map(drop)
}

/// The disk of a node, where it is one that can fail.
pub fn thin_disk(dir: &Path, node: u32) -> Thin {
    let (inner, place) = (format!("thin-{node}"), format!("node-{node}"));
    Thin::new(&dir.join(inner), &dir.join(place), DISK_MIB)
}

/// Has the disk of a node fail for a while, and gives it a new one.
fn fail(cluster: &mut Cluster, stage: &Stage, node: u32, away: Duration) -> Checked {
    let dir = cluster.dir();
    let (disk, place) = (thin_disk(&dir, node), dir.join(format!("node-{node}")));
    // What makes it this node, and not its data.
    let kept = cluster.path().join(format!("kept-{node}"));
    disk::copy_all(&place.join("identity"), &kept.join("identity"))?;
    let file = "node.toml";
    std::fs::copy(place.join(file), kept.join(file)).call(|| format!("keep {file}"))?;
    stage.strike(&[node]);
    disk.fail()?;
    stage.watch(away.max(Duration::from_millis(FAILING_MIN)))?;
    ensure!(disk.is_failing(), "the disk of [{node}] does not fail");
    cluster.kill(node, Signal::KILL)?;
    disk.replace(&kept)?;
    std::fs::remove_dir_all(&kept).call(|| "remove what was kept".to_owned())?;
    cluster.up()?;
    cluster.mount(node)?;
    stage.heal(&[node]);
    Ok(())
}

/// Cuts links for a while. Programs on `hosts` may fail meanwhile, and be told afterwards of what their host has lost.
fn silence(
    cluster: &Cluster,
    stage: &Stage,
    hosts: &[u32],
    links: &[Direction],
    away: Duration,
) -> Checked {
    stage.strike(hosts);
    for link in links {
        cluster.links()?.cut(*link)?;
    }
    let watched = stage.watch(away);
    for link in links {
        cluster.links()?.mend(*link)?;
    }
    watched?;
    stage.watch(Duration::from_secs(2))?;
    stage.heal(hosts);
    Ok(())
}
