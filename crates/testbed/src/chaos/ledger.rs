//! What the programs were promised, and whether it is there.
//!
//! A promise is made by an fsync that returned, or by what another host has seen (law 3). What was begun and not
//! promised may be there or not, but nothing else may: each entry holds all that is possible.

use super::private::PrivateFiles;
use super::rounds::Rounds;
use crate::error::{Call, CheckError, Checked};
use crate::{ensure, pattern};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bytes of one record of the log.
pub const RECORD_LEN: usize = 32;
/// Bytes of a register.
const REGISTER_LEN: usize = 64;
/// Content is old or new by blocks of this many bytes, when a rewrite was cut off.
const BLOCK: usize = 4_096;

/// Where a file may be.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// Under this path of the campaign's directory.
    At(String),
    /// Removed, or not yet made.
    Nowhere,
}

impl Place {
    /// Its path on a mount. `Nowhere` is the mount itself, which no program ever means.
    #[must_use]
    pub fn below(&self, mount: &Path) -> PathBuf {
        match self {
            Self::At(path) => mount.join(path),
            Self::Nowhere => mount.to_owned(),
        }
    }
}

/// What may be true of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Fate {
    places: Vec<Place>,
    content: Content,
    /// Seeds of what a synced rewrite has replaced: tells what is there instead of what was promised.
    replaced: Vec<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Content {
    /// It was not synced since it was made or cut.
    Unknown,
    /// Each block is that of one of these seeds.
    Of { seeds: Vec<u64>, len: u64 },
}

/// What is known of one node's register.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Register {
    /// The last value whose write was begun.
    begun: u64,
    /// The last value whose write returned,
    written: u64,
    /// when the writer's node had been struck so often.
    pub strikes: u64,
    /// The last value that was synced.
    durable: u64,
    /// The last value that another host has seen since all nodes died together.
    seen: u64,
    /// Rises when all nodes die together: what was seen is safe while one of the copies lives on.
    era: u64,
}

impl Register {
    /// No later read may give less.
    fn floor(&self) -> u64 {
        self.durable.max(self.seen)
    }
}

#[derive(Debug, Default)]
struct Records {
    begun: u64,
    promised: BTreeSet<u64>,
}

/// What is where a record was appended that its host's death took along before anybody had synced or seen it: the file
/// keeps the length that was on its way. Such a place stays as it is.
const LOST: [u8; RECORD_LEN] = [0; RECORD_LEN];

/// The book of a campaign.
#[derive(Debug)]
pub struct Ledger {
    files: Mutex<BTreeMap<u64, Fate>>,
    records: Mutex<BTreeMap<u32, Records>>,
    registers: Mutex<BTreeMap<u32, Register>>,
    /// Where the log was [`LOST`].
    lost: Mutex<BTreeSet<usize>>,
    /// What the programs fight for.
    pub rounds: Rounds,
    /// Their own files.
    pub private: PrivateFiles,
}

/// How much was promised and found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Kept {
    /// Files with content or a removal that was synced.
    pub files: usize,
    /// Records of the log.
    pub records: usize,
    /// Programs' own files with content that was synced.
    pub private: usize,
}

impl fmt::Display for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            files,
            records,
            private,
        } = self;
        write!(
            f,
            "{files} files, {records} records and {private} private files"
        )
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Ledger {
    /// Makes the directories, the log and the registers below `mount`, durably.
    ///
    /// Errors: those of making them.
    pub fn new(mount: &Path, nodes: u32) -> Checked<Self> {
        let ledger = Self {
            files: Mutex::default(),
            records: Mutex::default(),
            registers: Mutex::default(),
            lost: Mutex::default(),
            rounds: Rounds::default(),
            private: PrivateFiles::default(),
        };
        let make = |path: PathBuf, content: &[u8]| -> Checked {
            let what = || format!("make {}", path.display());
            fs::write(&path, content).call(what)?;
            fs::File::open(&path)
                .and_then(|file| file.sync_all())
                .call(what)
        };
        make(ledger.log_below(mount), b"")?;
        for node in 1..=nodes {
            let folder = mount.join(format!("w{node}"));
            fs::create_dir(&folder).call(|| format!("make {}", folder.display()))?;
            let path = ledger.register_below(mount, node);
            make(path, &Self::register_content(node, 0))?;
            ledger.private.make(mount, node)?;
            lock(&ledger.registers).insert(node, Register::default());
            lock(&ledger.records).insert(node, Records::default());
        }
        let root = fs::File::open(mount).and_then(|root| root.sync_all());
        root.call(|| "sync the campaign's directory".to_owned())?;
        Ok(ledger)
    }

    /// A file is about to be made.
    pub fn begin_file(&self, id: u64, place: Place) {
        let fate = Fate {
            places: vec![Place::Nowhere, place],
            content: Content::Unknown,
            replaced: Vec::new(),
        };
        lock(&self.files).insert(id, fate);
    }

    /// It was made and synced.
    pub fn made_file(&self, id: u64, place: Place, seed: u64, len: u64) {
        let fate = Fate {
            places: vec![place],
            content: Content::Of {
                seeds: vec![seed],
                len,
            },
            replaced: Vec::new(),
        };
        lock(&self.files).insert(id, fate);
    }

    /// A file is about to get other content of the same length; where it is.
    pub fn begin_rewrite(&self, id: u64, seed: u64) -> Option<(Place, u64)> {
        let mut files = lock(&self.files);
        let fate = files.get_mut(&id)?;
        let Content::Of { seeds, len } = &mut fate.content else {
            return None;
        };
        seeds.push(seed);
        Some((fate.places.first()?.clone(), *len))
    }

    /// It has that content, synced.
    pub fn rewritten(&self, id: u64, seed: u64) {
        if let Some(fate) = lock(&self.files).get_mut(&id)
            && let Content::Of { seeds, .. } = &mut fate.content
        {
            let before = std::mem::replace(seeds, vec![seed]);
            fate.replaced
                .extend(before.iter().filter(|old| **old != seed));
        }
    }

    /// A file is about to be cut to nothing and written anew; where it is. Until that is synced it may hold any part of it.
    pub fn begin_save(&self, id: u64) -> Option<Place> {
        let mut files = lock(&self.files);
        let fate = files.get_mut(&id)?;
        fate.content = Content::Unknown;
        fate.places.first().cloned()
    }

    /// It has that content, synced.
    pub fn saved(&self, id: u64, seed: u64, len: u64) {
        if let Some(fate) = lock(&self.files).get_mut(&id) {
            fate.content = Content::Of {
                seeds: vec![seed],
                len,
            };
        }
    }

    /// A file is about to be renamed or removed; where it is.
    pub fn begin_move(&self, id: u64, to: Place) -> Option<Place> {
        let mut files = lock(&self.files);
        let fate = files.get_mut(&id)?;
        let from = fate.places.first()?.clone();
        fate.places.push(to);
        Some(from)
    }

    /// It was, and the directory was synced.
    pub fn moved(&self, id: u64, to: Place) {
        if let Some(fate) = lock(&self.files).get_mut(&id) {
            fate.places = vec![to];
        }
    }

    /// The log on a mount.
    #[must_use]
    pub fn log_below(&self, mount: &Path) -> PathBuf {
        mount.join("log")
    }

    /// A record is about to be appended: its number, and its bytes.
    pub fn begin_record(&self, node: u32) -> (u64, [u8; RECORD_LEN]) {
        let mut records = lock(&self.records);
        let records = records.entry(node).or_default();
        records.begun += 1;
        (records.begun, record(node, records.begun))
    }

    /// Records were synced.
    pub fn recorded(&self, node: u32, numbers: &[u64]) {
        let mut records = lock(&self.records);
        records.entry(node).or_default().promised.extend(numbers);
    }

    /// A node's register on a mount.
    #[must_use]
    pub fn register_below(&self, mount: &Path, node: u32) -> PathBuf {
        mount.join(format!("register-{node}"))
    }

    /// The nodes that have registers.
    pub fn writers(&self) -> Vec<u32> {
        lock(&self.registers).keys().copied().collect()
    }

    /// The next value is about to be written.
    pub fn begin_register(&self, node: u32) -> u64 {
        let mut registers = lock(&self.registers);
        let register = registers.entry(node).or_default();
        register.begun += 1;
        register.begun
    }

    /// The write returned.
    pub fn register_written(&self, node: u32, value: u64, strikes: u64) {
        let mut registers = lock(&self.registers);
        let register = registers.entry(node).or_default();
        (register.written, register.strikes) = (value, strikes);
    }

    /// The value was synced.
    pub fn register_durable(&self, node: u32, value: u64) {
        let mut registers = lock(&self.registers);
        let register = registers.entry(node).or_default();
        register.durable = register.durable.max(value);
    }

    /// All nodes die together: only what was synced is promised any more.
    pub fn all_die(&self) {
        self.rounds.close();
        for register in lock(&self.registers).values_mut() {
            register.seen = 0;
            register.era += 1;
        }
    }

    /// What is known of a register now.
    pub fn register(&self, node: u32) -> Register {
        lock(&self.registers)
            .get(&node)
            .copied()
            .unwrap_or_default()
    }

    /// A read that was begun when `before` was known gave `value`.
    ///
    /// Errors: it is older than what was promised then, or than what the writer had written while nobody disturbed
    /// its node, or was never written.
    pub fn register_seen(
        &self,
        writer: u32,
        reader: u32,
        value: u64,
        before: Register,
        undisturbed: bool,
    ) -> Checked {
        let mut registers = lock(&self.registers);
        let register = registers.entry(writer).or_default();
        ensure!(
            value <= register.begun,
            "register of n{writer} holds {value}; {} was the last written",
            register.begun
        );
        let promised = if before.era == register.era {
            before.floor()
        } else {
            before.durable
        };
        ensure!(
            value >= promised,
            "register of n{writer} holds {value} for n{reader}, after {promised} was synced or seen by another host ({before:?})"
        );
        ensure!(
            !undisturbed || value >= before.written,
            "register of n{writer} holds {value}, after the write of {} had returned",
            before.written
        );
        if reader != writer && before.era == register.era {
            register.seen = register.seen.max(value);
        }
        Ok(())
    }

    /// The bytes of a register that holds `value`.
    #[must_use]
    pub fn register_content(node: u32, value: u64) -> [u8; REGISTER_LEN] {
        let mut content = [0; REGISTER_LEN];
        content[..8].copy_from_slice(&value.to_le_bytes());
        pattern::fill(value ^ u64::from(node) << 48, 8, &mut content[8..]);
        content
    }

    /// The value in them.
    ///
    /// Errors: they are of no value.
    pub fn register_value(node: u32, content: &[u8]) -> Checked<u64> {
        let value = content
            .first_chunk()
            .map(|value| u64::from_le_bytes(*value));
        match value {
            Some(value) if Self::register_content(node, value) == content => Ok(value),
            _ => Err(CheckError::violated(format!(
                "register of n{node} holds the bytes of no value: {content:?}"
            ))),
        }
    }

    /// Looks up everything through one mount.
    ///
    /// Errors: the first promise that is not kept.
    pub fn verify(&self, mount: &Path) -> Checked<Kept> {
        let files: Vec<(u64, Fate)> = lock(&self.files)
            .iter()
            .map(|(id, fate)| (*id, fate.clone()))
            .collect();
        let mut kept = Kept::default();
        for (id, fate) in files {
            match look_up(mount, &fate) {
                Ok(()) => kept.files += usize::from(fate.places.len() == 1),
                // Its program went on meanwhile.
                Err(_) if lock(&self.files).get(&id) != Some(&fate) => {}
                Err(error) => return Err(error),
            }
        }
        kept.records = self.verify_log(mount)?;
        kept.private = self.private.verify(mount)?;
        Ok(kept)
    }

    /// Each promised record once, and no other that was not begun.
    fn verify_log(&self, mount: &Path) -> Checked<usize> {
        let promised: BTreeMap<u32, BTreeSet<u64>> = lock(&self.records)
            .iter()
            .map(|(node, records)| (*node, records.promised.clone()))
            .collect();
        let bytes = fs::read(self.log_below(mount)).call(|| "read the log".to_owned())?;
        ensure!(
            bytes.len().is_multiple_of(RECORD_LEN),
            "the log has {} bytes, which are no whole records",
            bytes.len()
        );
        let mut seen: BTreeMap<u32, BTreeSet<u64>> = BTreeMap::new();
        let mut lost = lock(&self.lost);
        for (position, found) in bytes.chunks(RECORD_LEN).enumerate() {
            if found == LOST {
                lost.insert(position);
                continue;
            }
            ensure!(
                !lost.contains(&position),
                "record {position} of the log was read before it was there"
            );
            let (node, number) = parse_record(found).ok_or_else(|| {
                CheckError::violated(format!("record {position} of the log is {found:?}"))
            })?;
            let new = seen.entry(node).or_default().insert(number);
            ensure!(new, "record {number} of n{node} is in the log twice");
        }
        let begun = lock(&self.records);
        for (node, numbers) in &seen {
            let last = begun.get(node).map_or(0, |records| records.begun);
            let invented = numbers.iter().find(|number| **number > last);
            ensure!(
                invented.is_none(),
                "record {invented:?} of n{node} was never written"
            );
        }
        let mut count = 0;
        for (node, numbers) in promised {
            let there = seen.get(&node);
            let lost = numbers
                .iter()
                .find(|number| there.is_none_or(|there| !there.contains(number)));
            ensure!(
                lost.is_none(),
                "record {lost:?} of n{node} was synced, and is lost"
            );
            count += numbers.len();
        }
        Ok(count)
    }
}

fn look_up(mount: &Path, fate: &Fate) -> Checked {
    let mut found = Vec::new();
    for place in &fate.places {
        let Place::At(name) = place else { continue };
        match fs::read(mount.join(name)) {
            Ok(bytes) => found.push((name, bytes)),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error).call(|| format!("read {name}")),
        }
    }
    ensure!(
        found.len() <= 1,
        "one file is at several of {:?}",
        fate.places
    );
    let Some((name, bytes)) = found.pop() else {
        ensure!(
            fate.places.contains(&Place::Nowhere),
            "a file that must be at one of {:?} is lost",
            fate.places
        );
        return Ok(());
    };
    let Content::Of { seeds, len } = &fate.content else {
        return Ok(());
    };
    ensure!(
        bytes.len() as u64 == *len,
        "{name} has {} bytes instead of {len}",
        bytes.len()
    );
    let blocks_of_none_of = |seeds: &[u64]| -> Vec<u64> {
        let blocks = bytes.chunks(BLOCK).enumerate();
        let unknown = blocks.filter_map(|(number, block)| {
            let at = (number * BLOCK) as u64;
            let is_of = |seed: &u64| pattern::first_difference(*seed, at, block).is_none();
            (!seeds.iter().any(is_of)).then_some(at)
        });
        unknown.collect()
    };
    let unknown = blocks_of_none_of(seeds);
    if let Some(at) = unknown.first() {
        let all = [seeds.as_slice(), &fate.replaced].concat();
        let (count, of) = (unknown.len(), bytes.len().div_ceil(BLOCK));
        let replaced = count - blocks_of_none_of(&all).len();
        return Err(CheckError::violated(format!(
            "{name}: the block at {at} is neither old nor new, as {count} of {of}, of which {replaced} are what a synced \
             rewrite has replaced; inode {:?}",
            fs::metadata(mount.join(name)).map(|look| look.ino())
        )));
    }
    Ok(())
}

/// `node number check`, each of eight bytes, and a mark.
fn record(node: u32, number: u64) -> [u8; RECORD_LEN] {
    let mut record = [0; RECORD_LEN];
    record[..8].copy_from_slice(&u64::from(node).to_le_bytes());
    record[8..16].copy_from_slice(&number.to_le_bytes());
    pattern::fill(number ^ u64::from(node) << 40, 0, &mut record[16..]);
    record
}

fn parse_record(bytes: &[u8]) -> Option<(u32, u64)> {
    let node = u32::try_from(u64::from_le_bytes(*bytes.first_chunk()?)).ok()?;
    let number = u64::from_le_bytes(*bytes.get(8..)?.first_chunk()?);
    (record(node, number) == bytes).then_some((node, number))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn book() -> (tempfile::TempDir, Ledger) {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join(crate::chaos::private::STRIPED)).unwrap();
        let ledger = Ledger::new(folder.path(), 2).unwrap();
        (folder, ledger)
    }

    fn content(seed: u64, len: usize) -> Vec<u8> {
        let mut content = vec![0; len];
        pattern::fill(seed, 0, &mut content);
        content
    }

    #[test]
    fn a_lost_a_torn_and_a_doubled_file_are_found() {
        let (folder, ledger) = book();
        let at = |name: &str| Place::At(name.to_owned());
        let path = folder.path().join("a");
        ledger.begin_file(1, at("a"));
        assert_eq!(ledger.verify(folder.path()).unwrap().files, 0);
        fs::write(&path, content(7, 9_000)).unwrap();
        ledger.made_file(1, at("a"), 7, 9_000);
        assert_eq!(ledger.verify(folder.path()).unwrap().files, 1);
        // Old or new by blocks, while it is rewritten; only new afterwards.
        ledger.begin_rewrite(1, 8).unwrap();
        let mut mixed = content(7, 9_000);
        mixed[4_096..8_192].copy_from_slice(&content(8, 9_000)[4_096..8_192]);
        fs::write(&path, &mixed).unwrap();
        ledger.verify(folder.path()).unwrap();
        ledger.rewritten(1, 8);
        assert!(ledger.verify(folder.path()).is_err());
        fs::write(&path, content(8, 9_000)).unwrap();
        ledger.verify(folder.path()).unwrap();
        // Here or there, never both or none.
        ledger.begin_move(1, at("b")).unwrap();
        fs::copy(&path, folder.path().join("b")).unwrap();
        assert!(ledger.verify(folder.path()).is_err());
        fs::remove_file(&path).unwrap();
        ledger.verify(folder.path()).unwrap();
        fs::remove_file(folder.path().join("b")).unwrap();
        assert!(ledger.verify(folder.path()).is_err());
        ledger.moved(1, Place::Nowhere);
        ledger.verify(folder.path()).unwrap();
    }

    #[test]
    fn a_lost_a_doubled_and_an_invented_record_are_found() {
        let (folder, ledger) = book();
        let log = ledger.log_below(folder.path());
        let (first, one) = ledger.begin_record(1);
        let (_, two) = ledger.begin_record(2);
        fs::write(&log, [two, one].concat()).unwrap();
        ledger.recorded(1, &[first]);
        assert_eq!(ledger.verify(folder.path()).unwrap().records, 1);
        for broken in [
            [two, two].concat(),
            [two, one, one].concat(),
            [one, record(2, 9)].concat(),
            one[..20].to_vec(),
            [one, [3; RECORD_LEN]].concat(),
        ] {
            fs::write(&log, broken).unwrap();
            assert!(ledger.verify(folder.path()).is_err());
        }
        // One that nobody had synced may be nothing, for good.
        fs::write(&log, [LOST, one].concat()).unwrap();
        ledger.verify(folder.path()).unwrap();
        fs::write(&log, [two, one].concat()).unwrap();
        assert!(ledger.verify(folder.path()).is_err());
    }

    #[test]
    fn a_register_never_goes_back_behind_what_was_seen_or_synced() {
        let (_folder, ledger) = book();
        let see = |reader, value, undisturbed| {
            let before = ledger.register(1);
            ledger.register_seen(1, reader, value, before, undisturbed)
        };
        for value in 1..=3 {
            assert_eq!(ledger.begin_register(1), value);
            ledger.register_written(1, value, 0);
        }
        assert!(see(2, 4, false).is_err(), "never written");
        assert!(see(2, 2, true).is_err(), "older than a write that returned");
        see(2, 2, false).unwrap();
        assert!(see(1, 1, false).is_err(), "another host has seen 2");
        see(1, 3, false).unwrap();
        see(1, 2, false).unwrap();
        let before = ledger.register(1);
        ledger.all_die();
        ledger.register_seen(1, 2, 3, before, false).unwrap();
        see(1, 1, false).unwrap();
        ledger.register_durable(1, 3);
        ledger.all_die();
        assert!(see(1, 2, false).is_err(), "3 was synced");
        let content = Ledger::register_content(1, 3);
        assert_eq!(Ledger::register_value(1, &content).unwrap(), 3);
        assert!(Ledger::register_value(2, &content).is_err());
        assert!(Ledger::register_value(1, &content[..63]).is_err());
    }
}
