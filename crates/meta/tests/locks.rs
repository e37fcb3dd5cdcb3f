//! File locks beside a table with one cell for each byte.

mod fixture;

use fixture::{Fs, HERE, ROOT, lock, session};
use perigee_meta::{FileLock, LockKind, Op, Patience, Reply};
use perigee_types::{ByteRange, InodeId};
use proptest::prelude::*;
use std::collections::BTreeMap;

const BYTES: u64 = 24;

/// For each byte: who (session, owner) holds it, and whether alone.
type Cells = Vec<BTreeMap<(u64, u64), bool>>;

fn get(inode: InodeId, who: u64, lock: FileLock) -> Op {
    Op::GetLock {
        inode,
        session: session(who),
        lock,
    }
}

fn set(inode: InodeId, who: u64, lock: FileLock) -> Op {
    Op::SetLock {
        inode,
        session: session(who),
        lock,
        patience: Patience::Refuse,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn byte_ranges_split_merge_and_conflict_as_single_bytes_do(
        steps in prop::collection::vec((0..2u64, 0..2u64, 0..BYTES, 1..=BYTES, 0..3u8), 1..60),
    ) {
        let mut fs = Fs::new();
        let inode = fs.file(ROOT, "f");
        let mut cells: Cells = vec![BTreeMap::new(); BYTES as usize];
        for (who, owner, start, len, mode) in steps {
            let end = (start + len).min(BYTES);
            let range = start as usize..end as usize;
            let exclusive = [None, Some(false), Some(true)][usize::from(mode)];
            let free = exclusive.is_none_or(|exclusive| {
                cells[range.clone()].iter().flatten().all(|(holder, held)| {
                    *holder == (who, owner) || !(exclusive || *held)
                })
            });
            let asked = lock(LockKind::Posix, owner, start, end, exclusive);
            match fs.run(&set(inode, who, asked)) {
                Ok(Reply::Done) => prop_assert!(free),
                Ok(Reply::Blocked(other)) => {
                    prop_assert!(!free && other.range.overlaps(ByteRange::new(start, end)));
                }
                other => panic!("{other:?}"),
            }
            for cell in cells[range].iter_mut().filter(|_| free) {
                match exclusive {
                    Some(exclusive) => cell.insert((who, owner), exclusive),
                    None => cell.remove(&(who, owner)),
                };
            }
            for byte in 0..BYTES {
                let probe = lock(LockKind::Posix, 99, byte, byte + 1, Some(true));
                let found = fs.run(&get(inode, 99, probe));
                let Ok(Reply::Lock(found)) = found else { panic!("{found:?}") };
                prop_assert_eq!(found.is_some(), !cells[byte as usize].is_empty());
            }
        }
        for who in 0..2 {
            fs.run(&Op::ReleaseSession { container: HERE, session: session(who) }).expect("released");
        }
        let all = lock(LockKind::Posix, 99, 0, u64::MAX, Some(true));
        prop_assert_eq!(fs.run(&get(inode, 99, all)), Ok(Reply::Lock(None)));
        prop_assert!(!fs.view.states[&HERE].keys().any(|key| key[0] == b'l'));
    }
}

#[test]
fn an_unlocked_middle_leaves_two_locks_and_a_relock_joins_them() {
    let mut fs = Fs::new();
    let inode = fs.file(ROOT, "f");
    let posix = |start, end, exclusive| lock(LockKind::Posix, 1, start, end, exclusive);
    let first = |fs: &mut Fs| {
        let probe = lock(LockKind::Posix, 2, 0, u64::MAX, Some(false));
        match fs.run(&get(inode, 1, probe)) {
            Ok(Reply::Lock(found)) => found.map(|lock| lock.range),
            other => panic!("{other:?}"),
        }
    };
    fs.run(&set(inode, 1, posix(0, 100, Some(true))))
        .expect("free");
    fs.run(&set(inode, 1, posix(40, 60, None))).expect("own");
    assert_eq!(first(&mut fs), Some(ByteRange::new(0, 40)));
    fs.run(&set(inode, 1, posix(40, 60, Some(true))))
        .expect("free");
    assert_eq!(first(&mut fs), Some(ByteRange::new(0, 100)));
    fs.run(&set(inode, 1, posix(0, 50, Some(false))))
        .expect("a downgrade needs nobody");
    assert_eq!(
        first(&mut fs),
        Some(ByteRange::new(50, 100)),
        "shared does not hinder shared"
    );
}

#[test]
fn flock_and_fcntl_do_not_see_each_other() {
    let mut fs = Fs::new();
    let inode = fs.file(ROOT, "f");
    fs.run(&set(
        inode,
        1,
        lock(LockKind::Posix, 1, 0, u64::MAX, Some(true)),
    ))
    .expect("free");
    let flock = set(inode, 2, lock(LockKind::Flock, 1, 0, 0, Some(true)));
    assert_eq!(fs.run(&flock), Ok(Reply::Done));
}

#[test]
fn a_flock_that_waits_to_be_exclusive_gives_up_what_it_had() {
    let mut fs = Fs::new();
    let inode = fs.file(ROOT, "f");
    let flock = |who, exclusive| set(inode, who, lock(LockKind::Flock, 1, 0, 0, exclusive));
    fs.run(&flock(1, Some(false))).expect("free");
    fs.run(&flock(2, Some(false))).expect("shared");
    assert!(matches!(
        fs.run(&flock(1, Some(true))),
        Ok(Reply::Blocked(_))
    ));
    assert_eq!(
        fs.run(&flock(2, Some(true))),
        Ok(Reply::Done),
        "else both would wait for ever"
    );
}

#[test]
fn release_takes_the_owners_and_kinds_that_it_names() {
    let mut fs = Fs::new();
    let inode = fs.file(ROOT, "f");
    for (kind, owner) in [
        (LockKind::Posix, 1),
        (LockKind::Posix, 2),
        (LockKind::Flock, 1),
    ] {
        let range = (owner * 10, owner * 10 + 5);
        fs.run(&set(
            inode,
            1,
            lock(kind, owner, range.0, range.1, Some(false)),
        ))
        .expect("free");
    }
    let held = |fs: &mut Fs, kind| {
        let probe = lock(kind, 9, 0, u64::MAX, Some(true));
        matches!(fs.run(&get(inode, 9, probe)), Ok(Reply::Lock(Some(_))))
    };
    let session = session(1);
    let release = |owner, kind| Op::ReleaseLocks {
        inode,
        session,
        owner,
        kind,
    };
    fs.run(&release(Some(1), Some(LockKind::Posix)))
        .expect("released");
    assert!(held(&mut fs, LockKind::Posix) && held(&mut fs, LockKind::Flock));
    fs.run(&release(None, Some(LockKind::Posix)))
        .expect("released");
    assert!(!held(&mut fs, LockKind::Posix) && held(&mut fs, LockKind::Flock));
    let holders = |fs: &mut Fs| perigee_meta::lock_sessions(&mut fs.view, HERE).expect("sound");
    assert_eq!(holders(&mut fs), [session].into());
    let op = Op::ReleaseSession {
        container: HERE,
        session,
    };
    assert_eq!(fs.run(&op), Ok(Reply::Inodes(vec![inode])));
    assert!(holders(&mut fs).is_empty());
    assert!(!held(&mut fs, LockKind::Flock));
}
