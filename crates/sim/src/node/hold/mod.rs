//! Chunks that belong to the host that writes: each file is one. [`perigee_replica::chunk`] decides; this is what a daemon
//! does with it, and the packets between a holder and its owner.

mod holder;
mod owner;

use super::HoldPacket;
use crate::model::blocks_in;
use crate::model::{Op, file_of, inode};
use crate::world::{World, id_of};
use perigee_replica::chunk::{Access, FlushNumber, Terms, Unsent};
use perigee_replica::{Chunk, Hold, Input};
use perigee_types::{InodeId, SessionId};

/// What an operation on one file wants of its chunk.
pub(super) fn wanted(op: Op) -> Option<(usize, Access)> {
    match op {
        Op::Read { block } => Some((usize::from(block), Access::Read)),
        Op::Write { block, .. } | Op::Punch { block, .. } => {
            Some((usize::from(block), Access::Change))
        }
        Op::Put { .. } | Op::Get { .. } | Op::Fsync { .. } | Op::Checkpoint => None,
    }
}

/// The file that an operation is about.
fn file_wanted(op: Op) -> Option<InodeId> {
    match op {
        Op::Fsync { file } => Some(inode(usize::from(file))),
        op => wanted(op).map(|(block, _)| file_of(block)),
    }
}

impl World {
    pub(crate) fn terms(&self) -> Terms {
        Terms::from(&self.timing)
    }

    /// The session of a host, of its process of now.
    pub(crate) fn session_of(&self, node: usize) -> SessionId {
        SessionId::new(id_of(node), self.nodes[node].incarnation)
    }

    /// What arrives about chunks that are held.
    pub(crate) fn hold_packet(&mut self, to: usize, from: usize, packet: HoldPacket) {
        match packet {
            HoldPacket::Ask { hold, chunk, asked } => self.asked(to, from, hold, chunk, asked),
            HoldPacket::Right {
                chunk,
                hold,
                asked,
                granted,
            } => self.answered(to, chunk, hold, asked, granted),
            HoldPacket::Flush {
                flush,
                tokens,
                epoch,
            } => self.take_flush(to, from, &flush, &tokens, epoch),
            HoldPacket::Flushed {
                chunk,
                hold,
                number,
                taken,
            } => {
                let run = self.running(to);
                let committed = run.chain.committed();
                match taken {
                    Some(version) => {
                        let version = (version, committed);
                        run.holding.on_flushed(chunk, hold, number, version);
                        self.settle_alone(to);
                        if self.running(to).holding.is_sending(chunk) {
                            self.flush_held(to, Some(chunk));
                        }
                    }
                    None => run.holding.on_flush_failed(chunk, hold, number),
                }
                self.go_on_holding(to);
            }
            HoldPacket::Call { call, id } => {
                let run = self.running(to);
                let through = run.holding.last_written(call.chunk);
                let stop = call.access == Access::Change;
                run.holding.on_call(call.chunk, call.hold, stop);
                run.calls.push((from, call, id, through));
                self.flush_held(to, Some(call.chunk));
                self.go_on_holding(to);
            }
            HoldPacket::Report {
                chunk,
                hold,
                id,
                report,
            } => {
                let run = self.running(to);
                let waits = run.gatherings.iter().position(|g| g.call.1 == id);
                let Some(mut gathering) = waits.map(|index| run.gatherings.remove(index)) else {
                    return;
                };
                run.holds.on_report(chunk, hold, report);
                gathering.passed.push(chunk);
                if gathering.call.0.access == Access::Change {
                    gathering.passed.clear();
                }
                self.resume(to, gathering);
            }
        }
        self.step(to, Input::Tick);
    }
}

/// How an operation comes to its owner.
#[derive(Debug, Clone)]
pub(crate) struct Asks {
    pub(crate) session: SessionId,
    /// When its session began it.
    pub(crate) began_at: u64,
    /// Chunks that are not in its way any more.
    pub(crate) passed: Vec<Chunk>,
    /// By which row, and after what, if it is the holder's own change.
    pub(crate) numbered: Option<(Hold, FlushNumber)>,
}

fn blocks_of(unsent: &Unsent) -> impl Iterator<Item = usize> + '_ {
    let ranges = unsent.ranges.iter();
    ranges.flat_map(|range| blocks_in(unsent.inode, *range))
}
