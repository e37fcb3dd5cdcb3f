//! Bytes that came in their record.

use super::*;

/// A record of these bytes, which it carries, comes into the log.
fn carried(pull: &mut Pull, version: Version, start: u64, end: u64, origin: Origin) {
    let parts = vec![r(start, end)];
    pull.on_command(version, &written(FILE, start, end), origin, parts);
}

/// Puts in place what can be now; says which parts.
fn put_in_place(pull: &mut Pull, committed: Version) -> Vec<ByteRange> {
    pull.note_committed(committed);
    let mut put = Vec::new();
    for carried in pull.take_carried() {
        let parts = pull.carried_parts(&carried);
        put.extend(parts.iter().copied());
        pull.on_carried_installed(carried.inode, parts, committed);
    }
    put
}

#[test]
fn carried_bytes_come_from_the_log_once_they_are_committed() {
    let mut pull = Pull::new();
    carried(&mut pull, v(1, 1), 0, 10, Origin::Remote);
    assert_eq!(pull.next_ahead(&Holding::default()), [], "nobody is asked");
    assert_eq!(put_in_place(&mut pull, v(1, 0)), []);
    pull.on_committed(Seq(1));
    pull.note_committed(v(1, 1));
    assert!(!pull.is_valid(FILE, r(0, 10)));
    assert_eq!(pull.next_fetches(u64::MAX, 9), []);
    assert_eq!(pull.complete_through(Seq(1)), Seq(0));
    assert_eq!(pull.carried_from(), Some(Seq(1)));
    assert_eq!(put_in_place(&mut pull, v(1, 1)), [r(0, 10)]);
    assert!(pull.is_valid(FILE, r(0, 10)));
    assert_eq!(pull.carried_from(), None);
    assert_eq!(pull.complete_through(Seq(1)), Seq(1));
}

#[test]
fn carried_bytes_do_not_come_in_place_of_later_ones() {
    let mut pull = Pull::new();
    carried(&mut pull, v(1, 1), 0, 30, Origin::Remote);
    pull.on_command(v(1, 2), &written(FILE, 10, 20), Origin::Remote, Vec::new());
    pull.on_committed(Seq(2));
    pull.on_own_write(FILE, r(25, 30));
    let put = put_in_place(&mut pull, v(1, 2));
    assert_eq!(put, [r(0, 10), r(20, 25)]);
    assert_eq!(one(&mut pull).range, r(10, 20));
    assert_eq!(pull.carried_from(), None);
}

#[test]
fn a_restart_puts_carried_bytes_in_place_when_nothing_later_can_be_there() {
    let mut pull = Pull::new();
    carried(&mut pull, v(1, 1), 0, 10, Origin::Unsynced);
    let punched = DataCommand::Punched {
        inode: FILE,
        range: r(0, 10),
    };
    pull.on_command(v(1, 2), &punched, Origin::Unsynced, Vec::new());
    pull.on_committed(Seq(1));
    assert_eq!(
        put_in_place(&mut pull, v(1, 1)),
        [],
        "the zeros may be there"
    );
    assert_eq!(pull.carried_from(), Some(Seq(1)));
    let mut lost = pull.clone();
    lost.on_truncated(Seq(1), v(2, 0));
    assert_eq!(
        put_in_place(&mut lost, v(1, 1)),
        [],
        "not known to be newest"
    );
    assert_eq!(put_in_place(&mut lost, v(2, 2)), [r(0, 10)]);

    pull.on_committed(Seq(2));
    pull.note_committed(v(1, 2));
    let zeros = pull.take_carried();
    let found = zeros.iter().find(|carried| carried.version == v(1, 2));
    let zeros = found.copied().expect("they are the content now");
    assert_eq!(pull.carried_from(), Some(Seq(1)), "found from there alone");
    let parts = pull.carried_parts(&zeros);
    assert_eq!(parts, [r(0, 10)]);
    pull.on_carried_installed(FILE, parts, v(1, 2));
    assert!(pull.is_valid(FILE, r(0, 10)));
}
