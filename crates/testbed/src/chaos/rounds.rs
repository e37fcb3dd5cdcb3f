//! What the programs of all nodes fight for: registers, locks with counters, and a few names. What each call was told is
//! written down, and whether it could have come one after the other is looked at when the round is over.
//!
//! A call has its answer when an fsync by the same host has returned after it, since what it did, and what it has seen,
//! may be lost with that host before. A round is one strike's time: what a strike left in doubt does not burden the next.

use super::ledger::Ledger;
use crate::error::{Call, CheckError, Checked};
use perigee_history::model::lock::Locks;
use perigee_history::model::names::{self, Inode, Names, Place};
use perigee_history::model::register::Registers;
use perigee_history::{Budget, Client, History, Model, Recorder, Verdict, check};
use std::fmt;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Registers of a round.
pub const REGISTERS: u64 = 3;
/// Locks of a round: the even ones are taken by `flock`, the others by `fcntl`.
pub const LOCKS: u64 = 2;
/// Files that names can be given to.
const FILES: usize = 6;
/// More calls of a kind are not made in a round: the search for their order has to end.
const CALLS_MAX: usize = 1_500;
/// Configurations that are looked at for each object.
const BUDGET: Budget = Budget(300_000);
/// Somebody may be told of work that an earlier strike has cost when he syncs what is new.
const TOLD_MAX: u32 = 5;

/// The directory that is the root of the names.
pub const ROOT: Inode = 0;
/// One below it, which stays where it is.
pub const BELOW: Inode = 1;

/// What is written down in a round.
#[derive(Debug, Default)]
pub struct Round {
    /// Of the registers.
    pub registers: Recorder<Registers>,
    /// Of the locks.
    pub locks: Recorder<Locks>,
    /// Of the names.
    pub names: Recorder<Names>,
}

/// Where a round takes place.
#[derive(Debug)]
pub struct Ground {
    number: u64,
    /// The folder of the round, below the campaign's directory.
    pub folder: PathBuf,
    /// The inode numbers of the files that can be named.
    pub inodes: Vec<Inode>,
}

#[derive(Debug)]
enum Now {
    Nothing,
    Open(Arc<Ground>, Box<Round>),
    /// Nothing is written down any more.
    Closed(Box<Round>),
}

/// One round after the other.
#[derive(Debug)]
pub struct Rounds {
    now: Mutex<(u64, Now)>,
    values: std::sync::atomic::AtomicU64,
}

impl Default for Rounds {
    fn default() -> Self {
        Self {
            now: Mutex::new((0, Now::Nothing)),
            values: std::sync::atomic::AtomicU64::new(1),
        }
    }
}

/// How many calls were looked at.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Looked {
    /// Answers that an order explains.
    pub explained: usize,
    /// Calls with an unknown outcome in the same histories.
    pub unknown: usize,
    /// Histories that took too long to search: they say nothing.
    pub no_result: usize,
}

impl Looked {
    /// Both.
    pub fn add(&mut self, other: Self) {
        self.explained += other.explained;
        self.unknown += other.unknown;
        self.no_result += other.no_result;
    }
}

impl fmt::Display for Looked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            explained,
            unknown,
            no_result,
        } = self;
        write!(
            f,
            "{explained} answers explained beside {unknown} unknown ones"
        )?;
        match no_result {
            0 => Ok(()),
            count => write!(f, ", {count} histories too long to say"),
        }
    }
}

/// The folder of names on a mount, by the directory's number.
pub fn names_folder(folder: &Path, dir: Inode) -> PathBuf {
    match dir {
        BELOW => folder.join("names/below"),
        _ => folder.join("names"),
    }
}

/// A file that can be given names.
pub fn named_file(folder: &Path, number: usize) -> PathBuf {
    folder.join(format!("file-{number}"))
}

impl Rounds {
    fn now(&self) -> MutexGuard<'_, (u64, Now)> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A value that nobody else writes.
    pub fn fresh(&self) -> u64 {
        let order = std::sync::atomic::Ordering::Relaxed;
        self.values.fetch_add(1, order)
    }

    /// Makes the next round's objects, durably: the first of the mounts all of them, but the second one the lower
    /// directory, which another node may own then.
    ///
    /// Errors: those of making them.
    pub fn begin(&self, mounts: [&Path; 2]) -> Checked {
        let mut told = 0;
        let ground = loop {
            let number = self.now().0 + 1;
            self.now().0 = number;
            match make(number, mounts) {
                Err(CheckError::Call { source, .. })
                    if source.raw_os_error() == Some(libc::EIO) && told < TOLD_MAX =>
                {
                    told += 1;
                }
                made => break made?,
            }
        };
        let mut round = Box::<Round>::default();
        let below = Place {
            dir: ROOT,
            name: b"below".to_vec(),
        };
        let ticket = round.names.invoke(Client(0), names::Op::Add(below, BELOW));
        round.names.answer(ticket, names::Answer::Done);
        self.now().1 = Now::Open(Arc::new(ground), round);
        Ok(())
    }

    /// Where the round takes place that goes on.
    pub fn ground(&self) -> Option<Arc<Ground>> {
        match &self.now().1 {
            Now::Open(ground, _) => Some(Arc::clone(ground)),
            Now::Nothing | Now::Closed(_) => None,
        }
    }

    /// Writes something down, unless that round is over.
    pub fn note<T>(&self, ground: &Ground, note: impl FnOnce(&mut Round) -> T) -> Option<T> {
        match &mut self.now().1 {
            Now::Open(now, round) if now.number == ground.number => Some(note(round)),
            _ => None,
        }
    }

    /// All nodes have died: what was seen and not synced may be gone, and nothing more is written down.
    pub fn close(&self) {
        let now = &mut self.now().1;
        *now = match std::mem::replace(now, Now::Nothing) {
            Now::Open(_, round) => Now::Closed(round),
            other => other,
        };
    }

    /// Looks for orders that explain what was written down.
    ///
    /// Errors: there is none.
    pub fn end(&self) -> Checked<Looked> {
        self.close();
        let ended = std::mem::replace(&mut self.now().1, Now::Nothing);
        let mut looked = Looked::default();
        if let Now::Closed(round) = ended {
            look(
                "registers",
                &Registers,
                &round.registers.close(),
                &mut looked,
            )?;
            look("locks", &Locks, &round.locks.close(), &mut looked)?;
            let mut names = round.names.close();
            names.doubt_renames();
            look("names", &Names { root: ROOT }, &names, &mut looked)?;
        }
        Ok(looked)
    }
}

impl Round {
    /// Whether no more calls are to be made.
    pub fn is_full<M: Model>(recorder: &Recorder<M>) -> bool {
        recorder.len() >= CALLS_MAX
    }
}

fn look<M: Model>(what: &str, model: &M, history: &History<M>, looked: &mut Looked) -> Checked {
    match check(model, history, BUDGET) {
        Verdict::Explained => {
            looked.explained += history.answered();
            looked.unknown += history.unknown();
            Ok(())
        }
        Verdict::NoResult => {
            looked.no_result += 1;
            Ok(())
        }
        Verdict::Impossible(stuck) => Err(CheckError::violated(format!("{what}: {stuck}"))),
    }
}

fn make(number: u64, [mount, other]: [&Path; 2]) -> Checked<Ground> {
    let folder = PathBuf::from(format!("round-{number}"));
    let here = mount.join(&folder);
    let directory = |path: &Path| fs::create_dir(path).call(|| format!("make {}", path.display()));
    directory(&here)?;
    directory(&names_folder(&here, ROOT))?;
    directory(&names_folder(&other.join(&folder), BELOW))?;
    let sync = |path: &Path| {
        let synced = File::open(path).and_then(|file| file.sync_all());
        synced.call(|| format!("sync {}", path.display()))
    };
    let make = |path: &Path, content: &[u8]| {
        fs::write(path, content).call(|| format!("make {}", path.display()))?;
        sync(path)
    };
    for key in 0..REGISTERS {
        make(
            &here.join(format!("register-{key}")),
            &Ledger::register_content(0, 0),
        )?;
    }
    for key in 0..LOCKS {
        make(
            &here.join(format!("lock-{key}")),
            &Ledger::register_content(0, 0),
        )?;
    }
    let mut inodes = Vec::new();
    for file in 0..FILES {
        let path = named_file(&here, file);
        make(&path, b"")?;
        let found = fs::metadata(&path).call(|| format!("look at {}", path.display()))?;
        inodes.push(found.ino());
    }
    for path in [
        &names_folder(&here, BELOW),
        &names_folder(&here, ROOT),
        &here,
        &mount.to_owned(),
    ] {
        sync(path)?;
    }
    Ok(Ground {
        number,
        folder,
        inodes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use perigee_history::model::{lock, register};

    /// A round in a folder of its own, with these notes.
    fn round(note: impl FnOnce(&mut Round)) -> Checked<Looked> {
        let folder = tempfile::tempdir().unwrap();
        let rounds = Rounds::default();
        rounds.begin([folder.path(), folder.path()]).unwrap();
        let ground = rounds.ground().unwrap();
        rounds.note(&ground, note).unwrap();
        rounds.end()
    }

    #[test]
    fn an_older_value_after_a_newer_one_is_found() {
        let told = |values: [u64; 2]| {
            round(|round| {
                let register = &mut round.registers;
                let write = register.invoke(Client(1), register::Op::Write(0, 7));
                register.answer(write, register::Answer::Written);
                for value in values {
                    let read = register.invoke(Client(2), register::Op::Read(0));
                    register.answer(read, register::Answer::Value(value));
                }
            })
        };
        assert_eq!(told([7, 7]).unwrap().explained, 4);
        assert!(told([7, 0]).is_err());
    }

    #[test]
    fn two_holders_of_a_lock_are_found_unless_one_was_in_trouble() {
        let told = |trouble: bool| {
            round(|round| {
                for by in [Client(1), Client(2)] {
                    let op = |act| lock::Op { key: 0, by, act };
                    let take = round.locks.invoke(by, op(lock::Act::Take));
                    if trouble {
                        _ = round.locks.invoke(by, op(lock::Act::Give));
                    }
                    round.locks.answer(take, lock::Answer::Done);
                }
            })
        };
        assert!(told(false).is_err());
        assert_eq!(told(true).unwrap().unknown, 2);
    }

    #[test]
    fn a_rename_may_do_nothing_only_beside_another_one_that_moves_the_file() {
        let place = |name: &[u8]| Place {
            dir: ROOT,
            name: name.to_vec(),
        };
        let (from, to) = (place(b"a"), place(b"b"));
        let told = |beside: bool| {
            round(|round| {
                let names = &mut round.names;
                let add = names.invoke(Client(1), names::Op::Add(from.clone(), 7));
                names.answer(add, names::Answer::Done);
                let rename = || names::Op::Rename(from.clone(), to.clone(), names::Move::Replace);
                let first = names.invoke(Client(1), rename());
                if !beside {
                    names.answer(first, names::Answer::Done);
                }
                let second = names.invoke(Client(2), rename());
                names.answer(second, names::Answer::Done);
                if beside {
                    names.answer(first, names::Answer::Done);
                }
            })
        };
        assert!(told(true).is_ok());
        assert!(told(false).is_err());
    }

    #[test]
    fn what_comes_after_the_end_of_a_round_is_not_of_the_next_one() {
        let folder = tempfile::tempdir().unwrap();
        let rounds = Rounds::default();
        rounds.begin([folder.path(), folder.path()]).unwrap();
        let first = rounds.ground().unwrap();
        rounds.close();
        assert!(rounds.ground().is_none());
        rounds.end().unwrap();
        rounds.begin([folder.path(), folder.path()]).unwrap();
        assert_eq!(rounds.note(&first, |_| ()), None);
        assert!(rounds.note(&rounds.ground().unwrap(), |_| ()).is_some());
    }
}
