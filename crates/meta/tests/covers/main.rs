//! `fcntl` locks that sessions decide about under covers, beside a model with one cell for each byte.

#[path = "../fixture/mod.rs"]
mod fixture;
mod world;

use fixture::{Fs, HERE, ROOT, lock, session};
use perigee_meta::lock::cover::{Called, CoverAnswer, Covers, Decision, EndAnswer, Request, Step};
use perigee_meta::lock::cycle::victims;
use perigee_meta::lock::kept::{KeptId, Life};
use perigee_meta::{FileLock, LockKind, Mode, Op, Patience, Reply, held_locks};
use perigee_types::{ByteRange, Errno};
use proptest::prelude::*;
use world::{BYTES, FILES, Holder, Message, PROGRAMS, SESSIONS, World, session_of};

#[derive(Debug, Clone)]
enum Move {
    Begin(Holder, usize, FileLock, bool),
    Deliver(usize),
    Look(Holder, usize, FileLock),
    Pass,
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let holder = || (0..SESSIONS, 0..PROGRAMS);
    let any_lock = || {
        (0..BYTES, 1..=BYTES, 0..3_u8).prop_map(|(start, len, mode)| {
            let exclusive = [None, Some(false), Some(true)][usize::from(mode)];
            let end = (start + len).min(BYTES);
            FileLock {
                pid: 7,
                ..lock(LockKind::Posix, 0, start, end, exclusive)
            }
        })
    };
    let begin = (holder(), 0..FILES, any_lock(), any::<bool>());
    let look = (holder(), 0..FILES, any_lock());
    let step = prop_oneof![
        6 => begin.prop_map(|(who, file, lock, waits)| Move::Begin(who, file, lock, waits)),
        12 => (0..64_usize).prop_map(Move::Deliver),
        1 => look.prop_map(|(who, file, lock)| Move::Look(who, file, lock)),
        1 => Just(Move::Pass),
    ];
    prop::collection::vec(step, 1..160)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn locks_under_covers_are_what_single_bytes_say(moves in moves()) {
        let mut world = World::new();
        for step in moves {
            match step {
                Move::Begin(who, file, lock, waits) => world.begin(who, file, lock, waits),
                Move::Deliver(choice) => world.deliver_any(choice),
                Move::Look(who, file, lock) => {
                    world.settle();
                    // Of one who waits to convert what it has nobody knows how much that is meanwhile.
                    if world.asking.is_empty() {
                        world.look_is_right(who, file, lock);
                    }
                }
                Move::Pass => world.pass(),
            }
        }
        for _ in 0..12 {
            world.let_all_go();
            world.pass();
        }
        world.let_all_go();
        prop_assert!(world.asking.is_empty(), "{:?}", world.asking);
        prop_assert!(world.later.is_empty());
        for inode in world.files.clone() {
            let held: Vec<_> = world.table(inode).held().collect();
            // What is under a cover is its session's to say.
            let covered = |session| {
                let mut held = held.iter();
                held.any(|(of, lock, _)| (*of, lock.kind) == (session, LockKind::Cover))
            };
            for (of, lock, _) in &held {
                prop_assert!(covered(*of), "nobody has {:?}", lock);
                if lock.kind != LockKind::Cover {
                    continue;
                }
                let id = KeptId { inode, kind: lock.kind, owner: lock.owner };
                let place = (0..SESSIONS).find(|place| session_of(*place) == *of).expect("known");
                prop_assert!(world.covers[place].knows(id));
            }
        }
        prop_assert!(world.refused.iter().all(|(_, errno)| *errno == Errno::EDEADLK));
    }
}

fn exclusive(start: u64, end: u64) -> FileLock {
    FileLock {
        pid: 7,
        ..lock(LockKind::Posix, 0, start, end, Some(true))
    }
}

fn free() -> FileLock {
    lock(LockKind::Posix, 0, 0, u64::MAX, None)
}

/// A program locks and lets go, so many times.
fn use_it(world: &mut World, who: Holder, file: usize, times: usize) {
    for _ in 0..times {
        world.begin(who, file, exclusive(1, 3), false);
        world.settle();
        world.begin(who, file, free(), false);
        world.settle();
    }
}

#[test]
fn who_works_alone_asks_a_few_times_and_hosts_in_turns_hardly_more_often_than_without_covers() {
    let mut world = World::new();
    use_it(&mut world, (0, 0), 0, 1_000);
    assert_eq!(world.sent, 4, "two locks, one end of a lock, a cover");
    let mut world = World::new();
    for _ in 0..500 {
        use_it(&mut world, (0, 0), 0, 1);
        use_it(&mut world, (1, 0), 0, 1);
    }
    assert!((2_000..2_100).contains(&world.sent), "{}", world.sent);
}

#[test]
fn what_is_called_for_shows_exactly_and_waits_go_on_at_the_owner() {
    let mut world = World::new();
    let inode = world.files[0];
    use_it(&mut world, (0, 0), 0, 3);
    world.begin((0, 0), 0, exclusive(1, 3), false);
    world.begin((0, 1), 0, exclusive(2, 5), true);
    world.settle();
    assert!(world.asking.contains_key(&(0, 1)));
    let found = world.looks(1, inode, &exclusive(0, BYTES));
    assert_eq!(found, Some(exclusive(1, 3)));
    // The cover is gone: the other one waits behind who came before it.
    world.begin((1, 0), 0, exclusive(2, 3), true);
    world.begin((0, 0), 0, free(), false);
    world.settle();
    assert!(!world.asking.contains_key(&(0, 1)) && world.asking.contains_key(&(1, 0)));
    world.begin((0, 1), 0, free(), false);
    world.settle();
    assert!(world.asking.is_empty());
}

#[test]
fn a_circle_of_waits_is_found_inside_a_session_and_over_others() {
    let mut world = World::new();
    for file in 0..FILES {
        use_it(&mut world, (0, file as u64), file, 3);
        world.begin((0, file as u64), file, exclusive(1, 3), false);
    }
    let sent = world.sent;
    world.begin((0, 0), 1, exclusive(1, 3), true);
    world.begin((0, 1), 0, exclusive(1, 3), true);
    assert_eq!(world.refused, [((0, 1), Errno::EDEADLK)]);
    assert_eq!(world.sent, sent, "no owner was asked");
    world.begin((0, 1), 1, free(), false);
    assert!(world.asking.is_empty());
    world.let_all_go();

    // Program 0 of session 0 waits under its cover for program 1, that for another session, and that for program 0.
    use_it(&mut world, (1, 0), 1, 3);
    world.begin((1, 0), 1, exclusive(1, 3), false);
    use_it(&mut world, (0, 1), 0, 70);
    world.begin((0, 1), 0, exclusive(1, 3), false);
    world.begin((0, 0), 1, exclusive(4, 5), false);
    world.settle();
    world.begin((0, 0), 0, exclusive(1, 3), true);
    world.begin((0, 1), 1, exclusive(1, 3), true);
    world.begin((1, 0), 1, exclusive(4, 5), true);
    world.settle();
    assert_eq!(world.asking.len(), 3);
    let here = world.covers[0].waits();
    let waits: Vec<_> = here.chain(world.queue.waits()).collect();
    let kinds: Vec<_> = waits.iter().map(|wait| wait.kind).collect();
    assert_eq!(kinds, [LockKind::Cover, LockKind::Posix, LockKind::Posix]);
    let found = victims(&waits, &waits);
    assert_eq!(found.len(), 1);
    assert!(world.queue.end_cycle(&found[0]), "an owner can refuse it");
}

#[test]
fn a_session_that_may_have_lost_its_covers_decides_nothing() {
    let mut world = World::new();
    let inode = world.files[0];
    use_it(&mut world, (0, 0), 0, 3);
    world.begin((0, 0), 0, exclusive(1, 3), false);
    world.begin((0, 0), 0, exclusive(4, 5), false);
    let expire = Op::ExpireSession {
        container: HERE,
        session: session_of(0),
    };
    world.fs.run(&expire).expect("ended");
    assert!(world.table(inode).fence(session_of(0)).is_some());
    let request = Request {
        inode,
        lock: exclusive(0, 1),
        patience: Patience::Refuse,
    };
    let now = world.now;
    let mut unsure = world.covers[0].request(now, &request, Life::Unsure);
    assert_eq!(unsure.0, Decision::Later);
    // Each program is kept from writing until it has let go of what it had.
    world.perform(0, std::mem::take(&mut unsure.1));
    world.settle();
    world.begin((0, 0), 0, lock(LockKind::Posix, 0, 1, 3, None), false);
    world.settle();
    assert!(world.table(inode).fence(session_of(0)).is_some());
    let cover = Op::SetLock {
        inode,
        session: session_of(0),
        lock: Covers::cover(KeptId {
            inode,
            kind: LockKind::Cover,
            owner: 99,
        }),
        patience: Patience::Refuse,
    };
    assert_eq!(world.fs.run(&cover), Err(Errno::EAGAIN), "it is fenced");
    world.begin((0, 0), 0, free(), false);
    world.settle();
    assert_eq!(world.table(inode).fence(session_of(0)), None);
}

#[test]
fn a_cover_gives_a_right_to_what_is_under_it_alone() {
    let mut fs = Fs::new();
    let inode = fs.file(ROOT, "f");
    let set = |who, lock| Op::SetLock {
        inode,
        session: session(who),
        lock,
        patience: Patience::Refuse,
    };
    let cover = FileLock {
        range: ByteRange::new(0, 10),
        mode: Some(Mode::ProtectedRead),
        ..Covers::cover(KeptId {
            inode,
            kind: LockKind::Cover,
            owner: 4,
        })
    };
    let reads = |owner, start, end| lock(LockKind::Posix, owner, start, end, Some(false));
    assert!(matches!(fs.run(&set(1, cover)), Ok(Reply::Granted(_))));
    let granted = fs.run(&set(1, exclusive(0, 10)));
    assert!(matches!(granted, Ok(Reply::Granted(_))), "its own session");
    let refused = fs.run(&set(2, exclusive(9, 20)));
    assert!(matches!(refused, Ok(Reply::Blocked(_))));
    let end = |locks: &[FileLock]| Op::EndCover {
        inode,
        session: session(1),
        cover: 4,
        locks: locks.to_vec(),
    };
    for beyond in [
        vec![exclusive(0, 5)],
        vec![reads(1, 5, 11)],
        vec![reads(1, 0, 5), reads(1, 4, 6)],
        vec![cover],
    ] {
        assert_eq!(fs.run(&end(&beyond)), Err(Errno::EINVAL), "{beyond:?}");
    }
    let exact = [reads(1, 0, 5), reads(2, 4, 6)];
    assert_eq!(fs.run(&end(&exact)), Ok(Reply::Done));
    assert_eq!(fs.run(&end(&[])), Ok(Reply::Done), "it was said before");
    let held = held_locks(&mut fs.view, inode).expect("a table");
    let held: Vec<FileLock> = held.held().map(|(_, lock, _)| lock).collect();
    assert_eq!(held, exact);
}

#[test]
fn a_session_that_does_not_know_whether_it_has_a_cover_says_again_what_it_has() {
    let mut world = World::new();
    let inode = world.files[0];
    use_it(&mut world, (0, 0), 0, 1);
    world.begin((0, 0), 0, exclusive(1, 3), false);
    let ask = loop {
        let (place, message) = world.messages.remove(0);
        match message {
            Message::Ask(id) => break id,
            message => world.deliver(place, message),
        }
    };
    // The owner grants it, and the answer is lost.
    let cover = Op::SetLock {
        inode,
        session: session_of(0),
        lock: Covers::cover(ask),
        patience: Patience::Refuse,
    };
    assert!(matches!(world.fs.run(&cover), Ok(Reply::Granted(_))));
    world.begin((0, 0), 0, free(), false);
    assert!(world.messages.is_empty(), "nobody decides");
    let covers = &mut world.covers[0];
    let steps = covers.cover_answered(ask, CoverAnswer::Unknown);
    assert_eq!(steps, [Step::End(ask, vec![exclusive(1, 3)])]);
    // Nor does it hear of the end; so it tells again, and a call finds it at that.
    assert_eq!(covers.ended(ask, EndAnswer::Unknown), [Step::GiveUp(ask)]);
    assert_eq!(covers.called(ask), Called::Ends(Vec::new()));
    let steps = covers.end_again(ask);
    world.perform(0, steps);
    world.settle();
    assert!(world.asking.is_empty(), "the owner has decided");
    let held = held_locks(&mut world.fs.view, inode).expect("a table");
    assert_eq!(held, perigee_meta::HeldLocks::default());
    assert_eq!(world.covers[0].called(ask), Called::Unknown);
    assert_eq!(world.covers[0].end_again(ask), []);
}
