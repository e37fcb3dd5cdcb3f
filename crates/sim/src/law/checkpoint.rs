//! Law of checkpoints: what one has is never another content than it was. It may be lost with the only copy of what was
//! kept, and then whoever owns says so; but not once an fsync of the file that it is about has come back
//! while no member took it for lost. It is made of what its owner has, or calls lost: else its content may be what the next
//! owner falls back to. And no node puts anything in the place of it before it has what was kept (F5).

use crate::model::{BLOCKS, Committed, PastRow, Record, file_of, kept_block, kept_token, range_of};
use crate::oracle::Mark;
use crate::world::World;
use perigee_replica::Role;
use perigee_types::Seq;

const LAW: &str = "checkpoint";

/// The checkpoint of a history.
#[derive(Debug, Clone)]
pub struct Seen {
    /// What each block held then.
    content: [u64; BLOCKS],
    /// Its maker was told that all of it is durable.
    settled: bool,
}

/// A record is committed, and those before it.
pub(crate) fn on_committed(world: &mut World, record: &Record) {
    if !record.past.contains(&PastRow::Checkpoint) {
        return;
    }
    let mut content = [0; BLOCKS];
    for Committed { record, .. } in &world.oracle.committed {
        for (block, token) in record.blocks() {
            if let Some(held) = content.get_mut(usize::from(block)) {
                *held = token;
            }
        }
    }
    world.oracle.checkpoint = Some(Seen {
        content,
        settled: false,
    });
}

/// An owner orders the checkpoint.
pub(crate) fn on_made(world: &mut World, node: usize) {
    let pull = &world.running_ref(node).pull;
    let lacks = |block: &usize| !pull.is_valid(file_of(*block), range_of(*block));
    let lacking = (0..BLOCKS)
        .filter(lacks)
        .find(|block| !world.is_lost(node, *block));
    if let Some(block) = lacking {
        let what = format!("n{} makes it of block {block}, which it lacks", node + 1);
        world.oracle.accuse(world.now, LAW, what);
    }
}

/// All that the checkpoint has is on every disk.
pub(crate) fn on_settled(world: &mut World) {
    world.note(Mark::Checkpoint);
    if let Some(seen) = &mut world.oracle.checkpoint {
        seen.settled = true;
    }
}

/// Checked whenever something about the owner's data has changed.
pub(crate) fn check(world: &mut World, node: usize) {
    let run = world.running_ref(node);
    let owns = matches!(run.chain.role(), Role::Owner { .. }) && run.reign.is_some();
    let leased = run.chain.lease_until(world.local(node)).is_some();
    if !owns || !leased || !run.newest.checkpoint {
        return;
    }
    let Some(seen) = world.oracle.checkpoint.clone().filter(|seen| seen.settled) else {
        return;
    };
    for (block, content) in seen.content.into_iter().enumerate() {
        let place = world.place_in_past(node, block);
        let wanted = match place == kept_block(block) {
            true => kept_token(block, content),
            false => content,
        };
        let run = world.running_ref(node);
        if !run.pull.is_valid(file_of(place), range_of(place)) {
            continue;
        }
        match world.verified(node, place) {
            Some(found) if found != wanted => {
                let what = format!(
                    "n{} shows block {block} of the checkpoint with {found}, of block {place}; it was {content}",
                    node + 1
                );
                return world.oracle.accuse(world.now, LAW, what);
            }
            Some(_) if place != block => world.note(Mark::KeptThere),
            _ => {}
        }
    }
}

/// Something is about to be put in place of a block.
pub(crate) fn on_replaced(world: &mut World, node: usize, block: usize, token: u64) {
    let seen = world.oracle.checkpoint.as_ref();
    let Some(seen) = seen.filter(|seen| seen.settled && block < BLOCKS) else {
        return;
    };
    let (content, kept) = (seen.content[block], kept_block(block));
    let disk = &world.nodes[node].disk;
    let Some(run) = &world.nodes[node].run else {
        return;
    };
    let counts = matches!(run.chain.role(), Role::Replica { .. } | Role::Owner { .. });
    let is_there = counts && disk.fits(block) && disk.cache[block] == content && token != content;
    // What it knows nothing of, or what is lost, it cannot have kept.
    let known = run.state.kept[block] == Some(kept_token(block, content))
        && run.pull.spoiled(file_of(block), range_of(block)).is_empty()
        && run.pull.awaits(file_of(kept), range_of(kept));
    if is_there && known && disk.cache[kept] != kept_token(block, content) {
        let what = format!(
            "n{} puts {token} in place of block {block}, {content}, which the checkpoint has, and has no copy of it",
            node + 1
        );
        world.oracle.accuse(world.now, LAW, what);
    }
}

/// At the end: whether something of the checkpoint is lost.
pub(crate) fn at_end(world: &mut World) {
    let owns = |node: &usize| {
        let run = world.nodes[*node].run.as_ref();
        run.is_some_and(|run| run.chain.lease_until(world.local(*node)).is_some())
    };
    let owner = (0..world.nodes.len()).find(owns);
    let seen = world.oracle.checkpoint.as_ref();
    let Some(owner) = owner.filter(|_| seen.is_some_and(|seen| seen.settled)) else {
        return;
    };
    let lost = |block: &usize| world.is_lost(owner, *block);
    let places = (0..BLOCKS).map(|block| world.place_in_past(owner, block));
    let lost: Vec<usize> = places.filter(lost).collect();
    let promised = |block: &&usize| world.oracle.acked_block[**block] > Seq::ZERO;
    if let Some(block) = lost.iter().find(promised) {
        let since = world.oracle.acked_block[*block];
        let what = format!("block {block}, which was synced at {since}, is lost");
        return world.oracle.accuse(world.now, LAW, what);
    }
    let lost = !lost.is_empty();
    world.note(if lost {
        Mark::KeptLost
    } else {
        Mark::KeptToTheEnd
    });
}
