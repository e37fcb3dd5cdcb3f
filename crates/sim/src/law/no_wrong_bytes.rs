//! Law 7: bytes that a node calls valid are the bytes of the history that it knows.

use crate::model::{ALL_BLOCKS, file_of, range_of};
use crate::world::World;

/// Checked whenever something about `node`'s data has changed. What its checksum does not fit is not shown.
pub(crate) fn check(world: &mut World, node: usize) {
    for block in 0..ALL_BLOCKS {
        let expected = world.written(node, block);
        let run = world.running_ref(node);
        let valid = run.pull.is_valid(file_of(block), range_of(block));
        let shown = world.verified(node, block);
        if let Some(found) = shown.filter(|found| valid && *found != expected) {
            let what = format!(
                "n{} calls block {block} valid with {found}, but it is {expected}",
                node + 1
            );
            return world.oracle.accuse(world.now, "no wrong bytes", what);
        }
    }
}

impl World {
    /// What a block holds by the history that `node` knows, by its own records, and by its writes that have none yet.
    pub(crate) fn written(&self, node: usize, block: usize) -> u64 {
        let run = self.running_ref(node);
        if let Some(token) = run.unrecorded.get(&block) {
            return *token;
        }
        if let Some(token) = run.alone.get(&block) {
            return *token;
        }
        let own = run.own.iter().flat_map(|(_, record)| record.blocks());
        let last = own.filter(|(b, _)| usize::from(*b) == block).last();
        last.map_or(run.expected[block], |(_, token)| token)
    }
}
