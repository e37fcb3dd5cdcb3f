//! What the simulator is slow to say: the bookkeeping of one holder and one owner.

use super::*;
use crate::region::RegionMap;
use perigee_types::{ContainerId, Epoch, InodeIndex, NodeId, Seq, Tick};

const INODE: InodeId = InodeId::new(ContainerId::ROOT, InodeIndex(7));
const CHUNK: Chunk = Chunk {
    inode: INODE,
    index: 0,
};
const TERMS: Terms = Terms {
    held: Span::from_millis(1_900),
    waited: Span::from_millis(2_500),
};

const ALL: Share = Share {
    bytes: u64::MAX,
    ranges: usize::MAX,
};

fn version(seq: u64) -> Version {
    Version {
        epoch: Epoch(1),
        seq: Seq(seq),
    }
}

fn hold() -> Hold {
    Hold {
        holder: SessionId::new(NodeId(2), 9),
        token: version(5),
        manner: Manner::InPlace,
    }
}

fn holding() -> Holding {
    let mut holding = Holding::default();
    assert_eq!(holding.on_row(CHUNK, Some(hold())), None);
    let (asked, number) = holding.ask(CHUNK).unwrap();
    assert_eq!(asked, hold());
    holding.on_right(CHUNK, hold(), (number, Tick(0)), TERMS);
    holding
}

fn parts(map: &RegionMap) -> Vec<(u64, u64)> {
    map.iter()
        .map(|(range, _)| (range.start, range.end))
        .collect()
}

#[test]
fn a_right_lasts_from_when_it_was_asked_for() {
    let holding = holding();
    let may = |at, session| holding.may(Tick(at), session, INODE, ByteRange::new(0, 10));
    assert_eq!(may(1_899_999, hold().holder), May::Yes);
    assert_eq!(may(1_900_000, hold().holder), May::Ask);
    assert_eq!(may(0, SessionId::new(NodeId(2), 8)), May::No);
    let beyond = ByteRange::with_len(CHUNK.range().end - 1, 2);
    assert_eq!(holding.may(Tick(0), hold().holder, INODE, beyond), May::No);
}

#[test]
fn what_was_written_is_kept_until_its_record_is_here() {
    let mut holding = holding();
    holding.on_write(INODE, ByteRange::new(0, 100));
    let first = holding.flush(CHUNK, ALL).unwrap();
    holding.on_write(INODE, ByteRange::new(50, 60));
    assert_eq!(holding.flush(CHUNK, ALL), None, "one at a time");
    let lacking = |holding: &Holding, seq| {
        let range = ByteRange::new(0, 200);
        parts(&holding.lacking(INODE, range, version(seq)))
    };
    // Its record comes before the answer does.
    assert_eq!(lacking(&holding, 6), [(100, 200)]);
    holding.on_flushed(CHUNK, hold(), first.number, (version(6), Seq(5)));
    assert!(holding.keeps(INODE, ByteRange::new(0, 1)));
    assert_eq!(lacking(&holding, 6), [(100, 200)]);
    // A later record is not its own, but where it wrote again.
    assert_eq!(lacking(&holding, 7), [(0, 50), (60, 200)]);
    holding.on_committed(Seq(6));
    assert!(!holding.keeps(INODE, ByteRange::new(0, 50)));
    assert!(holding.keeps(INODE, ByteRange::new(0, 51)));
    let lost = holding.on_row(CHUNK, None).unwrap();
    assert_eq!(lost.ranges, [ByteRange::new(50, 60)]);
}

#[test]
fn a_call_is_answered_when_all_that_was_written_has_arrived() {
    let mut holding = holding();
    holding.on_write(INODE, ByteRange::new(0, 100));
    let first = holding.flush(CHUNK, ALL).unwrap();
    holding.on_write(INODE, ByteRange::new(50, 60));
    let through = holding.last_written(CHUNK);
    holding.on_call(CHUNK, hold(), false);
    assert_eq!(holding.report(CHUNK, hold(), through), None);
    holding.on_flush_failed(CHUNK, hold(), first.number);
    assert_eq!(holding.report(CHUNK, hold(), through), None);
    let second = holding.flush(CHUNK, ALL).unwrap();
    assert_eq!(second.ranges, [ByteRange::new(0, 100)]);
    holding.on_write(INODE, ByteRange::new(0, 1));
    holding.on_flushed(CHUNK, hold(), second.number, (version(6), Seq(6)));
    let report = holding.report(CHUNK, hold(), through);
    assert_eq!(report, Some(Report::Writes));
    // To stop it has to send the rest.
    holding.on_call(CHUNK, hold(), true);
    let range = ByteRange::new(0, 10);
    assert_eq!(holding.may(Tick(0), hold().holder, INODE, range), May::No);
    assert_eq!(holding.report(CHUNK, hold(), through), None);
    let third = holding.flush(CHUNK, ALL).unwrap();
    holding.on_flushed(CHUNK, hold(), third.number, (version(7), Seq(7)));
    let report = holding.report(CHUNK, hold(), through);
    assert_eq!(report, Some(Report::Stopped));
}

#[test]
fn what_one_message_cannot_take_goes_in_parts_of_one_turn() {
    let mut holding = holding();
    for start in [0, 100, 200] {
        holding.on_write(INODE, ByteRange::with_len(start, 10));
    }
    let through = holding.last_written(CHUNK);
    let share = Share {
        bytes: 15,
        ranges: 2,
    };
    let first = holding.flush(CHUNK, share).unwrap();
    let range = ByteRange::with_len;
    assert_eq!(first.ranges, [range(0, 10), range(100, 5)]);
    // What is written meanwhile, also where something is yet to be sent, is of the next turn.
    holding.on_write(INODE, ByteRange::new(0, 210));
    let arrived = |holding: &mut Holding, number| {
        holding.on_flushed(CHUNK, hold(), number, (version(6), Seq(6)));
        holding.report(CHUNK, hold(), through)
    };
    assert_eq!(arrived(&mut holding, first.number), None);
    let second = holding.flush(CHUNK, share).unwrap();
    assert_eq!(second.ranges, [range(105, 5), range(200, 10)]);
    assert_eq!(holding.flush(CHUNK, share), None, "one at a time");
    assert_eq!(arrived(&mut holding, second.number), Some(Report::Writes));
    assert!(!holding.is_clean(CHUNK));
    let third = holding.flush(CHUNK, share).unwrap();
    assert_eq!(third.ranges, [range(0, 15)]);
    // What is sent once more goes with all that was written since.
    holding.on_write(INODE, range(300, 5));
    holding.on_flush_failed(CHUNK, hold(), third.number);
    let last = holding.flush(CHUNK, ALL).unwrap();
    assert_eq!(last.ranges, [range(0, 210), range(300, 5)]);
    let through = holding.last_written(CHUNK);
    holding.on_flushed(CHUNK, hold(), last.number, (version(7), Seq(7)));
    let rests = holding.report(CHUNK, hold(), through);
    assert!(matches!(rests, Some(Report::Rests { .. })));
}

#[test]
fn who_rests_asks_again_before_it_writes() {
    let (mut holding, mut holds) = (holding(), Holds::default());
    holds.given(Tick(0), CHUNK, hold());
    let asked = |holds: &mut Holds, number| holds.on_asked(Tick(0), CHUNK, hold(), number, TERMS);
    assert_eq!(asked(&mut holds, 1), Ok(()));
    let all = ByteRange::new(0, 10);
    let need = |holds: &mut Holds, access| holds.need(INODE, all, access, &[]);
    assert!(matches!(need(&mut holds, Access::Read), Need::Call(_)));
    let rests = holding.report(CHUNK, hold(), Turn::default()).unwrap();
    assert_eq!(rests, Report::Rests { asked: 1 });
    // An answer to what it had asked before gives it nothing.
    holding.on_right(CHUNK, hold(), (1, Tick(0)), TERMS);
    assert_eq!(holding.may(Tick(0), hold().holder, INODE, all), May::Ask);
    let (_, number) = holding.ask(CHUNK).unwrap();
    assert_eq!(asked(&mut holds, number), Ok(()));
    // That it rested was said before.
    holds.on_report(CHUNK, hold(), rests);
    assert!(matches!(need(&mut holds, Access::Read), Need::Call(_)));
    holds.on_report(CHUNK, hold(), Report::Rests { asked: number });
    assert_eq!(need(&mut holds, Access::Read), Need::Nothing);
    assert_eq!(need(&mut holds, Access::Change), Need::Remove(CHUNK));
}

#[test]
fn silence_is_waited_out() {
    let mut holds = Holds::new([(CHUNK, hold())], Tick(1_000), TERMS);
    let silence = |holds: &Holds, at| holds.on_silence(Tick(at), CHUNK, hold());
    assert_eq!(silence(&holds, 2_500_999), Silence::Lasts(Tick(2_501_000)));
    assert_eq!(silence(&holds, 2_501_000), Silence::Over);
    assert_eq!(holds.on_flush(CHUNK, hold(), FlushNumber(3)), Ok(()));
    assert_eq!(
        holds.on_flush(CHUNK, hold(), FlushNumber(3)),
        Err(Stale::Overtaken)
    );
    holds.removed(CHUNK);
    assert_eq!(
        holds.on_flush(CHUNK, hold(), FlushNumber(4)),
        Err(Stale::Row)
    );
    assert_eq!(silence(&holds, 0), Silence::Gone);
}

/// Room for two writes of [`LARGE`] that no owner has ordered, and for four in all.
const LARGE: u64 = 1 << 20;
const ROOM: Room = Room {
    each: 2 * LARGE,
    kept: 4 * LARGE,
    all: 4 * LARGE,
};

fn large(number: u64) -> ByteRange {
    ByteRange::with_len(number * LARGE, LARGE)
}

/// A host that has asked for its chunk and was given it.
fn given(session: SessionId) -> Behind {
    let mut behind = Behind::default();
    let begun = behind.begin(Tick(0), session, INODE, large(0), ROOM);
    assert_eq!(begun, Begin::Want(CHUNK));
    let hold = Hold {
        holder: session,
        token: Version::default(),
        manner: Manner::WriteBehind,
    };
    let given = Given {
        hold,
        asked_at: Tick(0),
        terms: TERMS,
    };
    behind.on_wanted(Tick(0), session, CHUNK, Some(given));
    behind
}

fn begun(behind: &mut Behind, session: SessionId, number: u64) -> WriteNumber {
    match behind.begin(Tick(1), session, INODE, large(number), ROOM) {
        Begin::Now(number, _) => number,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_chunk_is_wanted_once_before_a_large_write_and_not_after_one_has_failed() {
    let session = SessionId::new(NodeId(3), 1);
    let mut behind = Behind::default();
    let small = ByteRange::with_len(0, 4_096);
    let begin = |behind: &mut Behind, range| behind.begin(Tick(0), session, INODE, range, ROOM);
    assert_eq!(begin(&mut behind, small), Begin::No);
    assert_eq!(begin(&mut behind, large(0)), Begin::Want(CHUNK));
    behind.on_wanted(Tick(0), session, CHUNK, None);
    assert_eq!(begin(&mut behind, large(0)), Begin::No);
    behind.on_failed(session, INODE);
    let next = CHUNK.next().range().start;
    assert_eq!(
        begin(&mut behind, ByteRange::with_len(next, LARGE)),
        Begin::No
    );
    behind.forget(session);
    assert_eq!(begin(&mut behind, large(0)), Begin::Want(CHUNK));
}

#[test]
fn what_an_owner_has_ordered_makes_room_and_is_kept_and_no_word_of_another_counts() {
    let session = SessionId::new(NodeId(3), 1);
    let (owner, next) = (NodeId(1), NodeId(2));
    let mut behind = given(session);
    let all = |_, _| true;
    let first = begun(&mut behind, session, 0);
    let second = begun(&mut behind, session, 1);
    let full = |behind: &mut Behind, number| {
        behind.begin(Tick(1), session, INODE, large(number), ROOM) == Begin::Wait
    };
    assert!(full(&mut behind, 2));
    for number in [first, second] {
        behind.on_sent(number, owner);
        assert_eq!(behind.on_ordered(number, next), Word::Nothing);
        assert_eq!(behind.on_ordered(number, owner), Word::News);
        assert_eq!(behind.on_ordered(number, owner), Word::Nothing);
    }
    assert!(behind.is_ordered(all, behind.last()));
    assert!(!behind.has_arrived(all, behind.last()));
    // The next owner has to be heard of first.
    behind.on_sent(first, next);
    assert!(!behind.is_ordered(all, behind.last()));
    assert_eq!(behind.on_ordered(first, owner), Word::Nothing);
    assert_eq!(behind.on_ordered(first, next), Word::News);
    for number in [2, 3] {
        let number = begun(&mut behind, session, number);
        behind.on_sent(number, owner);
        behind.on_ordered(number, owner);
    }
    assert!(full(&mut behind, 4), "all of it is kept");
    behind.on_answered(first);
    begun(&mut behind, session, 4);
}
