//! The side of the holder: it writes in place, sends what it wrote, and answers calls.

use super::super::{HeldUp, HoldPacket, Packet};
use super::{blocks_of, file_wanted, wanted};
use crate::law;
use crate::model::{Op, Outcome, Record, blocks_in, chunk, file_of, inode, number_of, range_of};
use crate::oracle::Mark;
use crate::world::{Event, World};
use perigee_replica::chunk::{Access, FlushNumber, May, Share, Unsent};
use perigee_replica::{Chunk, Hold, Input, Plant};
use perigee_types::{Seq, Version};

/// The longest that what a holder has written waits until it is sent.
const FLUSH_WAIT_US: u64 = 3_000_000;
/// How late some of what is sent arrives.
const STRAYS_US: u64 = 8_000_000;
/// A flush without an answer is sent once more after this long.
const FLUSH_PATIENCE_US: u64 = 1_000_000;

impl World {
    /// Carries out an operation of this host's session on what it holds, or has it wait. False: the owner is to be asked.
    pub(crate) fn begin_as_holder(&mut self, node: usize, id: u64, op: Op) -> bool {
        let (local, session) = (self.local(node), self.session_of(node));
        let Some(inode) = file_wanted(op) else {
            return false;
        };
        let chunk = chunk(number_of(inode));
        let run = self.running(node);
        if run.holding.hold(chunk).is_none() {
            return false;
        }
        let range = wanted(op).map(|(block, _)| range_of(block));
        let may = range.map(|range| run.holding.may(local, session, inode, range));
        match (op, may) {
            (Op::Write { block, token }, Some(May::Yes)) => {
                self.write_as_holder(node, usize::from(block), token);
                self.done_as_holder(node);
                self.finish(node, id, Outcome::Ok(0));
                true
            }
            (Op::Read { block }, Some(May::Yes)) => {
                let block = usize::from(block);
                let valid = run.pull.is_valid(inode, range_of(block));
                law::held::on_use(self, node, block);
                let Some(token) = valid.then(|| self.read_block(node, block)).flatten() else {
                    return false;
                };
                self.done_as_holder(node);
                self.finish(node, id, Outcome::Ok(token));
                true
            }
            // The owner may as well do it, but then in its turn.
            (Op::Write { .. }, Some(May::Ask)) if self.rng.chance(3, 4) => {
                let run = self.running(node);
                let Some((hold, asked)) = run.holding.ask(chunk) else {
                    return false;
                };
                run.asked_at.insert((chunk, asked), local);
                run.held_up.push((id, op, HeldUp::Right));
                self.nodes[node].session.waited = true;
                let run = self.running(node);
                if let Some(owner) = run.owner().filter(|owner| *owner != node) {
                    let packet = HoldPacket::Ask { hold, chunk, asked };
                    self.send(node, owner, Packet::Hold(packet));
                }
                true
            }
            (Op::Write { .. } | Op::Punch { .. } | Op::Fsync { .. }, _) => {
                self.running(node).held_up.push((id, op, HeldUp::Flush));
                self.flush_held(node, Some(chunk));
                self.go_on_holding(node);
                true
            }
            _ => false,
        }
    }

    fn done_as_holder(&mut self, node: usize) {
        let session = &mut self.nodes[node].session;
        session.at_home = true;
        session.as_holder = true;
    }

    fn write_as_holder(&mut self, node: usize, block: usize, token: u64) {
        let (inode, range) = (file_of(block), range_of(block));
        law::held::on_use(self, node, block);
        self.log(50, node, || {
            format!("writes block {block} as holder: {token}")
        });
        self.note(Mark::HolderWrote);
        let below = self.written(node, block);
        self.oracle.over.insert(token, below);
        self.oracle.held_at.insert(token, self.now);
        law::checkpoint::on_replaced(self, node, block, token);
        let Some(run) = self.nodes[node].put_noted(block, token) else {
            return;
        };
        run.pull.on_own_write(inode, range);
        run.holding.on_write(inode, range);
        run.alone.insert(block, token);
        run.stirred = true;
        self.aim_at_holder(node);
        let wait = [20_000, FLUSH_WAIT_US][self.rng.below(2) as usize];
        let wait = self.rng.below(wait);
        let life = self.nodes[node].incarnation;
        self.after(wait, Event::FlushDue { node, life });
        self.step(node, Input::Tick);
    }

    pub(super) fn answered(
        &mut self,
        node: usize,
        chunk: Chunk,
        hold: Hold,
        asked: u64,
        granted: bool,
    ) {
        let terms = self.terms();
        let run = self.running(node);
        let Some(at) = run.asked_at.remove(&(chunk, asked)) else {
            return;
        };
        if granted {
            run.holding.on_right(chunk, hold, (asked, at), terms);
        }
        let about = |op| file_wanted(op) == Some(chunk.inode);

        let (ready, waits) = std::mem::take(&mut run.held_up)
            .into_iter()
            .partition(|(_, op, what)| *what == HeldUp::Right && about(*op));
        run.held_up = waits;
        let ready: Vec<(u64, Op, HeldUp)> = ready;
        for (id, op, _) in ready {
            if self.nodes[node].session.waiting_for != Some(id) {
                continue;
            }
            if granted {
                self.go_to(node, id, op);
            } else {
                self.running(node).held_up.push((id, op, HeldUp::Flush));
            }
        }
        self.flush_held(node, Some(chunk));
        self.go_on_holding(node);
    }

    /// Sends what was written and not sent, of one chunk or of all.
    pub(crate) fn flush_held(&mut self, node: usize, of: Option<Chunk>) {
        let run = self.running(node);
        let Some(owner) = run.owner().filter(|owner| *owner != node) else {
            return;
        };
        let Some(epoch) = run.chain.view().map(|view| view.epoch) else {
            return;
        };
        let chunks: Vec<Chunk> = run.holding.dirty().collect();
        for chunk in chunks.into_iter().filter(|c| of.is_none_or(|of| of == *c)) {
            let share = self.share();
            let run = self.running(node);
            let Some(flush) = run.holding.flush(chunk, share) else {
                continue;
            };
            let blocks = flush
                .ranges
                .iter()
                .flat_map(|range| blocks_in(chunk.inode, *range));
            let blocks: Vec<usize> = blocks.collect();
            let tokens = blocks.into_iter().map(|b| (b, self.content(node, b)));
            let tokens = tokens.collect();
            let (hold, number) = (flush.hold, flush.number);
            let life = self.nodes[node].incarnation;
            let event = Event::FlushTimeout {
                node,
                life,
                chunk,
                hold,
                number,
            };
            self.after(FLUSH_PATIENCE_US, event);
            let packet = HoldPacket::Flush {
                flush,
                tokens,
                epoch,
            };
            let slow = self.stray(4);
            if slow > FLUSH_PATIENCE_US {
                self.aim_at_stray(owner);
            }
            self.send_slowly(slow, node, owner, Packet::Hold(packet));
        }
    }

    /// What one message takes: in some histories one block.
    fn share(&self) -> Share {
        let (bytes, ranges) = match self.price {
            1 => (u64::MAX, usize::MAX),
            _ => (range_of(0).len(), 1),
        };
        Share { bytes, ranges }
    }

    pub(crate) fn flush_timed_out(
        &mut self,
        node: usize,
        (chunk, hold, number): (Chunk, Hold, FlushNumber),
    ) {
        self.running(node)
            .holding
            .on_flush_failed(chunk, hold, number);
        self.flush_held(node, Some(chunk));
        self.go_on_holding(node);
    }

    /// Answers calls, and lets operations go on that waited until all was sent.
    pub(crate) fn go_on_holding(&mut self, node: usize) {
        let calls = std::mem::take(&mut self.running(node).calls);
        for (from, call, id, through) in calls {
            let (chunk, hold) = (call.chunk, call.hold);
            let run = self.running(node);
            match run.holding.report(chunk, hold, through) {
                Some(report) => {
                    let packet = HoldPacket::Report {
                        chunk,
                        hold,
                        id,
                        report,
                    };
                    self.send(node, from, Packet::Hold(packet));
                }
                None => run.calls.push((from, call, id, through)),
            }
        }
        // What could not be sent while something was on its way.
        if !self.running_ref(node).calls.is_empty() {
            self.flush_held(node, None);
        }
        let held_up = std::mem::take(&mut self.running(node).held_up);
        for (id, op, what) in held_up {
            let Some(inode) = file_wanted(op) else {
                continue;
            };
            let chunk = chunk(number_of(inode));
            let run = self.running(node);
            if what == HeldUp::Right {
                run.held_up.push((id, op, what));
                continue;
            }
            let held = run.holding.hold(chunk).is_some();
            let clean = run.holding.is_clean(chunk);
            if held && !clean {
                run.held_up.push((id, op, what));
                self.flush_held(node, Some(chunk));
                continue;
            }
            if self.nodes[node].session.waiting_for == Some(id) {
                self.go_to(node, id, op);
            }
        }
    }

    /// Carries an operation out here as a holder, or has the owner do it.
    fn go_to(&mut self, node: usize, id: u64, op: Op) {
        let (local, session) = (self.local(node), self.session_of(node));
        let run = self.running(node);
        if let (Op::Write { block, .. }, Some((_, Access::Change))) = (op, wanted(op)) {
            let (inode, range) = (file_of(usize::from(block)), range_of(usize::from(block)));
            if run.holding.may(local, session, inode, range) == May::Yes {
                self.begin_as_holder(node, id, op);
                return;
            }
        }
        let chunk = file_wanted(op).map(|inode| chunk(number_of(inode)));
        let changes = matches!(wanted(op), Some((_, Access::Change)));
        let run = self.running(node);
        let numbered = chunk
            .filter(|_| changes)
            .and_then(|chunk| run.holding.number(chunk));
        let Some(owner) = run.owner().filter(|owner| *owner != node) else {
            return self.finish(node, id, Outcome::Refused);
        };
        let packet = Packet::Request {
            id,
            op,
            session,
            numbered,
        };
        let slow = self.stray(3);
        self.send_slowly(slow, node, owner, packet);
    }

    /// How late something comes that a holder sends; one in so many of them very late.
    fn stray(&mut self, one_in: u64) -> u64 {
        let most = match self.rng.chance(1, one_in) {
            true => STRAYS_US,
            false => self.chaos.bytes_us,
        };
        if self.calm { 0 } else { self.rng.below(most) }
    }

    /// Records are applied here up to `through`, before their rows.
    pub(crate) fn settle_held(&mut self, node: usize, through: Seq) {
        let run = self.running(node);
        run.holding.on_committed(through);
        self.settle_alone(node);
    }

    /// What a holder sent is the history's now, as far as its records are here.
    pub(super) fn settle_alone(&mut self, node: usize) {
        let run = self.running(node);
        let kept = |block: usize| run.holding.keeps(file_of(block), range_of(block));
        let gone: Vec<usize> = run.alone.keys().copied().filter(|b| !kept(*b)).collect();
        let committed = run.chain.committed();
        for block in gone {
            run.alone.remove(&block);
            run.notes.on_recorded(committed, file_of(block));
        }
    }

    /// A record is applied: what this node has written since as a holder is over that.
    pub(crate) fn note_below(&mut self, node: usize, version: Version, record: &Record) {
        for (block, token) in record.blocks() {
            let block = usize::from(block);
            let above = self.running_ref(node).alone.get(&block).copied();
            if let Some(above) = above.filter(|above| *above != token)
                && !self.lacks(node, block, version)
            {
                self.oracle.over.insert(above, token);
            }
        }
    }

    /// Whether a record that replaces a block is not of before what this node has written there as a holder.
    pub(crate) fn lacks(&self, node: usize, block: usize, version: Version) -> bool {
        let holding = &self.running_ref(node).holding;
        let lacking = holding.lacking(file_of(block), range_of(block), version);
        !lacking.is_empty()
    }

    /// Rows changed, as a committed record says.
    pub(crate) fn rows_changed(&mut self, node: usize, rows: &[(u8, Option<Hold>)]) {
        let session = self.session_of(node);
        for (file, hold) in rows {
            let mine = hold.filter(|hold| hold.holder == session);
            let run = self.running(node);
            let lost = run.holding.on_row(chunk(usize::from(*file)), mine);
            self.lose(node, lost);
        }
        self.go_on_holding(node);
    }

    /// This node is no member any more, or begins with another state.
    pub(crate) fn lose_all_held(&mut self, node: usize) {
        let lost = self.running(node).holding.forget_all();
        self.lose(node, lost);
        self.go_on_holding(node);
    }

    /// What this host wrote as a holder and did not send in time is not the content.
    pub(super) fn lose(&mut self, node: usize, lost: impl IntoIterator<Item = Unsent>) {
        for unsent in lost {
            self.note(Mark::HeldLost);
            self.log(52, node, || format!("what it held is lost: {unsent:?}"));
            let blocks: Vec<usize> = blocks_of(&unsent).collect();
            let run = self.running(node);
            run.alone.retain(|block, _| !blocks.contains(block));
            run.lost_held.insert(unsent.inode);
            if !self.planted(Plant::UnsentTrusted) {
                self.distrust(node, blocks.into_iter());
            }
        }
    }

    /// A session's fsync says so when something that it wrote as a holder is lost.
    pub(crate) fn tell_of_loss(&mut self, node: usize, outcome: Outcome) -> Outcome {
        let Some(file) = law::explained::syncs(self, node) else {
            return outcome;
        };
        let inode = inode(usize::from(file));
        let Some(run) = &mut self.nodes[node].run else {
            return outcome;
        };
        if matches!(outcome, Outcome::Ok(_)) && run.lost_held.remove(&inode) {
            law::explained::on_told_of_loss(self, node, file);
            return Outcome::Refused;
        }
        outcome
    }
}
