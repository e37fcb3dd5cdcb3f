//! The owner's side: the state of the container, and the reign of an owner.

use super::world::{Event, World, host_of};
use super::{BLOCKS, FILE, Mark, Run};
use crate::clock::Clock;
use perigee_replica::chunk::behind_plant::Plant;
use perigee_replica::chunk::{Access, Call, Holds, Manner, Need, Report, Silence, Terms};
use perigee_replica::{Chunk, Hold};
use perigee_types::{Epoch, NodeId, Seq, SessionId, Tick, Version};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Before a call is sent once more.
const CALL_US: u64 = 80_000;
/// Calls without an answer after which a holder counts as silent.
const CALLS: u32 = 12;

/// What the container's records make.
#[derive(Debug, Clone, Default)]
pub struct State {
    /// Which write each block is of; 0 at first.
    pub blocks: [u64; BLOCKS],
    /// Who holds which chunk.
    pub rows: BTreeMap<Chunk, Hold>,
    /// The writes of all time.
    pub carried_out: BTreeSet<u64>,
    /// The last record.
    pub seq: u64,
}

/// A record.
#[derive(Debug, Clone, Copy)]
pub enum Record {
    /// A write is carried out.
    Wrote(u64, Run),
    /// The row of a chunk is another one, or none.
    Row(Chunk, Option<Hold>),
}

impl State {
    /// The next record takes effect.
    pub fn apply(&mut self, record: Record) {
        self.seq += 1;
        match record {
            Record::Wrote(id, run) => {
                self.blocks[run.blocks()].fill(id);
                self.carried_out.insert(id);
            }
            Record::Row(chunk, Some(hold)) => _ = self.rows.insert(chunk, hold),
            Record::Row(chunk, None) => _ = self.rows.remove(&chunk),
        }
    }
}

/// What a host asks the owner for.
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs, reason = "fields are named as what they are")]
pub enum ToOwner {
    Write {
        id: u64,
        run: Run,
        row: Option<Hold>,
    },
    Read {
        id: u64,
        run: Run,
    },
    Ask {
        id: u64,
        of: (Chunk, Hold),
        number: u64,
    },
    /// It wants the chunk before it writes there.
    Want {
        id: u64,
        chunk: Chunk,
    },
    /// The answer to a call; none while the host is at it.
    Report {
        epoch: u64,
        call: u64,
        of: (Chunk, Hold),
        report: Option<Report>,
    },
}

/// What an owner tells a host.
#[derive(Debug, Clone)]
#[allow(missing_docs, reason = "fields are named as what they are")]
pub enum ToHost {
    /// A write is carried out, or it does not count.
    Wrote {
        id: u64,
        done: bool,
        rows: Vec<(Chunk, Hold)>,
    },
    /// A write is in place, and its record is ordered.
    Ordered {
        id: u64,
        epoch: u64,
    },
    Read {
        id: u64,
        values: Vec<u64>,
    },
    /// A chunk that was wanted is the host's, with the right to write it, or stays.
    Given {
        id: u64,
        chunk: Chunk,
        of: Option<(Chunk, Hold)>,
    },
    Right {
        id: u64,
        of: (Chunk, Hold),
        granted: bool,
    },
    Call {
        epoch: u64,
        call: u64,
        what: Call,
    },
}

/// A process of a host, which asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sender {
    /// The host's number.
    pub host: usize,
    /// Rises with each crash.
    pub life: u32,
    /// Of its programs.
    pub session: SessionId,
}

/// An access that waits for holders.
#[derive(Debug)]
struct Task {
    from: Sender,
    what: ToOwner,
    run: Run,
    access: Access,
    passed: Vec<Chunk>,
    call: Option<u64>,
    /// How often it was called without an answer.
    tries: u32,
}

/// One owner, and its reign.
#[derive(Debug)]
pub struct Reign {
    /// Which.
    pub epoch: u64,
    clock: Clock,
    /// Its process has ended.
    died: bool,
    /// No member answers it: until when it reigns, by its clock.
    until: Option<Tick>,
    holds: Holds,
    /// The state with what is ordered.
    ahead: State,
    pending: VecDeque<Record>,
    tasks: BTreeMap<u64, Task>,
    /// Answers that wait for the commit of a record.
    owed: Vec<(u64, Sender, ToHost)>,
    /// Who wrote to a chunk last, and how often with nobody between.
    habits: BTreeMap<Chunk, (SessionId, u64)>,
}

impl Reign {
    /// It begins with a state.
    #[must_use]
    pub fn new(epoch: u64, clock: Clock, now: Tick, state: &State, terms: Terms) -> Self {
        let rows = state.rows.iter().map(|(chunk, hold)| (*chunk, *hold));
        Self {
            epoch,
            clock,
            died: false,
            until: None,
            holds: Holds::new(rows, now, terms),
            ahead: state.clone(),
            pending: VecDeque::new(),
            tasks: BTreeMap::new(),
            owed: Vec::new(),
            habits: BTreeMap::new(),
        }
    }
}

impl World {
    /// Where an owner reigns: no two are the same node.
    pub(super) const fn node_of(epoch: u64) -> NodeId {
        NodeId(1_000 + epoch as u32)
    }

    fn tick(&self) -> Tick {
        self.reign.clock.at(self.now)
    }

    fn reigns(&self) -> bool {
        let reign = &self.reign;
        !reign.died && reign.until.is_none_or(|until| self.tick() < until)
    }

    /// The owner dies, or no member answers it any more. Another one begins when its lease is over for sure.
    pub(super) fn end_reign(&mut self, dies: bool) {
        if self.reign.died || self.reign.until.is_some() {
            return;
        }
        self.mark(match dies {
            true => Mark::OwnerDied,
            false => Mark::OwnerCutOff,
        });
        self.reign.died = dies;
        self.reign.until = Some(self.tick() + self.timing.lease_held());
        // What it orders from now on is nowhere else.
        let survive = self.rng.below(self.reign.pending.len() as u64 + 1);
        let next = Clock::new(&mut self.rng, &self.timing, crate::Drift::Within);
        let from = next.when(next.at(self.now) + self.timing.takeover);
        let at = from + self.rng.below(self.timing.stagger.0);
        self.at(at, Event::Reign(next, survive));
    }

    /// The next owner's reign begins.
    pub(super) fn begin_reign(&mut self, clock: Clock, survive: u64) {
        let pending = std::mem::take(&mut self.reign.pending);
        for (place, record) in (0..).zip(pending) {
            match record {
                record if place < survive => self.committed.apply(record),
                Record::Row(_, Some(_)) => self.mark(Mark::RowLost),
                Record::Row(_, None) => self.mark(Mark::RemovalLost),
                Record::Wrote(id, _) => {
                    // Only its host keeps it now.
                    let write = self.past.writes.get_mut(&id);
                    if let Some(write) =
                        write.filter(|write| self.hosts[write.by.0].life != write.by.1)
                    {
                        write.lost = true;
                    }
                }
            }
        }
        let (epoch, now) = (self.reign.epoch + 1, clock.at(self.now));
        let terms = Terms::from(&self.timing);
        self.reign = Reign::new(epoch, clock, now, &self.committed, terms);
        if !self.reign.holds.is_empty() {
            self.mark(Mark::BesideHolder);
        }
    }

    fn order(&mut self, record: Record) {
        self.reign.ahead.apply(record);
        self.reign.pending.push_back(record);
        let delay = 1_000 + self.delay();
        let (epoch, seq) = (self.reign.epoch, self.reign.ahead.seq);
        self.after(delay, Event::Commit(epoch, seq));
    }

    /// Every member has the records up to this one.
    pub(super) fn commit(&mut self, epoch: u64, seq: u64) {
        if epoch != self.reign.epoch || self.reign.until.is_some() {
            return;
        }
        while self.committed.seq < seq
            && let Some(record) = self.reign.pending.pop_front()
        {
            self.committed.apply(record);
        }
        let owed = std::mem::take(&mut self.reign.owed);
        for (after, from, answer) in owed {
            self.answer_after(after, from, answer);
        }
    }

    /// Answers when a record is committed.
    fn answer_after(&mut self, seq: u64, from: Sender, mut answer: ToHost) {
        if self.committed.seq < seq {
            return self.reign.owed.push((seq, from, answer));
        }
        if let ToHost::Wrote { rows, .. } = &mut answer {
            let told: Vec<(Chunk, Hold)> = match self.is(Plant::RowUncommitted) {
                true => self.reign.holds.iter().collect(),
                false => self.committed.rows.clone().into_iter().collect(),
            };
            rows.extend(told.iter().filter(|(_, hold)| hold.holder == from.session));
        }
        if let ToHost::Given { of, .. } = &mut answer {
            let (now, terms) = (self.tick(), Terms::from(&self.timing));
            let holds = &mut self.reign.holds;
            // The right begins when the row is there for everybody.
            let granted = |(chunk, hold): &(Chunk, Hold)| {
                holds.on_asked(now, *chunk, *hold, 0, terms).is_ok()
            };
            *of = of.filter(granted);
        }
        self.send_host(from.host, Some(from.life), answer);
    }

    /// Answers when everything that is ordered is committed: what is shown, and what is refused, rests on that.
    fn answer(&mut self, from: Sender, answer: ToHost) {
        self.answer_after(self.reign.ahead.seq, from, answer);
    }

    /// Something has come from a host.
    pub(super) fn at_owner(&mut self, from: Sender, what: ToOwner) {
        if !self.reigns() {
            return;
        }
        match what {
            ToOwner::Write {
                id,
                run,
                row: Some(hold),
            } => self.write_behind(from, (id, run), hold),
            ToOwner::Write { id, run, .. } => {
                if self.reign.ahead.carried_out.contains(&id) {
                    return self.carried_out(from, id, true);
                }
                let row = |chunk: Chunk| self.reign.holds.holder(chunk);
                let own = |hold: Option<Hold>| hold.is_some_and(|hold| hold.holder == from.session);
                if run.chunks().count() == 1 && run.chunks().map(row).all(own) {
                    // Its host has sent it when all others had arrived.
                    self.mark(Mark::OwnBeside);
                    self.order_write(from, id, run);
                    return self.carried_out(from, id, false);
                }
                self.begin(from, what, (id, run), Access::Change);
            }
            ToOwner::Read { id, run } => {
                let access = match self.rng.chance(self.reads_along, 10) {
                    true => Access::Read,
                    false => Access::Change,
                };
                self.begin(from, what, (id, run), access);
            }
            ToOwner::Ask { id, of, number } => {
                let (now, terms) = (self.tick(), Terms::from(&self.timing));
                let holds = &mut self.reign.holds;
                let granted = holds.on_asked(now, of.0, of.1, number, terms).is_ok();
                self.send_host(
                    from.host,
                    Some(from.life),
                    ToHost::Right { id, of, granted },
                );
            }
            ToOwner::Want { id, chunk } => self.want(from, id, chunk),
            ToOwner::Report {
                epoch,
                call,
                of,
                report,
            } if epoch == self.reign.epoch => self.reported(call, of, report),
            ToOwner::Report { .. } => {}
        }
    }

    fn carried_out(&mut self, from: Sender, id: u64, again: bool) {
        if again {
            self.mark(Mark::Repeated);
        }
        let (done, rows) = (true, Vec::new());
        self.answer(from, ToHost::Wrote { id, done, rows });
    }

    /// A write has come with a row.
    fn write_behind(&mut self, from: Sender, (id, run): (u64, Run), hold: Hold) {
        if self.reign.ahead.carried_out.contains(&id) {
            return self.carried_out(from, id, true);
        }
        let mut chunks = run.chunks();
        let admitted = chunks.all(|chunk| self.reign.holds.admits(chunk, hold));
        if !admitted && !self.is(Plant::Unfenced) {
            if self.hosts[from.host].life != from.life {
                self.mark(Mark::LateRefused);
            }
            let (done, rows) = (false, Vec::new());
            if self.is(Plant::ToldUnordered) {
                self.tell_ordered(from, id);
            }
            return self.answer(from, ToHost::Wrote { id, done, rows });
        }
        self.order_write(from, id, run);
        if self.rng.chance(1, 2) {
            self.tell_ordered(from, id);
        }
        self.give_ahead(from.session, run);
        self.carried_out(from, id, false);
    }

    fn order_write(&mut self, from: Sender, id: u64, run: Run) {
        if self.hosts[from.host].life != from.life {
            self.mark(Mark::LateCarriedOut);
        }
        let epoch = self.reign.epoch;
        let write = self.past.writes.get_mut(&id);
        if write.is_some_and(|write| {
            write.ordered = Some(epoch);
            write.reign < epoch
        }) {
            self.mark(Mark::CarriedByNext);
        }
        self.order(Record::Wrote(id, run));
    }

    /// An access begins that passes the holders of its chunks first.
    fn begin(&mut self, from: Sender, what: ToOwner, (id, run): (u64, Run), access: Access) {
        if self.reign.tasks.contains_key(&id) {
            return;
        }
        let mut passed = Vec::new();
        if let ToOwner::Read { .. } = what {
            let rows = self.reign.holds.of(FILE);
            let own = rows.filter(|(_, hold)| hold.holder == from.session);
            passed.extend(own.map(|(chunk, _)| chunk));
        }
        let task = Task {
            from,
            what,
            run,
            access,
            passed,
            call: None,
            tries: 0,
        };
        self.reign.tasks.insert(id, task);
        self.go_on(id);
    }

    /// An access takes place, or calls the next holder that is in its way.
    fn go_on(&mut self, id: u64) {
        while self.reigns()
            && let Some(task) = self.reign.tasks.get_mut(&id)
        {
            let unasked =
                matches!(task.what, ToOwner::Read { .. }) && self.plant == Some(Plant::Unasked);
            let (range, passed) = (task.run.bytes(), &task.passed);
            match self.reign.holds.need(FILE, range, task.access, passed) {
                Need::Remove(chunk) if !unasked => self.remove(chunk, false),
                Need::Call(what) if !unasked => {
                    self.names += 1;
                    task.call = Some(self.names);
                    task.tries = 0;
                    return self.call(id, self.names, what);
                }
                _ => return self.carry_out(id),
            }
        }
    }

    /// `silent`: how its holder lost it.
    fn remove(&mut self, chunk: Chunk, silent: bool) {
        self.order(Record::Row(chunk, None));
        self.strike_owner(if silent { 4 } else { 60 });
        self.reign.holds.removed(chunk);
        self.reign.habits.remove(&chunk);
    }

    /// Calls a holder, and looks later whether it has answered.
    fn call(&mut self, id: u64, call: u64, what: Call) {
        let epoch = self.reign.epoch;
        let host = host_of(what.hold.holder);
        self.send_host(host, None, ToHost::Call { epoch, call, what });
        self.after(CALL_US, Event::Called { id, call, what });
    }

    /// The time for an answer to a call is over, or the pause after it.
    pub(super) fn called(&mut self, id: u64, call: u64, what: Call) {
        let reigns = self.reigns();
        let task = self.reign.tasks.get_mut(&id);
        let Some(task) = task.filter(|task| task.call == Some(call) && reigns) else {
            return;
        };
        task.tries += 1;
        if task.tries < CALLS {
            return self.call(id, call, what);
        }
        let holds = &self.reign.holds;
        match holds.on_silence(self.tick(), what.chunk, what.hold) {
            Silence::Lasts(_) => return self.call(id, call, what),
            Silence::Gone => {}
            Silence::Over => {
                self.mark(Mark::Silent);
                self.past.silent.insert(what.hold.token);
                self.is_silent(host_of(what.hold.holder));
                self.remove(what.chunk, true);
            }
        }
        self.go_on(id);
    }

    /// A holder is silent: it has to be cut off, or down.
    fn is_silent(&mut self, host: usize) {
        let of = &self.hosts[host];
        let well = of.up && !of.cut && of.well_from + CALL_US * u64::from(CALLS) < self.now;
        if well {
            self.accuse("refused", format!("n{} is well, and silent", host + 1));
        }
    }

    /// A holder has answered a call.
    fn reported(&mut self, call: u64, (chunk, hold): (Chunk, Hold), report: Option<Report>) {
        let mut tasks = self.reign.tasks.iter_mut();
        let task = tasks.find(|(_, task)| task.call == Some(call));
        let Some(report) = report else {
            if let Some((_, task)) = task {
                task.tries = 0;
            }
            return;
        };
        // A late answer to a call that was given up is one all the same.
        self.reign.holds.on_report(chunk, hold, report);
        if let Some((&id, task)) = task {
            task.call = None;
            let stopped = report == Report::Stopped;
            if task.access == Access::Read && !stopped {
                task.passed.push(chunk);
            }
            self.mark(match report {
                Report::Writes => Mark::WentOn,
                Report::Rests { .. } => Mark::Rested,
                Report::Stopped => Mark::Stopped,
            });
            self.go_on(id);
        }
    }

    /// Nothing is in the way of an access.
    fn carry_out(&mut self, id: u64) {
        let Some(Task {
            from, what, run, ..
        }) = self.reign.tasks.remove(&id)
        else {
            return;
        };
        match what {
            ToOwner::Read { .. } => {
                let other = |habit: &(SessionId, u64)| habit.0 != from.session;
                for chunk in run.chunks() {
                    if self.reign.habits.get(&chunk).is_some_and(other) {
                        self.reign.habits.remove(&chunk);
                    }
                }
                let values = self.reign.ahead.blocks[run.blocks()].to_vec();
                self.answer(from, ToHost::Read { id, values });
            }
            // While it waited it came again, with the row that its host had got meanwhile.
            _ if self.reign.ahead.carried_out.contains(&id) => self.carried_out(from, id, true),
            _ => {
                self.order_write(from, id, run);
                // The answer tells the row, if that is there by then.
                let given_first = self.rng.chance(1, 2);
                if given_first {
                    self.note_habit(from.session, run);
                }
                self.carried_out(from, id, false);
                if !given_first {
                    self.note_habit(from.session, run);
                }
            }
        }
    }

    /// Counts a write, and gives its chunk away to who writes there alone.
    fn note_habit(&mut self, session: SessionId, run: Run) {
        let chunks: Vec<Chunk> = run.chunks().collect();
        let &[chunk] = chunks.as_slice() else {
            return self.reign.habits.clear();
        };
        let habit = self.reign.habits.entry(chunk).or_insert((session, 0));
        if habit.0 != session {
            *habit = (session, 0);
        }
        habit.1 += 1;
        if habit.1 >= self.given_after {
            self.give(session, chunk);
        }
    }

    /// A stream comes near to the next chunk, which is given away where nobody else works there.
    fn give_ahead(&mut self, session: SessionId, run: Run) {
        let Some(next) = run.chunks().last().map(Chunk::next) else {
            return;
        };
        let free =
            !self.reign.habits.contains_key(&next) && Run::ALL.chunks().any(|one| one == next);
        if free && self.rng.chance(1, 4) {
            self.mark(Mark::GivenAhead);
            self.give(session, next);
        }
    }

    /// A host wants a chunk that it has not written to yet: it is given away where nobody else works there.
    fn want(&mut self, from: Sender, id: u64, chunk: Chunk) {
        let others = |habit: &(SessionId, u64)| habit.0 != from.session;
        let free = !self.reign.habits.get(&chunk).is_some_and(others);
        if free && self.hosts[from.host].life == from.life {
            self.give(from.session, chunk);
        }
        let its = |hold: &Hold| hold.holder == from.session;
        let hold = self.reign.holds.holder(chunk).filter(its);
        let of = hold.map(|hold| (chunk, hold));
        self.answer(from, ToHost::Given { id, chunk, of });
    }

    fn tell_ordered(&mut self, from: Sender, id: u64) {
        let epoch = self.reign.epoch;
        self.send_host(from.host, Some(from.life), ToHost::Ordered { id, epoch });
    }

    /// A host crashes: whether the owner has told it that it has ordered a write, and can still have it committed.
    pub(super) fn outlives_host(&mut self, id: u64) -> bool {
        let reign = &self.reign;
        let goes_on = !reign.died && reign.until.is_none();
        let left = self.past.writes.get(&id).and_then(|write| write.left);
        let outlives = goes_on && left == Some(reign.epoch);
        if outlives {
            self.mark(Mark::OutlivedHost);
        }
        outlives
    }

    /// Gives away a chunk that is nobody else's.
    fn give(&mut self, session: SessionId, chunk: Chunk) {
        if self.reign.holds.holder(chunk).is_some() {
            return;
        }
        let token = Version {
            epoch: Epoch(self.reign.epoch),
            seq: Seq(self.reign.ahead.seq + 1),
        };
        let hold = Hold {
            holder: session,
            token,
            manner: Manner::WriteBehind,
        };
        self.mark(Mark::Given);
        self.order(Record::Row(chunk, Some(hold)));
        self.strike_owner(60);
        let now = self.tick();
        self.reign.holds.given(now, chunk, hold);
    }
}
