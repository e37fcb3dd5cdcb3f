//! The log file as the engine uses it: opened, appended to, replaced by a shorter one.

use crate::disk::Disk;
use crate::error::EngineError;
use crate::log::{self, HEADER_LEN};
use crate::state::{Change, History, Record, State};
use perigee_cluster::Revision;
use std::fmt;

/// The file.
pub(crate) const NAME: &str = "control.log";
/// The file that will replace it.
const NEW_NAME: &str = "control.log.new";

/// A log file that is open for appending.
pub(crate) struct Journal {
    disk: Box<dyn Disk>,
    generation: u64,
    /// Where the next frame goes.
    end: u64,
    /// The part of `end` that is the state with which the file began.
    base: u64,
}

impl fmt::Debug for Journal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to byte {}", self.file(), self.end)
    }
}

/// What a journal held when it was opened.
#[derive(Debug)]
pub(crate) struct Replayed {
    pub state: State,
    pub history: History,
    /// Bytes at the end that a crash had left half-written; none of them was acknowledged.
    pub torn: u64,
}

/// What became of an append that failed.
#[derive(Debug)]
pub(crate) enum AppendError {
    /// The file is as it was before.
    Undone(EngineError),
    /// The frame may be on disk or not, and this process cannot find out.
    Unknown(EngineError),
}

/// What became of a switch that failed.
#[derive(Debug)]
pub(crate) enum SwitchError {
    /// The old file goes on.
    Kept(EngineError),
    /// It is not known which file a crash would leave.
    Unknown(EngineError),
}

impl Journal {
    /// Makes the file of an empty store.
    pub(crate) fn create(disk: Box<dyn Disk>, first: Revision) -> Result<Self, EngineError> {
        let place = disk.place();
        let existing = disk.read(NAME);
        if existing.map_err(EngineError::io("read", NAME))?.is_some() {
            return Err(EngineError::Exists { dir: place });
        }
        let mut journal = Self {
            disk,
            generation: 0,
            end: 0,
            base: 0,
        };
        let empty = State::at(first, 1);
        journal.switch(&empty).map_err(SwitchError::into_inner)?;
        Ok(journal)
    }

    /// Opens the file, and replaces it by one that begins with the state found. That cuts a torn end,
    /// and writes anew what an earlier process may have left in the page cache after a failed sync.
    pub(crate) fn open(
        disk: Box<dyn Disk>,
        events_max: usize,
        len_max: usize,
    ) -> Result<(Self, Replayed), EngineError> {
        let file = format!("{}/{NAME}", disk.place());
        let bytes = disk.read(NAME).map_err(EngineError::io("read", &file))?;
        let Some(bytes) = bytes else {
            return Err(EngineError::Missing { dir: disk.place() });
        };
        let scanned = log::scan(&file, &bytes)?;
        let (state, history) = replay(&file, &scanned.bodies, events_max, len_max)?;
        let mut journal = Self {
            disk,
            generation: scanned.generation,
            end: 0,
            base: 0,
        };
        journal.switch(&state).map_err(SwitchError::into_inner)?;
        let replayed = Replayed {
            state,
            history,
            torn: scanned.torn,
        };
        Ok((journal, replayed))
    }

    fn file(&self) -> String {
        format!("{}/{NAME}", self.disk.place())
    }

    /// Writes changes and makes them durable.
    pub(crate) fn append(&mut self, changes: &[Change]) -> Result<(), AppendError> {
        let frame = log::frame(self.generation, self.end, &encode_group(changes));
        if let Err(source) = self.disk.append(NAME, &frame) {
            let error = EngineError::io("append to", &self.file())(source);
            // Nothing was synced, so the pages of the torn frame can still be taken back.
            return match self.disk.truncate(NAME, self.end) {
                Ok(()) => Err(AppendError::Undone(error)),
                Err(_) => Err(AppendError::Unknown(error)),
            };
        }
        if let Err(source) = self.disk.sync(NAME) {
            // The kernel may have dropped the pages and called them clean: a second sync would lie.
            let error = EngineError::io("sync", &self.file())(source);
            return Err(AppendError::Unknown(error));
        }
        self.end += frame.len() as u64;
        Ok(())
    }

    /// Whether so much was appended that a new file is worth its price.
    pub(crate) fn is_long(&self, appended_min: u64) -> bool {
        // Four times the base: the price of writing it is then a quarter of what was written since.
        self.end - self.base > appended_min.max(4 * self.base)
    }

    /// Replaces the file by one that begins with `state`.
    pub(crate) fn switch(&mut self, state: &State) -> Result<(), SwitchError> {
        let file = format!("{}/{NEW_NAME}", self.disk.place());
        let generation = self.generation + 1;
        let mut bytes = log::header(generation);
        for record in state.base() {
            let frame = log::frame(generation, bytes.len() as u64, &encode(&record));
            bytes.extend(frame);
        }
        let kept = |action| {
            let file = file.clone();
            move |source| SwitchError::Kept(EngineError::io(action, &file)(source))
        };
        self.disk.create(NEW_NAME).map_err(kept("create"))?;
        self.disk.append(NEW_NAME, &bytes).map_err(kept("write"))?;
        self.disk.sync(NEW_NAME).map_err(kept("sync"))?;
        self.disk.rename(NEW_NAME, NAME).map_err(kept("rename"))?;
        // From here on the next frames go to the new file, so its name must be durable.
        self.generation = generation;
        self.end = bytes.len() as u64;
        self.base = self.end;
        self.disk.sync_dir().map_err(|source| {
            SwitchError::Unknown(EngineError::io("sync", &self.disk.place())(source))
        })
    }
}

impl SwitchError {
    fn into_inner(self) -> EngineError {
        match self {
            Self::Kept(error) | Self::Unknown(error) => error,
        }
    }
}

fn encode(record: &Record) -> Vec<u8> {
    // Records have no map and no sequence of unknown length, all that postcard can refuse.
    postcard::to_stdvec(record).expect("records always encode")
}

fn encode_group(changes: &[Change]) -> Vec<u8> {
    encode(&Record::Group(changes.to_vec()))
}

/// Where the replay of a file stands.
enum Phase {
    Start,
    Base,
    Groups,
}

pub(crate) fn replay(
    file: &str,
    bodies: &[(u64, &[u8])],
    events_max: usize,
    len_max: usize,
) -> Result<(State, History), EngineError> {
    let corrupt = |offset: u64, what| EngineError::Corrupt {
        file: file.to_owned(),
        offset,
        what,
    };
    let mut phase = Phase::Start;
    let mut state = State::default();
    let mut history = History::after(state.revision(), events_max, len_max);
    for (offset, body) in bodies {
        let bad = |what| corrupt(*offset, what);
        let record = match postcard::take_from_bytes::<Record>(body) {
            Ok((record, [])) => record,
            _ => return Err(bad("a record that cannot be read")),
        };
        match (&phase, record) {
            (
                Phase::Start,
                Record::Base {
                    revision,
                    next_lease,
                },
            ) => {
                state = State::at(revision, next_lease);
                phase = Phase::Base;
            }
            (Phase::Base, Record::Leases(part)) => {
                for (lease, ttl) in part {
                    state.restore_lease(lease, ttl).map_err(|m| bad(m.0))?;
                }
            }
            (Phase::Base, Record::Keys(part)) => {
                for stored in part {
                    state.restore_key(stored).map_err(|m| bad(m.0))?;
                }
            }
            (Phase::Base, Record::BaseEnd { keys, leases }) => {
                let (have_keys, have_leases, _) = state.size();
                if (have_keys, have_leases) != (keys, leases) {
                    return Err(bad("a base with parts missing"));
                }
                history = History::after(state.revision(), events_max, len_max);
                phase = Phase::Groups;
            }
            (Phase::Groups, Record::Group(changes)) => {
                for change in changes {
                    history.push(state.apply(change).map_err(|m| bad(m.0))?);
                }
            }
            _ => return Err(bad("a record out of order")),
        }
    }
    match phase {
        Phase::Groups => Ok((state, history)),
        // A file gets its name only when its base is durable: this is no crash.
        Phase::Start | Phase::Base => {
            let end = bodies
                .last()
                .map_or(HEADER_LEN as u64, |(offset, _)| *offset);
            Err(corrupt(end, "the base of the file is incomplete"))
        }
    }
}
