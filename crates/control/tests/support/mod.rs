//! A disk in memory that can fail, and that knows what a crash at any moment would leave.
#![allow(dead_code, reason = "each test file uses a part")]

use parking_lot::Mutex;
use perigee_control::{Disk, Engine, EngineConfig, LocalControl};
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

/// A call that changed the disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Call {
    Create(String),
    Append(String, Vec<u8>),
    Truncate(String, u64),
    Sync(String),
    Rename(String, String),
    SyncDir,
}

#[derive(Debug, Default)]
struct Inner {
    files: BTreeMap<String, Vec<u8>>,
    calls: Vec<Call>,
    /// Kind of call, and how many of it still succeed.
    fail: Option<(&'static str, usize)>,
}

/// Shared between the engine and the test.
#[derive(Debug, Clone, Default)]
pub struct MemDisk(Arc<Mutex<Inner>>);

impl MemDisk {
    pub fn with(files: BTreeMap<String, Vec<u8>>) -> Self {
        let disk = Self::default();
        disk.0.lock().files = files;
        disk
    }

    pub fn calls(&self) -> Vec<Call> {
        self.0.lock().calls.clone()
    }

    pub fn file(&self, name: &str) -> Vec<u8> {
        self.0.lock().files[name].clone()
    }

    pub fn files(&self) -> BTreeMap<String, Vec<u8>> {
        self.0.lock().files.clone()
    }

    /// After `more` successes, calls of this kind fail; an append leaves half of its bytes.
    pub fn fail(&self, kind: &'static str, more: usize) {
        self.0.lock().fail = Some((kind, more));
    }

    pub fn mend(&self) {
        self.0.lock().fail = None;
    }

    pub fn boxed(&self) -> Box<dyn Disk> {
        Box::new(self.clone())
    }

    fn call(&self, kind: &'static str, call: Call) -> io::Result<()> {
        let mut inner = self.0.lock();
        let fails = match &mut inner.fail {
            Some((failing, more)) if *failing == kind => match more.checked_sub(1) {
                Some(less) => {
                    *more = less;
                    false
                }
                None => true,
            },
            _ => false,
        };
        if fails {
            if let Call::Append(name, bytes) = call {
                let half = &bytes[..bytes.len() / 2];
                inner.files.entry(name).or_default().extend(half);
            }
            return Err(io::Error::other("planted"));
        }
        apply(&mut inner.files, &call);
        inner.calls.push(call);
        Ok(())
    }
}

fn apply(files: &mut BTreeMap<String, Vec<u8>>, call: &Call) {
    match call {
        Call::Create(name) => _ = files.insert(name.clone(), Vec::new()),
        Call::Append(name, bytes) => files.get_mut(name).unwrap().extend(bytes),
        Call::Truncate(name, len) => files.get_mut(name).unwrap().truncate(*len as usize),
        Call::Rename(from, to) => {
            let file = files.remove(from).unwrap();
            files.insert(to.clone(), file);
        }
        Call::Sync(_) | Call::SyncDir => {}
    }
}

impl Disk for MemDisk {
    fn place(&self) -> String {
        "memory".to_owned()
    }
    fn read(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        Ok(self.0.lock().files.get(name).cloned())
    }
    fn create(&mut self, name: &str) -> io::Result<()> {
        self.call("create", Call::Create(name.to_owned()))
    }
    fn append(&mut self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.call("append", Call::Append(name.to_owned(), bytes.to_vec()))
    }
    fn truncate(&mut self, name: &str, len: u64) -> io::Result<()> {
        self.call("truncate", Call::Truncate(name.to_owned(), len))
    }
    fn sync(&mut self, name: &str) -> io::Result<()> {
        self.call("sync", Call::Sync(name.to_owned()))
    }
    fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        self.call("rename", Call::Rename(from.to_owned(), to.to_owned()))
    }
    fn sync_dir(&mut self) -> io::Result<()> {
        self.call("sync_dir", Call::SyncDir)
    }
}

/// What a crash may leave after the first `done` calls, the disk being what the calls before made of
/// `start`: every choice of what happened to the name and to the bytes that were not yet synced.
pub fn crash_states(
    start: &BTreeMap<String, Vec<u8>>,
    calls: &[Call],
    done: usize,
) -> Vec<BTreeMap<String, Vec<u8>>> {
    // Names as the directory has them durably, and as processes see them; content by file number.
    let mut content: Vec<(Vec<u8>, usize)> = Vec::new();
    let mut names = BTreeMap::new();
    for (name, bytes) in start {
        names.insert(name.clone(), content.len());
        content.push((bytes.clone(), bytes.len()));
    }
    let mut durable = vec![names.clone()];
    for call in &calls[..done] {
        match call {
            Call::Create(name) => {
                names.insert(name.clone(), content.len());
                content.push((Vec::new(), 0));
                durable.push(names.clone());
            }
            Call::Append(name, bytes) => content[names[name]].0.extend(bytes),
            Call::Truncate(name, len) => {
                let (bytes, synced) = &mut content[names[name]];
                bytes.truncate(*len as usize);
                *synced = (*synced).min(bytes.len());
            }
            Call::Sync(name) => {
                let (bytes, synced) = &mut content[names[name]];
                *synced = bytes.len();
            }
            Call::Rename(from, to) => {
                let file = names.remove(from).unwrap();
                names.insert(to.clone(), file);
                durable.push(names.clone());
            }
            Call::SyncDir => durable = vec![names.clone()],
        }
    }
    let mut states = Vec::new();
    for names in durable {
        for spoil in [
            Spoil::Cut(0),
            Spoil::Cut(1),
            Spoil::Cut(2),
            Spoil::Zero,
            Spoil::None,
        ] {
            let file = |(name, at): (&String, &usize)| {
                let (bytes, synced) = &content[*at];
                (name.clone(), spoil.of(bytes, *synced))
            };
            states.push(names.iter().map(file).collect());
        }
    }
    states.dedup();
    states
}

/// What happens to bytes that were written and not synced.
#[derive(Clone, Copy)]
enum Spoil {
    /// So many halves of them are there.
    Cut(usize),
    /// The length is there, the first half of the bytes is not.
    Zero,
    None,
}

impl Spoil {
    fn of(self, bytes: &[u8], synced: usize) -> Vec<u8> {
        let mut bytes = bytes.to_vec();
        let half = (bytes.len() - synced) / 2;
        match self {
            Self::Cut(halves) => bytes.truncate(synced + half * halves),
            Self::Zero => bytes[synced..synced + half].fill(0),
            Self::None => {}
        }
        bytes
    }
}

pub fn small() -> EngineConfig {
    EngineConfig {
        history_events: 64,
        history_len: 1 << 16,
        log_len: 600,
        ..EngineConfig::default()
    }
}

pub fn local(engine: Engine) -> LocalControl {
    LocalControl::new(Arc::new(engine))
}
