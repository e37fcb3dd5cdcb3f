//! Law 7: bytes that a node calls valid are the bytes of the history that it knows.

use crate::model::{BLOCKS, file_of, range_of};
use crate::world::World;

/// Checked whenever something about `node`'s data has changed.
pub(crate) fn check(world: &mut World, node: usize) {
    let run = world.running_ref(node);
    let mut expected = run.expected;
    for (_, record) in &run.own {
        for (block, token) in record.blocks() {
            expected[usize::from(block)] = token;
        }
    }
    for (block, expected) in expected.iter().enumerate().take(BLOCKS) {
        let valid = run.pull.is_valid(file_of(block), range_of(block));
        let found = world.content(node, block);
        if valid && found != *expected {
            let what = format!(
                "n{} calls block {block} valid with {found}, but it is {expected}",
                node + 1
            );
            return world.oracle.accuse(world.now, "no wrong bytes", what);
        }
    }
}
