//! Law 1 for chunks, and law 4: a chunk has one node that orders its writes, and whoever reads one that another host holds
//! is shown what that had written before.

use crate::clock::Drift;
use crate::model::{chunk, file_of, number_of};
use crate::world::World;

const LAW: &str = "held";

/// `node` writes or reads a block as its holder: no owner may think that it does not hold it, or have written to it
/// what the holder cannot know of.
pub(crate) fn on_use(world: &mut World, node: usize, block: usize) {
    if world.drift == Drift::Beyond {
        return;
    }
    let chunk = chunk(number_of(file_of(block)));
    let hold = world.running_ref(node).holding.hold(chunk);
    for owner in 0..world.nodes.len() {
        let local = world.local(owner);
        let Some(run) = &world.nodes[owner].run else {
            continue;
        };
        let mut unrecorded = run.unrecorded.keys();
        let unknown = unrecorded.any(|other| file_of(*other) == file_of(block));
        let agrees = run.holds.holder(chunk) == hold && !unknown;
        if run.chain.lease_until(local).is_none() || agrees {
            continue;
        }
        let what = format!(
            "n{} uses block {block} as its holder, and n{} owns it",
            node + 1,
            owner + 1
        );
        return world.oracle.accuse(world.now, LAW, what);
    }
}

/// The owner `node` shows a block to a session that has asked at `began_at`.
pub(crate) fn on_read(world: &mut World, node: usize, block: usize, began_at: u64) {
    if world.drift == Drift::Beyond {
        return;
    }
    let chunk = chunk(number_of(file_of(block)));
    let Some(hold) = world.running_ref(node).holds.holder(chunk) else {
        return;
    };
    let holder = crate::world::host_of(hold.holder.node());
    let Some(run) = &world.nodes[holder].run else {
        return;
    };
    if run.holding.hold(chunk) != Some(hold) {
        return;
    }
    let alone = run.alone.get(&block);
    let written = alone.and_then(|token| Some((*token, *world.oracle.held_at.get(token)?)));
    if let Some((token, at)) = written
        && at < began_at
        && world.content(node, block) != token
    {
        let what = format!(
            "n{} shows block {block} without {token}, which its holder n{} wrote before",
            node + 1,
            holder + 1
        );
        world.oracle.accuse(world.now, LAW, what);
    }
}
