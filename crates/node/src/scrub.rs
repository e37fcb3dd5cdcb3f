//! Going over everything that this node keeps, against rot that no read has met yet (law 7).
//!
//! A pass reads every stored file's blocks and compares them with their checksums; what is corrupt is invalid from then
//! on, and fetched from another member as any invalid region is. How far a container's pass is lies in the store, so a
//! restart goes on where it was. Every container is due again after [`PERIOD`]; a person may ask for a pass at once.

use crate::container::{Container, Damage};
use crate::env::Env;
use parking_lot::Mutex;
use perigee_proto::message::report::{ScrubFound, ScrubPass, ScrubState, ScrubWish};
use perigee_store::{Space, Store, StoreError, Unverified, WriteBatch};
use perigee_types::{ContainerId, InodeId};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tracing::{error, info, warn};

/// How often everything is gone over.
const PERIOD: Duration = Duration::from_secs(7 * 86_400);
/// How fast, when nobody has asked for it: a tenth of what a modest disk reads.
const QUIET_BYTES_PER_SECOND: u64 = 16 << 20;
/// How often it is looked whether something is due.
const LOOK: Duration = Duration::from_secs(60);
/// Files between two notes of how far the pass is.
const PAGE: usize = 64;
/// How long a repair may take before it counts as none.
const REPAIR_MAX: Duration = Duration::from_secs(60);
const REPAIR_LOOK: Duration = Duration::from_millis(20);

/// Where a container's pass is kept, in its local space.
const KEY: &[u8] = b"scrub";

/// A container's pass.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Progress {
    /// The last file that was gone over.
    after: Option<InodeId>,
    /// When it was over; none while it is under way.
    ended_secs: Option<u64>,
}

/// The scrub of one node.
#[derive(Debug, Default)]
pub(crate) struct Scrub {
    state: Mutex<State>,
    asked: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// The pass under way, or the last one of this process.
    pass: Option<ScrubPass>,
    began: Option<Instant>,
    wanted: Option<Wanted>,
    stop: bool,
}

/// A pass that a person asked for.
#[derive(Debug, Clone, Copy)]
struct Wanted {
    bytes_per_second: Option<u64>,
}

/// Why a pass goes over a container.
#[derive(Debug, Clone, Copy)]
struct Pass {
    /// From the beginning, and whether it is due or not.
    asked_for: bool,
    bytes_per_second: Option<u64>,
    began: Instant,
    bytes: u64,
}

/// How a container's part of a pass ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ended {
    Through,
    Stopped,
}

impl Scrub {
    /// What a person wants, and how it stands.
    pub(crate) fn wish(&self, wish: ScrubWish) -> Option<ScrubPass> {
        let mut state = self.state.lock();
        match wish {
            ScrubWish::Look => {}
            ScrubWish::Begin { bytes_per_second } => {
                let running = state.wanted.is_some()
                    || state
                        .pass
                        .is_some_and(|pass| pass.state == ScrubState::Running && pass.asked_for);
                if !running {
                    state.wanted = Some(Wanted { bytes_per_second });
                    // One that goes on in the background gives way.
                    state.stop = true;
                    state.pass = Some(ScrubPass::begun(true, unix_now(), 0));
                    state.began = Some(Instant::now());
                    self.asked.notify_one();
                }
            }
            ScrubWish::Stop => {
                state.wanted = None;
                state.stop = true;
            }
        }
        let took = state.began.map(|began| began.elapsed());
        let pass = state.pass.as_mut()?;
        if pass.state == ScrubState::Running {
            pass.took_ms = took.map_or(0, |took| took.as_millis() as u64);
        }
        Some(*pass)
    }

    /// The next pass, when somebody asks for one, or it is time to look.
    async fn next(&self) -> Pass {
        let mut pass = Pass {
            asked_for: false,
            bytes_per_second: Some(QUIET_BYTES_PER_SECOND),
            began: Instant::now(),
            bytes: 0,
        };
        if self.state.lock().wanted.is_none() {
            // Time that is up means a pass over what is due.
            _ = tokio::time::timeout(LOOK, self.asked.notified()).await;
        }
        let mut state = self.state.lock();
        state.stop = false;
        if let Some(wanted) = state.wanted.take() {
            pass.asked_for = true;
            pass.bytes_per_second = wanted.bytes_per_second;
        }
        pass.began = Instant::now();
        pass
    }

    fn begin(&self, pass: &Pass, bytes_in_all: u64) {
        let mut state = self.state.lock();
        state.pass = Some(ScrubPass::begun(pass.asked_for, unix_now(), bytes_in_all));
        state.began = Some(pass.began);
    }

    fn note(&self, change: impl FnOnce(&mut ScrubFound)) {
        if let Some(pass) = &mut self.state.lock().pass {
            change(&mut pass.found);
        }
    }

    fn must_stop(&self) -> bool {
        self.state.lock().stop
    }

    fn end(&self, began: Instant, ended: Ended) -> Option<ScrubPass> {
        let mut state = self.state.lock();
        // The answer to who asked for another one meanwhile stays.
        if state.wanted.is_some() {
            return None;
        }
        let pass = state.pass.as_mut()?;
        pass.took_ms = began.elapsed().as_millis() as u64;
        pass.state = match ended {
            Ended::Through => ScrubState::Done,
            Ended::Stopped => ScrubState::Stopped,
        };
        Some(*pass)
    }
}

/// Goes over what is due, and over everything when asked, for as long as the node lives.
pub(crate) async fn run(env: Arc<Env>) {
    loop {
        let mut pass = env.scrub.next().await;
        let due: Vec<ContainerId> = env
            .all_containers()
            .into_iter()
            .filter(|container| container.holds_copy())
            .filter(|container| pass.asked_for || is_due(&env.store, container))
            .map(|container| container.id)
            .collect();
        if due.is_empty() && !pass.asked_for {
            continue;
        }
        env.scrub.begin(&pass, env.usage.bytes().await.unwrap_or(0));
        let mut ended = Ended::Through;
        for id in due {
            // What this node has left since is not kept from being closed.
            let Some(container) = env.container(id).filter(|open| open.holds_copy()) else {
                continue;
            };
            ended = over(&env, &container, &mut pass).await;
            if ended == Ended::Stopped {
                break;
            }
        }
        if let Some(done) = env.scrub.end(pass.began, ended) {
            info!(files = done.found.files, bytes = done.found.bytes, corrupt = done.found.corrupt,
                unrepaired = done.found.unrepaired, took_ms = done.took_ms, state = ?done.state, "scrub");
        }
    }
}

fn is_due(store: &Store, container: &Container) -> bool {
    match progress(store, container) {
        Some(progress) => progress
            .ended_secs
            .is_none_or(|ended| unix_now().saturating_sub(ended) >= PERIOD.as_secs()),
        // One that is new has nothing old in it.
        None => {
            note_progress(store, container, Progress::ended());
            false
        }
    }
}

impl Progress {
    fn ended() -> Self {
        Self {
            after: None,
            ended_secs: Some(unix_now()),
        }
    }
}

fn progress(store: &Store, container: &Container) -> Option<Progress> {
    let stored = store.get(Space::Local(container.id), KEY);
    match stored {
        Ok(bytes) => bytes.and_then(|bytes| perigee_proto::decode(&bytes).ok()),
        Err(error) => {
            warn!(container = %container.id, %error, "how far the scrub was is not known: it begins anew");
            Some(Progress::default())
        }
    }
}

fn note_progress(store: &Store, container: &Container, progress: Progress) {
    let mut batch = WriteBatch::default();
    let bytes = perigee_proto::encode(&progress);
    batch.put(Space::Local(container.id), KEY, &bytes);
    store.submit_lazy(batch, None);
}

/// Goes over one container.
async fn over(env: &Arc<Env>, container: &Arc<Container>, pass: &mut Pass) -> Ended {
    let begun = progress(&env.store, container).unwrap_or_default();
    let mut after = if pass.asked_for || begun.ended_secs.is_some() {
        None
    } else {
        begun.after
    };
    loop {
        if !container.holds_copy() {
            return Ended::Through;
        }
        let (store, id) = (env.store.clone(), container.id);
        let page = env
            .runtime
            .spawn_blocking(move || store.objects_after(id, after, PAGE));
        let page = match page.await {
            Ok(Ok(page)) => page,
            Ok(Err(error)) => {
                error!(container = %container.id, %error, "files cannot be listed for the scrub");
                env.scrub.note(|found| found.errors += 1);
                return Ended::Through;
            }
            Err(_) => return Ended::Stopped,
        };
        let Some(last) = page.last().copied() else {
            note_progress(&env.store, container, Progress::ended());
            return Ended::Through;
        };
        let mut corrupt = Vec::new();
        for inode in page {
            if env.scrub.must_stop() {
                return Ended::Stopped;
            }
            if let Some(bytes) = file(env, container, inode, pass).await {
                corrupt.push((inode, bytes));
            }
        }
        repaired(env, container, corrupt).await;
        after = Some(last);
        let ended_secs = None;
        note_progress(&env.store, container, Progress { after, ended_secs });
    }
}

/// Goes over one file; how many of its bytes are corrupt, if any are.
async fn file(
    env: &Arc<Env>,
    container: &Arc<Container>,
    inode: InodeId,
    pass: &mut Pass,
) -> Option<u64> {
    let mut corrupt = 0;
    let mut from = Some(Unverified::default());
    while let Some(next) = from {
        let me = container.clone();
        let part = env
            .runtime
            .spawn_blocking(move || me.file(inode)?.object.verify_from(next));
        let part = match part.await {
            Ok(Ok(part)) => part,
            // It went meanwhile.
            Ok(Err(StoreError::Removed { .. })) | Err(_) => break,
            Ok(Err(error)) => {
                error!(%inode, %error, "file cannot be gone over");
                env.scrub.note(|found| found.errors += 1);
                break;
            }
        };
        pass.bytes += part.bytes;
        let bad: u64 = part.corrupt.iter().map(|range| range.len()).sum();
        if bad > 0 {
            warn!(%inode, bytes = bad, "corrupt blocks found: fetching good ones");
            container.found_corrupt(inode, &part.corrupt);
            corrupt += bad;
        }
        env.scrub.note(|found| {
            found.bytes += part.bytes;
            found.corrupt += bad;
        });
        from = part.next;
        hold_back(pass).await;
    }
    env.scrub.note(|found| found.files += 1);
    (corrupt > 0).then_some(corrupt)
}

/// Not faster than wanted.
async fn hold_back(pass: &Pass) {
    if let Some(rate) = pass.bytes_per_second {
        let due = Duration::from_secs_f64(pass.bytes as f64 / rate.max(1) as f64);
        tokio::time::sleep(due.saturating_sub(pass.began.elapsed())).await;
    }
}

/// Waits until what was corrupt is here again, or cannot be had.
async fn repaired(env: &Arc<Env>, container: &Container, corrupt: Vec<(InodeId, u64)>) {
    let until = Instant::now() + REPAIR_MAX;
    for (inode, bytes) in corrupt {
        let whole = loop {
            match container.damage(inode) {
                None => break true,
                Some(Damage::Lost) => break false,
                Some(Damage::Healing) if Instant::now() > until => break false,
                Some(Damage::Healing) => tokio::time::sleep(REPAIR_LOOK).await,
            }
        };
        env.scrub.note(|found| match whole {
            true => found.repaired += bytes,
            false => found.unrepaired += bytes,
        });
    }
}

fn unix_now() -> u64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}
