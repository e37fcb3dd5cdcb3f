//! `fcntl` locks that a session decides about by itself.
//!
//! A session that locks a file again and again asks for a *cover*: a lock of its own on the whole file, which keeps all other
//! sessions' `fcntl` locks out. While it has that, it decides by itself, as the owner of the container would, who of its
//! programs has which bytes, who waits, and who would wait for ever. When somebody else wants any lock there, the owner calls
//! for the cover: the session gives it back and says in the same step which locks its programs have, so that nobody comes
//! between, and the owner knows them as if each had been asked for. Then those who waited here wait there.
//!
//! What the programs have is known here also while the owner decides, so that a cover begins with what they have already. It
//! is asked for when no request is under way for that file, and none is sent before the answer: what is known here is all
//! there is.
//!
//! The cover is a lock like any other: it is granted by a token, which is that of every lock under it, it outlives
//! the owner, and it ends with its session's sign of life. Its locks are ended with it then, as the session
//! learns when it gives it back: the owner fences the session for each of them, until the program lets go of it.
//!
//! Waits here are part of circles that lead over other hosts: [`Covers::waits`] tells of them. A circle among the programs of
//! one session is found at once where all of its files are covered; any other one has a wait at an owner in it, which is
//! the one that is refused.

use super::habit::Habits;
use super::kept::{IDLE_MAX, KeptId, Life};
use super::{
    EXACT_MAX, FileLock, LockKind, Mode, Patience, Token, WaitId, cycle::Wait, planted, table,
};
use crate::op::Reply;
use crate::queue::{Ask, LockQueue, Ticket, Turn};
use crate::record::HeldLocks;
use perigee_types::{ByteRange, Errno, InodeId, SessionId, Tick};
use std::collections::BTreeMap;

/// What a program asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// The file.
    pub inode: InodeId,
    /// An `fcntl` lock, or bytes that are let go of.
    pub lock: FileLock,
    /// What becomes of it where others have it.
    pub patience: Patience,
}

/// Who decides about a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// The session: this is the owner's answer, as it would have been.
    Here(Result<Reply, Errno>),
    /// The owner is to be asked; [`Covers::answered`] hears what it says.
    Owner,
    /// Nobody now: it is asked again at [`Step::GoOn`].
    Later,
}

/// What is to be done next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// The owner is asked for a cover of a whole file; [`Covers::cover_answered`] hears what it says.
    Ask(KeptId),
    /// A cover goes back: these locks are under it. [`Covers::ended`] hears of it.
    End(KeptId, Vec<FileLock>),
    /// Who was told [`Decision::Later`] of this file asks again.
    GoOn(InodeId),
    /// Who was told the same has an error: the owner could not be asked. [`Covers::end_again`] follows after a while.
    GiveUp(KeptId),
    /// Who waits under this name asks again.
    Wake(WaitId),
}

/// What the owner has made of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The lock was granted.
    Granted,
    /// The bytes were let go of.
    LetGo,
    /// Everything is as it was, as far as the program knows.
    Unchanged,
}

/// What the owner says of a cover that it was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CoverAnswer {
    /// The session has it.
    Granted(Token),
    /// It has not.
    Refused,
    /// It may have it.
    Unknown,
}

/// What the owner says of a cover that was given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndAnswer {
    /// It has it back.
    Done,
    /// The file is no more.
    Gone,
    /// Nobody knows.
    Unknown,
}

/// What a call for a cover comes to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Called {
    /// It goes back, or is on its way.
    Ends(Vec<Step>),
    /// The session does not know it: the owner may forget it.
    Unknown,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Call {
    None,
    Heard,
}

/// Who decides about a file's locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Stage {
    /// The owner.
    #[default]
    Owner,
    /// The same, until it has answered.
    Asked { id: KeptId, call: Call },
    /// This session.
    Covered { id: KeptId, token: Token },
    /// Nobody, until the owner knows what the programs have.
    Ending { id: KeptId },
}

#[derive(Debug, Clone, Default)]
struct File {
    /// What the programs of this session have.
    table: HeldLocks,
    /// Requests without the owner's answer.
    under_way: u32,
    stage: Stage,
    /// Counts what was decided here.
    decided: u64,
}

impl File {
    fn locks(&self) -> usize {
        self.table.list(LockKind::Posix).len()
    }
}

/// The covers of a session, and who has what under them.
#[derive(Debug)]
pub struct Covers {
    session: SessionId,
    files: BTreeMap<InodeId, File>,
    queue: LockQueue,
    habits: Habits,
    /// The last name of a cover.
    last: u64,
    #[cfg(feature = "plant")]
    plant: Option<super::plant::Plant>,
}

impl Covers {
    /// Of a session that has no locks.
    #[must_use]
    pub fn new(session: SessionId) -> Self {
        Self {
            session,
            files: BTreeMap::new(),
            queue: LockQueue::default(),
            habits: Habits::default(),
            last: 0,
            #[cfg(feature = "plant")]
            plant: None,
        }
    }

    /// Switches a deliberate fault on.
    #[cfg(feature = "plant")]
    #[must_use]
    pub fn with_plant(mut self, plant: Option<super::plant::Plant>) -> Self {
        self.plant = plant;
        self
    }

    /// The lock that the owner is asked for.
    #[must_use]
    pub const fn cover(id: KeptId) -> FileLock {
        FileLock {
            kind: LockKind::Cover,
            owner: id.owner,
            range: ByteRange {
                start: 0,
                end: u64::MAX,
            },
            mode: Some(Mode::Exclusive),
            pid: 0,
        }
    }

    /// A program takes a lock, lets one go, or asks again for one that it waits for.
    pub fn request(&mut self, now: Tick, request: &Request, life: Life) -> (Decision, Vec<Step>) {
        let file = self.files.entry(request.inode).or_default();
        match file.stage {
            Stage::Owner => {
                file.under_way += 1;
                (Decision::Owner, Vec::new())
            }
            Stage::Asked { .. } | Stage::Ending { .. } => (Decision::Later, Vec::new()),
            Stage::Covered { id, token } => {
                let lapsed = life == Life::Unsure && !planted!(self, CoverBeyondLife);
                // A lock, and what lets go of the middle of one, may make two more.
                let full = file.locks() + 2 > EXACT_MAX;
                if full || (lapsed && request.lock.mode.is_some()) {
                    self.habits.called(request.inode);
                    return (Decision::Later, self.end(id));
                }
                let (result, steps) = self.decide(now, request, token);
                (Decision::Here(result), steps)
            }
        }
    }

    /// A program looks whether a lock could be had ([`Reply::Lock`]). Where the owner is asked, nobody need hear of its answer.
    pub fn look(&mut self, inode: InodeId, asked: &FileLock, life: Life) -> (Decision, Vec<Step>) {
        let Some(file) = self.files.get(&inode) else {
            return (Decision::Owner, Vec::new());
        };
        match file.stage {
            Stage::Owner | Stage::Asked { .. } => (Decision::Owner, Vec::new()),
            Stage::Ending { .. } => (Decision::Later, Vec::new()),
            Stage::Covered { id, .. } if life == Life::Unsure => (Decision::Later, self.end(id)),
            Stage::Covered { .. } => {
                let found = table::conflict(&file.table, self.session, asked);
                (Decision::Here(Ok(Reply::Lock(found))), Vec::new())
            }
        }
    }

    fn decide(
        &mut self,
        now: Tick,
        request: &Request,
        token: Token,
    ) -> (Result<Reply, Errno>, Vec<Step>) {
        let Request {
            inode,
            lock,
            patience,
        } = *request;
        let Some(file) = self.files.get_mut(&inode) else {
            return (Err(Errno::EIO), Vec::new());
        };
        if lock.range.is_empty() {
            return (Err(Errno::EINVAL), Vec::new());
        }
        file.decided += 1;
        let conflict = table::conflict(&file.table, self.session, &lock);
        let turn = match (patience, conflict) {
            (Patience::Refuse, None) => Turn::Take,
            (Patience::Refuse, Some(_)) => Turn::Blocked,
            (Patience::Wait(wait), _) => {
                let ticket = Ticket {
                    session: self.session,
                    wait,
                };
                let ask = Ask {
                    inode,
                    ticket,
                    lock,
                };
                self.queue.ask(now, &ask, &file.table)
            }
        };
        let result = match (turn, conflict) {
            (Turn::Take, _) => {
                table::set(&mut file.table, self.session, &lock, Token::default());
                match lock.mode {
                    Some(_) => Ok(Reply::Granted(token)),
                    None => Ok(Reply::Done),
                }
            }
            (Turn::Blocked, Some(other)) | (Turn::Behind(other), _) => Ok(Reply::Blocked(other)),
            (Turn::Deadlock, _) => Err(Errno::EDEADLK),
            (Turn::Full | Turn::Blocked, _) => Err(Errno::ENOLCK),
        };
        if matches!(result, Ok(Reply::Granted(_))) {
            self.habits.used(inode);
        }
        let steps = match turn {
            Turn::Take | Turn::Deadlock => self.wake(now, inode),
            Turn::Blocked | Turn::Behind(_) | Turn::Full => Vec::new(),
        };
        (result, steps)
    }

    fn wake(&mut self, now: Tick, inode: InodeId) -> Vec<Step> {
        let Some(file) = self.files.get(&inode) else {
            return Vec::new();
        };
        let ready = self.queue.changed(now, inode, &file.table);
        ready.iter().map(|ticket| Step::Wake(ticket.wait)).collect()
    }

    /// A program does not wait any more.
    pub fn withdraw(&mut self, now: Tick, inode: InodeId, wait: WaitId) -> Vec<Step> {
        let ticket = Ticket {
            session: self.session,
            wait,
        };
        self.queue.withdraw(inode, ticket);
        self.wake(now, inode)
    }

    /// The owner has answered a request. For the end of all locks of an owner: what lets go of every byte.
    pub fn answered(
        &mut self,
        inode: InodeId,
        lock: &FileLock,
        outcome: Outcome,
        life: Life,
    ) -> Vec<Step> {
        let Some(file) = self.files.get_mut(&inode) else {
            return Vec::new();
        };
        file.under_way = file.under_way.saturating_sub(1);
        let known = match outcome {
            Outcome::Granted => *lock,
            Outcome::LetGo => FileLock {
                mode: None,
                ..*lock
            },
            Outcome::Unchanged => {
                self.tidy(inode);
                return Vec::new();
            }
        };
        table::set(&mut file.table, self.session, &known, Token::default());
        if outcome == Outcome::Granted {
            self.habits.used(inode);
        }
        let steps = self.ask_for_cover(inode, life);
        self.tidy(inode);
        steps
    }

    fn ask_for_cover(&mut self, inode: InodeId, life: Life) -> Vec<Step> {
        let room = self.files.len() <= IDLE_MAX;
        let quiet_needed = !planted!(self, CoverOverRequest);
        let Some(file) = self.files.get_mut(&inode) else {
            return Vec::new();
        };
        let quiet = file.under_way == 0 || !quiet_needed;
        let wanted = quiet && room && life == Life::Shown && file.locks() < EXACT_MAX / 2;
        if file.stage != Stage::Owner || !wanted || !self.habits.pays(inode) {
            return Vec::new();
        }
        self.last += 1;
        let id = KeptId {
            inode,
            kind: LockKind::Cover,
            owner: self.last,
        };
        let call = Call::None;
        file.stage = Stage::Asked { id, call };
        vec![Step::Ask(id)]
    }

    /// The owner has answered [`Step::Ask`].
    pub fn cover_answered(&mut self, id: KeptId, answer: CoverAnswer) -> Vec<Step> {
        let Some(file) = self.files.get_mut(&id.inode) else {
            return Vec::new();
        };
        let Stage::Asked { id: asked, call } = file.stage else {
            return Vec::new();
        };
        if asked != id {
            return Vec::new();
        }
        match answer {
            CoverAnswer::Granted(token) => {
                file.stage = Stage::Covered { id, token };
                if call == Call::Heard && !planted!(self, EarlyCallForgotten) {
                    return self.end(id);
                }
            }
            CoverAnswer::Refused => {
                file.stage = Stage::Owner;
                self.habits.called(id.inode);
                self.tidy(id.inode);
            }
            CoverAnswer::Unknown => {
                self.habits.called(id.inode);
                return self.end(id);
            }
        }
        vec![Step::GoOn(id.inode)]
    }

    /// The owner calls for a cover.
    pub fn called(&mut self, id: KeptId) -> Called {
        let file = self.files.get_mut(&id.inode);
        match file.map(|file| &mut file.stage) {
            Some(Stage::Covered { id: held, .. }) if *held == id => {
                self.habits.called(id.inode);
                Called::Ends(self.end(id))
            }
            Some(Stage::Asked { id: asked, call }) if *asked == id => {
                *call = Call::Heard;
                self.habits.called(id.inode);
                Called::Ends(Vec::new())
            }
            Some(Stage::Ending { id: ending }) if *ending == id => Called::Ends(Vec::new()),
            _ => Called::Unknown,
        }
    }

    /// This host has shown no sign of life for so long that its covers may have been ended.
    pub fn lapsed(&mut self) -> Vec<Step> {
        let mut covered = Vec::new();
        for file in self.files.values_mut() {
            match &mut file.stage {
                Stage::Covered { id, .. } => covered.push(*id),
                Stage::Asked { call, .. } => *call = Call::Heard,
                Stage::Owner | Stage::Ending { .. } => {}
            }
        }
        covered.into_iter().flat_map(|id| self.end(id)).collect()
    }

    /// A cover under which nobody has a lock, and how much was decided under it until now.
    #[must_use]
    pub fn rests_since(&self, inode: InodeId) -> Option<(KeptId, u64)> {
        let file = self.files.get(&inode)?;
        match file.stage {
            Stage::Covered { id, .. } if file.locks() == 0 => Some((id, file.decided)),
            _ => None,
        }
    }

    /// Time has passed: a cover under which nothing was decided since goes back.
    pub fn rested(&mut self, id: KeptId, since: u64) -> Vec<Step> {
        match self.rests_since(id.inode) == Some((id, since)) {
            true => self.end(id),
            false => Vec::new(),
        }
    }

    fn end(&mut self, id: KeptId) -> Vec<Step> {
        let Some(file) = self.files.get_mut(&id.inode) else {
            return Vec::new();
        };
        file.stage = Stage::Ending { id };
        let locks = match planted!(self, CoverEndsBare) {
            true => Vec::new(),
            false => file.table.held().map(|(_, lock, _)| lock).collect(),
        };
        vec![Step::End(id, locks)]
    }

    /// The owner has answered [`Step::End`].
    pub fn ended(&mut self, id: KeptId, answer: EndAnswer) -> Vec<Step> {
        let file = self.files.get_mut(&id.inode);
        let Some(file) = file.filter(|file| file.stage == Stage::Ending { id }) else {
            return Vec::new();
        };
        match answer {
            EndAnswer::Unknown => return vec![Step::GiveUp(id)],
            EndAnswer::Gone => file.table = HeldLocks::default(),
            EndAnswer::Done => {}
        }
        file.stage = Stage::Owner;
        let mut steps = vec![Step::GoOn(id.inode)];
        let waiters = self.queue.dismiss(id.inode);
        steps.extend(waiters.iter().map(|ticket| Step::Wake(ticket.wait)));
        self.tidy(id.inode);
        steps
    }

    /// A while after [`Step::GiveUp`].
    pub fn end_again(&mut self, id: KeptId) -> Vec<Step> {
        let stage = self.files.get(&id.inode).map(|file| file.stage);
        match stage == Some(Stage::Ending { id }) {
            true => self.end(id),
            false => Vec::new(),
        }
    }

    /// Whether the session knows of this cover.
    #[must_use]
    pub fn knows(&self, id: KeptId) -> bool {
        let stage = self.files.get(&id.inode).map(|file| file.stage);
        match stage {
            Some(
                Stage::Asked { id: known, .. }
                | Stage::Covered { id: known, .. }
                | Stage::Ending { id: known },
            ) => known == id,
            Some(Stage::Owner) | None => false,
        }
    }

    /// Who waits for whom here: of the kind [`LockKind::Cover`], for an owner can refuse none of them.
    pub fn waits(&self) -> impl Iterator<Item = Wait> {
        self.queue.waits().map(|wait| Wait {
            kind: LockKind::Cover,
            ..wait
        })
    }

    /// What programs have nothing of, and nobody asks for, is forgotten.
    fn tidy(&mut self, inode: InodeId) {
        let idle = |file: &File| {
            file.stage == Stage::Owner && file.under_way == 0 && file.table.is_empty()
        };
        if self.files.get(&inode).is_some_and(idle) {
            self.files.remove(&inode);
        }
    }
}
