//! Operations: executed at the owner under its lease, answered when what they depend on is safe.

use super::hold::Asks;
use super::{HoldPacket, Packet, Waiter, Waiting};
use crate::law;
use crate::model::{
    ALL_FILES, BLOCKS, Op, Outcome, PastRow, Record, blocks_of_file, file_of, inode, is_kept_file,
    number_of, range_of,
};
use crate::numbered::Kind;
use crate::oracle::Mark;
use crate::world::{Event, World, host_of, id_of};
use perigee_replica::chunk::FlushNumber;
use perigee_replica::{Hold, Input, Plant, Role};
use perigee_types::{InodeId, SessionId, Version};
use std::collections::BTreeSet;

/// How long a session waits before it calls the outcome unknown.
const OP_PATIENCE_US: u64 = 3_000_000;

impl World {
    /// The session of a host does its next operation.
    pub(crate) fn client_step(&mut self, node: usize) {
        if self.calm {
            return;
        }
        let hosts = self.nodes.len() as u64;
        let session = &mut self.nodes[node].session;
        // The same number and the same operation, whatever the others do.
        let number = session.turns * hosts + node as u64 + 1;
        session.turns += 1;
        let mut rng = session.rng.fork();
        let think = 20_000 + rng.below(self.chaos.think_us);
        self.after(think, Event::Step { node });
        let op = self.random_op(&mut rng);
        let op = self.favour(node, op, &mut rng);
        if self.nodes[node].run.is_none() || self.nodes[node].session.waiting_for.is_some() {
            return;
        }
        let what = || format!("n{}: {op:?}", node + 1);
        let name = (Kind::Operation, number);
        if self.numbered.takes_place(name, self.now, what) {
            self.begin_op(node, op);
        }
    }

    pub(crate) fn begin_op(&mut self, node: usize, op: Op) {
        self.next_request += 1;
        let id = self.next_request;
        self.log(40, node, || format!("session: {op:?} is request {id}"));
        let session = &mut self.nodes[node].session;
        session.waiting_for = Some(id);
        session.began_at = self.now;
        session.at_home = false;
        session.as_holder = false;
        session.waited = false;
        law::explained::on_begun(self, node, op);
        self.after(OP_PATIENCE_US, Event::OpTimeout { node, id });
        let local = self.local(node);
        let run = self.running_ref(node);
        if run.chain.lease_until(local).is_some() {
            let asks = self.asks(node, None);
            self.execute(node, id, Waiting::Home, op, asks);
        } else if self.begin_as_holder(node, id, op) {
            // Done, or it waits for the right or until all was sent.
        } else if !self.read_copy(node, id, op) {
            self.ask_owner(node, id, op);
        }
    }

    /// The session of a host asks another one, which owns.
    pub(crate) fn ask_owner(&mut self, node: usize, id: u64, op: Op) {
        let owner = self.running_ref(node).owner();
        let Some(owner) = owner.filter(|owner| *owner != node) else {
            return self.finish(node, id, Outcome::Refused);
        };
        self.request_of(node, owner, id, op);
    }

    /// Sends what a session asks.
    pub(crate) fn request_of(&mut self, node: usize, owner: usize, id: u64, op: Op) {
        self.note_asked(node, id, op);
        let session = self.session_of(node);
        let packet = Packet::Request {
            id,
            op,
            session,
            numbered: None,
        };
        self.send(node, owner, packet);
    }

    /// An operation of another host's session arrives.
    pub(crate) fn request(
        &mut self,
        node: usize,
        from: usize,
        id: u64,
        op: Op,
        (session, numbered): (SessionId, Option<(Hold, FlushNumber)>),
    ) {
        let asks = Asks {
            session,
            ..self.asks(from, numbered)
        };
        self.execute(node, id, Waiting::Remote { node: from, id }, op, asks);
    }

    /// What the session of a host asks now.
    fn asks(&self, of: usize, numbered: Option<(Hold, FlushNumber)>) -> Asks {
        Asks {
            session: self.session_of(of),
            began_at: self.nodes[of].session.began_at,
            passed: Vec::new(),
            numbered,
        }
    }

    pub(crate) fn execute(&mut self, node: usize, id: u64, who: Waiting, op: Op, mut asks: Asks) {
        let local = self.local(node);
        let run = self.running_ref(node);
        let waits = matches!(
            op,
            Op::Put { .. } | Op::Write { .. } | Op::Punch { .. } | Op::Checkpoint
        ) && self.now < run.leaves_until.max(run.changes_from);
        let served = run.chain.lease_until(local).is_some() && self.is_servable(node, op) && !waits;
        if !served {
            return self.answer(node, who, id, Outcome::Refused);
        }
        if let Op::Read { block } = op
            && self.read_block(node, usize::from(block)).is_none()
        {
            self.answer(node, who, id, Outcome::Refused);
            return self.step(node, Input::Tick);
        }
        if let Op::Fsync { file } = op
            && self
                .running(node)
                .lost_unsynced
                .remove(&inode(usize::from(file)))
        {
            // That what was written is gone is an answer, too.
            return self.answer(node, who, id, Outcome::Refused);
        }
        if !self.takes_number(node, op, &mut asks) {
            return self.answer(node, who, id, Outcome::Refused);
        }
        if !self.passes_holders(node, (id, who, op), &asks)
            || !self.passes_readers(node, (id, who, op), &asks)
        {
            return self.step(node, Input::Flush);
        }
        law::coherent::check(self, node);
        law::control_store::check(self, node);
        if let Op::Read { block } = op {
            law::held::on_read(self, node, usize::from(block), asks.began_at);
        }
        if let Op::Checkpoint = op {
            law::checkpoint::on_made(self, node);
        }
        let changes = change(op);
        let replaced: Vec<usize> = changes.blocks().map(|(b, _)| usize::from(b)).collect();
        if !self.keep(node, &replaced) || !self.may_cut(node, op) {
            self.answer(node, who, id, Outcome::Refused);
            return self.step(node, Input::Tick);
        }
        self.record_before(node, who, op);
        let (value, version) = match op {
            Op::Get { key } => (
                self.running_ref(node).newest.registers[usize::from(key)],
                self.running_ref(node).chain.last(),
            ),
            Op::Read { block } => (
                self.content(node, usize::from(block)),
                self.running_ref(node).chain.last(),
            ),
            Op::Fsync { .. } => (0, self.running_ref(node).chain.last()),
            Op::Write { block, token } if who == Waiting::Home => {
                self.write_at_home(node, usize::from(block), token);
                (0, self.running_ref(node).chain.last())
            }
            Op::Put { .. } | Op::Write { .. } | Op::Punch { .. } | Op::Checkpoint => {
                let record = change(op);
                let blocks = record.blocks().map(|(b, token)| (usize::from(b), token));
                self.put_in_place(node, &blocks.collect::<Vec<_>>());
                match self.propose(node, record) {
                    Some(version) => (0, version),
                    None => return self.answer(node, who, id, Outcome::Refused),
                }
            }
        };
        if asks.passed.is_empty() {
            self.note_habit(node, who, op, asks.session);
        }
        self.wait_for(node, (id, who, op), value, version);
        self.step(node, Input::Flush);
    }

    /// Makes records of the writes that an operation shows, depends on or comes after.
    fn record_before(&mut self, node: usize, who: Waiting, op: Op) {
        match op {
            Op::Fsync { file } => self.record_writes(node, Some(inode(usize::from(file)))),
            Op::Checkpoint if self.planted(Plant::CheckpointUnrecorded) => {}
            Op::Put { .. } | Op::Punch { .. } | Op::Checkpoint => self.record_writes(node, None),
            _ if who != Waiting::Home => self.record_writes(node, None),
            Op::Get { .. } | Op::Read { .. } | Op::Write { .. } => {}
        }
    }

    /// Whether the bytes that the operation needs are here.
    fn is_servable(&self, node: usize, op: Op) -> bool {
        let pull = &self.running_ref(node).pull;
        match op {
            Op::Read { block } => {
                let block = usize::from(block);
                pull.is_valid(file_of(block), range_of(block))
            }
            Op::Fsync { file } => {
                let valid = |block| pull.is_valid(file_of(block), range_of(block));
                blocks_of_file(usize::from(file)).all(|b| valid(b) || self.is_lost(node, b))
            }
            Op::Put { .. } | Op::Get { .. } | Op::Write { .. } | Op::Punch { .. } => true,
            Op::Checkpoint => {
                let valid = |block| pull.is_valid(file_of(block), range_of(block));
                let there = (0..BLOCKS).all(|b| valid(b) || self.is_lost(node, b));
                let there = there || self.planted(Plant::CheckpointLacks);
                there && !self.running_ref(node).newest.checkpoint
            }
        }
    }

    fn wait_for(
        &mut self,
        node: usize,
        (id, who, op): (u64, Waiting, Op),
        value: u64,
        version: Version,
    ) {
        let durable = matches!(op, Op::Fsync { .. } | Op::Checkpoint);
        let shown = self.planted(Plant::RemoteReadUnreplicated) && !durable;
        if (who == Waiting::Home && !durable) || shown {
            if who == Waiting::Home {
                let session = &mut self.nodes[node].session;
                session.at_home |= session.waiting_for == Some(id);
            } else {
                law::replicated::acknowledge(self, node, version, &[]);
            }
            return self.answer(node, who, id, Outcome::Ok(value));
        }
        let files = match op {
            Op::Read { block } | Op::Write { block, .. } | Op::Punch { block, .. } => {
                vec![file_of(usize::from(block))]
            }
            Op::Fsync { file } => self.with_kept(node, usize::from(file)),
            Op::Checkpoint => (0..ALL_FILES).map(inode).collect(),
            Op::Put { .. } | Op::Get { .. } => Vec::new(),
        };
        let blocks: Vec<usize> = match op {
            Op::Read { block } | Op::Write { block, .. } | Op::Punch { block, .. } => {
                vec![usize::from(block)]
            }
            _ => {
                let all = files.iter().map(|file| number_of(*file));
                all.flat_map(blocks_of_file).collect()
            }
        };
        let mut files = files;
        if self.planted(Plant::KeptNotSettled) {
            files.retain(|file| !is_kept_file(*file));
        }
        if op != Op::Checkpoint {
            self.retain_lacking(node, &mut files);
        }
        let blocks = blocks.into_iter();
        // What is told to be safe is what was written, whatever has become of this copy, but for what nobody has.
        let blocks = blocks.filter(|block| !self.is_lost(node, *block));
        let content = blocks.map(|b| (b, self.written(node, b))).collect();
        let at_writer = self.at_writer(node, who, op);
        self.running(node).waiters.push(Waiter {
            id,
            who,
            op,
            value,
            version,
            files,
            at_writer,
            content,
            synced: BTreeSet::new(),
            asked: BTreeSet::new(),
        });
    }

    /// Blocks of a file are lost: who waits for it to be everywhere hears so, or whoever asks next.
    pub(crate) fn refuse_lost(&mut self, node: usize, inode: InodeId) {
        let run = self.running(node);
        let (waited, others): (Vec<Waiter>, Vec<Waiter>) = std::mem::take(&mut run.waiters)
            .into_iter()
            .partition(|waiter| waiter.files.contains(&inode));
        run.waiters = others;
        if waited.is_empty() {
            run.lost_unsynced.insert(inode);
        }
        for waiter in waited {
            self.answer(node, waiter.who, waiter.id, Outcome::Unknown);
        }
    }

    /// Asks members for what operations wait for, and answers those that wait no more.
    pub(crate) fn settle(&mut self, node: usize) {
        if self.running_ref(node).waiters.is_empty() {
            return;
        }
        if let Role::Reconciling { .. } = self.running_ref(node).chain.role() {
            return;
        }
        let life = self.nodes[node].incarnation;
        let local_only = self.planted(Plant::FsyncLocalOnly);
        let mut index = 0;
        while index < self.running_ref(node).waiters.len() {
            let run = self.running(node);
            let committed = run.chain.committed();
            let Some(epoch) = run.reign else { return };
            let mut needed: Vec<usize> = run.chain.counted().map(host_of).collect();
            if local_only {
                needed.clear();
            }
            needed.push(node);
            let waiter = &mut run.waiters[index];
            let files = waiter.files.iter();
            let of_each = |inode: &InodeId| {
                let inode = *inode;
                needed.iter().map(move |member| (*member, inode))
            };
            let needed = files.flat_map(of_each).chain(waiter.at_writer);
            let needed: BTreeSet<(usize, InodeId)> = needed.collect();
            let ask: Vec<(usize, InodeId)> = needed
                .iter()
                .filter(|n| !waiter.synced.contains(n) && !waiter.asked.contains(n))
                .copied()
                .collect();
            waiter.asked.extend(&ask);
            let (id, version) = (waiter.id, waiter.version);
            let done = version.seq <= committed && needed.iter().all(|n| waiter.synced.contains(n));
            for (member, inode) in ask {
                let id = (id, life);
                let packet = Packet::Sync {
                    id,
                    inode,
                    version,
                    epoch,
                };
                self.send(node, member, packet);
            }
            if done {
                let run = self.running(node);
                let waiter = run.waiters.remove(index);
                for file in &waiter.files {
                    run.unsettled.on_settled(*file, waiter.version.seq);
                }
                law::replicated::acknowledge(self, node, waiter.version, &waiter.content);
                match waiter.op {
                    Op::Fsync { .. } => self.note(Mark::FsyncOk),
                    Op::Checkpoint => law::checkpoint::on_settled(self),
                    _ => {}
                }
                let outcome = Outcome::Ok(waiter.value);
                match waiter.who {
                    Waiting::Remote { node: to, id } => {
                        self.answer_with_word(node, (to, id), outcome, waiter.op);
                    }
                    who => self.answer(node, who, waiter.id, outcome),
                }
            } else {
                index += 1;
            }
        }
    }

    pub(crate) fn member_synced(
        &mut self,
        (node, from): (usize, usize),
        (id, life): (u64, u32),
        inode: InodeId,
    ) {
        if life != self.nodes[node].incarnation {
            return;
        }
        for waiter in &mut self.running(node).waiters {
            if waiter.id == id {
                waiter.synced.insert((from, inode));
            }
        }
        self.step(node, Input::Tick);
    }

    pub(crate) fn answer(&mut self, node: usize, who: Waiting, id: u64, outcome: Outcome) {
        match who {
            Waiting::Home => {
                self.note(Mark::HomeOk);
                self.finish(node, id, outcome);
            }
            Waiting::Remote { node: to, id } => {
                let word = None;
                self.send(node, to, Packet::Reply { id, outcome, word });
            }
            Waiting::Holder {
                node: to,
                chunk,
                hold,
                number,
                version,
            } => {
                let taken = matches!(outcome, Outcome::Ok(_)).then_some(version);
                let packet = HoldPacket::Flushed {
                    chunk,
                    hold,
                    number,
                    taken,
                };
                self.send(node, to, Packet::Hold(packet));
            }
        }
    }

    /// A session's operation ends.
    pub(crate) fn finish(&mut self, node: usize, id: u64, outcome: Outcome) {
        let session = &mut self.nodes[node].session;
        if session.waiting_for != Some(id) {
            return;
        }
        session.waiting_for = None;
        session.under = None;
        if let Some(inode) = session.changes.take() {
            self.note_own_change(node, inode);
        }
        let outcome = self.tell_of_loss(node, outcome);
        law::home::check(self, node);
        law::explained::on_ended(self, node, outcome);
        law::control_store::check_outcome(self, node, outcome);
        self.log(41, node, || format!("request {id}: {outcome:?}"));
        match outcome {
            Outcome::Ok(_) => {
                self.note(Mark::RemoteOk);
                if let Some(round) = self.probe_round {
                    self.probes_done.insert((node, round));
                }
            }
            Outcome::Unknown => self.note(Mark::UnknownOp),
            Outcome::Refused => {
                if let Some(round) = self.probe_round {
                    self.after(PROBED_AGAIN_US, Event::ProbeAgain { node, round });
                }
            }
        }
    }

    /// After the chaos, each host writes, then makes it durable.
    pub(crate) fn probe(&mut self, round: u32) {
        self.probe_round = Some(round);
        for node in 0..self.nodes.len() {
            if self.nodes[node].run.is_none() {
                continue;
            }
            self.nodes[node].session.waiting_for = None;
            self.probe_from(node, round);
        }
        if round < PROBE_ROUNDS {
            self.after(1_200_000, Event::Probe { round: round + 1 });
        }
    }

    /// What was refused in a round is tried again while it lasts: a chain may change beside it, or something be lost, which is
    /// said once.
    pub(crate) fn probe_again(&mut self, node: usize, round: u32) {
        let host = &self.nodes[node];
        let idle = host.run.is_some() && host.session.waiting_for.is_none();
        if self.probe_round == Some(round) && idle {
            self.probe_from(node, round);
        }
    }

    fn probe_from(&mut self, node: usize, round: u32) {
        let op = match round {
            1 => Op::Put {
                key: 0,
                value: self.fresh_token(),
            },
            2 => {
                let token = self.fresh_token();
                let block = self.rng.below(crate::model::BLOCKS as u64) as u8;
                Op::Write { block, token }
            }
            _ => Op::Fsync {
                file: (round % 2) as u8,
            },
        };
        self.begin_op(node, op);
    }

    /// Whether `node` is a member in the control store's current view, or may be in the next one, and still has what
    /// it should have.
    pub(crate) fn is_trusted_member(&self, node: usize) -> bool {
        let id = id_of(node);
        let listed = self.store.view.lists(id) || self.may_be_listed(id);
        listed && !self.nodes[node].disk.wiped
    }
}

/// How many operations each host does when all is calm.
pub(crate) const PROBE_ROUNDS: u32 = 4;
/// What was refused is tried again after this.
const PROBED_AGAIN_US: u64 = 100_000;

fn change(op: Op) -> Record {
    match op {
        Op::Put { key, value } => Record {
            puts: vec![(key, value)],
            ..Record::default()
        },
        Op::Write { block, token } => Record {
            data: vec![(block, token)],
            ..Record::default()
        },
        Op::Punch { block, token } => Record {
            holes: vec![(block, token)],
            ..Record::default()
        },
        Op::Checkpoint => Record {
            past: vec![PastRow::Checkpoint],
            ..Record::default()
        },
        Op::Get { .. } | Op::Read { .. } | Op::Fsync { .. } => Record::default(),
    }
}
