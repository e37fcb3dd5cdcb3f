//! Law 4, as the sessions see it: their answers could have come from registers and blocks that do one thing after the
//! other, whatever they know of chains.
//!
//! What is written at home may be lost with its host until it is synced, and what is read there with it: such a write
//! has an unknown outcome until an fsync of the same reign has returned, and such a read says nothing.

use crate::clock::Drift;
use crate::model::{Op, Outcome, blocks_of_file};
use crate::world::World;
use perigee_history::model::register::{self, Answer, Key, Registers};
use perigee_history::{Budget, Client, Ticket, Verdict, check as search};
use perigee_types::Epoch;

pub(crate) const LAW: &str = "explained";

/// Configurations for each object; what takes more has no result, which is no breach.
pub(crate) const BUDGET: Budget = Budget(20_000);

/// Blocks come after all registers.
const FIRST_BLOCK: Key = 1_000;

/// What a session is at, and what it has not synced.
#[derive(Debug, Default)]
pub struct Witness {
    now: Option<Now>,
    /// Writes at home in this reign of its host: the block, and the call.
    unsynced: Vec<(u8, Ticket)>,
    /// The same, of chunks that this host holds or held.
    pub(crate) held: Vec<(u8, Ticket)>,
    reign: Option<Epoch>,
}

#[derive(Debug)]
enum Now {
    /// A call that has a place in the order.
    Call(Ticket, Op),
    /// The fsync of a file.
    Fsync(u8),
}

/// The session of `node` begins an operation.
pub(crate) fn on_begun(world: &mut World, node: usize, op: Op) {
    let reign = world.running_ref(node).reign;
    let witness = &mut world.nodes[node].session.witness;
    witness.follow(reign);
    let asked = match op {
        Op::Put { key, value } => register::Op::Write(Key::from(key), value),
        Op::Get { key } => register::Op::Read(Key::from(key)),
        Op::Write { block, token } | Op::Punch { block, token } => {
            register::Op::Write(FIRST_BLOCK + Key::from(block), token)
        }
        Op::Read { block } => register::Op::Read(FIRST_BLOCK + Key::from(block)),
        Op::Fsync { file } => {
            witness.now = Some(Now::Fsync(file));
            return;
        }
        Op::Checkpoint => {
            witness.now = None;
            return;
        }
    };
    let ticket = world.calls.invoke(Client(node as u32 + 1), asked);
    world.nodes[node].session.witness.now = Some(Now::Call(ticket, op));
}

/// It has an answer, or gives up.
pub(crate) fn on_ended(world: &mut World, node: usize, outcome: Outcome) {
    let reign = world.nodes[node].run.as_ref().and_then(|run| run.reign);
    let session = &mut world.nodes[node].session;
    let (witness, home) = (&mut session.witness, session.at_home);
    let now = witness.now.take();
    witness.follow(reign);
    let (ticket, op) = match now {
        None => return,
        Some(Now::Call(ticket, op)) => (ticket, op),
        Some(Now::Fsync(file)) => {
            if matches!(outcome, Outcome::Ok(_)) {
                synced(world, node, file);
            }
            return;
        }
    };
    let changes = matches!(op, Op::Put { .. } | Op::Write { .. } | Op::Punch { .. });
    match (op, outcome) {
        (_, Outcome::Unknown) if changes => {}
        (Op::Write { block, .. }, Outcome::Ok(_)) if session.as_holder => {
            witness.held.push((block, ticket));
        }
        (Op::Write { block, .. } | Op::Punch { block, .. }, Outcome::Ok(_)) if home => {
            witness.unsynced.push((block, ticket));
        }
        (_, Outcome::Ok(_)) if changes && home => {}
        (_, Outcome::Ok(_)) if changes => world.calls.answer(ticket, Answer::Written),
        (_, Outcome::Ok(value)) if !home => world.calls.answer(ticket, Answer::Value(value)),
        _ => world.calls.withdraw(ticket),
    }
}

/// The file that `node`'s session syncs.
pub(crate) fn syncs(world: &World, node: usize) -> Option<u8> {
    match world.nodes[node].session.witness.now {
        Some(Now::Fsync(file)) => Some(file),
        Some(Now::Call(..)) | None => None,
    }
}

/// What `node`'s session wrote to a file at home has come to stay.
fn synced(world: &mut World, node: usize, file: u8) {
    let blocks = blocks_of_file(usize::from(file));
    let witness = &mut world.nodes[node].session.witness;
    let its = |(block, _): &mut (u8, Ticket)| blocks.contains(&usize::from(*block));
    let unsynced = witness.unsynced.extract_if(.., its);
    let synced: Vec<(u8, Ticket)> = unsynced.chain(witness.held.extract_if(.., its)).collect();
    for (_, write) in synced {
        world.calls.answer(write, Answer::Written);
    }
}

/// `node`'s session was told that what it wrote to a file as a holder may be lost.
pub(crate) fn on_told_of_loss(world: &mut World, node: usize, file: u8) {
    let blocks = blocks_of_file(usize::from(file));
    let held = &mut world.nodes[node].session.witness.held;
    held.retain(|(block, _)| !blocks.contains(&usize::from(*block)));
}

impl Witness {
    /// What was written in a reign, or came to it, may go with its end.
    fn follow(&mut self, reign: Option<Epoch>) {
        if self.reign != reign {
            self.unsynced.clear();
            if self.reign.is_some() {
                self.held.clear();
            }
            self.reign = reign;
        }
    }
}

/// Checked at the end.
pub(crate) fn check(world: &mut World) {
    if world.drift == Drift::Beyond {
        // Reads under leases may be old then.
        return;
    }
    let calls = std::mem::take(&mut world.calls).close();
    if let Verdict::Impossible(stuck) = search(&Registers, &calls, BUDGET) {
        world.oracle.accuse(world.now, LAW, stuck.to_string());
    }
}
