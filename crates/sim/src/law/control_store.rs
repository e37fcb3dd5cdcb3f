//! Law 6: the control store is not on the data path. While it is away, and nothing else is wrong, every operation is
//! done; and no epoch is owned that it did not give out.

use crate::model::Outcome;
use crate::world::{Scenario, World};
use perigee_replica::Role;

/// When the store goes away in [`Scenario::StoreAway`]: by then the chain is full.
pub(crate) const AWAY_SINCE_US: u64 = 6_000_000;

const LAW: &str = "control store";

/// Checked when `node` executes an operation.
pub(crate) fn check(world: &mut World, node: usize) {
    if let Role::Owner { epoch } = world.running_ref(node).chain.role()
        && epoch > world.store.view.epoch
    {
        let what = format!("n{} owns {epoch}, which the store never gave", node + 1);
        world.oracle.accuse(world.now, LAW, what);
    }
}

/// Checked when an operation of `node`'s session ends.
pub(crate) fn check_outcome(world: &mut World, node: usize, outcome: Outcome) {
    let away =
        world.scenario == Scenario::StoreAway && world.nodes[node].session.began_at > AWAY_SINCE_US;
    let done = matches!(outcome, Outcome::Ok(_));
    if away && !done {
        let what = format!("an operation of n{} ended as {outcome:?}", node + 1);
        world.oracle.accuse(world.now, LAW, what);
    }
}
