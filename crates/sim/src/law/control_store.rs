//! Law 6: the control store is not on the data path. An owner whose members answer executes operations without it;
//! what would break this is a wait, which `well_again` finds, and an epoch that the store does not know.

use crate::world::World;
use perigee_replica::Role;

/// Checked when `node` executes an operation: its epoch is one that the store gave out.
pub(crate) fn check(world: &mut World, node: usize) {
    if let Role::Owner { epoch } = world.running_ref(node).chain.role()
        && epoch > world.store.view.epoch
    {
        let what = format!("n{} owns {epoch}, which the store never gave", node + 1);
        world.oracle.accuse(world.now, "control store", what);
    }
}
