//! Programs: each locks, writes under what it has, locks more, waits, and lets go.

use super::Mark;
use super::host::For;
use super::owner::{Answer, What};
use super::world::{Event, Locks};
use crate::law;
use crate::numbered::Kind;
use perigee_meta::lock::cover::Request;
use perigee_meta::lock::kept::{Fate, KeptId, Wanted};
use perigee_meta::queue::ASK_AGAIN;
use perigee_meta::{FileLock, LockKind, Mode, Op, Patience, Reply, Token, WaitId};
use perigee_types::{ByteRange, Errno, InodeId, Rng};
use std::collections::BTreeMap;

/// Bytes of each file.
pub const BYTES: u64 = 4;

/// A request for a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asked {
    /// Of which file.
    pub inode: InodeId,
    /// Which lock.
    pub lock: FileLock,
    /// Names the wait, where it is ready to.
    pub wait: Option<WaitId>,
    /// Counts the times that it has asked.
    pub round: u64,
}

impl Asked {
    /// How the host keeps it, if it is one of the service.
    const fn kept(&self) -> KeptId {
        KeptId {
            inode: self.inode,
            kind: self.lock.kind,
            owner: self.lock.owner,
        }
    }
}

/// What a program is at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// It thinks.
    Idle,
    /// It has asked for a lock, and has no answer.
    Asking(Asked),
    /// It waits for word.
    Sleeping(Asked),
    /// It writes, or gives locks back.
    Busy,
}

/// A byte that a program believes to have locked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cell {
    /// For what.
    pub mode: Mode,
    /// The owner of the lock, as the container's owner knows it.
    pub owner: u64,
    /// The lock was ended, which the program does not know.
    pub stale: bool,
}

/// A program.
#[derive(Debug)]
pub struct Program {
    /// Its name inside its session.
    pub owner: u64,
    /// What it is at.
    pub state: State,
    /// What it believes to have.
    pub cells: BTreeMap<(InodeId, u64), Cell>,
    /// The lock of the service that it uses.
    using: Option<(KeptId, Wanted)>,
}

impl Program {
    /// One that has nothing.
    #[must_use]
    pub const fn new(owner: u64) -> Self {
        Self {
            owner,
            state: State::Idle,
            cells: BTreeMap::new(),
            using: None,
        }
    }

    /// From when it asks to convert what it has, it counts on what it had and what it asks for only where they agree.
    fn weaken(&mut self, asked: &Asked) {
        let Some(wanted) = asked.lock.mode else {
            return;
        };
        for byte in bytes(asked.lock.range) {
            if let Some(cell) = self.cells.get_mut(&(asked.inode, byte)) {
                if cell.mode.covers(wanted) {
                    cell.mode = wanted;
                } else if !wanted.covers(cell.mode) {
                    cell.mode = Mode::ConcurrentRead;
                }
            }
        }
    }

    fn has(&mut self, inode: InodeId, range: ByteRange, cell: Cell) {
        for byte in bytes(range) {
            self.cells.insert((inode, byte), cell);
        }
    }
}

fn bytes(range: ByteRange) -> std::ops::Range<u64> {
    range.start..range.end.min(BYTES)
}

impl Locks {
    pub(super) fn program_turn(&mut self, host: usize, life: u32, place: usize) {
        let most = [20_000, 200_000][self.rng.below(2) as usize];
        let think = 2_000 + self.rng.below(most);
        let next = Event::Program {
            host,
            life,
            program: place,
        };
        let mut rng = self.rng.fork();
        let calm = self.calm;
        let Some(session) = self.session(host, life) else {
            return;
        };
        let number = session.fresh();
        let program = &session.programs[place];
        let (state, holds) = (program.state.clone(), !program.cells.is_empty());
        self.after(think, next);
        if calm {
            if state == State::Idle && holds {
                self.let_go(host, life, place);
            }
            return;
        }
        let name = (
            Kind::Operation,
            number * 100 + u64::from(life) * 10 + host as u64,
        );
        let text = || format!("n{} program {place}: {state:?}", host + 1);
        if !self.numbered.takes_place(name, self.now, text) {
            return;
        }
        let several = self.kind == LockKind::Posix;
        match state {
            State::Idle if !holds => self.lock_any(host, life, place, &mut rng),
            State::Idle => match rng.below(8) {
                0..=2 => self.write_any(host, life, place, &mut rng),
                3 | 4 if several => self.lock_any(host, life, place, &mut rng),
                _ => self.let_go(host, life, place),
            },
            State::Sleeping(asked) if rng.chance(1, 60) => self.interrupt(host, life, place, asked),
            State::Sleeping(_) | State::Asking(_) | State::Busy => {}
        }
    }

    fn lock_any(&mut self, host: usize, life: u32, place: usize, rng: &mut Rng) {
        let inode = self.files[rng.below(self.files.len() as u64) as usize];
        let start = rng.below(BYTES);
        let end = start + 1 + rng.below(BYTES - start);
        let kind = self.kind;
        let mode = match kind {
            LockKind::Service => Mode::ALL[rng.below(5) as usize],
            _ => [Mode::ProtectedRead, Mode::Exclusive][rng.below(2) as usize],
        };
        let wanted = Wanted {
            inode,
            kind,
            range: match kind {
                LockKind::Flock => ByteRange::ALL,
                _ => ByteRange::new(start, end),
            },
            mode,
        };
        let alive = self.life_of(host);
        let Some(session) = self.session(host, life) else {
            return;
        };
        let is_kept = kind != LockKind::Posix;
        if is_kept && let Some((id, token)) = session.kept.begin(wanted, alive) {
            self.note(Mark::Kept);
            law::locks::on_kept_use(self, token);
            return self.uses(host, life, place, (id, wanted), token);
        }
        let way = match is_kept {
            true => session.kept.make_way(wanted),
            false => Vec::new(),
        };
        let fresh = session.fresh();
        let wait = rng.chance(4, 5).then_some(WaitId(fresh));
        let owner = match is_kept {
            true => fresh,
            false => session.programs[place].owner,
        };
        let lock = FileLock {
            kind,
            owner,
            range: wanted.range,
            mode: Some(mode),
            pid: 0,
        };
        let asked = Asked {
            inode,
            lock,
            wait,
            round: 0,
        };
        if is_kept {
            session.kept.asks(asked.kept());
        }
        let program = &mut session.programs[place];
        program.weaken(&asked);
        program.state = State::Sleeping(asked);
        for id in way {
            self.give_back(host, life, id);
        }
        self.ask(host, life, place);
    }

    /// A program that sleeps, or begins to, asks.
    pub(super) fn ask(&mut self, host: usize, life: u32, place: usize) {
        let Some(session) = self.session(host, life) else {
            return;
        };
        let id = session.id;
        let program = &mut session.programs[place];
        let State::Sleeping(asked) = &program.state else {
            return;
        };
        let asked = Asked {
            round: asked.round + 1,
            ..*asked
        };
        program.state = State::Asking(asked);
        let patience = asked.wait.map_or(Patience::Refuse, Patience::Wait);
        if asked.lock.kind == LockKind::Posix {
            let request = Request {
                inode: asked.inode,
                lock: asked.lock,
                patience,
            };
            return self.decide(host, life, place, request);
        }
        let operation = Op::SetLock {
            inode: asked.inode,
            session: id,
            lock: asked.lock,
            patience,
        };
        self.call(host, life, What::Locks(operation), For::Program(place));
    }

    fn write_any(&mut self, host: usize, life: u32, place: usize, rng: &mut Rng) {
        let kind = self.kind;
        let Some(session) = self.session(host, life) else {
            return;
        };
        let program = &mut session.programs[place];
        let written = program.cells.iter();
        let written = written.filter(|(_, cell)| !cell.mode.is_for_reading());
        let written: Vec<_> = written.map(|(key, cell)| (*key, *cell)).collect();
        if written.is_empty() {
            return;
        }
        let ((inode, byte), cell) = written[rng.below(written.len() as u64) as usize];
        program.state = State::Busy;
        let lock = FileLock {
            kind,
            owner: cell.owner,
            range: ByteRange::new(byte, byte + 1),
            mode: Some(cell.mode),
            pid: place as u32,
        };
        self.call(host, life, What::Write(inode, lock), For::Program(place));
    }

    /// A program gives back what it has of the first file, as it does when it closes it.
    fn let_go(&mut self, host: usize, life: u32, place: usize) {
        let Some(session) = self.session(host, life) else {
            return;
        };
        let program = &mut session.programs[place];
        let Some((inode, _)) = program.cells.keys().next().copied() else {
            return;
        };
        let Some((kept, wanted)) = program.using.take() else {
            return self.let_go_of(host, life, place, inode);
        };
        program.cells.clear();
        self.end_use(host, life, kept, wanted);
    }

    fn end_use(&mut self, host: usize, life: u32, kept: KeptId, wanted: Wanted) {
        let alive = self.life_of(host);
        let Some(session) = self.session(host, life) else {
            return;
        };
        let fate = session.kept.end(kept, wanted, alive);
        if session.kept.rests_since(kept).is_some() {
            let now = self.now;
            let session = self.session(host, life);
            session.map(|session| session.idle_since.insert(kept, now));
        }
        if fate == Fate::GivenBack {
            self.give_back(host, life, kept);
        }
    }

    fn interrupt(&mut self, host: usize, life: u32, place: usize, asked: Asked) {
        self.note(Mark::Interrupted);
        let Some(session) = self.session(host, life) else {
            return;
        };
        session.programs[place].state = State::Idle;
        session.kept.gives_up(asked.kept());
        let Some(wait) = asked.wait else {
            return;
        };
        let withdraw = Op::WithdrawLock {
            inode: asked.inode,
            session: session.id,
            wait,
        };
        self.call(host, life, What::Locks(withdraw), For::Nobody);
        self.withdraw_here(host, life, asked.inode, wait);
    }

    pub(super) fn program_answered(
        &mut self,
        host: usize,
        life: u32,
        place: usize,
        what: &What,
        answer: Answer,
    ) {
        let Answer::Done(result) = answer else {
            return;
        };
        self.log(5, host, || format!("program {place}: {result:?}"));
        let Some(session) = self.session(host, life) else {
            return;
        };
        let program = &mut session.programs[place];
        let asked = match std::mem::replace(&mut program.state, State::Idle) {
            State::Asking(asked) => asked,
            _ => {
                if let (What::Write(inode, _), Err(Errno::EIO)) = (what, result) {
                    self.lost_lock(host, life, place, *inode);
                }
                return;
            }
        };
        match result {
            Ok(Reply::Granted(token)) => self.granted(host, life, place, asked, token),
            Ok(Reply::Blocked(_)) if asked.wait.is_some() => {
                program.state = State::Sleeping(asked);
                self.sleep(host, life, asked);
            }
            Ok(_) => {
                session.kept.gives_up(asked.kept());
                self.note(Mark::Refused);
            }
            Err(_) => session.kept.gives_up(asked.kept()),
        }
    }

    fn sleep(&mut self, host: usize, life: u32, asked: Asked) {
        if let Asked {
            wait: Some(wait),
            round,
            ..
        } = asked
        {
            let again = Event::AskAgain {
                host,
                life,
                wait,
                round,
            };
            self.after(ASK_AGAIN.as_micros(), again);
        }
    }

    fn granted(&mut self, host: usize, life: u32, place: usize, asked: Asked, token: Token) {
        self.note(Mark::Granted);
        if asked.round > 1 {
            self.note(Mark::Waited);
        }
        let stale = self.ended.contains(&token);
        let Some(session) = self.session(host, life) else {
            return;
        };
        let Some(mode) = asked.lock.mode else {
            return;
        };
        let (inode, range, owner) = (asked.inode, asked.lock.range, asked.lock.owner);
        if asked.lock.kind != LockKind::Posix {
            let kind = asked.lock.kind;
            let wanted = Wanted {
                inode,
                kind,
                range,
                mode,
            };
            let id = asked.kept();
            session.kept.granted(id, wanted, token);
            return self.uses(host, life, place, (id, wanted), token);
        }
        let program = &mut session.programs[place];
        let converted = bytes(range).any(|byte| program.cells.contains_key(&(inode, byte)));
        program.has(inode, range, Cell { mode, owner, stale });
        if converted {
            self.note(Mark::Converted);
        }
        law::locks::exclusion(self, host, place);
    }

    /// A use of a lock that the host keeps begins.
    fn uses(
        &mut self,
        host: usize,
        life: u32,
        place: usize,
        (id, wanted): (KeptId, Wanted),
        token: Token,
    ) {
        let stale = self.ended.contains(&token);
        let Some(session) = self.session(host, life) else {
            return;
        };
        let program = &mut session.programs[place];
        let cell = Cell {
            mode: wanted.mode,
            owner: id.owner,
            stale,
        };
        program.has(wanted.inode, wanted.range, cell);
        program.using = Some((id, wanted));
        law::locks::exclusion(self, host, place);
    }

    /// A program learns from a write that it has no lock any more: it closes the file.
    fn lost_lock(&mut self, host: usize, life: u32, place: usize, inode: InodeId) {
        if self.kind == LockKind::Posix {
            return self.let_go_of(host, life, place, inode);
        }
        let Some(session) = self.session(host, life) else {
            return;
        };
        let me = &mut session.programs[place];
        me.cells.clear();
        if let Some((kept, wanted)) = me.using.take() {
            self.end_use(host, life, kept, wanted);
        }
    }

    fn let_go_of(&mut self, host: usize, life: u32, place: usize, inode: InodeId) {
        let Some(session) = self.session(host, life) else {
            return;
        };
        let program = &mut session.programs[place];
        program.cells.retain(|(of, _), _| *of != inode);
        program.state = State::Busy;
        let request = Request {
            inode,
            lock: Self::all_of(program.owner),
            patience: Patience::Refuse,
        };
        self.decide(host, life, place, request);
    }
}
