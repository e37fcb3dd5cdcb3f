//! Content that is corrupt, or that nobody has.

use super::*;

#[test]
fn corrupt_bytes_are_not_replaced_by_those_of_a_member_that_lags() {
    let mut pull = Pull::new();
    for seq in [1, 3] {
        pull.on_command(v(1, seq), &written(FILE, 0, 100), Origin::Own, Vec::new());
        pull.on_committed(Seq(seq));
    }
    assert!(pull.is_valid(FILE, r(0, 100)));
    pull.on_corrupt(FILE, r(0, 100), v(1, 3));
    assert!(
        !pull.has_through(FILE, Seq(1)),
        "older bytes are not here either"
    );
    // It has the last record, and does not know that it is committed: its bytes are those of the first.
    let fetch = one(&mut pull);
    let lagging = pull.on_fetched(fetch.id, fetch.range, v(1, 2), Holds::Yes);
    assert_eq!(lagging, install(&[]));
    pull.on_installed(fetch.id);
    assert!(!pull.is_valid(FILE, r(0, 100)));
    let fetch = one(&mut pull);
    assert_eq!(fetch.needed, v(1, 3));
    let newest = pull.on_fetched(fetch.id, fetch.range, v(1, 3), Holds::Yes);
    assert_eq!(newest, install(&[r(0, 100)]));
    pull.on_installed(fetch.id);
    assert!(pull.is_valid(FILE, r(0, 100)));
}

#[test]
fn what_a_start_finds_invalid_is_not_filled_by_a_member_that_lags() {
    let mut pull = Pull::new();
    let mut found = RegionMap::new();
    found.invalidate(r(0, 100), Version::default());
    found.invalidate(r(200, 300), v(1, 9));
    pull.restore(FILE, found, v(1, 3));
    let needed: Vec<Version> = pull.iter().map(|(_, _, needed)| needed).collect();
    assert_eq!(needed, [v(1, 3), v(1, 9)]);
    assert!(
        !pull.has_through(FILE, Seq(1)),
        "nor is what is older than that record here"
    );
    let fetch = one(&mut pull);
    let lagging = pull.on_fetched(fetch.id, fetch.range, v(1, 2), Holds::Yes);
    assert_eq!(lagging, install(&[]));
}

#[test]
fn rot_between_a_write_and_its_record_is_missing_when_that_is_committed() {
    let mut pull = Pull::new();
    pull.on_command(v(1, 1), &written(FILE, 0, 100), Origin::Own, Vec::new());
    pull.on_corrupt(FILE, r(40, 60), Version::default());
    assert_eq!(
        pull.next_fetches(u64::MAX, 8),
        [],
        "members have older bytes at best"
    );
    pull.on_command(v(1, 2), &written(FILE, 50, 55), Origin::Own, Vec::new());
    pull.on_committed(Seq(1));
    pull.on_still_corrupt(FILE, [r(40, 50), r(55, 60)], v(1, 1));
    assert!(pull.is_valid(FILE, r(0, 40)) && pull.is_valid(FILE, r(50, 55)));
    assert!(!pull.is_valid(FILE, r(40, 50)) && !pull.is_valid(FILE, r(55, 60)));
    let fetch = one(&mut pull);
    assert_eq!((fetch.range, fetch.needed), (r(40, 50), v(1, 1)));
    pull.on_fetched(fetch.id, fetch.range, v(1, 1), Holds::Yes);
    pull.on_installed(fetch.id);
    // What is on its way needs no later version by this.
    pull.on_still_corrupt(FILE, [r(55, 60)], v(1, 2));
    assert_eq!(one(&mut pull).needed, v(1, 1));
}

#[test]
fn each_corrupt_block_is_asked_for_by_itself() {
    let mut pull = Pull::new();
    pull.on_corrupt(FILE, r(4_096, 10_000), v(1, 1));
    let fetches = pull.next_fetches(u64::MAX, 8);
    let ranges: Vec<ByteRange> = fetches.iter().map(|fetch| fetch.range).collect();
    assert_eq!(ranges, [r(4_096, 8_192), r(8_192, 10_000)]);
    // One member has the first, and another one the second.
    for fetch in fetches {
        pull.on_fetched(fetch.id, fetch.range, v(1, 1), Holds::Yes);
        pull.on_installed(fetch.id);
    }
    assert!(pull.is_valid(FILE, r(0, u64::MAX)));
    pull.distrust(FILE, r(0, 10_000), v(1, 1));
    assert_eq!(one(&mut pull).range, r(0, 10_000));
}

#[test]
fn fetched_bytes_are_not_put_over_a_write_that_has_no_record_yet() {
    let mut pull = Pull::new();
    pull.distrust(FILE, r(0, 300), v(1, 3));
    let fetch = pull.next_fetches(1 << 20, 9)[0];
    pull.on_own_write(FILE, r(100, 200));
    assert!(pull.is_valid(FILE, r(100, 200)));
    let fetched = pull.on_fetched(fetch.id, fetch.range, v(1, 5), Holds::Yes);
    let beside = Fetched::Install {
        inode: FILE,
        parts: vec![r(0, 100), r(200, 300)],
    };
    assert_eq!(fetched, beside);
}

/// A member that joins with a state, and no bytes.
fn joiner() -> Pull {
    let mut pull = Pull::new();
    pull.on_state_installed(v(2, 7), [(FILE, 100)]);
    pull
}

#[test]
fn what_nobody_has_is_not_waited_for_and_not_taken_for_here() {
    let mut pull = joiner();
    let fetch = one(&mut pull);
    let lost = pull.on_lost(fetch.id, r(20, 30), v(2, 7));
    assert_eq!(lost, [r(20, 30)]);
    let fetches = pull.next_fetches(u64::MAX, 9);
    let ranges: Vec<ByteRange> = fetches.iter().map(|fetch| fetch.range).collect();
    assert_eq!(ranges, [r(0, 20), r(30, 100)]);
    for fetch in fetches {
        let answer = pull.on_fetched(fetch.id, fetch.range, v(2, 7), Holds::Yes);
        assert!(matches!(answer, Fetched::Install { .. }));
        pull.on_installed(fetch.id);
    }
    assert_eq!(pull.complete_through(Seq(7)), Seq(7));
    assert!(pull.has_through(FILE, Seq(7)));
    assert!(!pull.is_valid(FILE, r(20, 30)));
    assert_eq!(pull.lost(FILE, r(0, 100)), Some(r(20, 30)));
    // Until somebody comes back with it.
    assert_eq!(pull.next_fetches(u64::MAX, 9), []);
    assert!(pull.look_again());
    let again = one(&mut pull);
    assert_eq!(again.range, r(20, 30));
    let answer = pull.on_fetched(again.id, again.range, v(2, 8), Holds::Yes);
    assert_eq!(answer, install(&[r(20, 30)]));
    pull.on_installed(again.id);
    assert!(pull.is_valid(FILE, r(0, 100)));
    assert!(!pull.look_again());
}

#[test]
fn what_the_owner_has_found_is_got_though_it_lies_between_what_nobody_has() {
    let mut pull = joiner();
    let fetch = one(&mut pull);
    _ = pull.on_lost(fetch.id, r(0, 100), v(2, 7));
    assert!(pull.look_again());
    // Somebody has come back to the owner with 40..60: of that it says nothing, as long as it is asked for more.
    let again = one(&mut pull);
    assert_eq!(again.range, r(0, 100));
    assert_eq!(pull.on_lost(again.id, r(0, 40), v(2, 7)), []);
    let rest = one(&mut pull);
    assert_eq!(rest.range, r(40, 100));
    assert_eq!(pull.on_lost(rest.id, r(60, 100), v(2, 7)), [r(60, 100)]);
    let found = one(&mut pull);
    assert_eq!(found.range, r(40, 60));
    assert_eq!(pull.lost(FILE, r(0, 100)), Some(r(0, 40)));
}

#[test]
fn what_is_written_where_nobody_had_anything_is_waited_for() {
    let mut pull = joiner();
    let fetch = one(&mut pull);
    assert_eq!(pull.on_lost(fetch.id, r(0, 100), v(2, 7)), [r(0, 100)]);
    assert_eq!(pull.complete_through(Seq(7)), Seq(7));
    pull.on_command(v(2, 8), &written(FILE, 10, 20), Origin::Remote, Vec::new());
    pull.on_committed(Seq(8));
    assert_eq!(pull.complete_through(Seq(8)), Seq(7));
    assert_eq!(one(&mut pull).range, r(10, 20));
    // An older word about it says nothing of the new bytes.
    let mut late = joiner();
    let fetch = one(&mut late);
    late.on_command(v(2, 8), &written(FILE, 10, 20), Origin::Remote, Vec::new());
    late.on_committed(Seq(8));
    let lost = late.on_lost(fetch.id, r(0, 100), v(2, 7));
    assert_eq!(lost, [r(0, 10), r(20, 100)]);
    assert_eq!(late.complete_through(Seq(8)), Seq(0));
}

#[test]
fn an_owner_keeps_older_content_and_never_what_was_none() {
    let mut pull = follower(&[(1, 0, 8192), (2, 0, 8192)]);
    pull.on_corrupt(FILE, r(0, 4096), v(1, 2));
    let nobody = pull.on_nobody_has(FILE, r(0, 8192), NotGiven::NotHere, v(1, 2));
    assert_eq!(nobody, Nobody::Lost(vec![r(0, 4096)]));
    let nobody = pull.on_nobody_has(FILE, r(4096, 8192), NotGiven::NotHere, v(1, 2));
    assert_eq!(nobody, Nobody::Keep(vec![r(4096, 8192)]));
    // A member that joined has zeros, or what was there long ago.
    let nobody = joiner().on_nobody_has(FILE, r(0, 100), NotGiven::NotHere, v(2, 7));
    assert_eq!(nobody, Nobody::Lost(vec![r(0, 100)]));
}

#[test]
fn older_content_does_not_pass_for_what_a_member_cannot_read() {
    let mut pull = follower(&[(1, 0, 8192)]);
    let nobody = pull.on_nobody_has(FILE, r(0, 8192), NotGiven::Unreadable, v(1, 1));
    assert_eq!(nobody, Nobody::AskAgain, "a part of it may be readable");
    let blocks = pull.next_fetches(u64::MAX, 9);
    assert_eq!(blocks.len(), 2);
    let block = blocks[0].range;
    let nobody = pull.on_nobody_has(FILE, block, NotGiven::Unreadable, v(1, 1));
    assert_eq!(nobody, Nobody::Lost(vec![block]));
    // Nor later, when that member is gone.
    let nobody = pull.on_nobody_has(FILE, block, NotGiven::NotHere, v(1, 1));
    assert_eq!(nobody, Nobody::Lost(vec![block]));
}

#[test]
fn what_was_spoiled_before_it_was_replaced_is_no_newest_content() {
    let mut pull = follower(&[]);
    pull.on_corrupt(FILE, r(0, 100), v(1, 4));
    assert!(pull.is_unreadable(FILE, r(0, 100)));
    pull.on_command(v(1, 5), &written(FILE, 50, 100), Origin::Remote, Vec::new());
    pull.on_committed(Seq(5));
    assert!(pull.is_unreadable(FILE, r(0, 100)));
    assert!(!pull.is_unreadable(FILE, r(50, 100)));
    assert_eq!(pull.spoiled(FILE, r(0, 100)), [r(0, 50), r(50, 100)]);
    assert!(!pull.has_older(FILE, r(50, 100)));
    // Of what a restart finds in the log nobody knows whether it had come.
    let mut pull = follower(&[]);
    pull.on_corrupt(FILE, r(0, 100), v(1, 4));
    pull.on_command(
        v(1, 5),
        &written(FILE, 0, 100),
        Origin::Unsynced,
        Vec::new(),
    );
    pull.on_committed(Seq(5));
    assert!(pull.is_unreadable(FILE, r(0, 100)));
}

#[test]
fn who_heard_that_nobody_has_the_newest_content_does_not_go_back_to_older() {
    // It has what was written before, and came back through the log.
    let mut pull = follower(&[(5, 0, 100)]);
    let fetch = one(&mut pull);
    assert_eq!(pull.on_lost(fetch.id, r(0, 100), v(1, 5)), [r(0, 100)]);
    assert!(pull.has_through(FILE, Seq(5)));
    assert!(pull.is_unreadable(FILE, r(0, 100)));
    let nobody = pull.on_nobody_has(FILE, r(0, 100), NotGiven::NotHere, v(1, 5));
    assert_eq!(nobody, Nobody::Lost(vec![r(0, 100)]));
}

#[test]
fn an_unreadable_region_to_the_end_is_asked_for_block_by_block() {
    let mut pull = Pull::new();
    let command = DataCommand::Resized {
        inode: FILE,
        size: 0,
    };
    pull.on_command(v(1, 1), &command, Origin::Unsynced, Vec::new());
    pull.on_committed(Seq(1));
    let all = r(0, u64::MAX);
    assert_eq!(one(&mut pull).range, all);
    let nobody = pull.on_nobody_has(FILE, all, NotGiven::Unreadable, v(1, 1));
    assert_eq!(nobody, Nobody::AskAgain);
    pull.on_source_changed();
    let fetches = pull.next_fetches(u64::MAX, 9);
    let ranges: Vec<ByteRange> = fetches.iter().map(|fetch| fetch.range).collect();
    assert_eq!(ranges, [r(0, 4096), r(4096, u64::MAX)]);
}

#[test]
fn an_owner_that_started_with_a_spoiled_block_asks_for_older_content_and_never_for_what_it_found_itself()
 {
    let block = r(0, BLOCK_LEN);
    let started = || {
        let mut known = RegionMap::new();
        known.spoil(block, v(1, 3));
        let mut pull = Pull::new();
        pull.restore(FILE, known, v(1, 5));
        pull
    };
    let mut pull = started();
    let nobody = pull.on_nobody_has(FILE, block, NotGiven::NotHere, v(1, 5));
    assert_eq!(nobody, Nobody::AskOlder);
    assert_eq!(pull.spoiled(FILE, block), [block]);
    let nobody = pull.on_nobody_has(FILE, block, NotGiven::NotEvenOlder, v(1, 5));
    assert_eq!(nobody, Nobody::Lost(vec![block]));
    // What it has given up before may have been acknowledged, and so may what rots while it owns.
    let mut known = RegionMap::new();
    known.spoil(block, v(1, 3));
    known.give_up(block, v(1, 5));
    let mut pull = Pull::new();
    pull.restore(FILE, known, v(1, 5));
    let nobody = pull.on_nobody_has(FILE, block, NotGiven::NotHere, v(1, 5));
    assert_eq!(nobody, Nobody::Lost(vec![block]));
    let mut pull = started();
    pull.on_corrupt(FILE, block, v(1, 5));
    let nobody = pull.on_nobody_has(FILE, block, NotGiven::NotHere, v(1, 5));
    assert_eq!(nobody, Nobody::Lost(vec![block]));
}

#[test]
fn a_member_has_older_content_only_where_nothing_else_is_in_place() {
    let block = r(0, BLOCK_LEN);
    let mut pull = Pull::new();
    pull.distrust(FILE, block, v(1, 3));
    assert!(pull.has_older(FILE, block));
    pull.on_overwritten(FILE, r(0, 10), v(1, 3));
    assert!(
        !pull.has_older(FILE, block),
        "of no record that was committed"
    );
    let mut pull = Pull::new();
    pull.distrust(FILE, block, v(1, 3));
    pull.on_command(v(1, 4), &written(FILE, 0, 10), Origin::Unsynced, Vec::new());
    assert!(!pull.has_older(FILE, block), "a write that was half done");
    let mut pull = Pull::new();
    pull.distrust(FILE, block, v(1, 3));
    pull.on_corrupt(FILE, block, v(1, 3));
    assert!(!pull.has_older(FILE, block));
}
