//! Shared memory maps: stores show on the other host after msync, and its writes show in the map.

use super::{Case, Pair, equal};
use crate::ensure;
use crate::error::{Call, CheckError, Checked};
use crate::map::{Access, Shared};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;

pub(super) const CASES: &[Case] = &[
    ("mmap-store", stores_show),
    ("mmap-sees-writes", writes_show),
    ("mmap-both", both_map),
];

const BYTES: usize = 128 * 1_024;

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
