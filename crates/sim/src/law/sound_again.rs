//! Law 7, in the end: after the chaos and a scrub every block of every member's disk is what its checksum says, and what
//! was written.

use crate::model::ALL_BLOCKS;
use crate::world::World;

/// Checked at the end. What nobody has is not shown by anybody.
pub(crate) fn check(world: &mut World) {
    let owner = (0..world.nodes.len()).find(|node| {
        let run = world.nodes[*node].run.as_ref();
        run.is_some_and(|run| run.reign.is_some())
    });
    for node in 0..world.nodes.len() {
        for block in 0..ALL_BLOCKS {
            let disk = &world.nodes[node].disk;
            let lost = owner.is_some_and(|owner| world.is_lost(owner, block));
            if !disk.is_sound(block) && !lost {
                let (files, sum) = (disk.files[block], disk.saved_sums[block]);
                let what = format!(
                    "block {block} of n{} holds {files}, and its checksum is that of {sum}",
                    node + 1
                );
                return world.oracle.accuse(world.now, "sound again", what);
            }
        }
    }
}
