//! Law 3: what another host has seen, or an fsync has acknowledged, is on every member, and is never lost; and there
//! is one committed history.

use crate::disk::Disk;
use crate::model::{ALL_BLOCKS, BLOCKS, Committed, Record, file_of, range_of};
use crate::world::{Scenario, World};
use perigee_types::{Seq, Version};

const LAW: &str = "replicated";

/// `node` takes a record for committed.
pub(crate) fn on_committed(world: &mut World, node: usize, version: Version, record: &Record) {
    if let Some(known) = world.oracle.at(version.seq) {
        if known.version != version {
            let what = format!("n{} commits {version} where {} is", node + 1, known.version);
            world.oracle.accuse(world.now, LAW, what);
        }
        return;
    }
    world.oracle.committed.push(Committed {
        version,
        record: record.clone(),
    });
    super::checkpoint::on_committed(world, record);
    for member in 0..world.nodes.len() {
        if world.is_trusted_member(member) && !has_record(&world.nodes[member].disk, version) {
            let what = format!(
                "n{} commits {version}, which is not on the disk of n{}",
                node + 1,
                member + 1
            );
            world.oracle.accuse(world.now, LAW, what);
        }
    }
    if !record.fallback.is_empty() {
        for (block, token) in &record.data {
            check_kept(world, usize::from(*block), *token, "a fallback");
        }
        world.oracle.note_fallback(version, record);
    }
}

/// An operation of another host, or an fsync, is answered: `version` and all before it, and `content`.
pub(crate) fn acknowledge(
    world: &mut World,
    node: usize,
    version: Version,
    content: &[(usize, u64)],
) {
    let committed = world.oracle.at(version.seq).map(|c| c.version);
    if committed != Some(version) && version.seq > Seq::ZERO {
        let what = format!(
            "n{} shows {version} to another host, and it is not committed",
            node + 1
        );
        return world.oracle.accuse(world.now, LAW, what);
    }
    world.oracle.acked = world.oracle.acked.max(version.seq);
    for (block, token) in content {
        if is_told_lost(world, *block) {
            continue;
        }
        match world.oracle.committed_origin(*token) {
            Some(origin) => {
                let acked = &mut world.oracle.acked_block[*block];
                *acked = origin.max(*acked);
            }
            None => {
                let what = format!(
                    "n{} shows block {block} with {token}, of no record",
                    node + 1
                );
                return world.oracle.accuse(world.now, LAW, what);
            }
        }
    }
    check_members(world, "when it was acknowledged");
}

/// Every member has what was acknowledged: its records, and its bytes whatever a crash leaves of the cache.
pub(crate) fn check_members(world: &mut World, when: &str) {
    let acked = world.oracle.acked;
    let version = world.oracle.at(acked).map(|c| c.version);
    for node in 0..world.nodes.len() {
        if !world.is_trusted_member(node) {
            continue;
        }
        let disk = &world.nodes[node].disk;
        if let Some(version) = version
            && !has_record(disk, version)
        {
            let what = format!("n{} is a member and has not {version} {when}", node + 1);
            return world.oracle.accuse(world.now, LAW, what);
        }
        for block in 0..ALL_BLOCKS {
            let redone = world.redone(&world.nodes[node].disk, block);
            if redone.is_some_and(|token| is_kept(world, node, block, token)) {
                continue;
            }
            if is_emptied(world, node, block) {
                let what = format!(
                    "n{} is a member, and its disk has nothing in place of block {block} {when}",
                    node + 1
                );
                return world.oracle.accuse(world.now, LAW, what);
            }
            let disk = &world.nodes[node].disk;
            let mut tokens = vec![disk.files[block]];
            if disk.dirty[block] {
                tokens.push(disk.cache[block]);
            }
            // What a disk spoils is found by its checksum: another one has it.
            let bad = !disk.is_sound(block) || has_nothing(disk, block);
            // And what was kept for a checkpoint may be found again, where nobody had it for a while.
            let may = world.scenario == Scenario::BadDisks || block >= BLOCKS;
            let spoiled = may && bad;
            let gone = world.oracle.acked_block[block] <= world.oracle.gone[block];
            let elsewhere = spoiled && (gone || is_kept_elsewhere(world, node, block));
            for token in tokens {
                if !elsewhere && !is_kept(world, node, block, token) {
                    let what = format!(
                        "n{} is a member, and its disk may hold block {block} with {token} {when}; {} must not be lost",
                        node + 1,
                        world.oracle.acked_block[block],
                    );
                    return world.oracle.accuse(world.now, LAW, what);
                }
            }
        }
    }
}

/// Whether a member has heard that nobody has what is kept in a block for a checkpoint. The owner may have found it since,
/// with somebody who was no member: that it was lost has been said, and nothing promises it until all members have it.
fn is_told_lost(world: &World, block: usize) -> bool {
    let mut members = (0..world.nodes.len()).filter(|node| world.is_trusted_member(*node));
    block >= BLOCKS
        && members.any(|member| match &world.nodes[member].run {
            Some(_) => world.is_lost(member, block),
            None => {
                let known = &world.nodes[member].disk.objects.invalid;
                let map = known.get(&file_of(block));
                map.is_some_and(|map| !map.is_valid(range_of(block)))
            }
        })
}

/// Whether a disk says that what it has of a block is nobody's content.
pub(super) fn has_nothing(disk: &Disk, block: usize) -> bool {
    let known = disk.objects.invalid.get(&file_of(block));
    known.is_some_and(|map| map.spoiled(range_of(block)).next().is_some())
}

/// Whether a node's disk has nothing in place of an acknowledged block. Bad disks may make it so.
fn is_emptied(world: &World, node: usize, block: usize) -> bool {
    let emptied = has_nothing(&world.nodes[node].disk, block);
    // What is kept for a checkpoint is known again by what it is known by.
    let expected = world.scenario == Scenario::BadDisks || block >= BLOCKS;
    emptied && !expected && world.oracle.acked_block[block] > Seq::ZERO
}

/// Whether another node's disk has a sound block that is as new as what must not be lost.
fn is_kept_elsewhere(world: &World, node: usize, block: usize) -> bool {
    let mut others = (0..world.nodes.len()).filter(|other| *other != node);
    others.any(|other| {
        let disk = &world.nodes[other].disk;
        let kept = |token| is_kept(world, other, block, token);
        // No process ends while a copy is bad.
        let sound = disk.is_sound(block) || disk.awaits_sum(block);
        if !disk.wiped && world.redone(disk, block).is_some_and(kept) {
            return true;
        }
        !disk.wiped && sound && kept(disk.files[block]) && kept(disk.cache[block])
    })
}

/// Whether `token` in `block` on `node` is at least as new as what must not be lost.
fn is_kept(world: &World, node: usize, block: usize, token: u64) -> bool {
    let acked = world.oracle.acked_block[block];
    if acked == Seq::ZERO {
        return true;
    }
    let origin = world.oracle.committed_origin(token);
    if origin.is_some_and(|origin| origin >= acked) {
        return true;
    }
    if let Some(below) = world.oracle.over.get(&token) {
        // A holder wrote it over what was there. It may have a record that its holder has not heard of: it is sent again,
        // and over whatever came between.
        return is_kept(world, node, block, *below);
    }
    if origin.is_some() {
        return false;
    }
    // A later write of this node that is not committed yet; its record is on its own disk, or it has none, and the disk
    // says so.
    let disk = &world.nodes[node].disk;
    let mut origins = world.oracle.origin.get(&token).into_iter().flatten();
    let recorded = origins.any(|v| v.seq > acked && has_record(disk, *v));
    recorded || is_later(world, token, acked)
}

/// Whether the bytes of `token` were put in place over what was acknowledged at `acked`, or over later ones.
fn is_later(world: &World, token: u64, acked: Seq) -> bool {
    let in_place = world.oracle.in_place.get(&token);
    let acked = world.oracle.at(acked).map(|committed| committed.version);
    in_place.copied() > acked
}

fn check_kept(world: &mut World, block: usize, token: u64, how: &str) {
    let acked = world.oracle.acked_block[block];
    let origin = world.oracle.committed_origin(token);
    let below = std::iter::successors(Some(token), |token| world.oracle.over.get(token).copied());
    let kept = below.into_iter().any(|token| {
        let origin = world.oracle.committed_origin(token);
        origin.is_some_and(|origin| origin >= acked) || is_later(world, token, acked)
    });
    if acked > Seq::ZERO && !kept {
        let what = format!("{how} of block {block} to {token} ({origin:?}) loses {acked}");
        world.oracle.accuse(world.now, LAW, what);
    }
}

/// Whether the disk holds a record, in its log or in its state.
fn has_record(disk: &Disk, version: Version) -> bool {
    if version.seq <= disk.hard.base.seq {
        return true;
    }
    let index = version.seq.0 - disk.hard.base.seq.0 - 1;
    let entry = usize::try_from(index)
        .ok()
        .and_then(|i| disk.hard.entries.get(i));
    entry.is_some_and(|e| e.version == version)
}
