//! Files of each program's own, changed in every way that a program can change one, against their content in memory: one that
//! lies whole with its inode, and one whose content lies across two columns of a striped file, behind a hole.
//!
//! What was synced survives every strike. What was not is there or not, by blocks: after a strike the file may be, in each
//! block, what it was at any moment since the last fsync. On a node that was not struck nothing is missing of which neither
//! `close` tells nor `fsync`: its full disk may have it leave what it owns.

mod book;

pub use book::PrivateFiles;

use super::worker::{Failed, Worker};
use crate::closing::close;
use crate::error::{Call, CheckError, Checked};
use crate::map::{Access, Shared};
use crate::side::{Side, say};
use crate::{ensure, pattern, program};
use book::{Step, explain};
use rustix::fs::FallocateFlags;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, ErrorKind, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// The longest content, in bytes.
const LEN_MAX: u64 = 96 << 10;
/// Bytes of a striped file that lie in one column.
const CHUNK: u64 = 64 << 20;
/// The directory of striped files.
pub const STRIPED: &str = "striped";
/// The longest change.
const CHANGE_MAX: u64 = 20_000;
/// After so many changes comes an fsync.
const UNSYNCED_MAX: usize = 6;
const BLOCK: usize = 4_096;
/// The files that each program has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Shape {
    /// It lies with its inode.
    Whole,
    /// It is striped.
    Striped,
}

impl Shape {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Whole, Self::Striped];

    /// Where the content begins, in bytes.
    const fn begin(self) -> u64 {
        match self {
            Self::Whole => 0,
            Self::Striped => 2 * CHUNK - LEN_MAX / 2,
        }
    }
}

/// Names a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Whose {
    /// The node of its program.
    pub node: u32,
    /// Which of its files.
    pub shape: Shape,
}

impl fmt::Display for Whose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.shape {
            Shape::Whole => write!(f, "the private file of n{}", self.node),
            Shape::Striped => write!(f, "the striped private file of n{}", self.node),
        }
    }
}

/// A program's own view of a file.
#[derive(Debug, Default)]
pub(super) struct Private {
    content: Vec<u8>,
    /// The strikes on the node when the content was last certain.
    certain_at: Option<u64>,
}

/// One change.
#[derive(Debug, Clone, Copy)]
enum Change {
    Write { at: u64, len: u64, seed: u64 },
    Store { at: u64, len: u64, seed: u64 },
    Truncate { len: u64 },
    Punch { at: u64, len: u64 },
    Allocate { at: u64, len: u64 },
    Copy { from: u64, to: u64, len: u64 },
}

/// Where a file is.
fn below(mount: &Path, Whose { node, shape }: Whose) -> PathBuf {
    match shape {
        Shape::Whole => mount.join(format!("private-{node}")),
        Shape::Striped => mount.join(STRIPED).join(format!("private-{node}")),
    }
}

/// Its content.
fn content_of(file: &File, shape: Shape) -> io::Result<Vec<u8>> {
    let mut file = file;
    let end = file.seek(SeekFrom::End(0))?;
    if end < shape.begin() {
        let what = format!("{end} bytes, fewer than before its content");
        return Err(io::Error::new(ErrorKind::InvalidData, what));
    }
    whole_blocks(|buffer, at| {
        loop {
            match file.read_at(buffer, shape.begin() + at) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                read => return read,
            }
        }
    })
}

/// Reads to the end, so that no block is put together from two calls: a file may grow between them, and both are right.
fn whole_blocks(mut read: impl FnMut(&mut [u8], u64) -> io::Result<usize>) -> io::Result<Vec<u8>> {
    let mut content = vec![0; LEN_MAX as usize + BLOCK];
    let mut len = 0;
    loop {
        let more = read(&mut content[len..], len as u64)?;
        len += more;
        if more == 0 || len % BLOCK != 0 {
            content.truncate(len);
            return Ok(content);
        }
    }
}

fn bytes(seed: u64, len: u64) -> Vec<u8> {
    let mut bytes = vec![0; len as usize];
    pattern::fill(seed, 0, &mut bytes);
    bytes
}

impl Change {
    /// On the content in memory.
    fn apply(self, content: &mut Vec<u8>) {
        match self {
            Self::Write { at, len, seed } | Self::Store { at, len, seed } => {
                let end = (at + len) as usize;
                content.resize(content.len().max(end), 0);
                content[at as usize..end].copy_from_slice(&bytes(seed, len));
            }
            Self::Truncate { len } => content.resize(len as usize, 0),
            Self::Punch { at, len } => {
                let (start, end) = (at as usize, (at + len) as usize);
                let (start, end) = (start.min(content.len()), end.min(content.len()));
                content[start..end].fill(0);
            }
            Self::Allocate { at, len } => {
                content.resize(content.len().max((at + len) as usize), 0);
            }
            Self::Copy { from, to, len } => {
                let end = (to + len) as usize;
                content.resize(content.len().max(end), 0);
                content.copy_within(from as usize..(from + len) as usize, to as usize);
            }
        }
    }

    /// On the file, which it gives back, but for a store.
    fn perform(self, path: &Path, shape: Shape) -> io::Result<File> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        let begin = shape.begin();
        match self {
            Self::Write { at, len, seed } => file.write_all_at(&bytes(seed, len), begin + at)?,
            Self::Store { .. } => return Err(ErrorKind::Unsupported.into()),
            Self::Truncate { len } => file.set_len(begin + len)?,
            Self::Punch { at, len } => {
                let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                rustix::fs::fallocate(&file, how, begin + at, len)?;
            }
            Self::Allocate { at, len } => {
                let how = FallocateFlags::empty();
                rustix::fs::fallocate(&file, how, begin + at, len)?;
            }
            Self::Copy { from, to, len } => copy(&file, begin + from, begin + to, len)?,
        }
        Ok(file)
    }
}

fn copy(file: &File, mut from: u64, mut to: u64, mut len: u64) -> io::Result<()> {
    while len > 0 {
        let want = len as usize;
        let done = rustix::fs::copy_file_range(file, Some(&mut from), file, Some(&mut to), want)?;
        if done == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        len -= done as u64;
    }
    Ok(())
}

/// The longest that a store may take: its node may be struck.
const STORE_MAX: Duration = Duration::from_secs(120);

/// A process that stores through maps, each time in one more: one whose daemon dies meanwhile is killed by SIGBUS. Not
/// made by this process, whose open files such a one would close first: those of a node that is stopped hold it up.
#[derive(Debug)]
pub(super) struct Storer(Side);

impl Storer {
    /// Errors: those of starting it.
    pub(super) fn start() -> Checked<Self> {
        Side::spawn(&program::testbed()?, &["storer"]).map(Self)
    }

    fn store(&mut self, path: &Path, at: u64, len: u64, seed: u64) -> io::Result<()> {
        let line = format!("{at} {len} {seed} {}", path.display());
        let said = self.0.ask(&line, STORE_MAX).map_err(io::Error::other)?;
        match said.split_once(' ') {
            None if said == "done" => Ok(()),
            Some(("errno", number)) if let Ok(errno) = number.parse() => {
                Err(io::Error::from_raw_os_error(errno))
            }
            // A page could not be had, or lay behind the end: which of the two a read tells.
            _ => Err(io::Error::other(format!(
                "{said}; then {}",
                found(path, at, len)
            ))),
        }
    }
}

/// What a read of a range and the file's length are now.
fn found(path: &Path, at: u64, len: u64) -> String {
    let read = File::open(path).and_then(|file| {
        let has = file.metadata()?.len();
        let read = file.read_at(&mut vec![0; len as usize], at);
        Ok((has, read))
    });
    match read {
        Ok((has, read)) => format!("of {len} bytes at {at} a read gives {read:?}, of {has} in all"),
        Err(error) => error.to_string(),
    }
}

/// The side that has things stored, until nobody asks.
///
/// Errors: those of starting a process, or the asker has gone.
pub fn storer_side() -> Checked {
    for line in io::stdin().lock().lines() {
        let line = line.call(|| "hear the checker".to_owned())?;
        let words: Vec<&str> = line.splitn(4, ' ').collect();
        let [at, len, seed, path] = words[..] else {
            return Err(CheckError::violated(format!("`{line}` names no store")));
        };
        let mut child = Command::new(program::testbed()?);
        child.args(["child", "store", path, at, len, seed]);
        let ended = child.stdin(Stdio::null()).output().call(|| line.clone())?;
        let said = String::from_utf8_lossy(&ended.stdout).into_owned();
        let errno = said
            .lines()
            .next()
            .and_then(|line| line.parse::<i32>().ok());
        say(&match errno {
            _ if ended.status.success() => "done".to_owned(),
            Some(errno) => format!("errno {errno}"),
            None => format!("{}: {}", ended.status, said.replace('\n', " ")),
        })?;
    }
    Ok(())
}

/// The other side of it, which says the errno of what failed.
///
/// Errors: those of mapping and of `msync`.
pub fn storing_side(path: &Path, at: u64, len: u64, seed: u64) -> Checked {
    let stored = store(path, at, len, seed);
    if let Err(CheckError::Call { source, .. }) = &stored
        && let Some(errno) = source.raw_os_error()
    {
        say(&errno.to_string())?;
    }
    stored
}

fn store(path: &Path, at: u64, len: u64, seed: u64) -> Checked {
    let what = || format!("store into a map of {}", path.display());
    let file = OpenOptions::new().read(true).write(true).open(path);
    let file = file.call(what)?;
    let mut map = Shared::new(&file, (at + len) as usize, Access::Write).call(what)?;
    ensure!(
        map.store(at as usize, &bytes(seed, len)),
        "the map is shorter than what is stored"
    );
    map.sync().call(what)
}

impl Worker<'_> {
    /// One call on a file of its own.
    pub(super) fn use_private(&mut self) -> Result<(), Failed> {
        let shape = Shape::ALL[self.rng.below(2) as usize];
        let strikes = self.turn.strikes();
        if self.private(shape).certain_at != Some(strikes) {
            return self.recover_private(shape, strikes);
        }
        // Until this step is over it is not.
        self.private(shape).certain_at = None;
        let unsynced = self.ledger.private.moments(self.whose(shape)).len() - 1;
        match self.rng.below(10) {
            0..=2 => self.compare_private(shape)?,
            _ if unsynced >= UNSYNCED_MAX => self.sync_private(shape)?,
            3 => self.sync_private(shape)?,
            _ => self.change_private(shape)?,
        }
        self.private(shape).certain_at = Some(strikes);
        Ok(())
    }

    fn private(&mut self, shape: Shape) -> &mut Private {
        self.private.entry(shape).or_default()
    }

    const fn whose(&self, shape: Shape) -> Whose {
        let node = self.node;
        Whose { node, shape }
    }

    fn change_private(&mut self, shape: Shape) -> Result<(), Failed> {
        let mut after = self.private(shape).content.clone();
        let change = self.draw_change(after.len() as u64);
        change.apply(&mut after);
        let whose = self.whose(shape);
        self.ledger.private.begin(whose, change, after.clone());
        let path = below(self.root, whose);
        let what = match change {
            Change::Write { .. } => "write of a private file",
            Change::Store { .. } => "store into a map of a private file",
            Change::Truncate { .. } => "truncation of a private file",
            Change::Punch { .. } => "a hole in a private file",
            Change::Allocate { .. } => "fallocate of a private file",
            Change::Copy { .. } => "copy_file_range in a private file",
        };
        if let Change::Store { at, len, seed } = change {
            let storer = &mut self.storer;
            let store = || storer.store(&path, shape.begin() + at, len, seed);
            let stored = self.stage.call(self.turn, what, store);
            stored.map_err(|error| Failed::Call(what, error))?;
        } else {
            let file = self.call(what, || change.perform(&path, shape))?;
            // What was answered early and could not be carried out it says.
            self.call("close of a private file", || close(file))?;
        }
        let len = after.len();
        self.private(shape).content = after;
        self.ledger.private.remember(whose, Step::Changed { len });
        Ok(())
    }

    /// A change of content of so many bytes.
    fn draw_change(&mut self, has: u64) -> Change {
        let (at, seed) = (self.rng.below(LEN_MAX - CHANGE_MAX), self.rng.next_u64());
        let len = 1 + self.rng.below(CHANGE_MAX);
        match self.rng.below(12) {
            0 | 1 => Change::Truncate {
                len: self.rng.below(LEN_MAX),
            },
            2 => Change::Punch { at, len },
            3 => Change::Allocate { at, len },
            4 if has > 2 => {
                // The ranges may not overlap.
                let from = self.rng.below(has / 2);
                let len = 1 + self.rng.below((has / 2 - from).min(CHANGE_MAX));
                let to = has / 2 + self.rng.below(has / 2);
                let to = to.min(LEN_MAX - len);
                if from + len > to {
                    return Change::Punch { at, len };
                }
                Change::Copy { from, to, len }
            }
            5 if has > 0 => {
                let at = self.rng.below(has);
                let len = 1 + self.rng.below((has - at).min(CHANGE_MAX));
                Change::Store { at, len, seed }
            }
            _ => Change::Write { at, len, seed },
        }
    }

    fn read_private(&self, shape: Shape) -> Result<(File, Vec<u8>), Failed> {
        let path = below(self.root, self.whose(shape));
        self.call("read of a private file", || {
            let file = File::open(&path)?;
            let content = content_of(&file, shape)?;
            Ok((file, content))
        })
    }

    fn compare_private(&mut self, shape: Shape) -> Result<(), Failed> {
        let (_, found) = self.read_private(shape)?;
        let disturbed = self.stage.strikes_on(self.node) != self.turn.strikes();
        let content = self.private(shape).content.clone();
        if disturbed || found == content {
            return Ok(());
        }
        let whose = self.whose(shape);
        let moments = self.ledger.private.moments(whose);
        let untold = match self.stage.has_left(self.node) && explain(&moments, &found).is_ok() {
            true => {
                // What it tells is excused, or not, as what any call does.
                self.sync_private(shape)?;
                ", and fsync does not tell"
            }
            false => "",
        };
        let at = found.iter().zip(&content).position(|(is, was)| is != was);
        let (_, again) = self.read_private(shape)?;
        let told = self.ledger.private.told_of(whose, &found);
        let right = if again == content { "right" } else { "wrong" };
        Err(Failed::Wrong(CheckError::violated(format!(
            "{whose} has {} bytes instead of {}, and first differs at {at:?}{untold}; read again it is {right}: {told}",
            found.len(),
            content.len(),
        ))))
    }

    fn sync_private(&mut self, shape: Shape) -> Result<(), Failed> {
        let path = below(self.root, self.whose(shape));
        self.call("fsync of a private file", || File::open(&path)?.sync_all())?;
        let content = self.private(shape).content.clone();
        self.ledger.private.synced(self.whose(shape), content);
        self.ledger
            .private
            .remember(self.whose(shape), Step::Synced);
        Ok(())
    }

    /// After a strike: what is there may be what was there, and is what counts from now on.
    fn recover_private(&mut self, shape: Shape, strikes: u64) -> Result<(), Failed> {
        let (file, found) = self.read_private(shape)?;
        let whose = self.whose(shape);
        let moments = self.ledger.private.moments(whose);
        if let Err(error) = explain(&moments, &found) {
            let (_, again) = self.read_private(shape)?;
            let private = &self.ledger.private;
            let wrong = error.during(&format!("{whose} after a strike"));
            let first = private.told_of(whose, &found);
            return Err(Failed::Wrong(match again == found {
                true => wrong.followed_by(&first),
                false => {
                    let then = private.told_of(whose, &again);
                    wrong.followed_by(&format!("{first}; read again: {then}"))
                }
            }));
        }
        self.call("fsync of a private file", || file.sync_all())?;
        let (_, again) = self.read_private(shape)?;
        if again == found {
            self.ledger.private.synced(whose, found.clone());
            let private = self.private(shape);
            private.content = found;
            private.certain_at = Some(strikes);
            let len = again.len();
            self.ledger.private.remember(whose, Step::Recovered { len });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_grows_while_it_is_read_has_no_block_of_two_moments() {
        let old = vec![1; BLOCK + 100];
        let new = vec![2; 3 * BLOCK];
        let moments = vec![old.clone(), new.clone()];
        for calls_before in 0..3 {
            let mut calls = 0;
            // As the file system does: as much as there is at this moment, up to a few blocks.
            let found = whole_blocks(|buffer, at| {
                let content = if calls < calls_before { &old } else { &new };
                calls += 1;
                let rest = content.get(at as usize..).unwrap_or_default();
                let len = rest.len().min(buffer.len()).min(2 * BLOCK);
                buffer[..len].copy_from_slice(&rest[..len]);
                Ok(len)
            });
            explain(&moments, &found.unwrap()).unwrap();
        }
    }

    #[test]
    fn every_change_does_to_a_file_what_it_does_in_memory() {
        for shape in Shape::ALL {
            let folder = tempfile::tempdir().unwrap();
            std::fs::create_dir(folder.path().join(STRIPED)).unwrap();
            PrivateFiles::default().make(folder.path(), 1).unwrap();
            let path = below(folder.path(), Whose { node: 1, shape });
            let mut content = Vec::new();
            let mut is_as_in_memory = |change: Change, perform: &dyn Fn(&Path)| {
                change.apply(&mut content);
                perform(&path);
                let found = content_of(&File::open(&path).unwrap(), shape).unwrap();
                assert_eq!(found, content, "{change:?}");
            };
            for change in [
                Change::Write {
                    at: 10,
                    len: 9_000,
                    seed: 1,
                },
                Change::Copy {
                    from: 20,
                    to: 8_000,
                    len: 3_000,
                },
                Change::Punch {
                    at: 4_000,
                    len: 2_000,
                },
                Change::Allocate {
                    at: 12_000,
                    len: 500,
                },
                Change::Truncate { len: 7_000 },
                Change::Truncate { len: 20_000 },
            ] {
                is_as_in_memory(change, &|path| drop(change.perform(path, shape).unwrap()));
            }
            let (at, len, seed) = (5_000, 100, 9);
            let store = Change::Store { at, len, seed };
            is_as_in_memory(store, &|path| {
                storing_side(path, shape.begin() + at, len, seed).unwrap();
            });
        }
    }
}
