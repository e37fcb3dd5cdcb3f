//! What the programs do in a round: see [`super::rounds`].

use super::ledger::Ledger;
use super::rounds::{BELOW, Ground, LOCKS, REGISTERS, ROOT, Round, named_file, names_folder};
use super::worker::{Failed, Worker};
use crate::lock::{Mode, Patience, Span, fcntl, flock};
use perigee_history::model::lock::{self, Act};
use perigee_history::model::names::{self, Inode, Move, Place};
use perigee_history::model::register;
use perigee_history::{Client, Ticket};
use rustix::fs::{CWD, RenameFlags};
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

/// Names in each of both directories.
const NAMES: u64 = 3;

impl Worker<'_> {
    /// One call of a round, if one goes on.
    pub(super) fn contend(&mut self) -> Result<(), Failed> {
        let Some(ground) = self.ledger.rounds.ground() else {
            return Ok(());
        };
        match self.rng.below(3) {
            0 => self.contend_for_register(&ground),
            1 => self.contend_for_lock(&ground),
            _ => self.contend_for_names(&ground),
        }
    }

    /// Whether its node was not struck since the step began.
    fn is_undisturbed(&self) -> bool {
        self.stage.strikes_on(self.node) == self.turn.strikes()
    }

    fn client(&self) -> Client {
        Client(self.node)
    }

    fn note<T>(&self, ground: &Ground, note: impl FnOnce(&mut Round) -> T) -> Option<T> {
        self.ledger.rounds.note(ground, note)
    }

    fn open_shared(&self, path: &Path) -> Result<File, Failed> {
        self.call("open of a shared file", || {
            OpenOptions::new().read(true).write(true).open(path)
        })
    }

    fn read_shared(&self, file: &File) -> Result<u64, Failed> {
        let mut content = Ledger::register_content(0, 0);
        self.call("read of a shared file", || {
            file.read_exact_at(&mut content, 0)
        })?;
        Ledger::register_value(0, &content).map_err(Failed::Wrong)
    }

    fn write_shared(&self, file: &File, value: u64) -> Result<(), Failed> {
        let content = Ledger::register_content(0, value);
        self.call("write of a shared file", || file.write_all_at(&content, 0))?;
        self.call("fsync of a shared file", || file.sync_all())
    }

    fn contend_for_register(&mut self, ground: &Ground) -> Result<(), Failed> {
        let key = self.rng.below(REGISTERS) as u32;
        let file = self.open_shared(
            &self
                .root
                .join(&ground.folder)
                .join(format!("register-{key}")),
        )?;
        let value = self.rng.chance(1, 2).then(|| self.ledger.rounds.fresh());
        let op = value.map_or(register::Op::Read(key), |value| {
            register::Op::Write(key, value)
        });
        let begin = |round: &mut Round| {
            let full = Round::is_full(&round.registers);
            (!full).then(|| round.registers.invoke(self.client(), op))
        };
        let Some(ticket) = self.note(ground, begin).flatten() else {
            return Ok(());
        };
        let answer = match value {
            Some(value) => self
                .write_shared(&file, value)
                .map(|()| register::Answer::Written),
            None => self.read_shared(&file).and_then(|seen| {
                self.call("fsync of a shared file", || file.sync_all())?;
                Ok(register::Answer::Value(seen))
            }),
        };
        self.note(ground, |round| match &answer {
            Ok(answer) => round.registers.answer(ticket, *answer),
            Err(_) if value.is_none() => round.registers.withdraw(ticket),
            Err(_) => {}
        });
        answer.map(drop)
    }

    /// Takes a lock, counts, and gives it back. When its node is struck meanwhile, the lock may end at any time, and
    /// what is written may come at any time.
    fn contend_for_lock(&mut self, ground: &Ground) -> Result<(), Failed> {
        let key = self.rng.below(LOCKS) as u32;
        let file = self.open_shared(&self.root.join(&ground.folder).join(format!("lock-{key}")))?;
        // A holder of its own for each time, so that an end in doubt is that of no later one.
        let by = Client(u32::try_from(self.ledger.rounds.fresh()).unwrap_or(u32::MAX));
        let mut section = Section {
            worker: self,
            ground,
            file,
            key,
            by,
        };
        section.enter()
    }

    fn contested_name(&mut self) -> Place {
        Place {
            dir: [ROOT, BELOW][self.rng.below(2) as usize],
            name: vec![b'a' + self.rng.below(NAMES) as u8],
        }
    }

    fn contend_for_names(&mut self, ground: &Ground) -> Result<(), Failed> {
        let file = self.rng.below(ground.inodes.len() as u64) as usize;
        let (one, two) = (self.contested_name(), self.contested_name());
        let how = [Move::Replace, Move::NoReplace, Move::Exchange];
        let op = match self.rng.below(8) {
            0 | 1 => names::Op::Add(one, ground.inodes[file]),
            2 => names::Op::Remove(one),
            3..=5 => names::Op::Rename(one, two, how[self.rng.below(3) as usize]),
            _ => names::Op::Find(one),
        };
        let folder = self.root.join(&ground.folder);
        let asked = op.clone();
        let begin = |round: &mut Round| {
            let full = Round::is_full(&round.names);
            (!full).then(|| round.names.invoke(self.client(), asked))
        };
        let Some(ticket) = self.note(ground, begin).flatten() else {
            return Ok(());
        };
        let done = self
            .call("a call on shared names", || {
                let answer = perform(&folder, &op, file);
                answer.or_else(|error| told(&error).ok_or(error))
            })
            .and_then(|answer| {
                for dir in [ROOT, BELOW] {
                    let path = names_folder(&folder, dir);
                    self.call("fsync of shared names", || File::open(&path)?.sync_all())?;
                }
                Ok(answer)
            });
        let changed = matches!(done, Ok(names::Answer::Done));
        let certain = changed || self.is_undisturbed();
        let reads = matches!(op, names::Op::Find(_));
        self.note(ground, |round| match &done {
            Ok(answer) if certain => round.names.answer(ticket, *answer),
            // It was refused, by what a host in trouble may still believe; or only looked.
            Ok(_) => round.names.withdraw(ticket),
            Err(_) if reads => round.names.withdraw(ticket),
            Err(_) => {}
        });
        done.map(drop)
    }
}

/// One program's time with a lock.
struct Section<'a, 'b> {
    worker: &'a Worker<'b>,
    ground: &'a Ground,
    file: File,
    key: u32,
    by: Client,
}

impl Section<'_, '_> {
    fn invoke(&self, act: Act) -> Option<Ticket> {
        let op = lock::Op {
            key: self.key,
            by: self.by,
            act,
        };
        self.worker
            .note(self.ground, |round| round.locks.invoke(self.by, op))
    }

    fn answer(&self, ticket: Option<Ticket>, answer: lock::Answer) {
        self.worker.note(self.ground, |round| {
            if let Some(ticket) = ticket {
                round.locks.answer(ticket, answer);
            }
        });
    }

    fn withdraw(&self, ticket: Option<Ticket>) {
        self.worker.note(self.ground, |round| {
            if let Some(ticket) = ticket {
                round.locks.withdraw(ticket);
            }
        });
    }

    fn lock(&self, mode: Mode) -> io::Result<()> {
        if self.key.is_multiple_of(2) {
            flock(&self.file, mode, Patience::Refuse)
        } else {
            fcntl(&self.file, mode, Span::WHOLE, Patience::Refuse)
        }
    }

    fn enter(&mut self) -> Result<(), Failed> {
        let is_full = |round: &mut Round| Round::is_full(&round.locks);
        if self.worker.note(self.ground, is_full) != Some(false) {
            return Ok(());
        }
        let take = self.invoke(Act::Take);
        // Its end in doubt, if it comes to that.
        let end = self.invoke(Act::Give);
        let taken = self
            .worker
            .call("a lock", || match self.lock(Mode::Exclusive) {
                Ok(()) => Ok(true),
                Err(error) if is_refusal(&error) => Ok(false),
                Err(error) => Err(error),
            })?;
        if !taken {
            // What a host in trouble says of others' locks is of no time.
            if self.worker.is_undisturbed() {
                self.answer(take, lock::Answer::Busy);
            } else {
                self.withdraw(take);
            }
            self.withdraw(end);
            return Ok(());
        }
        self.answer(take, lock::Answer::Done);
        self.count()?;
        let give = self.invoke(Act::Give);
        self.worker
            .call("giving a lock back", || self.lock(Mode::Free))?;
        // Until then it may be lost with an owner that this host is.
        self.worker
            .call("fsync of a shared file", || self.file.sync_all())?;
        if self.worker.is_undisturbed() {
            self.answer(give, lock::Answer::Done);
            self.withdraw(end);
        }
        Ok(())
    }

    /// Adds one to the counter.
    fn count(&self) -> Result<(), Failed> {
        let read = self.invoke(Act::Read);
        let seen = match self.worker.read_shared(&self.file) {
            Ok(seen) => seen,
            Err(error) => {
                self.withdraw(read);
                return Err(error);
            }
        };
        let write = self.invoke(Act::Write(seen + 1));
        let written = self.worker.write_shared(&self.file, seen + 1);
        if written.is_ok() && self.worker.is_undisturbed() {
            self.answer(read, lock::Answer::Value(seen));
            self.answer(write, lock::Answer::Done);
        } else {
            self.withdraw(read);
        }
        written
    }
}

fn is_refusal(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES))
}

/// What an error says about the names, if it does.
fn told(error: &io::Error) -> Option<names::Answer> {
    match error.kind() {
        ErrorKind::NotFound => Some(names::Answer::Missing),
        ErrorKind::AlreadyExists => Some(names::Answer::Exists),
        _ => None,
    }
}

fn perform(folder: &Path, op: &names::Op, file: usize) -> io::Result<names::Answer> {
    let at = |place: &Place| {
        let name = String::from_utf8_lossy(&place.name).into_owned();
        names_folder(folder, place.dir).join(name)
    };
    match op {
        names::Op::Add(place, _) => fs::hard_link(named_file(folder, file), at(place))?,
        names::Op::Remove(place) => fs::remove_file(at(place))?,
        names::Op::Rename(from, to, how) => {
            let flags = match how {
                Move::Replace => RenameFlags::empty(),
                Move::NoReplace => RenameFlags::NOREPLACE,
                Move::Exchange => RenameFlags::EXCHANGE,
            };
            rustix::fs::renameat_with(CWD, at(from), CWD, at(to), flags)?;
        }
        names::Op::Find(place) => {
            let inode: Inode = fs::symlink_metadata(at(place))?.ino();
            return Ok(names::Answer::Is(inode));
        }
    }
    Ok(names::Answer::Done)
}
