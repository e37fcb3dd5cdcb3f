//! Snapshots: a directory with all that is below it, as of one moment, over all containers.
//!
//! The list of them lies in the container of the root directory. Each owner removes, by itself and in the background, the
//! checkpoints that no snapshot of the list has; and each makes, where it owns a directory whose policy says so, what a
//! schedule asks for.

use crate::container::Failed;
use crate::env::Env;
use crate::node::Node;
use crate::router;
use futures_util::future::join_all;
use perigee_meta::schedule::Schedule;
use perigee_meta::{Attr, Kind, Op, Origin, Reply, Snapshot, SnapshotPart, is_snapshot_name};
use perigee_proto::admin::AdminPath;
use perigee_proto::message::past::{Part, PartOfSnapshot, Step};
use perigee_types::{ContainerId, Errno, InodeId, NodeId, SnapshotId, Tick, WallTime};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tracing::{debug, info, warn};

/// The name of the schedule of snapshots in the settings of a directory.
pub const SNAPSHOTS: &str = "snapshots";

/// The longest that changes wait for a snapshot that comes to nothing.
const STOP: Duration = Duration::from_millis(3_000);
/// How long one step may look for an owner.
const STEP: Duration = Duration::from_secs(5);
/// How long content may take to get to every disk.
const SETTLE: Duration = Duration::from_secs(600);
/// How often a snapshot is tried while owners are busy with other things.
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(100);
/// How often checkpoints that nobody has are looked for.
const LOOK: Duration = Duration::from_secs(1);
/// How often schedules are looked at, in looks.
const SCHEDULES: u32 = 5;

/// Why there is no snapshot.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The file system's answer about the path, or the list.
    #[error(transparent)]
    Path(#[from] Errno),
    /// Only directories have snapshots.
    #[error("it is not a directory")]
    NotADirectory,
    /// A name that no directory entry can have, or that begins with a dot or a dash.
    #[error("`{0}` is not a name for a snapshot")]
    BadName(String),
    /// There is one.
    #[error("the directory has a snapshot `{0}`")]
    Exists(String),
    /// There is none.
    #[error("the directory has no snapshot `{0}`")]
    Missing(String),
    /// Something else kept an owner from stopping for it.
    #[error("container {container} did not come to rest for it: {why}")]
    Busy {
        /// The container.
        container: ContainerId,
        /// The owner's last word.
        why: Errno,
    },
    /// There are too many.
    #[error("there are too many snapshots: delete some")]
    TooMany,
}

/// A snapshot, and what it takes.
#[derive(Debug, Clone)]
pub struct SnapshotUse {
    snapshot: Snapshot,
    /// Bytes of content that were replaced since and are kept for it and those before it, in one copy; none where an owner
    /// did not say.
    pub bytes: Option<u64>,
}

impl SnapshotUse {
    /// Of which nothing was replaced yet.
    #[must_use]
    pub const fn new(snapshot: Snapshot) -> Self {
        Self {
            snapshot,
            bytes: Some(0),
        }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.snapshot.name
    }

    /// Where its directory was.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.snapshot.path
    }

    /// When it was made, in seconds since 1970.
    #[must_use]
    pub fn taken_secs(&self) -> u64 {
        self.snapshot.taken.secs.try_into().unwrap_or_default()
    }

    /// Whether a schedule made it.
    #[must_use]
    pub fn is_scheduled(&self) -> bool {
        self.snapshot.origin == Origin::Scheduled
    }
}

fn errno_of(failed: Failed) -> Errno {
    match failed {
        Failed::Errno(errno) => errno,
        Failed::Elsewhere(_) => Errno::EBUSY,
    }
}

/// A number that no other snapshot has: the moment, and who made it.
fn new_id(now: WallTime, node: NodeId) -> SnapshotId {
    let micros = now.secs.unsigned_abs() * 1_000_000 + u64::from(now.nanos / 1_000);
    SnapshotId((micros << 12) | u64::from(node.0 & 0xfff))
}

async fn list(env: &Env) -> Result<Vec<Snapshot>, Errno> {
    match router::ask_as_node(env, Op::Snapshots).await? {
        Reply::Snapshots(snapshots) => Ok(snapshots),
        _ => Err(Errno::EPROTO),
    }
}

/// What a container answered to a step.
struct Answered {
    container: ContainerId,
    part: Result<Part, Errno>,
}

/// Has all containers do a step; gives what they answered.
async fn all_do(
    env: &Arc<Env>,
    containers: &[ContainerId],
    snapshot: SnapshotId,
    step: Step,
    patience: Duration,
) -> Vec<Answered> {
    let steps = containers.iter().map(|container| (*container, step));
    each_does(env, steps, snapshot, patience).await
}

/// The same, where each does a step of its own.
async fn each_does(
    env: &Arc<Env>,
    steps: impl Iterator<Item = (ContainerId, Step)>,
    snapshot: SnapshotId,
    patience: Duration,
) -> Vec<Answered> {
    let parts = steps.map(|(container, step)| async move {
        let request = PartOfSnapshot {
            container,
            snapshot,
            step,
        };
        let done = router::part_of_snapshot(env, &request, patience).await;
        let part = done.map_err(errno_of);
        Answered { container, part }
    });
    join_all(parts).await
}

fn first_failure(done: &[Answered]) -> Option<SnapshotError> {
    let mut failed = done.iter();
    failed.find_map(|answered| match answered.part {
        Err(Errno::ENOSPC) => Some(SnapshotError::TooMany),
        Err(why) => Some(SnapshotError::Busy {
            container: answered.container,
            why,
        }),
        Ok(_) => None,
    })
}

/// Makes checkpoints of all containers between two moments in which none changes.
async fn take_parts(
    env: &Arc<Env>,
    containers: &[ContainerId],
    id: SnapshotId,
) -> Result<Vec<SnapshotPart>, SnapshotError> {
    let stop = Step::Stop {
        for_us: STOP.as_micros() as u64,
    };
    let began = env.clock.now();
    let stopped = all_do(env, containers, id, stop, STOP).await;
    let rested = env.clock.now();
    let taken = match first_failure(&stopped) {
        None => {
            let takes = stopped.iter().filter_map(|answered| match answered.part {
                Ok(Part::Stopped(stop)) => Some((answered.container, Step::Take { stop })),
                _ => None,
            });
            Ok(each_does(env, takes, id, STOP).await)
        }
        Some(failure) => Err(failure),
    };
    let took = env.clock.now();
    all_do(env, containers, id, Step::Release, STOP).await;
    let ms = |from: Tick, to: Tick| to.since(from).as_micros() / 1_000;
    info!(
        stop_ms = ms(began, rested),
        take_ms = ms(rested, took),
        release_ms = ms(took, env.clock.now()),
        "stopped for a snapshot"
    );
    let taken = taken?;
    if let Some(failure) = first_failure(&taken) {
        return Err(failure);
    }
    let parts: Vec<SnapshotPart> = taken
        .into_iter()
        .filter_map(|Answered { container, part }| match part {
            Ok(Part::Taken(checkpoint)) => Some(SnapshotPart {
                container,
                checkpoint,
            }),
            _ => None,
        })
        .collect();
    match parts.len() == containers.len() {
        true => Ok(parts),
        // An owner of another mind: nothing of it may count as whole.
        false => Err(Errno::EPROTO.into()),
    }
}

/// Makes a snapshot of a directory.
async fn make(
    env: &Arc<Env>,
    directory: &Attr,
    path: String,
    name: String,
    origin: Origin,
) -> Result<Snapshot, SnapshotError> {
    if !is_snapshot_name(&name) {
        return Err(SnapshotError::BadName(name));
    }
    if directory.kind != Kind::Directory {
        return Err(SnapshotError::NotADirectory);
    }
    let same = |other: &Snapshot| other.directory == directory.inode && other.name == name;
    if list(env).await?.iter().any(same) {
        return Err(SnapshotError::Exists(name));
    }
    let mut tries = 0;
    let (id, taken, parts) = loop {
        // The tree may have something in any container.
        let all = || -> Vec<ContainerId> {
            let directory = env.directory.read();
            directory.containers.keys().copied().collect()
        };
        let containers = all();
        let now = env.clock.wall();
        let id = new_id(now, env.me);
        match take_parts(env, &containers, id).await {
            // One that was made meanwhile may have something of the tree, too.
            Ok(_) if all() != containers && tries < TRIES => tries += 1,
            Ok(parts) => break (id, now, parts),
            Err(SnapshotError::Busy { container, why }) if tries < TRIES => {
                debug!(%container, %why, "snapshot tried again");
                tries += 1;
                tokio::time::sleep(PAUSE).await;
            }
            Err(error) => return Err(error),
        }
    };
    let snapshot = Snapshot {
        id,
        name,
        directory: directory.inode,
        path,
        taken,
        origin,
        parts,
    };
    keep(env, &snapshot).await?;
    Ok(snapshot)
}

/// Puts a snapshot on the list when nothing of it can be lost any more.
async fn keep(env: &Arc<Env>, snapshot: &Snapshot) -> Result<(), SnapshotError> {
    let kept = Op::KeepSnapshot {
        snapshot: snapshot.clone(),
    };
    match router::ask_as_node(env, kept).await {
        Ok(_) => {}
        Err(Errno::EEXIST) => return Err(SnapshotError::Exists(snapshot.name.clone())),
        Err(Errno::ENOSPC) => return Err(SnapshotError::TooMany),
        Err(errno) => return Err(errno.into()),
    }
    let containers: Vec<ContainerId> = snapshot.parts.iter().map(|part| part.container).collect();
    let began = env.clock.now();
    let settled = all_do(env, &containers, snapshot.id, Step::Settle, SETTLE).await;
    if let Some(failure) = first_failure(&settled) {
        forget(env, snapshot).await?;
        return Err(failure);
    }
    let settle_ms = env.clock.now().since(began).as_micros() / 1_000;
    info!(
        name = snapshot.name,
        path = snapshot.path,
        settle_ms,
        "snapshot made"
    );
    Ok(())
}

/// Takes a snapshot off the list.
async fn forget(env: &Arc<Env>, snapshot: &Snapshot) -> Result<(), SnapshotError> {
    router::ask_as_node(env, Op::ForgetSnapshot { id: snapshot.id }).await?;
    let containers: Vec<ContainerId> = snapshot.parts.iter().map(|part| part.container).collect();
    // Who does not hear of it finds out by itself.
    all_do(env, &containers, snapshot.id, Step::Forget, STEP).await;
    info!(
        name = snapshot.name,
        path = snapshot.path,
        "snapshot deleted"
    );
    Ok(())
}

impl Node {
    /// Makes a snapshot of the directory at a path, with all that is below it.
    ///
    /// # Errors
    /// See [`SnapshotError`]; there is no snapshot then.
    pub async fn make_snapshot(
        &self,
        path: &AdminPath,
        name: String,
    ) -> Result<Snapshot, SnapshotError> {
        let attr = self.find(path).await?;
        let shown = path.to_string();
        make(&self.env, &attr, shown, name, Origin::Asked).await
    }

    /// All snapshots, the oldest first, and what each takes.
    ///
    /// # Errors
    /// The list's owner does not answer.
    pub async fn snapshots(&self) -> Result<Vec<SnapshotUse>, Errno> {
        let mut listed = list(&self.env).await?;
        listed.sort_by_key(|snapshot| (snapshot.taken, snapshot.id));
        let containers: BTreeSet<ContainerId> = listed
            .iter()
            .flat_map(|snapshot| snapshot.parts.iter().map(|part| part.container))
            .collect();
        let asks = containers.into_iter().map(|container| async move {
            let uses = router::past_use(&self.env, container).await;
            (container, uses.ok())
        });
        let mut bytes: BTreeMap<SnapshotId, u64> = BTreeMap::new();
        let mut silent = BTreeSet::new();
        for (container, uses) in join_all(asks).await {
            match uses {
                Some(uses) => {
                    for past in uses {
                        *bytes.entry(past.snapshot).or_default() += past.bytes;
                    }
                }
                None => _ = silent.insert(container),
            }
        }
        let known = |snapshot: &Snapshot| {
            let mut parts = snapshot.parts.iter();
            !parts.any(|part| silent.contains(&part.container))
        };
        let listed = listed.into_iter();
        Ok(listed
            .map(|snapshot| SnapshotUse {
                bytes: known(&snapshot)
                    .then(|| bytes.get(&snapshot.id).copied().unwrap_or_default()),
                snapshot,
            })
            .collect())
    }

    /// The inode of the directory at a path, and its snapshots.
    ///
    /// # Errors
    /// As [`Node::find`].
    async fn snapshots_of(&self, path: &AdminPath) -> Result<(InodeId, Vec<Snapshot>), Errno> {
        let inode = self.find(path).await?.inode;
        let mut snapshots = list(&self.env).await?;
        snapshots.retain(|snapshot| snapshot.directory == inode);
        Ok((inode, snapshots))
    }

    /// Deletes the snapshot of a name of the directory at a path.
    ///
    /// # Errors
    /// See [`SnapshotError`].
    pub async fn delete_snapshot(
        &self,
        path: &AdminPath,
        name: &str,
    ) -> Result<Snapshot, SnapshotError> {
        let (_, snapshots) = self.snapshots_of(path).await?;
        let found = snapshots.into_iter().find(|snapshot| snapshot.name == name);
        let found = found.ok_or_else(|| SnapshotError::Missing(name.to_owned()))?;
        forget(&self.env, &found).await?;
        Ok(found)
    }
}

/// Removes what no snapshot has any more, and makes what schedules ask for, as long as the node runs.
pub(crate) async fn run(env: Arc<Env>) {
    let mut looks = 0u32;
    loop {
        tokio::time::sleep(LOOK).await;
        looks = looks.wrapping_add(1);
        tidy(&env).await;
        if looks.is_multiple_of(SCHEDULES) {
            follow_schedules(&env).await;
        }
    }
}

async fn tidy(env: &Arc<Env>) {
    let kept: Vec<_> = env
        .all_containers()
        .into_iter()
        .filter(|container| container.owned().is_some() && container.has_checkpoints())
        .collect();
    if kept.is_empty() {
        return;
    }
    let listed = match list(env).await {
        Ok(listed) => listed.into_iter().map(|snapshot| snapshot.id).collect(),
        Err(errno) => return debug!(%errno, "the list of snapshots is not to be had"),
    };
    for container in kept {
        let now = env.clock.wall();
        if let Err(failed) = container.forget_checkpoints(&listed, now).await {
            debug!(container = %container.id, ?failed, "checkpoints stay for now");
        }
    }
}

/// What the schedules of directories ask for whose containers this node owns.
async fn follow_schedules(env: &Arc<Env>) {
    let mut scheduled: Vec<(InodeId, String)> = Vec::new();
    for container in env.all_containers() {
        match container.settings(SNAPSHOTS) {
            Ok(found) => scheduled.extend(found),
            Err(failed) => debug!(container = %container.id, ?failed, "policies not looked at"),
        }
    }
    if scheduled.is_empty() {
        return;
    }
    let listed = match list(env).await {
        Ok(listed) => listed,
        Err(errno) => return debug!(%errno, "the list of snapshots is not to be had"),
    };
    for (directory, text) in scheduled {
        let Ok(schedule) = Schedule::parse(&text) else {
            warn!(%directory, schedule = text, "schedule of snapshots unreadable");
            continue;
        };
        if let Err(error) = follow(env, directory, &schedule, &listed).await {
            warn!(%directory, %error, "snapshot of the schedule not made");
        }
    }
}

async fn follow(
    env: &Arc<Env>,
    directory: InodeId,
    schedule: &Schedule,
    listed: &[Snapshot],
) -> Result<(), SnapshotError> {
    let own: Vec<&Snapshot> = listed
        .iter()
        .filter(|snapshot| snapshot.directory == directory)
        .collect();
    let now = env.clock.wall();
    let due = schedule.due(&own, now);
    for snapshot in own {
        if due.delete.contains(&snapshot.id) {
            forget(env, snapshot).await?;
        }
    }
    if !due.take {
        return Ok(());
    }
    let attr = match router::ask_as_node(env, Op::GetAttr { inode: directory }).await? {
        Reply::Attr(attr) => attr,
        _ => return Err(Errno::EPROTO.into()),
    };
    if attr.nlink == 0 {
        return Ok(());
    }
    let path = path_of(env, directory).await?;
    let name = format!("auto-{}", perigee_types::time::utc_name(now));
    make(env, &attr, path, name, Origin::Scheduled).await?;
    Ok(())
}

/// The path of a directory, from its parents' entries.
async fn path_of(env: &Arc<Env>, directory: InodeId) -> Result<String, Errno> {
    let mut names: Vec<String> = Vec::new();
    let mut at = directory;
    while at != InodeId::ROOT {
        let up = Op::Lookup {
            parent: at,
            name: b"..".to_vec(),
        };
        let above = match router::ask_as_node(env, up).await? {
            Reply::Entry(attr) => attr.inode,
            _ => return Err(Errno::EPROTO),
        };
        let name = name_in(env, above, at).await?.ok_or(Errno::ENOENT)?;
        names.push(String::from_utf8_lossy(&name).into_owned());
        at = above;
    }
    names.reverse();
    Ok(format!("/{}", names.join("/")))
}

async fn name_in(
    env: &Arc<Env>,
    directory: InodeId,
    wanted: InodeId,
) -> Result<Option<Vec<u8>>, Errno> {
    let mut cookie = 0;
    loop {
        let op = Op::ReadDir {
            inode: directory,
            cookie,
            limit: 1_000,
        };
        let rows = match router::ask_as_node(env, op).await? {
            Reply::Listing(rows) => rows,
            _ => return Err(Errno::EPROTO),
        };
        let Some(last) = rows.last() else {
            return Ok(None);
        };
        cookie = last.cookie;
        if let Some(row) = rows.into_iter().find(|row| row.inode == wanted) {
            return Ok(Some(row.name));
        }
    }
}
