//! Chaos: programs on every node work and write down what they were promised, while nodes are killed, stopped and
//! filled; every promise is looked up again, through every node.
//!
//! [`ledger`] what was promised, and how it is looked up · [`stage`] which node is struck, and what each program is
//! at · [`worker`] the programs · [`rounds`] what they fight for, [`contest`] and how · [`private`] files of each one's
//! own · [`nemesis`] the strikes.

pub mod contest;
pub mod ledger;
pub mod nemesis;
pub mod private;
pub mod rounds;
pub mod stage;
pub mod worker;

use crate::cluster::Cluster;
use crate::error::{Call, CheckError, Checked};
use crate::{disk, ensure, mounts, program, slow};
use ledger::Ledger;
use nemesis::{Kind, Strike};
use perigee_types::Rng;
use stage::Stage;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How a campaign goes.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Nodes of the cluster.
    pub nodes: u32,
    /// After this time no strike begins any more, once each of `kinds` was made.
    pub time: Duration,
    /// What every choice follows from; the machine's timing does not.
    pub seed: u64,
    /// What is done: first each of these in this order, then at random, and twice as often what is here twice.
    pub kinds: Vec<Kind>,
    /// What the nodes' disks are made of, where a kind of strike does not need others.
    pub disks: Disks,
    /// A round trip between two halves of the hosts, where they are at two sites; nodes on one host where they are not, and no
    /// strike needs others.
    pub sites: Option<Duration>,
}

/// What a campaign saw.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// How often each kind of strike was made, and the longest call that a program on a node that was not struck
    /// made meanwhile.
    pub strikes: BTreeMap<Kind, Struck>,
    /// What was promised and looked up.
    pub kept: ledger::Kept,
    /// What the programs fought for.
    pub looked: rounds::Looked,
}

/// Strikes of one kind.
#[derive(Debug, Clone, Copy, Default)]
pub struct Struck {
    /// How many.
    pub count: u32,
    /// The longest call.
    pub pause: Duration,
}

/// No call of a program on a node that is not struck takes longer.
pub const HANG: Duration = Duration::from_secs(30);
/// MiB of each node's disk, which a strike can fill.
const DISK_MIB: u64 = 512;

/// Runs a campaign on a cluster of its own; `tell` hears of each strike that is over.
///
/// Errors: the first broken promise, with what was going on.
pub fn run(settings: &Settings, mut tell: impl FnMut(&str)) -> Checked<Outcome> {
    let is_of_links = |kind: &Kind| kind.is_of_links();
    ensure!(
        settings.nodes > 1 || !settings.kinds.iter().any(is_of_links),
        "one node has no links to cut: take more nodes, or name other kinds of strikes"
    );
    let takes_root = settings.kinds.iter().find(|kind| kind.takes_root());
    if let (Some(kind), false) = (takes_root, has_own_disks()) {
        // Without disks of its own a strike would fill that of the machine.
        return Err(CheckError::violated(format!(
            "`{}` takes root, for small disks and network namespaces: name other kinds of strikes",
            kind.name()
        )));
    }
    let limit = settings.time + Duration::from_secs(900);
    ensure!(
        !settings.kinds.contains(&Kind::Swap) || program::other_perigee().is_some(),
        "`swap` takes another build, named by PERIGEE_OTHER_BIN: name other kinds of strikes"
    );
    let wanted = if settings.kinds.contains(&Kind::Fail) {
        Disks::Thin
    } else if settings.kinds.contains(&Kind::Slow) {
        ensure!(
            slow::is_possible(),
            "`slow` takes the control group `blkio` of version 1: name other kinds of strikes"
        );
        Disks::Images
    } else {
        settings.disks
    };
    let prepare = |dir: &Path| disks(dir, settings.nodes, wanted);
    let mut cluster = if let Some(round_trip) = settings.sites {
        Cluster::start_at_two_sites(settings.nodes, limit, round_trip, prepare)
    } else if settings.kinds.iter().any(is_of_links) {
        Cluster::start_apart(settings.nodes, limit, prepare)
    } else {
        Cluster::start_prepared(settings.nodes, limit, prepare)
    }?;
    if settings.kinds.contains(&Kind::Etcd) {
        cluster.move_to_etcd(nemesis::ETCDS)?;
    }
    for id in cluster.ids() {
        cluster.mount(id)?;
    }
    let points = cluster
        .ids()
        .into_iter()
        .map(|id| (id, cluster.mount_point(id)));
    let points: BTreeMap<_, _> = points.collect();
    let first = points.values().next();
    let first = first.ok_or_else(|| CheckError::violated("a cluster without nodes"))?;
    make_striped(&mut cluster, first)?;
    let ledger = Arc::new(Ledger::new(first, settings.nodes)?);
    let stage = Arc::new(Stage::new(points.keys().copied()));
    let mut seeds = Rng::new(settings.seed);
    let workers: Vec<JoinHandle<()>> = points
        .iter()
        .map(|(&id, point)| {
            let (point, rng) = (point.clone(), Rng::new(seeds.next_u64()));
            let (stage, ledger) = (Arc::clone(&stage), Arc::clone(&ledger));
            thread::spawn(move || worker::run(id, &point, &stage, &ledger, rng))
        })
        .collect();
    let struck = strikes(
        &mut cluster,
        settings,
        &stage,
        &ledger,
        &mut seeds,
        &mut tell,
    );
    let struck = struck.and_then(|outcome| {
        stage.verdict()?;
        cluster.settle().map(|()| outcome)
    });
    stage.end();
    if struck.is_err() {
        cluster.show_logs();
        // Programs that hang end with their daemons.
        cluster.kill_all();
    }
    for worker in workers {
        let ended = worker.join();
        ended.map_err(|_| CheckError::violated("a program panicked"))?;
    }
    let mut outcome = struck?;
    stage.verdict()?;
    for (id, point) in &points {
        ensure!(mounts::is_mounted(point), "n{id} is not mounted at the end");
        outcome.kept = ledger
            .verify(point)
            .map_err(|error| error.during(&format!("at the end, through n{id}")))?;
    }
    ensure!(
        outcome.kept.files > 0 && outcome.kept.records > 0 && outcome.looked.explained > 0,
        "nothing was promised: {:?}, {:?}",
        outcome.kept,
        outcome.looked
    );
    Ok(outcome)
}

/// Makes the directory of striped files.
fn make_striped(cluster: &mut Cluster, mount: &Path) -> Checked {
    let striped = mount.join(private::STRIPED);
    std::fs::create_dir(&striped).call(|| format!("make {}", striped.display()))?;
    let path = striped.to_string_lossy();
    let set = cluster.command(&["policy", "set", &path, "stripes=3"])?;
    ensure!(set.status.success(), "no striped files: {}", set.stderr);
    Ok(())
}

fn strikes(
    cluster: &mut Cluster,
    settings: &Settings,
    stage: &Stage,
    ledger: &Ledger,
    rng: &mut Rng,
    tell: &mut impl FnMut(&str),
) -> Checked<Outcome> {
    let began = Instant::now();
    let mut outcome = Outcome::default();
    let mut first = settings.kinds.iter().copied();
    for number in 1.. {
        let Some(kind) = first.next().or_else(|| {
            let more = began.elapsed() < settings.time && !settings.kinds.is_empty();
            more.then(|| settings.kinds[rng.below(settings.kinds.len() as u64) as usize])
        }) else {
            break;
        };
        let ids = cluster.ids();
        let mut somewhere = || cluster.mount_point(ids[rng.below(ids.len() as u64) as usize]);
        ledger.rounds.begin([&somewhere(), &somewhere()])?;
        stage.watch(Duration::from_millis(500 + rng.below(2_500)))?;
        let strike = Strike::of(kind, &cluster.ids(), rng);
        let title = format!("strike {number} of seed {}, {strike}", settings.seed);
        let pause =
            nemesis::strike(cluster, stage, ledger, &strike, rng).map_err(|e| e.during(&title))?;
        let kind = outcome.strikes.entry(strike.kind()).or_default();
        kind.count += 1;
        kind.pause = kind.pause.max(pause);
        let settled = Instant::now();
        cluster.settle().map_err(|error| error.during(&title))?;
        let settled = settled.elapsed();
        let looked = ledger.rounds.end().map_err(|error| error.during(&title))?;
        outcome.looked.add(looked);
        let through = ids[rng.below(ids.len() as u64) as usize];
        let kept = ledger
            .verify(&cluster.mount_point(through))
            .map_err(|error| error.during(&format!("{title}, through n{through}")))
            .map_err(|error| error.followed_by(&elsewhere(cluster, ledger)))?;
        tell(&format!(
            "{title}: longest call elsewhere {pause:.1?}, whole again after {settled:.1?}; {kept} hold through n{through}; {looked}"
        ));
    }
    Ok(outcome)
}

/// Whether the promise is broken through the others, too, and for good.
fn elsewhere(cluster: &Cluster, ledger: &Ledger) -> String {
    let again = |id: u32| match ledger.verify(&cluster.mount_point(id)) {
        Ok(_) => format!("n{id} keeps all"),
        Err(error) => format!("n{id}: {error}"),
    };
    let looks: Vec<String> = cluster.ids().into_iter().map(again).collect();
    format!("a moment later: {}", looks.join("; "))
}

/// Whether this process may mount a small disk for each node.
fn has_own_disks() -> bool {
    rustix::process::geteuid().is_root()
}

/// A small disk of its own for each node, where this process may mount one.
fn disks(dir: &Path, nodes: u32, wanted: Disks) -> Checked {
    if !has_own_disks() {
        return Ok(());
    }
    for node in 1..=nodes {
        let place = dir.join(format!("node-{node}"));
        match wanted {
            Disks::Memory => disk::mount_small(&place, DISK_MIB)?,
            Disks::Thin => nemesis::thin_disk(dir, node).make()?,
            Disks::Images => {
                disk::mount_image(&dir.join(format!("disk-{node}")), &place, DISK_MIB)?;
            }
        }
    }
    Ok(())
}

/// What the nodes' disks are made of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Disks {
    /// Of memory, which is fast, and of which the kernel does not tell what changes.
    #[default]
    Memory,
    /// Of files, behind block devices.
    Images,
    /// The same, of files in memory that can be kept from growing.
    Thin,
}
