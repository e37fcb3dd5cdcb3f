//! F5: what a checkpoint has is not replaced before its copy is here.

use super::*;

const KEPT: InodeId = InodeId::new(ContainerId::ROOT, InodeIndex(100));

/// A member that has a file of 100 bytes as of record 1. Record 2 tells of a copy of the first 50 of them, record 3 replaces some.
fn member(carried: Vec<ByteRange>) -> Pull {
    let mut pull = Pull::new().with_kept(InodeIndex(100)..=InodeIndex(199));
    log(&mut pull, 1, written(FILE, 0, 100), Vec::new());
    let fetch = one(&mut pull);
    put(&mut pull, fetch, 1);
    log(&mut pull, 2, written(KEPT, 0, 50), Vec::new());
    log(&mut pull, 3, written(FILE, 10, 20), carried);
    pull
}

fn log(pull: &mut Pull, seq: u64, command: DataCommand, carried: Vec<ByteRange>) {
    pull.on_command(v(1, seq), &command, Origin::Remote, carried);
    pull.on_committed(Seq(seq));
    pull.note_committed(v(1, seq));
}

fn arrives(pull: &mut Pull, fetch: Fetch, as_of: u64) -> Fetched {
    pull.on_fetched(fetch.id, fetch.range, v(1, as_of), Holds::Yes)
}

fn put(pull: &mut Pull, fetch: Fetch, as_of: u64) {
    let decided = arrives(pull, fetch, as_of);
    assert!(matches!(decided, Fetched::Install { .. }), "{decided:?}");
    pull.on_installed(fetch.id);
}

#[test]
fn what_replaces_it_is_asked_for_when_the_copy_is_here() {
    let mut pull = member(Vec::new());
    let first = pull.next_fetches(u64::MAX, 8);
    assert_eq!(first.len(), 1, "{first:?}");
    assert_eq!((first[0].inode, first[0].range), (KEPT, r(0, 50)));
    put(&mut pull, first[0], 3);
    let next = one(&mut pull);
    assert_eq!((next.inode, next.range), (FILE, r(10, 20)));
    put(&mut pull, next, 3);
    assert!(pull.is_whole());
}

#[test]
fn what_was_asked_for_ahead_is_held_until_then() {
    let mut pull = member(Vec::new());
    let copy = one(&mut pull);
    pull.on_command(v(1, 4), &written(FILE, 30, 40), Origin::Remote, Vec::new());
    let ahead = pull.next_ahead(&Holding::default());
    assert_eq!(ahead.len(), 1);
    pull.on_committed(Seq(4));
    pull.note_committed(v(1, 4));
    assert_eq!(arrives(&mut pull, ahead[0], 4), Fetched::Hold);
    assert_eq!(pull.decidable(|_| Holds::Yes), []);
    put(&mut pull, copy, 4);
    assert_eq!(pull.decidable(|_| Holds::Yes), [ahead[0].id]);
    put(&mut pull, ahead[0], 4);
    assert!(pull.is_valid(FILE, r(30, 40)));
}

#[test]
fn what_a_record_carries_waits_as_well_and_nothing_waits_for_what_nobody_has() {
    let mut pull = member(vec![r(10, 20)]);
    let parts = |pull: &mut Pull| {
        let carried = pull.take_carried();
        assert_eq!(carried.len(), 1);
        pull.carried_parts(&carried[0])
    };
    assert_eq!(parts(&mut pull), []);
    let copy = one(&mut pull);
    assert_eq!(copy.inode, KEPT);
    assert_eq!(pull.on_lost(copy.id, r(0, 50), v(1, 3)), [r(0, 50)]);
    assert_eq!(parts(&mut pull), [r(10, 20)]);
}

#[test]
fn a_node_that_has_nothing_in_place_takes_all_as_it_comes() {
    let mut pull = Pull::new().with_kept(InodeIndex(100)..=InodeIndex(199));
    pull.on_state_installed(v(1, 1), [(FILE, 100), (KEPT, 50)]);
    log(&mut pull, 2, written(KEPT, 0, 50), Vec::new());
    log(&mut pull, 3, written(FILE, 10, 20), Vec::new());
    let asked = pull.next_fetches(u64::MAX, 8);
    let mut files: Vec<InodeId> = asked.iter().map(|fetch| fetch.inode).collect();
    files.dedup();
    assert_eq!(files, [FILE, KEPT]);
}

#[test]
fn a_copy_of_another_file_keeps_nothing_waiting() {
    let mut pull = member(Vec::new());
    pull.on_kept_file(KEPT, OTHER);
    let files = |pull: &mut Pull| -> Vec<InodeId> {
        let asked = pull.next_fetches(u64::MAX, 8);
        let mut files: Vec<InodeId> = asked.iter().map(|fetch| fetch.inode).collect();
        files.sort();
        files
    };
    assert_eq!(pull.kept_awaited(FILE, r(0, 100)), []);
    assert_eq!(pull.kept_awaited(OTHER, r(0, 100)), [KEPT]);
    assert_eq!(files(&mut pull.clone()), [FILE, KEPT]);
    pull.on_kept_file(KEPT, FILE);
    assert_eq!(pull.kept_awaited(FILE, r(60, 100)), [], "elsewhere in it");
    assert_eq!(files(&mut pull), [KEPT]);
}
