//! An owner leaves, or cedes, by itself only when nothing goes with it: whom it leaves the container to has every record of its log
//! and every byte, on disk.

use super::replicated::has_nothing;
use crate::model::{ALL_BLOCKS, BLOCKS, file_of, range_of};
use crate::oracle::Mark;
use crate::world::{World, host_of, id_of};
use perigee_replica::ChainView;
use perigee_types::Version;

/// Checked when `node` proposes `view`.
pub(crate) fn check(world: &mut World, node: usize, view: &ChainView) {
    let leaves = !view.lists(id_of(node)) && world.running_ref(node).reign.is_some();
    if !leaves {
        return;
    }
    world.note(Mark::HandOver);
    let last = world.running_ref(node).chain.last();
    check_members(world, node, view, last);
}

/// Checked when `node` has given up its lease in `view`.
pub(crate) fn check_ceded(world: &mut World, node: usize, view: &ChainView, last: Version) {
    check_members(world, node, view, last);
}

fn check_members(world: &mut World, node: usize, view: &ChainView, last: Version) {
    let moves = world.price < u32::MAX;
    let others = view.chain.iter().copied().map(host_of);
    for member in others.filter(|member| *member != node) {
        let disk = &world.nodes[member].disk;
        // It lost its disk since it was asked: its owner would have left it a moment earlier, too.
        if disk.wiped {
            continue;
        }
        let has = disk
            .hard
            .entries
            .last()
            .map_or(disk.hard.base, |e| e.version);
        // Of what was kept for a checkpoint and is lost, all say so, and for a while after it was found.
        let gone = |block: usize| {
            let nothing = has_nothing(disk, block);
            block >= BLOCKS && (world.is_lost(node, block) || nothing)
        };
        let mut there = (0..ALL_BLOCKS).filter(|block| !gone(*block));
        let lacks = there.find(|block| {
            // A holder that ended since it was asked gives up what it wrote: the others have what was before.
            lacks(world, member, *block) && !(moves && others_have(world, view, member, *block))
        });
        let behind = disk.objects.through < last.seq;
        if has < last || behind || lacks.is_some() {
            let what = format!(
                "n{} leaves at {last}; n{} has {has}, data through {}, lacks block {lacks:?}",
                node + 1,
                member + 1,
                disk.objects.through
            );
            return world.oracle.accuse(world.now, "handed over", what);
        }
    }
}

/// Whether a node's disk says that a block is not there.
fn lacks(world: &World, node: usize, block: usize) -> bool {
    let map = world.nodes[node].disk.objects.invalid.get(&file_of(block));
    map.is_some_and(|map| !map.is_valid(range_of(block)))
}

fn others_have(world: &World, view: &ChainView, member: usize, block: usize) -> bool {
    let mut others = view.chain.iter().copied().map(host_of);
    others.any(|other| other != member && !lacks(world, other, block))
}
