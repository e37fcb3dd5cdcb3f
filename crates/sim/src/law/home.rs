//! Law 2: where the owner is this host, an operation waits for no other one. Time passes in this world only while
//! something is waited for, so such an operation ends at the moment when it begins. So does one of a chunk that this host
//! holds, but for the first, which asks for the right.

use crate::world::World;

/// Checked when an operation of `node`'s session ends.
pub(crate) fn check(world: &mut World, node: usize) {
    let session = &world.nodes[node].session;
    let waited = world.now - session.began_at;
    if session.at_home && !session.waited && waited > 0 {
        let what = format!("an operation at home on n{} took {waited} us", node + 1);
        world.oracle.accuse(world.now, "home", what);
    }
}
