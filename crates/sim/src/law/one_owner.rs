//! Law 1: at any time at most one node may act as owner, and an epoch has one owner, which won it in one process
//! lifetime.

use crate::clock::Drift;
use crate::oracle::Mark;
use crate::world::World;
use perigee_replica::Role;

/// Checked after every event.
pub(crate) fn check(world: &mut World) {
    let mut owner: Option<usize> = None;
    for node in 0..world.nodes.len() {
        let local = world.local(node);
        let Some(run) = &world.nodes[node].run else {
            continue;
        };
        if run.chain.lease_until(local).is_none() {
            continue;
        }
        let role = run.chain.role();
        if let Some(other) = owner {
            if world.drift == Drift::Beyond {
                // Clocks beyond their bound count leases wrong; what an owner orders is fenced by its epoch all the same.
                world.note(Mark::TwoLeases);
            } else {
                let what = format!("n{} and n{} both hold leases", other + 1, node + 1);
                return world.oracle.accuse(world.now, "one owner", what);
            }
        }
        owner = Some(node);
        if let Role::Owner { epoch } = role {
            let process = (node, world.nodes[node].incarnation);
            let first = *world.oracle.reigns.entry(epoch).or_insert(process);
            if first != process {
                let what = format!("{epoch} has two owners: {first:?} and {process:?}");
                return world.oracle.accuse(world.now, "one owner", what);
            }
        }
    }
}
