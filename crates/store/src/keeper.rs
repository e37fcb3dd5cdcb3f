//! The keeper: one thread that syncs `touched.log`, brings old changes to the disk, begins with what grows,
//! and keeps the reserve.

use crate::core::{BellState, Core, Grown};
use crate::objects::Objects;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracing::warn;

/// How often it looks around, and wakes up when nobody rings.
const ROUND: Duration = Duration::from_secs(1);
/// Objects with changes older than this are synced: what the kernel writes back by itself after 30 s
/// is on the disk by then, so most of these syncs write little. In milliseconds.
const FLUSH_AGE_MS: u64 = 35_000;
/// Objects with changes beyond which age does not matter: bounds memory, and what recovery has to read.
const DIRTY_MAX: usize = 1 << 15;

/// The keeper's life.
pub(crate) fn run(core: &Core, objects: &Arc<Objects>) {
    let mut looked = Instant::now();
    loop {
        {
            let mut state = core.keeper.state.lock();
            if *state == BellState::Quiet {
                core.keeper.rung.wait_for(&mut state, ROUND);
            }
            match *state {
                BellState::Stop => return,
                BellState::Rung => *state = BellState::Quiet,
                BellState::Quiet => {}
            }
        }
        if let Err(error) = core.touched.sync() {
            warn!(%error, "cannot sync touched.log");
        }
        // Writers take this lock, and to begin with a file may take a while.
        let grown = std::mem::take(&mut *core.grown.lock());
        for grown in &grown {
            begin(core, grown);
        }
        // By the clock: a busy store rings all the time.
        if looked.elapsed() >= ROUND {
            looked = Instant::now();
            look_around(core, objects);
        }
    }
}

fn look_around(core: &Core, objects: &Arc<Objects>) {
    let mut dirty = Vec::new();
    for object in objects.all() {
        match object.dirty_since() {
            Some(since) => dirty.push((since, object)),
            None if object.is_touched() => object.untouch(),
            None => {}
        }
    }
    dirty.sort_by_key(|(since, _)| *since);
    let excess = dirty.len().saturating_sub(DIRTY_MAX);
    let old = core.now_ms().saturating_sub(FLUSH_AGE_MS);
    for (at, (since, object)) in dirty.into_iter().enumerate() {
        if at >= excess && since > old {
            break;
        }
        let inode = object.inode();
        object.sync(Box::new(move |result| {
            if let Err(error) = result {
                warn!(%inode, %error, "cannot bring old changes to the disk");
            }
        }));
    }
    if let Err(error) = core.touched.compact(false) {
        warn!(%error, "cannot compact touched.log");
    }
    core.kv.refill();
}

/// Has the system begin with what a file has grown by. That may take a while, during which other objects are touched.
fn begin(core: &Core, grown: &Grown) {
    let Some(file) = grown.file.upgrade() else {
        return;
    };
    // The log knows an object before its file changes on the disk.
    if let Err(error) = core.touched.sync() {
        return warn!(%error, "cannot sync touched.log");
    }
    if let Err(error) = file.begin_writeback(grown.range) {
        // A sync that follows may succeed without having written.
        core.set_read_only(grown.container, format!("writing back failed: {error}"));
    }
}
