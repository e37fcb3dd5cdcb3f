//! File locks beside a table with one cell for each byte.

mod fixture;

use fixture::{Fs, HERE, ROOT, granted, in_mode, lock, session};
use perigee_meta::{
    FileLock, HeldLocks, Leftovers, LockKind, LockSessions, Mode, Op, Patience, Reply, held_locks,
};
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
                Ok(Reply::Done | Reply::Granted(_)) => prop_assert!(free),
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
            fs.run(&Op::ReleaseSession { container: HERE, session: session(who), leftovers: Leftovers::None }).expect("released");
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
    assert!(matches!(fs.run(&flock), Ok(Reply::Granted(_))));
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
    let granted = fs.run(&flock(2, Some(true)));
    assert!(
        matches!(granted, Ok(Reply::Granted(_))),
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
    assert_eq!(holders(&mut fs).holders, [session].into());
    let op = Op::ReleaseSession {
        container: HERE,
        session,
        leftovers: Leftovers::None,
    };
    assert_eq!(fs.run(&op), Ok(Reply::Inodes(vec![inode])));
    assert_eq!(holders(&mut fs), LockSessions::default());
    assert!(!held(&mut fs, LockKind::Flock));
}

fn table(fs: &mut Fs, inode: InodeId) -> HeldLocks {
    held_locks(&mut fs.view, inode).expect("a table")
}

#[test]
fn every_pair_of_modes_goes_together_as_published_and_apart_always() {
    let mut fs = Fs::new();
    for one in Mode::ALL {
        for two in Mode::ALL {
            let inode = fs.file(ROOT, &format!("{one:?} {two:?}"));
            let service = |owner, start, end, mode| {
                let lock = in_mode(LockKind::Service, owner, start, end, Some(mode));
                set(inode, 1, lock)
            };
            let first = granted(&mut fs, &service(1, 0, 10, one));
            let apart = granted(&mut fs, &service(2, 10, 20, two));
            assert!(apart > first, "tokens rise");
            let together = fs.run(&service(2, 9, 10, two)).expect("an answer");
            let compatible = one.is_compatible_with(two);
            assert_eq!(matches!(together, Reply::Granted(_)), compatible);
        }
    }
}

#[test]
fn a_grant_is_above_all_that_the_table_knows() {
    let mut fs = Fs::new();
    let inode = fs.file(ROOT, "f");
    fs.clock = 100;
    let flock = |who| set(inode, who, lock(LockKind::Flock, 1, 0, 0, Some(false)));
    let first = granted(&mut fs, &flock(1));
    // A run that was numbered earlier, and is ordered later.
    fs.clock = 50;
    assert!(granted(&mut fs, &flock(2)) > first);
}

#[test]
fn a_session_whose_locks_were_ended_is_fenced_until_it_lets_go() {
    let mut fs = Fs::new();
    let inode = fs.file(ROOT, "f");
    let posix = |who, owner, start, end, mode| {
        set(inode, who, lock(LockKind::Posix, owner, start, end, mode))
    };
    let token = granted(&mut fs, &posix(1, 7, 0, 10, Some(true)));
    let expire = |who| Op::ExpireSession {
        container: HERE,
        session: session(who),
    };
    assert_eq!(fs.run(&expire(1)), Ok(Reply::Inodes(vec![inode])));
    assert_eq!(fs.run(&expire(1)), Ok(Reply::Inodes(vec![])), "once");
    let fence = |fs: &mut Fs| table(fs, inode).fence(session(1));
    assert_eq!(fence(&mut fs), Some(token));
    assert!(granted(&mut fs, &posix(2, 7, 0, 10, Some(true))) > token);
    assert_eq!(table(&mut fs, inode).fence(session(2)), None);
    // What it gives back, or is granted again, it knows of; what others of it do is not to the point.
    fs.run(&posix(1, 7, 4, 10, None)).expect("given back");
    fs.run(&posix(1, 8, 0, u64::MAX, None))
        .expect("another owner");
    assert_eq!(fence(&mut fs), Some(token));
    fs.run(&posix(2, 7, 0, 10, None)).expect("given back");
    granted(&mut fs, &posix(1, 7, 0, 4, Some(false)));
    assert_eq!(fence(&mut fs), None);
}

#[test]
fn what_was_ended_goes_with_the_file_of_a_program_and_with_the_session() {
    let mut fs = Fs::new();
    let inode = fs.file(ROOT, "f");
    let expire = Op::ExpireSession {
        container: HERE,
        session: session(1),
    };
    let close = Op::ReleaseLocks {
        inode,
        session: session(1),
        owner: Some(1),
        kind: Some(LockKind::Flock),
    };
    let unmount = Op::ReleaseSession {
        container: HERE,
        session: session(1),
        leftovers: Leftovers::None,
    };
    for end in [close, unmount] {
        let flock = set(inode, 1, lock(LockKind::Flock, 1, 0, 0, Some(true)));
        granted(&mut fs, &flock);
        fs.run(&expire).expect("ended");
        assert!(table(&mut fs, inode).fence(session(1)).is_some());
        let known = perigee_meta::lock_sessions(&mut fs.view, HERE).expect("sound");
        assert!(known.fences.keeps_out(inode, session(1)) && known.holders.is_empty());
        fs.run(&end).expect("over");
        assert_eq!(table(&mut fs, inode), HeldLocks::default());
    }
}
