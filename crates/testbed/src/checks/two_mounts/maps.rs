//! Shared memory maps: stores show on the other host after msync, or after fsync where a program
//! of the host has the file past the daemon, and the other host's writes show in the map.

use super::{Case, Pair, equal};
use crate::ensure;
use crate::error::{Call, CheckError, Checked};
use crate::map::{Access, Shared};
use crate::wait;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::time::Duration;

pub(super) const CASES: &[Case] = &[
    ("mmap-store", stores_show),
    ("mmap-sees-writes", writes_show),
    ("mmap-both", both_map),
    ("mmap-beside-readers", beside_readers),
    ("mmap-after-close", after_close),
];

/// Where the kernel says what maps have changed, they are looked for each second.
const SOON: Duration = Duration::from_secs(10);

const BYTES: usize = 128 * 1_024;
/// Long enough to be handed to the kernel.
const LARGE: usize = 8 * BYTES;

fn open(path: std::path::PathBuf) -> Checked<File> {
    let opened = OpenOptions::new().read(true).write(true).open(&path);
    opened.call(|| format!("open {}", path.display()))
}

fn map(file: &File, access: Access) -> Checked<Shared> {
    Shared::new(file, BYTES, access).call(|| format!("mmap for {access:?}"))
}

fn load(map: &Shared, offset: usize, length: usize) -> Checked<Vec<u8>> {
    map.load(offset, length)
        .ok_or_else(|| CheckError::violated("a load outside the map"))
}

fn store_synced(map: &mut Shared, offset: usize, bytes: &[u8]) -> Checked {
    ensure!(map.store(offset, bytes), "a store outside the map");
    map.sync().call(|| "msync".to_owned())
}

fn stores_show(pair: &Pair) -> Checked {
    let mut content = vec![7; BYTES];
    pair.write("f", &content)?;
    let held = pair.prime("f")?;
    let mut mapped = map(&open(pair.w("f"))?, Access::Write)?;
    for at in [0, 4_095, 70_001, BYTES - 5] {
        store_synced(&mut mapped, at, b"store")?;
        content[at..at + 5].copy_from_slice(b"store");
        pair.same_content("f", &held, &content)?;
    }
    Ok(())
}

fn writes_show(pair: &Pair) -> Checked {
    pair.write("f", &vec![1; BYTES])?;
    let mapped = map(&open(pair.r("f"))?, Access::Read)?;
    equal("f", "the map", &vec![1; BYTES], &load(&mapped, 0, BYTES)?)?;
    let file = open(pair.w("f"))?;
    for (round, at) in [0_usize, 4_090, 100_000].into_iter().enumerate() {
        let record = vec![round as u8 + 50; 1_000];
        file.write_all_at(&record, at as u64)
            .call(|| "write".to_owned())?;
        equal(
            "f",
            "the other host's map",
            &record,
            &load(&mapped, at, record.len())?,
        )?;
    }
    Ok(())
}

/// Both hosts map the file for writing and answer each other in it.
fn both_map(pair: &Pair) -> Checked {
    pair.write("f", &vec![0; BYTES])?;
    let mut sides = [
        map(&open(pair.w("f"))?, Access::Write)?,
        map(&open(pair.r("f"))?, Access::Write)?,
    ];
    for turn in 0..20_usize {
        let at = (turn * 9_973) % (BYTES - 8);
        let value = (turn as u64 + 1).to_le_bytes();
        let (mine, other) = (turn % 2, (turn + 1) % 2);
        store_synced(&mut sides[mine], at, &value)?;
        equal(
            "f",
            "the other host's map",
            &value,
            &load(&sides[other], at, 8)?,
        )?;
    }
    Ok(())
}

/// A file that a program of the writing host holds open for reading, and may read past the daemon.
struct ReadPast {
    content: Vec<u8>,
    /// Held by the other host, which has read it.
    held: File,
    reader: File,
}

fn read_past(pair: &Pair) -> Checked<ReadPast> {
    let content = vec![3; LARGE];
    pair.write("f", &content)?;
    Ok(ReadPast {
        content,
        held: pair.prime("f")?,
        reader: File::open(pair.w("f")).call(|| "open for reading".to_owned())?,
    })
}

/// A program that holds a large file open for reading may read it past the daemon; another one that
/// writes and maps it must not go unnoticed for that.
fn beside_readers(pair: &Pair) -> Checked {
    let ReadPast {
        mut content,
        held,
        reader,
    } = read_past(pair)?;
    let seen = map(&reader, Access::Read)?;
    let beside = open(pair.w("f"))?;
    let mut stores = map(&beside, Access::Write)?;
    let other = open(pair.r("f"))?;
    for turn in 0..6_usize {
        let at = turn * 20_011;
        let record = [turn as u8 + 1; 3_000];
        match turn % 3 {
            0 => beside.write_all_at(&record, at as u64),
            1 => other.write_all_at(&record, at as u64),
            _ => {
                ensure!(stores.store(at, &record), "a store outside the map");
                beside.sync_all()
            }
        }
        .call(|| format!("write in turn {turn}"))?;
        content[at..at + record.len()].copy_from_slice(&record);
        equal(
            "f",
            "the local map",
            &record,
            &load(&seen, at, record.len())?,
        )?;
        let mut read = vec![0; record.len()];
        reader
            .read_exact_at(&mut read, at as u64)
            .call(|| "read past the daemon".to_owned())?;
        equal("f", "the local reader", &record, &read)?;
        pair.same_content("f", &held, &content)?;
    }
    ensure!(
        stores.store(BYTES - 9, b"the last!"),
        "a store outside the map"
    );
    content[BYTES - 9..BYTES].copy_from_slice(b"the last!");
    drop((stores, beside, seen, reader));
    pair.same_content("f", &held, &content)
}

/// A map outlives the descriptor that it was made from, and the reader beside which that was opened.
fn after_close(pair: &Pair) -> Checked {
    let ReadPast {
        mut content,
        held,
        reader,
    } = read_past(pair)?;
    let mut stores = map(&open(pair.w("f"))?, Access::Write)?;
    let mut reader = Some(reader);
    for turn in 0..4_usize {
        let at = turn * 30_011;
        let record = [turn as u8 + 1; 3_000];
        store_synced(&mut stores, at, &record)?;
        content[at..at + record.len()].copy_from_slice(&record);
        let told = || "the other host sees the store".to_owned();
        wait::until(&told(), SOON, || {
            let mut read = vec![0; record.len()];
            let file = File::open(pair.r("f")).call(told)?;
            file.read_exact_at(&mut read, at as u64).call(told)?;
            Ok((read == record).then_some(()))
        })?;
        if turn == 1 {
            reader = None;
        }
        // Another program of this host, which opens the file only now.
        let late = open(pair.w("f"))?;
        let mut read = vec![0; record.len()];
        late.read_exact_at(&mut read, at as u64)
            .call(|| "read".to_owned())?;
        equal("f", "a program of the same host", &record, &read)?;
        late.write_all_at(b"late", at as u64 + 10)
            .call(|| "write".to_owned())?;
        content[at + 10..at + 14].copy_from_slice(b"late");
        let seen = load(&stores, at + 10, 4)?;
        equal("f", "the map", b"late", &seen)?;
        late.sync_all().call(|| "fsync".to_owned())?;
        pair.same_content("f", &held, &content)?;
    }
    drop((stores, reader));
    pair.same_content("f", &held, &content)?;
    // Past the page cache the daemon reads it, and verifies what it reads.
    let verified = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_DIRECT)
        .open(pair.w("f"))
        .call(|| "open for direct reads".to_owned())?;
    // Direct I/O wants an aligned buffer: an aligned part of a larger one.
    let mut space = vec![0; LARGE + 4_096];
    let start = space.as_ptr().align_offset(4_096);
    let read = &mut space[start..start + LARGE];
    verified
        .read_exact_at(read, 0)
        .call(|| "read directly".to_owned())?;
    equal("f", "the file", &content, read)
}

/// Nobody syncs what a program stores beside a reader that reads past the daemon: the other host sees it all the same, a
/// moment later, though it had read before. The writer's host has to own the file, and its kernel to say what has changed.
///
/// Errors: those of the calls; `Deadline` where the other host does not see it.
pub fn unsynced_stores_show(pair: &Pair) -> Checked {
    let ReadPast {
        mut content,
        held,
        reader,
    } = read_past(pair)?;
    let beside = open(pair.w("f"))?;
    let mut stores = map(&beside, Access::Write)?;
    let seen = map(&open(pair.r("f"))?, Access::Read)?;
    load(&seen, 0, BYTES)?;
    for turn in 0..3_usize {
        let at = turn * 40_011;
        let record = [turn as u8 + 1; 3_000];
        ensure!(stores.store(at, &record), "a store outside the map");
        content[at..at + record.len()].copy_from_slice(&record);
        wait::until("the other host sees the store", SOON, || {
            // Whoever asked anew would be told the same without any search.
            Ok((load(&seen, at, record.len())? == record).then_some(()))
        })?;
    }
    drop((stores, beside, reader));
    pair.same_content("f", &held, &content)
}
