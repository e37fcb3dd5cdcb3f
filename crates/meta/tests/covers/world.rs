//! Sessions with covers, and an owner.

use crate::fixture::{Fs, ROOT, lock, session};
use perigee_meta::lock::cover::{
    Called, CoverAnswer, Covers, Decision, EndAnswer, Outcome, Request, Step,
};
use perigee_meta::lock::cycle::victims;
use perigee_meta::lock::kept::{KeptId, Life};
use perigee_meta::queue::{ASK_AGAIN, Admission, Asked, LockQueue, Ticket};
use perigee_meta::{FileLock, HeldLocks, LockKind, Mode, Op, Patience, Reply, WaitId, held_locks};
use perigee_types::{ByteRange, Errno, InodeId, SessionId, Tick};
use std::collections::BTreeMap;

pub const SESSIONS: usize = 3;
/// Programs of each session.
pub const PROGRAMS: u64 = 2;
pub const FILES: usize = 2;
pub const BYTES: u64 = 5;

/// A program that waits, or whose request is under way.
#[derive(Debug, Clone)]
pub struct Asking {
    pub request: Request,
    /// The bytes that it has for more than it asks for.
    pub had: Vec<(u64, Mode)>,
}

/// What is between a session and the owner.
#[derive(Debug, Clone)]
pub enum Message {
    Request(Request),
    Answer(Request, Result<Reply, Errno>),
    Ask(KeptId),
    CoverAnswer(KeptId, CoverAnswer),
    End(KeptId, Vec<FileLock>),
    EndAnswer(KeptId),
    Call(KeptId),
    Turn(WaitId),
}

pub type Holder = (usize, u64);

/// Sessions, and an owner, who is told everything in any order.
pub struct World {
    pub fs: Fs,
    pub files: Vec<InodeId>,
    pub queue: LockQueue,
    pub now: Tick,
    pub next: u64,
    pub covers: Vec<Covers>,
    /// Of each session: what is not decided yet, by program.
    pub asking: BTreeMap<Holder, Asking>,
    pub later: Vec<(usize, Request)>,
    pub messages: Vec<(usize, Message)>,
    /// What programs believe to have.
    pub cells: BTreeMap<(InodeId, u64), BTreeMap<Holder, Mode>>,
    /// Messages to the owner.
    pub sent: u64,
    pub refused: Vec<(Holder, Errno)>,
}

pub fn session_of(place: usize) -> SessionId {
    session(place as u64)
}

fn bytes(range: ByteRange) -> std::ops::Range<u64> {
    range.start..range.end.min(BYTES)
}

impl World {
    pub fn new() -> Self {
        let mut fs = Fs::new();
        let files = (0..FILES).map(|n| fs.file(ROOT, &n.to_string())).collect();
        Self {
            fs,
            files,
            queue: LockQueue::default(),
            now: Tick(1),
            next: 0,
            covers: (0..SESSIONS).map(|s| Covers::new(session_of(s))).collect(),
            asking: BTreeMap::new(),
            later: Vec::new(),
            messages: Vec::new(),
            cells: BTreeMap::new(),
            sent: 0,
            refused: Vec::new(),
        }
    }

    pub fn table(&mut self, inode: InodeId) -> HeldLocks {
        held_locks(&mut self.fs.view, inode).expect("a table")
    }

    /// A program asks for a lock, or lets one go, unless it waits already.
    pub fn begin(&mut self, (place, owner): Holder, file: usize, mut lock: FileLock, waits: bool) {
        if self.asking.contains_key(&(place, owner)) {
            return;
        }
        self.next += 1;
        lock.owner = owner;
        let patience = match waits && lock.mode.is_some() {
            true => Patience::Wait(WaitId(self.next)),
            false => Patience::Refuse,
        };
        let inode = self.files[file];
        let request = Request {
            inode,
            lock,
            patience,
        };
        let mut had_more = Vec::new();
        for byte in bytes(lock.range) {
            let cell = self.cells.entry((inode, byte)).or_default();
            match (cell.get(&(place, owner)).copied(), lock.mode) {
                (Some(_), None) => _ = cell.remove(&(place, owner)),
                (Some(had), Some(wanted)) if had.covers(wanted) => {
                    cell.insert((place, owner), wanted);
                    had_more.push((byte, had));
                }
                _ => {}
            }
        }
        let had = had_more;
        self.asking.insert((place, owner), Asking { request, had });
        self.ask(place, request);
    }

    pub fn ask(&mut self, place: usize, request: Request) {
        let (decision, steps) = self.covers[place].request(self.now, &request, Life::Shown);
        match decision {
            Decision::Here(result) => self.told(place, request, result),
            Decision::Owner => self.messages.push((place, Message::Request(request))),
            Decision::Later => self.later.push((place, request)),
        }
        self.perform(place, steps);
    }

    pub fn told(&mut self, place: usize, request: Request, result: Result<Reply, Errno>) {
        let holder = (place, request.lock.owner);
        let waits = matches!(request.patience, Patience::Wait(_));
        match result {
            Ok(Reply::Blocked(_)) if waits => return,
            Ok(Reply::Granted(_)) => {
                let mode = request.lock.mode.expect("it is taken");
                for byte in bytes(request.lock.range) {
                    let cell = self.cells.entry((request.inode, byte)).or_default();
                    cell.insert(holder, mode);
                    let others = cell.iter().filter(|(other, _)| **other != holder);
                    for (other, theirs) in others {
                        assert!(
                            mode.is_compatible_with(*theirs),
                            "{holder:?} and {other:?} at {byte}: {request:?}"
                        );
                    }
                }
            }
            Ok(Reply::Done) => {}
            Ok(Reply::Blocked(_)) => self.has_still(holder),
            Ok(other) => panic!("{other:?}"),
            Err(errno) => {
                self.has_still(holder);
                self.refused.push((holder, errno));
            }
        }
        self.asking.remove(&holder);
    }

    /// A program was refused what it asked for, and has what it had.
    pub fn has_still(&mut self, holder: Holder) {
        if let Some(Asking { request, had }) = self.asking.get(&holder) {
            for (byte, mode) in had {
                let cell = self.cells.entry((request.inode, *byte)).or_default();
                cell.insert(holder, *mode);
            }
        }
    }

    pub fn perform(&mut self, place: usize, steps: Vec<Step>) {
        for step in steps {
            match step {
                Step::Ask(id) => self.messages.push((place, Message::Ask(id))),
                Step::End(id, locks) => self.messages.push((place, Message::End(id, locks))),
                Step::GiveUp(id) => panic!("{id:?} is always answered"),
                Step::Wake(wait) => self.wake(place, wait),
                Step::GoOn(inode) => {
                    let of_file =
                        |(at, request): &(usize, Request)| (*at, request.inode) == (place, inode);
                    let all = std::mem::take(&mut self.later);
                    let (now, later) = all.into_iter().partition(of_file);
                    self.later = later;
                    let now: Vec<(usize, Request)> = now;
                    for (place, request) in now {
                        self.ask(place, request);
                    }
                }
            }
        }
    }

    pub fn is_under_way(&self, request: &Request) -> bool {
        let mut messages = self.messages.iter().map(|(_, message)| message);
        let mut later = self.later.iter();
        messages.any(|message| {
            matches!(message, Message::Request(r) | Message::Answer(r, _) if r == request)
        }) || later.any(|(_, r)| r == request)
    }

    pub fn wake(&mut self, place: usize, wait: WaitId) {
        let mut asking = self.asking.iter().filter(|((at, _), _)| *at == place);
        let found = asking.find(|(_, asking)| asking.request.patience == Patience::Wait(wait));
        let request = found.map(|(_, asking)| asking.request);
        if let Some(request) = request.filter(|request| !self.is_under_way(request)) {
            self.ask(place, request);
        }
    }

    /// The owner does what it is asked, in the order of those who wait.
    pub fn own(&mut self, place: usize, op: &Op) -> Option<Result<Reply, Errno>> {
        self.sent += 1;
        let (view, now) = (&mut self.fs.view, self.now);
        let admitted = self.queue.admit(
            now,
            session_of(place),
            (op, &Asked::Called([].into())),
            |inode| held_locks(view, inode),
        );
        match admitted.expect("a table") {
            Admission::Run => {}
            Admission::RunAndCall(owners) => self.call(op, &owners),
            Admission::CallFirst(owners) => {
                self.call(op, &owners);
                return None;
            }
            Admission::Answered(result) => return Some(result),
            Admission::Gone(errno) => {
                self.look(op, &Reply::Done);
                return Some(Err(errno));
            }
        }
        let result = self.fs.run(op);
        if let Ok(reply) = &result {
            self.look(op, reply);
        }
        Some(result)
    }

    pub fn call(&mut self, op: &Op, owners: &[perigee_meta::LockOwner]) {
        let (Op::SetLock { inode, .. } | Op::GetLock { inode, .. }) = op else {
            panic!("{op:?} calls");
        };
        for owner in owners {
            let id = KeptId {
                inode: *inode,
                kind: LockKind::Cover,
                owner: owner.owner,
            };
            let place = (0..SESSIONS).find(|place| session_of(*place) == owner.session);
            let place = place.expect("a session of this world");
            self.messages.push((place, Message::Call(id)));
        }
    }

    pub fn look(&mut self, op: &Op, reply: &Reply) {
        for inode in self.queue.ran(op, reply) {
            let held = self.table(inode);
            for Ticket { session, wait } in self.queue.changed(self.now, inode, &held) {
                let place = (0..SESSIONS).find(|place| session_of(*place) == session);
                let place = place.expect("a session of this world");
                self.messages.push((place, Message::Turn(wait)));
            }
        }
    }

    /// One message arrives.
    pub fn deliver(&mut self, place: usize, message: Message) {
        let session = session_of(place);
        match message {
            Message::Request(request) => {
                let op = Op::SetLock {
                    inode: request.inode,
                    session,
                    lock: request.lock,
                    patience: request.patience,
                };
                let message = match self.own(place, &op) {
                    Some(result) => Message::Answer(request, result),
                    None => Message::Request(request),
                };
                self.messages.push((place, message));
            }
            Message::Answer(request, result) => {
                let outcome = match &result {
                    Ok(Reply::Granted(_)) => Outcome::Granted,
                    Ok(Reply::Done) => Outcome::LetGo,
                    _ => Outcome::Unchanged,
                };
                let (inode, lock) = (request.inode, request.lock);
                let steps = self.covers[place].answered(inode, &lock, outcome, Life::Shown);
                self.told(place, request, result);
                self.perform(place, steps);
            }
            Message::Ask(id) => {
                let op = Op::SetLock {
                    inode: id.inode,
                    session,
                    lock: Covers::cover(id),
                    patience: Patience::Refuse,
                };
                let answer = match self.own(place, &op).expect("a cover calls nobody") {
                    Ok(Reply::Granted(token)) => CoverAnswer::Granted(token),
                    _ => CoverAnswer::Refused,
                };
                self.messages
                    .push((place, Message::CoverAnswer(id, answer)));
            }
            Message::CoverAnswer(id, answer) => {
                let steps = self.covers[place].cover_answered(id, answer);
                self.perform(place, steps);
            }
            Message::End(id, locks) => {
                let op = Op::EndCover {
                    inode: id.inode,
                    session,
                    cover: id.owner,
                    locks,
                };
                let ended = self.own(place, &op);
                assert_eq!(ended, Some(Ok(Reply::Done)), "{op:?}");
                self.messages.push((place, Message::EndAnswer(id)));
            }
            Message::EndAnswer(id) => {
                let steps = self.covers[place].ended(id, EndAnswer::Done);
                self.perform(place, steps);
            }
            Message::Call(id) => {
                if let Called::Ends(steps) = self.covers[place].called(id) {
                    self.perform(place, steps);
                }
            }
            Message::Turn(wait) => self.wake(place, wait),
        }
    }

    /// The next message of some session; those of one session to the owner come in any order.
    pub fn deliver_any(&mut self, choice: usize) {
        if !self.messages.is_empty() {
            let (place, message) = self.messages.remove(choice % self.messages.len());
            self.deliver(place, message);
        }
    }

    /// Everything arrives.
    pub fn settle(&mut self) {
        for _ in 0..10_000 {
            if self.messages.is_empty() {
                return;
            }
            self.deliver_any(0);
        }
        panic!("messages without an end: {:?}", self.messages);
    }

    /// Who waits asks again, and circles are looked for.
    pub fn pass(&mut self) {
        self.now = self.now + ASK_AGAIN;
        let here = self.covers.iter().flat_map(Covers::waits);
        let waits: Vec<_> = here.chain(self.queue.waits()).collect();
        for victim in victims(&waits, &waits) {
            assert!(self.queue.end_cycle(&victim), "an owner can refuse it");
        }
        let waiting: Vec<(usize, Request)> = self
            .asking
            .iter()
            .map(|((place, _), asking)| (*place, asking.request))
            .filter(|(_, request)| !self.is_under_way(request))
            .collect();
        for (place, request) in waiting {
            self.ask(place, request);
        }
    }

    /// What stands in the way of a lock, as a program is told.
    pub fn looks(&mut self, place: usize, inode: InodeId, lock: &FileLock) -> Option<FileLock> {
        self.settle();
        loop {
            let (decision, steps) = self.covers[place].look(inode, lock, Life::Shown);
            self.perform(place, steps);
            let reply = match decision {
                Decision::Here(reply) => Some(reply),
                Decision::Later => None,
                Decision::Owner => {
                    let session = session_of(place);
                    self.own(
                        place,
                        &Op::GetLock {
                            inode,
                            session,
                            lock: *lock,
                        },
                    )
                }
            };
            match reply {
                Some(Ok(Reply::Lock(found))) => return found,
                Some(other) => panic!("{other:?}"),
                None => self.settle(),
            }
        }
    }

    /// A look shows what the cells show, and no cover.
    pub fn look_is_right(&mut self, (place, owner): Holder, file: usize, mut lock: FileLock) {
        let Some(mode) = lock.mode else { return };
        lock.owner = owner;
        let inode = self.files[file];
        let found = self.looks(place, inode, &lock);
        let stands = |byte: &u64| {
            let cell = self.cells.get(&(inode, *byte)).into_iter().flatten();
            let mut others = cell.filter(|(holder, _)| **holder != (place, owner));
            others.any(|(_, theirs)| !mode.is_compatible_with(*theirs))
        };
        assert_eq!(found.is_some(), bytes(lock.range).any(|b| stands(&b)));
        let Some(found) = found else { return };
        assert_eq!((found.kind, found.pid), (LockKind::Posix, 7));
        for byte in bytes(found.range) {
            let cell = &self.cells[&(inode, byte)];
            let holds = |(holder, mode): (&Holder, &Mode)| {
                holder.1 == found.owner && Some(*mode) == found.mode
            };
            assert!(cell.iter().any(holds), "{found:?} at {byte}: {cell:?}");
        }
    }

    pub fn let_all_go(&mut self) {
        for holder in (0..SESSIONS).flat_map(|s| (0..PROGRAMS).map(move |p| (s, p))) {
            for file in 0..FILES {
                self.settle();
                self.begin(
                    holder,
                    file,
                    lock(LockKind::Posix, 0, 0, u64::MAX, None),
                    false,
                );
            }
        }
        self.settle();
    }
}
