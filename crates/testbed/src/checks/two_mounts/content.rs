//! Data: write, overwrite, append, truncate, holes; seen at once, before any close or fsync.

use super::{Case, Pair};
use crate::error::{Call, Checked};
use crate::{ensure, pattern};
use rustix::fs::{FallocateFlags, SeekFrom};
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;

pub(super) const CASES: &[Case] = &[
    ("write", write),
    ("overwrite", overwrite),
    ("grow", grow),
    ("append", append),
    ("truncate", truncate),
    ("open-trunc", open_truncate),
    ("hole", hole),
    ("direct", direct),
    ("both-write", both_write),
    ("ping-pong", ping_pong),
    ("own-change", own_change),
];

fn seeded(seed: u64, bytes: usize) -> Vec<u8> {
    let mut content = vec![0; bytes];
    pattern::fill(seed, 0, &mut content);
    content
}

fn write(pair: &Pair) -> Checked {
    pair.write("f", b"")?;
    let held = pair.prime("f")?;
    let file = OpenOptions::new()
        .write(true)
        .open(pair.w("f"))
        .call(|| "open".to_owned())?;
    let content = seeded(1, 300_001);
    file.write_all_at(&content, 0).call(|| "write".to_owned())?;
    pair.same_content("f", &held, &content)
}

/// Same size, other bytes: only the data and the times tell.
fn overwrite(pair: &Pair) -> Checked {
    let mut content = seeded(2, 100_000);
    pair.write("f", &content)?;
    let held = pair.prime("f")?;
    let file = OpenOptions::new()
        .write(true)
        .open(pair.w("f"))
        .call(|| "open".to_owned())?;
    for (round, at) in [0_usize, 4_095, 50_000, 99_999, 65_536, 1]
        .into_iter()
        .enumerate()
    {
        let end = (at + 1 + round * 700).min(content.len());
        for byte in &mut content[at..end] {
            *byte ^= 0xff;
        }
        file.write_all_at(&content[at..end], at as u64)
            .call(|| "write".to_owned())?;
        pair.same_content("f", &held, &content)?;
    }
    Ok(())
}

/// Writes past the end: the gap reads as zeros.
fn grow(pair: &Pair) -> Checked {
    let mut content = seeded(3, 10);
    pair.write("f", &content)?;
    let held = pair.prime("f")?;
    let file = OpenOptions::new()
        .write(true)
        .open(pair.w("f"))
        .call(|| "open".to_owned())?;
    for at in [5_000_usize, 5_100, 200_000] {
        content.resize(at, 0);
        content.extend_from_slice(b"tail");
        file.write_all_at(b"tail", at as u64)
            .call(|| "write".to_owned())?;
        pair.same_content("f", &held, &content)?;
    }
    Ok(())
}

fn append(pair: &Pair) -> Checked {
    let mut content = b"head".to_vec();
    pair.write("f", &content)?;
    let held = pair.prime("f")?;
    let mut file = OpenOptions::new()
        .append(true)
        .open(pair.w("f"))
        .call(|| "open".to_owned())?;
    for round in 1..=20_usize {
        let record = seeded(round as u64, round * 317);
        file.write_all(&record).call(|| "append".to_owned())?;
        content.extend_from_slice(&record);
        pair.same_content("f", &held, &content)?;
    }
    Ok(())
}

fn truncate(pair: &Pair) -> Checked {
    let mut content = seeded(4, 70_000);
    pair.write("f", &content)?;
    let held = pair.prime("f")?;
    let file = OpenOptions::new()
        .write(true)
        .open(pair.w("f"))
        .call(|| "open".to_owned())?;
    // Down inside a page and up again: what was cut off must read as zeros.
    for size in [69_999_usize, 4_097, 100_000, 0, 10_000] {
        content.resize(size, 0);
        file.set_len(size as u64)
            .call(|| format!("truncate to {size}"))?;
        pair.same_content("f", &held, &content)?;
    }
    Ok(())
}

fn open_truncate(pair: &Pair) -> Checked {
    pair.write("f", &seeded(5, 9_000))?;
    let held = pair.prime("f")?;
    let mut file = fs::File::create(pair.w("f")).call(|| "open O_TRUNC".to_owned())?;
    pair.same_content("f", &held, b"")?;
    file.write_all(b"short").call(|| "write".to_owned())?;
    pair.same_content("f", &held, b"short")
}

fn hole(pair: &Pair) -> Checked {
    let mut content = seeded(6, 200_000);
    pair.write("f", &content)?;
    let held = pair.prime("f")?;
    let file = OpenOptions::new()
        .write(true)
        .open(pair.w("f"))
        .call(|| "open".to_owned())?;
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&file, flags, 10_001, 100_000).call(|| "punch hole".to_owned())?;
    content[10_001..110_001].fill(0);
    pair.same_content("f", &held, &content)?;
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 250_000)
        .call(|| "fallocate".to_owned())?;
    content.resize(250_000, 0);
    pair.same_content("f", &held, &content)?;
    let data = rustix::fs::seek(&held, SeekFrom::Data(0)).call(|| "SEEK_DATA".to_owned())?;
    ensure!(data == 0, "SEEK_DATA from 0 gives {data}");
    Ok(())
}

/// O_DIRECT on the writing side, caches on the reading side.
fn direct(pair: &Pair) -> Checked {
    use std::os::unix::fs::OpenOptionsExt;
    const BLOCK: usize = 4_096;
    let mut content = seeded(7, 16 * BLOCK);
    pair.write("f", &content)?;
    let held = pair.prime("f")?;
    let flag = i32::try_from(rustix::fs::OFlags::DIRECT.bits()).unwrap_or(0);
    let file = OpenOptions::new()
        .write(true)
        .custom_flags(flag)
        .open(pair.w("f"))
        .call(|| "open O_DIRECT".to_owned())?;
    // Direct I/O wants an aligned buffer: take an aligned part of a larger one.
    let mut space = vec![0x3c; 2 * BLOCK];
    let start = space.as_ptr().align_offset(BLOCK);
    space.truncate(start + BLOCK);
    file.write_all_at(&space[start..], 5 * BLOCK as u64)
        .call(|| "write".to_owned())?;
    content[5 * BLOCK..6 * BLOCK].fill(0x3c);
    pair.same_content("f", &held, &content)
}

/// Both hosts keep the file open and write neighbouring bytes of the same pages.
fn both_write(pair: &Pair) -> Checked {
    let bytes = 20_000_usize;
    pair.write("f", &vec![0; bytes])?;
    let open = |path| OpenOptions::new().read(true).write(true).open(path);
    let sides = [
        open(pair.w("f")).call(|| "open".to_owned())?,
        open(pair.r("f")).call(|| "open".to_owned())?,
    ];
    let mut content = vec![0; bytes];
    for round in 0..100_usize {
        let at = (round * 197) % (bytes - 50);
        let record = seeded(round as u64, 50);
        sides[round % 2]
            .write_all_at(&record, at as u64)
            .call(|| "write".to_owned())?;
        content[at..at + 50].copy_from_slice(&record);
        let seen = super::read_all(&sides[(round + 1) % 2])?;
        super::equal("f", "the other host", &content, &seen)?;
    }
    pair.same_content("f", &sides[1], &content)
}

/// Each host adds one to the number that the other wrote.
fn ping_pong(pair: &Pair) -> Checked {
    pair.write("n", &0_u64.to_le_bytes())?;
    let open = |path| OpenOptions::new().read(true).write(true).open(path);
    let sides = [
        open(pair.w("n")).call(|| "open".to_owned())?,
        open(pair.r("n")).call(|| "open".to_owned())?,
    ];
    for turn in 0..200_u64 {
        let side = &sides[(turn % 2) as usize];
        let mut number = [0; 8];
        side.read_exact_at(&mut number, 0)
            .call(|| "read".to_owned())?;
        let number = u64::from_le_bytes(number);
        ensure!(number == turn, "turn {turn} reads {number}");
        side.write_all_at(&(turn + 1).to_le_bytes(), 0)
            .call(|| "write".to_owned())?;
    }
    Ok(())
}

/// A host that changes a file of another one's container in ways that carry no bytes, and has just read its own copy.
fn own_change(pair: &Pair) -> Checked {
    // Whoever makes a directory has its files, so the other host makes it.
    fs::create_dir(pair.r("theirs")).call(|| "mkdir".to_owned())?;
    let path = pair.w("theirs").join("f");
    let mut content = seeded(11, 150_000);
    fs::write(&path, &content).call(|| "write".to_owned())?;
    let file = OpenOptions::new()
        .write(true)
        .open(&path)
        .call(|| "open".to_owned())?;
    let looks = |content: &[u8], after: &str| -> Checked {
        // The second one finds what the first has leased.
        for _ in 0..2 {
            let found = fs::read(&path).call(|| "read".to_owned())?;
            super::equal("f", &format!("its own host after {after}"), content, &found)?;
        }
        Ok(())
    };
    for round in 0..20_usize {
        file.write_all_at(&content[..100], 0)
            .call(|| "write".to_owned())?;
        looks(&content, "a write")?;
        content.resize(content.len() + 70_000, 0);
        file.set_len(content.len() as u64)
            .call(|| "set_len".to_owned())?;
        looks(&content, "growing")?;
        let (at, len) = (10_000 + round * 100, 5_000);
        content[at..at + len].fill(0);
        let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&file, how, at as u64, len as u64)
            .map_err(std::io::Error::from)
            .call(|| "punch".to_owned())?;
        looks(&content, "a hole")?;
        content.truncate(content.len() - 71_000);
        file.set_len(content.len() as u64)
            .call(|| "set_len".to_owned())?;
        content.resize(content.len() + 1_500, 0);
        file.set_len(content.len() as u64)
            .call(|| "set_len".to_owned())?;
        looks(&content, "cutting and growing")?;
    }
    Ok(())
}
