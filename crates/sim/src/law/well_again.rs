//! After the chaos, when everything was healed and some time has passed: one owner, the full chain, every operation
//! done, and all members the same. What every copy of was spoiled is gone, and all say so.

use crate::model::{ALL_BLOCKS, BLOCKS, file_of, range_of};
use crate::node::service::PROBE_ROUNDS;
use crate::world::World;

const LAW: &str = "well again";

/// Checked at the end.
pub(crate) fn check(world: &mut World) {
    if let Some(what) = fault(world) {
        world.oracle.accuse(world.now, LAW, what);
    }
}

fn fault(world: &World) -> Option<String> {
    let count = world.nodes.len();
    let owner = (0..count).find(|n| {
        let run = world.nodes[*n].run.as_ref();
        run.is_some_and(|r| r.chain.lease_until(world.local(*n)).is_some())
    });
    let Some(owner) = owner else {
        return Some(format!("nobody owns; the store has {:?}", world.store.view));
    };
    if world.store.view.chain.len() != count {
        return Some(format!("the chain is not full: {:?}", world.store.view));
    }
    let (wanted, done) = (PROBE_ROUNDS as usize * count, world.probes_done.len());
    if done < wanted {
        return Some(format!("only {done} of {wanted} operations were done"));
    }
    let first = world.nodes[owner].run.as_ref()?;
    if first.chain.committed() != first.chain.last().seq {
        return Some("records of the owner are not committed".into());
    }
    for node in 0..count {
        let Some(run) = &world.nodes[node].run else {
            return Some(format!("n{} does not run", node + 1));
        };
        if run.chain.committed() != first.chain.committed() || run.state != first.state {
            return Some(format!("n{} has another state than its owner", node + 1));
        }
        for block in 0..ALL_BLOCKS {
            if world.is_lost(owner, block) {
                if let Some(what) = lost(world, node, block) {
                    return Some(what);
                }
                continue;
            }
            let valid = run.pull.is_valid(file_of(block), range_of(block));
            if !valid || world.content(node, block) != world.content(owner, block) {
                return Some(format!("n{} has not block {block}", node + 1));
            }
        }
    }
    None
}

/// What the owner says that nobody has, nobody has.
fn lost(world: &World, node: usize, block: usize) -> Option<String> {
    let pull = &world.running_ref(node).pull;
    let valid = pull.is_valid(file_of(block), range_of(block));
    if valid {
        return Some(format!(
            "n{} has block {block}, which is called lost",
            node + 1
        ));
    }
    // What is kept for a checkpoint may be lost with its owner, before it is anywhere else.
    (!world.oracle.unkept[block] && block < BLOCKS)
        .then(|| format!("block {block} is called lost, and a member had it"))
}
