//! Checks that need a whole cluster: which node dies, who writes, who reads, and how it is mended.

use crate::checks::latency::{self, Felt};
use crate::checks::{crash_names, kill_write};
use crate::cluster::Cluster;
use crate::error::{Call, CheckError, Checked};
use crate::{ensure, pattern, program, wait};
use perigee_types::Rng;
use rustix::process::Signal;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How a campaign of kills goes.
#[derive(Debug, Clone, Copy)]
pub struct Kills {
    /// Rounds, each with one node killed.
    pub rounds: u32,
    /// Bytes written in each.
    pub size: u64,
    /// Bytes between two fsyncs.
    pub sync_every: u64,
    /// What every choice follows from.
    pub seed: u64,
    /// Who dies.
    pub victim: Victim,
}

/// Which node a round kills.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Victim {
    /// Any: the owner of the data or a replica, by chance.
    Anyone,
    /// The owner of the data, so that who writes waits for a takeover.
    Owner,
}

/// Kills one of three nodes in each round, at a random moment of a write through a surviving one.
///
/// Victim, writer and reader are three nodes; the directory is made through any of them.
///
/// Errors: the first broken promise, with the round and the seed.
pub fn kill_rounds(
    cluster: &mut Cluster,
    kills: Kills,
    mut tell: impl FnMut(u32, &kill_write::Round),
) -> Checked<Vec<kill_write::Round>> {
    let mut rng = Rng::new(kills.seed);
    for id in cluster.ids() {
        cluster.mount(id)?;
    }
    let mut rounds = Vec::new();
    for number in 1..=kills.rounds {
        let title = format!("round {number} of seed {}", kills.seed);
        let round = kill_round(cluster, kills, &mut rng, number);
        let round = round.map_err(|error| error.during(&title))?;
        tell(number, &round);
        rounds.push(round);
    }
    Ok(rounds)
}

fn kill_round(
    cluster: &mut Cluster,
    kills: Kills,
    rng: &mut Rng,
    number: u32,
) -> Checked<kill_write::Round> {
    let maker = cluster.ids()[rng.below(cluster.ids().len() as u64) as usize];
    let folder = format!("round-{}-{number}", kills.seed);
    let made = cluster.mount_point(maker).join(&folder);
    std::fs::create_dir(&made).call(|| format!("mkdir {}", made.display()))?;
    let first = match kills.victim {
        Victim::Anyone => None,
        Victim::Owner => Some(cluster.owner(&made)?),
    };
    let [victim, writer, reader] = three(cluster, rng, first)?;

    // Not before the first fsync, or the round would prove nothing; not in the last call either.
    let earliest = kills.sync_every + (1 << 20);
    let latest = kills.size.saturating_sub(2 << 20);
    ensure!(
        earliest < latest,
        "a write of {} bytes is too short for a kill",
        kills.size
    );
    let plan = kill_write::Plan {
        program: program::testbed()?,
        written: cluster.mount_point(writer).join(&folder).join("data"),
        read: cluster.mount_point(reader).join(&folder).join("data"),
        size: kills.size,
        seed: rng.next_u64(),
        sync_every: kills.sync_every,
        strike_at: earliest + rng.below(latest - earliest),
        strike_delay: Duration::from_micros(rng.below(3_000)),
    };
    let round = kill_write::run(&plan, &mut || cluster.kill(victim, Signal::KILL))
        .map_err(|error| error.during(&format!("n{victim} killed, n{writer} writes")))?;
    mend(cluster, victim)?;
    // The node that came back serves the right bytes too.
    let back: PathBuf = cluster.mount_point(victim).join(&folder).join("data");
    kill_write::verify(&back, plan.seed, kills.size)
        .map_err(|error| error.during(&format!("through n{victim}, which came back")))?;
    std::fs::remove_file(&plan.written).call(|| "remove the round's file".to_owned())?;
    Ok(round)
}

/// Victim, writer and reader: three different nodes, where nobody says who is first.
fn three(cluster: &Cluster, rng: &mut Rng, first: Option<u32>) -> Checked<[u32; 3]> {
    let mut ids = cluster.ids();
    ensure!(
        ids.len() >= 3,
        "a kill needs three nodes, there are {}",
        ids.len()
    );
    let first = first.and_then(|first| ids.iter().position(|id| *id == first));
    let first = first.unwrap_or_else(|| rng.below(ids.len() as u64) as usize);
    let first = ids.swap_remove(first);
    let mut draw = || ids.swap_remove(rng.below(ids.len() as u64) as usize);
    Ok([first, draw(), draw()])
}

fn mend(cluster: &mut Cluster, victim: u32) -> Checked {
    cluster.up()?;
    cluster.settle()?;
    cluster.mount(victim).map(|_| ())
}

/// Kills all nodes at once while names are made, starts them again, and verifies every promise.
///
/// Errors: the first broken promise.
pub fn crash_all_names(cluster: &mut Cluster, seed: u64, promises: usize) -> Checked<usize> {
    let ids = cluster.ids();
    let (Some(first), Some(last)) = (ids.first().copied(), ids.last().copied()) else {
        return Err(CheckError::violated("a cluster without nodes"));
    };
    let folder = cluster.mount(first)?.join("names");
    std::fs::create_dir(&folder).call(|| format!("mkdir {}", folder.display()))?;
    let program = program::testbed()?;
    let promised = crash_names::make(&program, &folder, seed, promises, &mut || {
        ids.iter()
            .try_for_each(|id| cluster.kill(*id, Signal::KILL))
    })?;
    cluster.up()?;
    cluster.settle()?;
    for id in [first, last] {
        let seen = cluster.mount(id)?.join("names");
        crash_names::verify(&seen, &promised).map_err(|e| e.during(&format!("through n{id}")))?;
    }
    Ok(promised.len())
}

/// How long the others may take to go on without a node.
const REPLACED: Duration = Duration::from_secs(30);

/// What programs felt while a node that had lost its disk got its copies again.
#[derive(Debug, Clone, Copy)]
pub struct Refilled {
    /// Before.
    pub before: Felt,
    /// Meanwhile.
    pub during: Felt,
    /// How long it took from the node's start on.
    pub took: Duration,
}

/// Takes a node's disk away, and lets a program on the owner's host work while the node gets everything again.
///
/// Errors: a call fails, the copies are not whole again in time, or have other bytes.
pub fn refill(cluster: &mut Cluster, bytes: u64, seed: u64) -> Checked<Refilled> {
    const FILE: u64 = 16 << 20;
    let mount = cluster.mount(1)?;
    let mut seeds = Rng::new(seed);
    let mut files = Vec::new();
    for number in 0..bytes.div_ceil(FILE) {
        let (path, seed) = (format!("bulk-{number}"), seeds.next_u64());
        write_synced(&mount.join(&path), seed, FILE)?;
        files.push((path, seed));
    }
    cluster.settle()?;
    let ends = Instant::now() + Duration::from_secs(5);
    let before = latency::feel(&mount, seeds.next_u64(), || Instant::now() >= ends)?;
    let last = cluster.ids().last().copied();
    let victim = last.ok_or_else(|| CheckError::violated("a cluster without nodes"))?;
    cluster.kill(victim, Signal::KILL)?;
    let store = cluster.dir().join(format!("node-{victim}/store"));
    std::fs::remove_dir_all(&store).call(|| "wipe a store".to_owned())?;
    wait::until("the chains go on without the node", REPLACED, || {
        let chains = cluster.chains()?;
        Ok((!chains
            .iter()
            .any(|chain| chain.contains(&victim) && chain.len() > 1))
        .then_some(()))
    })?;
    cluster.up()?;
    let began = Instant::now();
    let whole = AtomicBool::new(false);
    let seed = seeds.next_u64();
    let (during, settled) = std::thread::scope(|scope| {
        let program = scope.spawn(|| latency::feel(&mount, seed, || whole.load(Ordering::Relaxed)));
        let settled = cluster.settle();
        whole.store(true, Ordering::Relaxed);
        (program.join(), settled)
    });
    settled?;
    let took = began.elapsed();
    let during = during.map_err(|_| CheckError::violated("the program panicked"))??;
    let back = cluster.mount(victim)?;
    for (path, seed) in files {
        kill_write::verify(&back.join(&path), seed, FILE)
            .map_err(|error| error.during(&format!("{path} through n{victim}")))?;
    }
    Ok(Refilled {
        before,
        during,
        took,
    })
}

fn write_synced(path: &Path, seed: u64, bytes: u64) -> Checked {
    let write = || {
        let file = File::create_new(path)?;
        let mut piece = vec![0; 1 << 20];
        let mut at = 0;
        while at < bytes {
            pattern::fill(seed, at, &mut piece);
            file.write_all_at(&piece, at)?;
            at += piece.len() as u64;
        }
        file.sync_all()
    };
    write().call(|| format!("write {}", path.display()))
}
