//! Law 3, for names: each container has one committed history.

use crate::names::host::apply;
use crate::names::world::Names;
use perigee_types::{Batch, ContainerId, Version};

/// `host` takes a record for committed.
pub(crate) fn on_committed(
    world: &mut Names,
    host: usize,
    container: ContainerId,
    version: Version,
    batch: &Batch,
) {
    let known = world.history.committed.entry(container).or_default();
    let index = version.seq.0 as usize - 1;
    match known.get(index) {
        Some(other) if *other == version => {}
        Some(other) => {
            let what = format!(
                "n{} commits {container} {version} where {other} is",
                host + 1
            );
            world.accuse("replicated", what);
        }
        None => {
            known.push(version);
            apply(world.history.rows.entry(container).or_default(), batch);
            super::past::on_committed(world, container, batch);
        }
    }
}
