//! Law 4: what serves an operation has every effect that another host has seen or an fsync has acknowledged.

use crate::clock::Drift;
use crate::world::World;

/// Checked when `node` executes an operation.
pub(crate) fn check(world: &mut World, node: usize) {
    if world.drift == Drift::Beyond {
        // What is wrong about its lease may be read by it, and not changed.
        return;
    }
    let acked = world.oracle.acked;
    let run = world.running_ref(node);
    let base = run.chain.base();
    let held = if acked <= base.seq {
        None
    } else {
        Some(run.chain.entries(acked, acked).next().map(|e| e.version))
    };
    let committed = world.oracle.at(acked).map(|c| c.version);
    if let Some(held) = held
        && held != committed
    {
        let what = format!(
            "n{} serves without {committed:?}, which was shown; it has {held:?} there",
            node + 1
        );
        world.oracle.accuse(world.now, "coherent", what);
    }
}
