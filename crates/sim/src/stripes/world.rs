//! The owners of the columns, what is on its way to them, and the loop that lets one thing happen after another.

use super::host::{Ended, Host, Job, Next, Program, answer_of, call_of, place};
use super::lock::{Locks, session_of};
use super::{Mark, Marks};
use crate::numbered::Detail;
use crate::oracle::Violation;
use perigee_history::model::file::{Answer, File, Op as Call};
use perigee_history::{Budget, Client, Recorder, Ticket, Verdict, check};
use perigee_meta::memory::MemView;
use perigee_meta::stripe::job::{Ask, Change, NewWrite, Read, Told, Write};
use perigee_meta::stripe::plant::Plant;
use perigee_meta::stripe::{Cuts, Faults, UNIT, admit_read, admit_write};
use perigee_meta::{
    Allocate, Attr, Context, Credential, Mode, NewNode, Op, Reply, SetAttr, WriteAt, execute,
    format_container,
};
use perigee_types::{
    ByteRange, ContainerId, DataCommand, Errno, InodeId, Rng, SessionId, StripeWidth, WallTime,
};
use std::collections::BTreeMap;

const HOSTS: usize = 3;
const PROGRAMS: usize = 2;
/// Things that happen before all comes to rest.
const EVENTS: u64 = 180;
/// Chunks that are used.
const CHUNKS: u64 = 5;
/// Jobs of one history, at most: the order that explains their answers is searched for.
const JOBS: u32 = 26;
/// Configurations that the search looks at.
const BUDGET: Budget = Budget(50_000);

/// What to simulate.
#[derive(Debug, Clone)]
pub struct Options {
    /// Everything follows from it.
    pub seed: u64,
    /// A deliberate fault.
    pub plant: Option<Plant>,
    /// What is told of it.
    pub detail: Detail,
}

/// How it went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The first broken law.
    pub violation: Option<Violation>,
    /// Of every event: the same seed gives the same.
    pub hash: u64,
    /// Events.
    pub events: u64,
    /// What was met.
    pub marks: Marks,
    /// Whether the search for an order ended before it had found one, or that there is none.
    pub undecided: bool,
}

/// Something that a program has asked for.
#[derive(Debug)]
struct Asked {
    host: usize,
    life: u32,
    program: usize,
    number: usize,
    ask: Ask,
    bytes: Vec<u8>,
    call: Option<(Ticket, Call)>,
    /// Of a write to the file's own inode: it was let in, and its bytes are on their way to the disk.
    admitted: bool,
}

pub(super) struct World {
    pub(super) rng: Rng,
    plant: Option<Plant>,
    pub(super) states: MemView,
    pub(super) locks: Locks,
    content: BTreeMap<InodeId, BTreeMap<u64, u8>>,
    pub(super) file: InodeId,
    pub(super) hosts: Vec<Host>,
    asked: Vec<Asked>,
    recorder: Recorder<File>,
    jobs: u32,
    /// When the file was given another length last, or was about to be.
    resized_at: u64,
    byte: u8,
    pub(super) now: u64,
    pub(super) marks: Marks,
    hash: u64,
    traced: bool,
    violation: Option<Violation>,
}

/// Whether an owner keeps a session out.
fn is_refused(told: &Told) -> bool {
    matches!(
        told,
        Told::Reply(Err(Errno::EIO)) | Told::Wrote(Err(Errno::EIO))
    )
}

/// Simulates one history.
#[must_use]
pub fn run(options: &Options) -> Report {
    let mut world = World::new(options);
    while world.now < EVENTS && world.violation.is_none() {
        world.now += 1;
        world.happen();
    }
    world.rest();
    world.look_again();
    let events = world.now;
    let recorder = std::mem::take(&mut world.recorder);
    let verdict = check(&File, &recorder.close(), BUDGET);
    let undecided = verdict == Verdict::NoResult;
    let violation = world.violation.take().or(match verdict {
        Verdict::Explained | Verdict::NoResult => None,
        Verdict::Impossible(stuck) => Some(Violation {
            law: "striped",
            what: stuck.to_string(),
            at: events,
        }),
    });
    Report {
        violation,
        hash: world.hash,
        events,
        marks: world.marks,
        undecided,
    }
}

impl World {
    fn new(options: &Options) -> Self {
        let mut rng = Rng::new(options.seed);
        let width = 2 + rng.below(2) as u8;
        let mut states = MemView::new();
        let wall = WallTime::default();
        for container in 1..=width {
            let id = ContainerId(u32::from(container));
            let root = (id == ContainerId::ROOT).then_some((0, 0, 0o755));
            states.apply(id, &format_container(id, wall, root));
        }
        let make = Op::Make {
            parent: InodeId::ROOT,
            name: b"file".to_vec(),
            node: NewNode::File,
            mode: 0o644,
            umask: 0,
            cred: Credential::default(),
            open_existing: false,
        };
        let width = StripeWidth::of(width).unwrap_or_default();
        let context = Context::default().striping(width);
        let made = execute(&make, &context, &mut states);
        let mut file = InodeId::ROOT;
        if let Ok(outcome) = made {
            for (id, batch) in &outcome.batches {
                states.apply(*id, batch);
            }
            if let Reply::Created { attr, .. } = outcome.reply {
                file = attr.inode;
            }
        }
        let host = || Host {
            programs: (0..PROGRAMS).map(|_| None).collect(),
            ..Host::default()
        };
        Self {
            rng,
            plant: options.plant,
            states,
            locks: Locks::default(),
            content: BTreeMap::new(),
            file,
            hosts: (0..HOSTS).map(|_| host()).collect(),
            asked: Vec::new(),
            recorder: Recorder::default(),
            jobs: 0,
            resized_at: 0,
            byte: 0,
            now: 0,
            marks: Marks::default(),
            hash: 0xcbf2_9ce4_8422_2325,
            traced: options.detail == Detail::Traced,
            violation: None,
        }
    }

    pub(super) fn note(&mut self, what: &dyn std::fmt::Debug) {
        let line = format!("{what:?}");
        for byte in line.bytes() {
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        if self.traced {
            crate::world::print_line(&format!("{:>5} {line}", self.now));
        }
    }

    pub(super) fn is(&self, plant: Plant) -> bool {
        self.plant == Some(plant)
    }

    /// One thing.
    fn happen(&mut self) {
        match self.rng.below(100) {
            0 => self.crash(),
            36..=40 => self.locks_end(),
            1..=35 if self.jobs < JOBS => self.begin(),
            _ if self.asked.is_empty() => {}
            _ => {
                let which = self.rng.below(self.asked.len() as u64) as usize;
                self.carry_out(which);
            }
        }
    }

    /// What was begun comes to its end.
    fn rest(&mut self) {
        while !self.asked.is_empty() && self.violation.is_none() {
            self.now += 1;
            let which = self.rng.below(self.asked.len() as u64) as usize;
            self.carry_out(which);
        }
    }

    /// A program of a host that knows nothing reads everything.
    fn look_again(&mut self) {
        self.let_go();
        self.hosts[0].known = None;
        for at in self.places() {
            self.start(
                0,
                0,
                Job::Read(
                    Box::new(Read::new(self.file, at, None, Faults::default())),
                    at.start,
                ),
            );
            self.rest();
        }
        self.start(0, 0, Job::Size);
        self.rest();
    }

    fn places(&self) -> Vec<ByteRange> {
        let near = |chunk: u64| [chunk * UNIT, chunk * UNIT + 1, (chunk + 1) * UNIT - 1];
        let all = (0..CHUNKS).flat_map(near);
        all.map(|at| ByteRange::with_len(at, 1)).collect()
    }

    fn crash(&mut self) {
        let host = self.rng.below(HOSTS as u64) as usize;
        if self.hosts[host].programs.iter().any(Option::is_some) {
            self.marks.hit(Mark::Crashed);
        }
        self.note(&("crash", host));
        // What is on its way may arrive all the same.
        let mut kept = Vec::new();
        for asked in std::mem::take(&mut self.asked) {
            if asked.host != host || asked.admitted || self.rng.below(2) == 0 {
                kept.push(asked);
            }
        }
        self.asked = kept;
        let entry = &mut self.hosts[host];
        entry.life += 1;
        entry.known = None;
        entry.programs = (0..PROGRAMS).map(|_| None).collect();
    }

    fn place(&mut self) -> u64 {
        let places = self.places();
        places[self.rng.below(places.len() as u64) as usize].start
    }

    /// A program that has nothing to do begins with a job.
    fn begin(&mut self) {
        let host = self.rng.below(HOSTS as u64) as usize;
        let free = self.hosts[host].programs.iter().position(Option::is_none);
        let Some(program) = free else { return };
        self.jobs += 1;
        let (file, at) = (self.file, self.place());
        let faults = Faults { plant: self.plant };
        let known = self.hosts[host].known.clone();
        let job = match self.rng.below(14) {
            0..=4 => {
                let at = match self.rng.below(4) {
                    0 => WriteAt::End,
                    _ => WriteAt::Offset(at),
                };
                let new = NewWrite {
                    inode: file,
                    at,
                    len: 1 + self.rng.below(2),
                    kill_privileges: false,
                    claims: self.rng.below(2) == 0,
                };
                self.byte = self.byte.wrapping_add(3).max(1);
                self.marks.hit(match at {
                    WriteAt::End => Mark::Appended,
                    WriteAt::Offset(_) => Mark::Wrote,
                });
                Job::Write(Box::new(Write::new(new, known, faults)), self.byte)
            }
            5..=7 => {
                let range = ByteRange::with_len(at, 1);
                Job::Read(Box::new(Read::new(file, range, known, faults)), at)
            }
            8 => Job::Size,
            9 => {
                let chunk = self.rng.below(CHUNKS) * UNIT;
                let range = ByteRange::with_len(chunk + 1, UNIT);
                let how = Allocate::PunchHole;
                self.marks.hit(Mark::Punched);
                let inode = file;
                match Change::by(Op::Allocate { inode, range, how }, faults) {
                    Some(change) => Job::Change(Box::new(change)),
                    None => return,
                }
            }
            10 | 11 => {
                let session = session_of(host, self.hosts[host].life);
                match Change::by(self.lock_op(session, Some(Mode::Exclusive)), faults) {
                    Some(change) => Job::Lock(Box::new(change)),
                    None => return,
                }
            }
            _ => {
                let set = SetAttr {
                    size: Some(at + self.rng.below(2)),
                    ..SetAttr::default()
                };
                let (inode, cred) = (file, Credential::default());
                match Change::by(Op::SetAttr { inode, set, cred }, faults) {
                    Some(change) => Job::Change(Box::new(change)),
                    None => return,
                }
            }
        };
        self.start(host, program, job);
    }

    fn client(host: usize, program: usize) -> Client {
        Client((host * PROGRAMS + program) as u32)
    }

    fn start(&mut self, host: usize, number: usize, job: Job) {
        let client = Self::client(host, number);
        let calls: Vec<Call> = match &job {
            // Where an append goes is not known yet.
            Job::Write(..) => Vec::new(),
            Job::Read(_, at) => vec![Call::Read(*at)],
            Job::Size => vec![Call::Size],
            Job::Lock(_) => Vec::new(),
            Job::Change(change) => match change.op() {
                Op::SetAttr { set, .. } => set.size.map(Call::Resize).into_iter().collect(),
                Op::Allocate { range, .. } => {
                    let inside = |at: &ByteRange| range.overlaps(*at);
                    let places = self.places().into_iter().filter(inside);
                    places.map(|at| Call::Zero(at.start)).collect()
                }
                _ => Vec::new(),
            },
        };
        let mut program = Program::new(job, self.jobs);
        for call in calls {
            program
                .calls
                .push((self.recorder.invoke(client, call), call));
        }
        place(&mut self.recorder, client, &mut program, self.now);
        self.note(&("begin", host, number, &program.job));
        self.go_on(host, number, program);
    }

    /// A program asks for what comes next, or has come to the end of its job.
    fn go_on(&mut self, host: usize, number: usize, mut program: Program) {
        let client = Self::client(host, number);
        let within: Vec<ContainerId> = (2..=4_u32)
            .map(ContainerId)
            .take(self.width() - 1)
            .collect();
        match program.next(self.file, &within) {
            Next::Ask(asks) => {
                program.told = asks.iter().map(|_| None).collect();
                for (index, ask) in asks.into_iter().enumerate() {
                    let call = call_of(&ask, program.writer)
                        .map(|call| (self.recorder.invoke(client, call), call));
                    let bytes = match &ask {
                        Ask::Write { range, .. } => program.bytes(*range),
                        Ask::Do(_) | Ask::Read { .. } => Vec::new(),
                    };
                    self.asked.push(Asked {
                        host,
                        life: self.hosts[host].life,
                        program: number,
                        number: index,
                        ask,
                        bytes,
                        call,
                        admitted: false,
                    });
                }
                self.hosts[host].programs[number] = Some(program);
            }
            Next::Over(Ok(ended)) => {
                if let Ended::Read(bytes) = &ended
                    && bytes.is_empty()
                {
                    self.marks.hit(Mark::PastEnd);
                }
                for (ticket, call) in program.calls {
                    match answer_of(call, &ended) {
                        Some(answer) => self.recorder.answer(ticket, answer),
                        None => self.breaks(format!("{call:?} ended as another one")),
                    }
                }
            }
            // What it was about to do may have happened in part.
            Next::Over(Err(Errno::EIO)) if program.refused => {}
            Next::Over(Err(errno)) => {
                self.breaks(format!("{:?} ended with {errno}", program.job));
            }
        }
    }

    fn width(&mut self) -> usize {
        let attr = self.attr(self.file);
        let striping = attr.ok().and_then(|attr| attr.layout.striping());
        striping.map_or(1, |striping| usize::from(striping.width.get()))
    }

    /// What lies beyond the end of a file is not there when it grows.
    fn no_column_is_longer_than_its_file(&mut self) {
        let inode = self.file;
        let Ok(Reply::Columns { attr, columns }) = self.run(&Op::Columns { inode }) else {
            return self.breaks("the file's owner does not say what columns it has".to_owned());
        };
        for column in columns {
            let size = self.attr(column).map(|column| column.size);
            if !size.is_ok_and(|size| size <= attr.size) {
                self.breaks(format!(
                    "{column} has {size:?} bytes, its file {}",
                    attr.size
                ));
            }
        }
    }

    pub(super) fn breaks(&mut self, what: String) {
        let law = "striped";
        let at = self.now;
        self.violation.get_or_insert(Violation { law, what, at });
    }

    /// An owner does what it was asked for.
    fn carry_out(&mut self, which: usize) {
        let mut asked = self.asked.swap_remove(which);
        let session = session_of(asked.host, asked.life);
        if let Ask::Do(op) = &asked.ask
            && op.data_inode() == Some(self.file)
        {
            self.let_writes_end();
        }
        let told = match &asked.ask {
            Ask::Write {
                inode, range, cuts, ..
            } if *inode == self.file && !asked.admitted => {
                match self.admit(session, (*inode, *range), *cuts) {
                    Ok(()) if self.rng.below(2) == 0 => {
                        asked.admitted = true;
                        self.note(&("admitted", asked.host, asked.program, &asked.ask));
                        self.asked.push(asked);
                        return;
                    }
                    Ok(()) => Told::Wrote(self.take(session, (*inode, *range), &asked.bytes)),
                    Err(errno) => Told::Wrote(Err(errno)),
                }
            }
            Ask::Write { inode, range, .. } if asked.admitted => {
                Told::Wrote(self.take(session, (*inode, *range), &asked.bytes))
            }
            ask => self.owner(session, ask, &asked.bytes),
        };
        self.note(&("owner", asked.host, asked.program, &asked.ask, &told));
        self.no_column_is_longer_than_its_file();
        match &told {
            Told::Wrote(Err(Errno::ESTALE)) | Told::Bytes(Err(Errno::ESTALE)) => {
                self.marks.hit(Mark::Fenced);
            }
            Told::Wrote(Err(Errno::EAGAIN)) | Told::Reply(Err(Errno::EAGAIN)) => {
                self.marks.hit(Mark::Waited);
            }
            _ => {}
        }
        if let Some((ticket, call)) = asked.call {
            match &told {
                Told::Reply(Ok(Reply::Claimed { range, .. })) => {
                    let answer = match call {
                        Call::Reserve(..) => Answer::Place(range.start),
                        _ => Answer::Done,
                    };
                    self.recorder.answer(ticket, answer);
                }
                _ => self.recorder.withdraw(ticket),
            }
        }
        if self.hosts[asked.host].life != asked.life {
            self.marks.hit(Mark::Late);
            return;
        }
        let slot = &mut self.hosts[asked.host].programs[asked.program];
        let Some(mut program) = slot.take() else {
            return;
        };
        program.refused |= is_refused(&told);
        if let Some(answer) = program.told.get_mut(asked.number) {
            *answer = Some(told);
        }
        if program.told.iter().any(Option::is_none) {
            *slot = Some(program);
            return;
        }
        program.told_all();
        let client = Self::client(asked.host, asked.program);
        let (had, since) = (program.placed, program.placed_at);
        place(&mut self.recorder, client, &mut program, self.now);
        if had.is_some() && program.placed != had && self.resized_at < since {
            self.breaks("an append leaves a place of its own that nobody has cut away".to_owned());
        }
        if let Some(known) = program.known() {
            self.hosts[asked.host].known = Some(known.clone());
        }
        self.go_on(asked.host, asked.program, program);
    }

    fn attr(&mut self, inode: InodeId) -> Result<Attr, Errno> {
        match self.run(&Op::GetAttr { inode })? {
            Reply::Attr(attr) => Ok(attr),
            _ => Err(Errno::EPROTO),
        }
    }

    pub(super) fn run(&mut self, op: &Op) -> Result<Reply, Errno> {
        let outcome = execute(op, &Context::default(), &mut self.states);
        let outcome = outcome.map_err(|refusal| match refusal {
            perigee_meta::Refusal::Errno(errno) => errno,
            // Nothing is out of reach here.
            _ => Errno::EPROTO,
        })?;
        for (id, batch) in &outcome.batches {
            self.states.apply(*id, batch);
            for command in &batch.data {
                let content = self.content.entry(command.inode()).or_default();
                match command {
                    DataCommand::Written { .. } => {}
                    DataCommand::Resized { size, .. } => _ = content.split_off(size),
                    DataCommand::Punched { range, .. } => {
                        content.retain(|at, _| !(range.start..range.end).contains(at));
                    }
                    DataCommand::Removed { .. } => content.clear(),
                }
            }
        }
        Ok(outcome.reply)
    }

    fn owner(&mut self, session: SessionId, ask: &Ask, bytes: &[u8]) -> Told {
        match ask {
            Ask::Do(op) => {
                let reply = match op {
                    Op::Claim { at, len, .. } if self.is(Plant::CutIsNoBarrier) => {
                        self.claim_in_any_case(*at, *len)
                    }
                    op => self.operate(session, op),
                };
                match (op, &reply) {
                    (Op::MakeColumns { .. }, Ok(_)) => self.marks.hit(Mark::Made),
                    (Op::SetAttr { .. }, Ok(Reply::Attr(_))) => {
                        self.resized_at = self.now;
                        self.marks.hit(Mark::Cut);
                    }
                    (Op::Claim { len, .. }, Ok(_)) if *len > 0 => self.marks.hit(Mark::Grew),
                    (Op::EndCut { .. }, Ok(_)) => self.marks.hit(Mark::Helped),
                    _ => {}
                }
                Told::Reply(reply)
            }
            Ask::Read { inode, range, cuts } => Told::Bytes(self.attr(*inode).and_then(|attr| {
                if !self.is(Plant::StaleAdmitted) {
                    admit_read(attr.layout, *cuts)?;
                }
                let content = self.content.get(inode);
                let byte = |at| content.and_then(|content| content.get(&at)).copied();
                let end = range.end.min(attr.size);
                let read = (range.start..end.max(range.start)).map(|at| byte(at).unwrap_or(0));
                Ok(read.collect::<Vec<u8>>().into())
            })),
            Ask::Write {
                inode, range, cuts, ..
            } => {
                let at = (*inode, *range);
                let admitted = self.admit(session, at, *cuts);
                Told::Wrote(admitted.and_then(|()| self.take(session, at, bytes)))
            }
        }
    }

    /// What a claim does where no cut is looked for.
    fn claim_in_any_case(&mut self, at: WriteAt, len: u64) -> Result<Reply, Errno> {
        let inode = self.file;
        let start = match at {
            WriteAt::Offset(at) => at,
            WriteAt::End => self.attr(inode)?.size,
        };
        let range = ByteRange::with_len(start, len);
        let grows = Op::Wrote {
            inode,
            ranges: Vec::new(),
            size_at_least: Some(range.end),
            mtime: WallTime::default(),
            kill_privileges: false,
        };
        self.run(&grows)?;
        let attr = self.attr(inode)?;
        Ok(Reply::Claimed { range, attr })
    }

    /// Whether the owner of an inode lets a write in.
    fn admit(
        &mut self,
        session: SessionId,
        (inode, range): (InodeId, ByteRange),
        cuts: Cuts,
    ) -> Result<(), Errno> {
        let own = inode == self.file;
        let left_out = match own {
            true => self.is(Plant::CutIsNoBarrier),
            false => self.is(Plant::StaleAdmitted),
        };
        if own && self.is_kept_out(session) {
            self.marks.hit(Mark::Refused);
            return Err(Errno::EIO);
        }
        if !left_out {
            admit_write(self.attr(inode)?.layout, range.end, cuts)?;
        }
        Ok(())
    }

    /// A write that was let in takes effect.
    fn take(
        &mut self,
        session: SessionId,
        (inode, range): (InodeId, ByteRange),
        bytes: &[u8],
    ) -> Result<(), Errno> {
        self.changes(session);
        let content = self.content.entry(inode).or_default();
        content.extend((range.start..).zip(bytes.iter().copied()));
        let wrote = Op::Wrote {
            inode,
            ranges: vec![range],
            size_at_least: None,
            mtime: WallTime::default(),
            kill_privileges: false,
        };
        self.run(&wrote).map(|_| ())
    }

    /// What changes the file's own inode as a whole waits for the writes that were let in.
    pub(super) fn let_writes_end(&mut self) {
        while let Some(which) = self.asked.iter().position(|asked| asked.admitted) {
            self.carry_out(which);
        }
    }

    /// Whether a write of a session was let in, and has not taken effect.
    pub(super) fn is_writing(&self, session: SessionId) -> bool {
        let mut asked = self.asked.iter().filter(|asked| asked.admitted);
        asked.any(|asked| session_of(asked.host, asked.life) == session)
    }
}
