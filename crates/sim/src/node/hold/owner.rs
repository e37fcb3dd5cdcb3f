//! The side of the container's owner: it gives chunks away, calls their holders, takes what they send, and takes chunks back.

use super::super::{Gathering, HoldPacket, Packet, Waiter, Waiting};
use super::{Asks, blocks_of, file_wanted, wanted};
use crate::model::{
    BLOCKS, FILES, Op, Outcome, Record, blocks_of_file, chunk, file_of, inode, number_of, range_of,
};
use crate::oracle::Mark;
use crate::world::{Event, World, host_of, id_of};
use perigee_meta::past::Keeping;
use perigee_replica::chunk::{Access, Call, Flush, Habit, Holds, Need, Part, Silence, Stale};
use perigee_replica::{Chunk, Hold, Input, Plant};
use perigee_types::{Epoch, SessionId, Version};
use std::collections::BTreeSet;

/// How long a holder may take to answer.
const CALL_PATIENCE_US: u64 = 400_000;
/// Tokens that no session draws: whether there is such a write must not change what sessions write.
const LAST_MOMENT_TOKENS: u64 = 1 << 40;
/// The longest that a move takes to begin.
const MOVE_WAIT_US: u64 = 300_000;
/// Requests of sessions have smaller numbers.
const HOLDER_IDS: u64 = 1 << 60;

impl World {
    /// A reign begins: what the last record of the log leaves of rows counts.
    pub(crate) fn take_over_rows(&mut self, node: usize) {
        let (local, terms, plant) = (self.local(node), self.terms(), self.plant);
        let fresh = Habit::priced(self.price);
        let run = self.running(node);
        let rows = run.newest.rows;
        let given = (0..FILES).filter_map(|file| Some((chunk(file), rows[file]?)));
        run.holds = Holds::new(given, local, terms).with_plant(plant);
        run.habits = [fresh; FILES];
        run.turns.clear();
        run.keeping = Keeping::default();
        let stands = |chunk: Chunk, hold| rows[number_of(chunk.inode)] == Some(hold);
        let (kept, lost) = run.holding.on_reign(stands);
        for unsent in kept {
            self.note(Mark::HolderReigns);
            self.log(51, node, || format!("what it held is its own: {unsent:?}"));
            for block in blocks_of(&unsent) {
                let run = self.running(node);
                let Some(token) = run.alone.remove(&block) else {
                    continue;
                };
                run.unrecorded.insert(block, token);
            }
            let life = self.nodes[node].incarnation;
            self.after(1_000, Event::RecordDue { node, life });
        }
        self.lose(node, lost);
        self.drop_words(node);
    }

    /// It ends.
    pub(crate) fn drop_rows(&mut self, node: usize) {
        self.drop_words(node);
        let run = self.running(node);
        run.holds = Holds::default();
        for gathering in std::mem::take(&mut run.gatherings) {
            self.answer(node, gathering.who, gathering.id, Outcome::Refused);
        }
    }

    /// Whether nothing of what others hold stands in an operation's way. Otherwise it waits for its holder, and is carried
    /// out later.
    pub(crate) fn passes_holders(
        &mut self,
        node: usize,
        (id, who, op): (u64, Waiting, Op),
        asks: &Asks,
    ) -> bool {
        let wanted: Vec<(usize, Access)> = match op {
            Op::Checkpoint if self.planted(Plant::CheckpointBesideHolder) => Vec::new(),
            Op::Checkpoint => (0..BLOCKS).map(|block| (block, Access::Change)).collect(),
            op => wanted(op).into_iter().collect(),
        };
        loop {
            let run = self.running(node);
            let needs = wanted.iter().map(|(block, access)| {
                let (inode, range) = (file_of(*block), range_of(*block));
                run.holds.need(inode, range, *access, &asks.passed)
            });
            let mut needs = needs.filter(|need| !matches!(need, Need::Nothing));
            match needs.next().unwrap_or(Need::Nothing) {
                Need::Nothing => return true,
                Need::Remove(chunk) => {
                    if !self.take_back(node, chunk) {
                        self.answer(node, who, id, Outcome::Refused);
                        return false;
                    }
                }
                Need::Call(call) => {
                    let call_id = self.call_holder(node, call);
                    let now = self.now;
                    if who == Waiting::Home {
                        self.nodes[node].session.waited = true;
                    }
                    self.running(node).gatherings.push(Gathering {
                        who,
                        id,
                        op,
                        session: asks.session,
                        began_at: asks.began_at,
                        passed: asks.passed.clone(),
                        call: (call, call_id, now),
                    });
                    return false;
                }
            }
        }
    }

    fn call_holder(&mut self, node: usize, call: Call) -> u64 {
        self.note(Mark::HolderCalled);
        let life = self.nodes[node].incarnation;
        let id = self.running(node).fresh_id();
        let holder = host_of(call.hold.holder.node());
        let packet = HoldPacket::Call { call, id };
        self.send(node, holder, Packet::Hold(packet));
        self.after(CALL_PATIENCE_US, Event::CallTimeout { node, life, id });
        id
    }

    /// Orders the removal of a row. False: this node may not.
    fn take_back(&mut self, node: usize, chunk: Chunk) -> bool {
        self.record_writes(node, Some(chunk.inode));
        let file = number_of(chunk.inode);
        let record = Record {
            rows: vec![(file as u8, None)],
            ..Record::default()
        };
        if self.propose(node, record).is_none() {
            return false;
        }
        self.note(Mark::HoldRemoved);
        let fresh = Habit::priced(self.price);
        let run = self.running(node);
        run.holds.removed(chunk);
        run.habits[file] = fresh;
        true
    }

    /// A session of another host has written, and the owner has carried it out: its chunk may move there.
    fn consider_move(&mut self, node: usize, by: SessionId, block: usize) {
        let file = number_of(file_of(block));
        if self.running(node).habits[file].on_write(by) {
            let life = self.nodes[node].incarnation;
            let after = self.rng.below(MOVE_WAIT_US);
            let event = Event::Give {
                node,
                life,
                by,
                file,
            };
            self.after(after, event);
        }
    }

    /// A chunk moves to who writes to it, if it may.
    pub(crate) fn give(&mut self, node: usize, by: SessionId, file: usize) {
        let inode = inode(file);
        let run = self.running(node);
        let member = run.chain.view().is_some_and(|view| view.lists(by.node()));
        let early = self.now < self.running_ref(node).changes_from;
        let run = self.running_ref(node);
        if run.reign.is_none() || early || !member || run.holds.holder(chunk(file)).is_some() {
            return;
        }
        // A program of this host may write at the last moment.
        if self.rng.chance(1, 4) && self.nodes[node].session.waiting_for.is_none() {
            let token = LAST_MOMENT_TOKENS + self.next_request;
            let block = blocks_of_file(file).start as u8;
            self.begin_op(node, Op::Write { block, token });
        }
        if !self.may_move(node, by, file) {
            return;
        }
        let unkept = !self.has_kept(node, inode) && !self.planted(Plant::GivenUnkept);
        if unkept {
            return;
        }
        if !self.planted(Plant::GivenUnrecorded) {
            self.record_writes(node, Some(inode));
        }
        let run = self.running(node);
        let token = Version {
            epoch: run.reign.unwrap_or_default(),
            seq: run.chain.last().seq.next(),
        };
        let manner = perigee_replica::chunk::Manner::InPlace;
        let hold = Hold {
            holder: by,
            token,
            manner,
        };
        let record = Record {
            rows: vec![(file as u8, Some(hold))],
            ..Record::default()
        };
        if self.propose(node, record) == Some(token) {
            self.note(Mark::HoldGiven);
            let now = self.local(node);
            self.running(node).holds.given(now, chunk(file), hold);
        }
    }

    /// Takes back what belongs to nodes that are no members, as a duty.
    pub(crate) fn look_after_rows(&mut self, node: usize) {
        let run = self.running(node);
        let Some(view) = run.chain.view().cloned() else {
            return;
        };
        for file in 0..FILES {
            let run = self.running(node);
            let Some(hold) = run.holds.holder(chunk(file)) else {
                continue;
            };
            if view.lists(hold.holder.node()) {
                continue;
            }
            run.holds.recall_of(hold.holder.node());
            let local = self.local(node);
            let run = self.running(node);
            if run.holds.on_silence(local, chunk(file), hold) == Silence::Over {
                self.take_back(node, chunk(file));
            }
        }
    }

    pub(crate) fn call_timed_out(&mut self, node: usize, id: u64) {
        let local = self.local(node);
        let run = self.running(node);
        let waits = run.gatherings.iter().position(|g| g.call.1 == id);
        let Some(mut gathering) = waits.map(|index| run.gatherings.remove(index)) else {
            return;
        };
        let call = gathering.call.0;
        match run.holds.on_silence(local, call.chunk, call.hold) {
            Silence::Lasts(until) => {
                let id = self.call_holder(node, call);
                gathering.call.1 = id;
                self.running(node).gatherings.push(gathering);
                let host = &self.nodes[node];
                let (at, life) = (host.clock.when(until), host.incarnation);
                if at < self.now + CALL_PATIENCE_US {
                    let at = at.max(self.now + 1);
                    self.at(at, Event::CallTimeout { node, life, id });
                }
            }
            Silence::Over => {
                self.note(Mark::HoldWaitedOut);
                self.take_back(node, call.chunk);
                self.resume(node, gathering);
            }
            Silence::Gone => self.resume(node, gathering),
        }
    }

    pub(super) fn resume(&mut self, node: usize, gathering: Gathering) {
        let asks = Asks {
            session: gathering.session,
            began_at: gathering.began_at,
            passed: gathering.passed,
            numbered: None,
        };
        self.execute(node, gathering.id, gathering.who, gathering.op, asks);
    }

    pub(super) fn asked(&mut self, node: usize, from: usize, hold: Hold, chunk: Chunk, asked: u64) {
        let (local, terms) = (self.local(node), self.terms());
        let run = self.running(node);
        let owns = run.chain.lease_until(local).is_some();
        let member = run.chain.view().is_some_and(|view| view.lists(id_of(from)));
        let granted =
            owns && member && run.holds.on_asked(local, chunk, hold, asked, terms).is_ok();
        let packet = HoldPacket::Right {
            chunk,
            hold,
            asked,
            granted,
        };
        self.send(node, from, Packet::Hold(packet));
    }

    pub(super) fn take_flush(
        &mut self,
        node: usize,
        from: usize,
        flush: &Flush,
        tokens: &[(usize, u64)],
        epoch: Epoch,
    ) {
        let local = self.local(node);
        let any = self.planted(Plant::FlushUnfenced);
        let run = self.running(node);
        let owns = run.chain.lease_until(local).is_some();
        let run = self.running_ref(node);
        let waits = self.now < run.leaves_until.max(run.changes_from);
        let run = self.running(node);
        let (chunk, hold, number) = (flush.chunk, flush.hold, flush.number);
        let counts = owns
            && !waits
            && (run.reign == Some(epoch) || any)
            && run.holds.on_flush(chunk, hold, number).is_ok();
        let record = Record {
            data: tokens.iter().map(|(b, token)| (*b as u8, *token)).collect(),
            ..Record::default()
        };
        let mut version = None;
        let blocks: Vec<usize> = tokens.iter().map(|(block, _)| *block).collect();
        let counts = counts && self.keep(node, &blocks);
        if counts {
            if self.running_ref(node).reign == Some(epoch) {
                self.note_sent_over(node, tokens);
            }
            self.put_in_place(node, tokens);
            version = self.propose(node, record);
            if version.is_none() {
                self.distrust(node, tokens.iter().map(|(block, _)| *block));
            }
        }
        let Some(version) = version else {
            let packet = HoldPacket::Flushed {
                chunk,
                hold,
                number,
                taken: None,
            };
            return self.send(node, from, Packet::Hold(packet));
        };
        self.note(Mark::Flushed);
        let who = Waiting::Holder {
            node: from,
            chunk,
            hold,
            number,
            version,
        };
        let early = self.planted(Plant::FlushUnreplicated);
        if early {
            return self.answer(node, who, 0, Outcome::Ok(0));
        }
        let run = self.running(node);
        let id = run.fresh_id();
        let of_turn = run.turns.entry(chunk).or_default();
        of_turn.extend(tokens.iter().copied());
        let (mut files, content) = match flush.part {
            Part::More => (Vec::new(), Vec::new()),
            // All that was sent before in the same turn, too. What else there is of the chunk nobody promises here.
            Part::Last => (
                vec![chunk.inode],
                std::mem::take(of_turn).into_iter().collect(),
            ),
        };
        self.retain_lacking(node, &mut files);
        let block = tokens.first().map_or(0, |(block, _)| *block) as u8;
        self.running(node).waiters.push(Waiter {
            id: id | HOLDER_IDS,
            who,
            op: Op::Read { block },
            value: 0,
            version,
            files,
            at_writer: None,
            content,
            synced: BTreeSet::new(),
            asked: BTreeSet::new(),
        });
        self.step(node, Input::Flush);
    }

    /// What a holder sends to the owner that gave it the chunk is over what is in place there: over a late change of the holder's
    /// own, too, which was carried out meanwhile.
    fn note_sent_over(&mut self, node: usize, tokens: &[(usize, u64)]) {
        for (block, token) in tokens {
            let below = self.content(node, *block);
            let over = &self.oracle.over;
            let mut chain = std::iter::successors(Some(below), |token| over.get(token).copied());
            if !chain.any(|one| one == *token) {
                self.oracle.over.insert(*token, below);
            }
        }
    }

    /// Whether an operation may be carried out in its turn, if its holder has numbered it.
    pub(crate) fn takes_number(&mut self, node: usize, op: Op, asks: &mut Asks) -> bool {
        let (Some((hold, number)), Some(inode)) = (asks.numbered.take(), file_wanted(op)) else {
            return true;
        };
        let chunk = chunk(number_of(inode));
        let run = self.running(node);
        match run.holds.on_flush(chunk, hold, number) {
            Ok(()) => asks.passed.push(chunk),
            // It is anybody's change then.
            Err(Stale::Row) => {}
            Err(_) => return false,
        }
        true
    }

    /// An operation is carried out at the owner.
    pub(crate) fn note_habit(&mut self, node: usize, who: Waiting, op: Op, by: SessionId) {
        match (op, who) {
            (Op::Write { block, .. }, Waiting::Remote { .. }) => {
                self.consider_move(node, by, usize::from(block));
            }
            _ => {
                if let Some(inode) = file_wanted(op) {
                    self.running(node).habits[number_of(inode)].on_other();
                }
            }
        }
    }
}
