use super::*;
use perigee_types::{ContainerId, Epoch, InodeIndex};

const FILE: InodeId = InodeId::new(ContainerId::ROOT, InodeIndex(7));
const OTHER: InodeId = InodeId::new(ContainerId::ROOT, InodeIndex(8));

fn v(epoch: u64, seq: u64) -> Version {
    Version {
        epoch: Epoch(epoch),
        seq: Seq(seq),
    }
}

fn r(start: u64, end: u64) -> ByteRange {
    ByteRange::new(start, end)
}

fn written(inode: InodeId, start: u64, end: u64) -> DataCommand {
    let range = r(start, end);
    DataCommand::Written { inode, range }
}

/// A follower that knows of these committed writes to one file.
fn follower(writes: &[(u64, u64, u64)]) -> Pull {
    let mut pull = Pull::new();
    for &(seq, start, end) in writes {
        pull.on_command(v(1, seq), &written(FILE, start, end), Origin::Remote);
        pull.on_committed(Seq(seq));
    }
    pull
}

fn one(pull: &mut Pull) -> Fetch {
    let fetches = pull.next_fetches(u64::MAX, 1);
    assert_eq!(fetches.len(), 1);
    fetches[0]
}

fn install(parts: &[ByteRange]) -> Fetched {
    Fetched::Install {
        inode: FILE,
        parts: parts.to_vec(),
    }
}

#[test]
fn a_write_makes_its_range_invalid_when_it_is_committed() {
    let mut pull = Pull::new();
    pull.on_command(v(1, 1), &written(FILE, 0, 100), Origin::Remote);
    assert!(
        pull.is_valid(FILE, r(0, 100)),
        "as of what is committed here"
    );
    pull.on_committed(Seq(1));
    assert!(!pull.is_valid(FILE, r(99, 200)));
    assert!(pull.is_valid(FILE, r(100, 200)));
    assert_eq!(pull.complete_through(Seq(1)), Seq(0));
}

#[test]
fn fetched_bytes_wait_until_what_they_include_is_committed() {
    let mut pull = follower(&[(1, 0, 100)]);
    let fetch = one(&mut pull);
    let answer = pull.on_fetched(fetch.id, fetch.range, v(1, 3), Holds::NotYet);
    assert_eq!(answer, Fetched::Hold);
    assert!(!pull.is_valid(FILE, r(0, 1)));
    assert_eq!(pull.decidable(|_| Holds::NotYet), []);
    assert_eq!(pull.decidable(|_| Holds::Yes), [fetch.id]);
    let answer = pull.on_fetched(fetch.id, fetch.range, v(1, 3), Holds::Yes);
    assert_eq!(answer, install(&[r(0, 100)]));
    assert!(!pull.is_valid(FILE, r(0, 1)), "the bytes are not in place");
    pull.on_installed(fetch.id);
    assert!(pull.is_valid(FILE, r(0, 100)));
    assert_eq!(pull.complete_through(Seq(3)), Seq(3));
}

#[test]
fn held_bytes_of_another_history_are_dropped_and_fetched_again() {
    let mut pull = follower(&[(1, 0, 100)]);
    let fetch = one(&mut pull);
    pull.on_fetched(fetch.id, fetch.range, v(1, 3), Holds::NotYet);
    assert_eq!(pull.decidable(|_| Holds::Never), [fetch.id]);
    let answer = pull.on_fetched(fetch.id, fetch.range, v(1, 3), Holds::Never);
    assert_eq!(answer, Fetched::Drop);
    assert_ne!(one(&mut pull).id, fetch.id);
}

#[test]
fn bytes_older_than_needed_do_not_make_a_region_valid() {
    let mut pull = follower(&[(1, 0, 100)]);
    let fetch = one(&mut pull);
    pull.on_command(v(1, 2), &written(FILE, 40, 60), Origin::Remote);
    pull.on_committed(Seq(2));
    let answer = pull.on_fetched(fetch.id, fetch.range, v(1, 1), Holds::Yes);
    assert_eq!(answer, install(&[r(0, 40), r(60, 100)]));
    pull.on_installed(fetch.id);
    assert!(!pull.is_valid(FILE, r(40, 60)));
    let again = one(&mut pull);
    assert_eq!((again.range, again.needed), (r(40, 60), v(1, 2)));
}

#[test]
fn a_region_written_again_is_complete_only_with_its_first_bytes() {
    let mut pull = follower(&[(3, 0, 100), (5, 200, 300), (7, 0, 100)]);
    assert_eq!(pull.complete_through(Seq(7)), Seq(2));
    let fetches = pull.next_fetches(u64::MAX, 9);
    let first = fetches.iter().find(|f| f.range == r(0, 100)).unwrap();
    pull.on_fetched(first.id, first.range, v(1, 7), Holds::Yes);
    assert_eq!(pull.complete_through(Seq(7)), Seq(2));
    pull.on_installed(first.id);
    assert_eq!(pull.complete_through(Seq(7)), Seq(4));
}

#[test]
fn an_owner_reads_its_own_bytes_though_the_map_waits_for_the_commit() {
    let mut pull = follower(&[(1, 0, 100)]);
    pull.on_command(v(2, 2), &written(FILE, 0, 60), Origin::Own);
    assert!(pull.is_valid(FILE, r(0, 60)));
    assert!(!pull.is_valid(FILE, r(0, 61)));
    assert!(!pull.invalid(FILE).unwrap().is_valid(r(0, 60)));
    pull.on_committed(Seq(2));
    assert!(pull.invalid(FILE).unwrap().is_valid(r(0, 60)));
}

#[test]
fn fetched_bytes_do_not_overwrite_what_an_owner_wrote_since() {
    let mut pull = follower(&[(1, 0, 100)]);
    let fetch = one(&mut pull);
    pull.on_command(v(2, 2), &written(FILE, 20, 30), Origin::Own);
    let answer = pull.on_fetched(fetch.id, fetch.range, v(1, 1), Holds::Yes);
    assert_eq!(answer, install(&[r(0, 20), r(30, 100)]));
}

#[test]
fn own_regions_of_truncated_records_are_invalid_and_others_are_as_before() {
    let mut pull = Pull::new();
    pull.on_command(v(1, 1), &written(FILE, 0, 10), Origin::Own);
    pull.on_committed(Seq(1));
    pull.on_command(v(1, 2), &written(FILE, 5, 15), Origin::Own);
    pull.on_command(v(1, 3), &written(OTHER, 0, 10), Origin::Remote);
    pull.on_truncated(Seq(1), v(2, 0));
    assert!(pull.is_valid(FILE, r(0, 5)));
    assert!(!pull.is_valid(FILE, r(5, 6)));
    assert!(pull.is_valid(OTHER, r(0, 10)));
    assert_eq!(
        pull.complete_through(Seq(1)),
        Seq(0),
        "older bytes are lost too"
    );
    let fetch = one(&mut pull);
    let answer = pull.on_fetched(fetch.id, fetch.range, v(1, 1), Holds::Yes);
    assert_eq!(
        answer,
        install(&[]),
        "content of the old epoch may have the lost write"
    );
}

#[test]
fn what_an_owner_wrote_is_not_trusted_once_it_has_stepped_down() {
    let mut pull = Pull::new();
    pull.on_command(v(1, 1), &written(FILE, 0, 10), Origin::Own);
    pull.on_stepped_down();
    assert!(!pull.is_valid(FILE, r(0, 10)));
    pull.on_committed(Seq(1));
    let fetch = one(&mut pull);
    assert_eq!((fetch.range, fetch.needed), (r(0, 10), v(1, 1)));
}

#[test]
fn after_a_restart_unsynced_commands_are_fetched_again() {
    let mut pull = Pull::new();
    let punched = DataCommand::Punched {
        inode: FILE,
        range: r(0, 10),
    };
    pull.on_command(v(1, 4), &punched, Origin::Unsynced);
    pull.on_command(v(1, 5), &written(OTHER, 0, 10), Origin::Unsynced);
    assert!(!pull.is_valid(FILE, r(0, 10)));
    pull.on_committed(Seq(4));
    assert_eq!(pull.complete_through(Seq(4)), Seq(3));
    assert_eq!(one(&mut pull).inode, FILE);
}

#[test]
fn an_owner_falls_back_by_logging_what_it_has() {
    let mut pull = follower(&[(1, 0, 100)]);
    pull.on_command(v(2, 2), &written(FILE, 20, 30), Origin::Own);
    let nobody = pull.on_nobody_has(FILE, r(0, 50), NotGiven::NotHere, v(1, 1));
    assert_eq!(nobody, Nobody::Keep(vec![r(0, 20), r(30, 50)]));
    for (seq, part) in [(3, r(0, 20)), (4, r(30, 50))] {
        let command = written(FILE, part.start, part.end);
        pull.on_command(v(2, seq), &command, Origin::Own);
    }
    assert!(pull.is_valid(FILE, r(0, 50)));
    pull.on_committed(Seq(4));
    let nobody = pull.on_nobody_has(FILE, r(0, 100), NotGiven::NotHere, v(1, 1));
    assert_eq!(nobody, Nobody::Keep(vec![r(50, 100)]));
}

#[test]
fn zeros_and_removed_objects_are_not_fetched() {
    let mut pull = follower(&[(1, 0, 100)]);
    let range = r(20, 40);
    let commands = [
        DataCommand::Punched { inode: FILE, range },
        DataCommand::Resized {
            inode: FILE,
            size: 60,
        },
    ];
    for (seq, command) in (2..).zip(&commands) {
        pull.on_command(v(1, seq), command, Origin::Remote);
        pull.on_committed(Seq(seq));
    }
    let ranges: Vec<ByteRange> = pull.iter().map(|(_, range, _)| range).collect();
    assert_eq!(ranges, [r(0, 20), r(40, 60)]);
    let fetch = one(&mut pull);
    let removed = DataCommand::Removed { inode: FILE };
    pull.on_command(v(1, 4), &removed, Origin::Remote);
    pull.on_committed(Seq(4));
    let answer = pull.on_fetched(fetch.id, fetch.range, v(1, 3), Holds::Yes);
    assert_eq!(answer, install(&[]));
    assert_eq!(pull.complete_through(Seq(4)), Seq(4));
}

#[test]
fn what_someone_waits_for_comes_first_and_budgets_hold() {
    let mut pull = follower(&[(1, 0, 4 * FETCH_LEN_MAX)]);
    pull.on_command(v(1, 2), &written(OTHER, 0, 10), Origin::Remote);
    pull.on_committed(Seq(2));
    pull.want(OTHER, r(0, 5));
    let fetches = pull.next_fetches(2 * FETCH_LEN_MAX, 8);
    assert_eq!((fetches[0].inode, fetches[0].range), (OTHER, r(0, 5)));
    assert_eq!(fetches.len(), 3, "two more fit into the budget of bytes");
    assert_eq!(
        pull.next_fetches(u64::MAX, 4).len(),
        1,
        "and one into that of requests"
    );
    assert_eq!(pull.next_fetches(u64::MAX, 4), []);
    pull.on_fetch_failed(fetches[0].id);
    pull.want(OTHER, r(0, 5));
    assert_eq!(pull.next_fetches(u64::MAX, 4)[0].range, r(0, 5));
}

#[test]
fn another_owner_is_asked_again_but_held_bytes_stay() {
    let mut pull = follower(&[(1, 0, 10), (2, 20, 30)]);
    let fetches = pull.next_fetches(u64::MAX, 8);
    pull.on_fetched(fetches[0].id, fetches[0].range, v(1, 9), Holds::NotYet);
    pull.on_source_changed();
    let again = pull.next_fetches(u64::MAX, 8);
    assert_eq!(again.len(), 1);
    assert_eq!(again[0].range, fetches[1].range);
    let late = pull.on_fetched(fetches[1].id, r(0, 30), v(1, 2), Holds::Yes);
    assert_eq!(late, Fetched::Drop);
}

#[test]
fn an_installed_state_has_no_bytes_yet() {
    let mut pull = follower(&[(1, 0, 10)]);
    pull.on_state_installed(v(1, 9), [(FILE, 3 * FETCH_LEN_MAX), (OTHER, 5)]);
    assert_eq!(pull.complete_through(Seq(9)), Seq(0));
    let fetches = pull.next_fetches(u64::MAX, 8);
    assert_eq!(fetches.len(), 4);
    assert!(fetches.iter().all(|f| f.needed == v(1, 9)));
    for fetch in fetches {
        pull.on_fetched(fetch.id, fetch.range, v(1, 9), Holds::Yes);
        pull.on_installed(fetch.id);
    }
    assert_eq!(pull.complete_through(Seq(9)), Seq(9));
}

#[test]
fn a_write_during_an_install_leaves_its_range_invalid() {
    let mut pull = follower(&[(1, 0, 100)]);
    let fetch = one(&mut pull);
    let answer = pull.on_fetched(fetch.id, fetch.range, v(1, 1), Holds::Yes);
    assert_eq!(answer, install(&[r(0, 100)]));
    pull.on_command(v(1, 2), &written(FILE, 40, 60), Origin::Remote);
    pull.on_committed(Seq(2));
    let twice = pull.on_fetched(fetch.id, fetch.range, v(1, 2), Holds::Yes);
    assert_eq!(twice, Fetched::Drop, "an answer is taken once");
    pull.on_source_changed();
    assert_eq!(
        pull.next_fetches(u64::MAX, 9),
        [],
        "two installs of one region could end in any order"
    );
    pull.on_installed(fetch.id);
    let ranges: Vec<ByteRange> = pull.iter().map(|(_, range, _)| range).collect();
    assert_eq!(ranges, [r(40, 60)]);
    assert_eq!(one(&mut pull).range, r(40, 60));
}

#[test]
fn an_install_that_fails_is_fetched_again() {
    let mut pull = follower(&[(1, 0, 100)]);
    let fetch = one(&mut pull);
    pull.on_fetched(fetch.id, fetch.range, v(1, 1), Holds::Yes);
    pull.on_fetch_failed(fetch.id);
    assert!(!pull.is_valid(FILE, r(0, 100)));
    assert_eq!(one(&mut pull).range, r(0, 100));
}

#[test]
fn an_fsync_waits_for_what_was_written_before_it_alone() {
    let mut pull = follower(&[(3, 0, 100), (5, 200, 300), (7, 50, 60)]);
    assert!(!pull.has_through(FILE, Seq(4)));
    let fetches = pull.next_fetches(u64::MAX, 9);
    let (first, later): (Vec<Fetch>, Vec<Fetch>) =
        fetches.iter().partition(|f: &&Fetch| f.range.end <= 50);
    for fetch in first {
        pull.on_fetched(fetch.id, fetch.range, v(1, 7), Holds::Yes);
        pull.on_installed(fetch.id);
    }
    assert!(
        !pull.has_through(FILE, Seq(4)),
        "bytes of record 3 that record 7 replaced never came"
    );
    for fetch in later.iter().filter(|f| f.range.end <= 100) {
        pull.on_fetched(fetch.id, fetch.range, v(1, 7), Holds::Yes);
        pull.on_installed(fetch.id);
    }
    assert!(pull.has_through(FILE, Seq(4)));
    assert!(!pull.has_through(FILE, Seq(5)));
    assert!(pull.has_through(OTHER, Seq(9)));
}

/// Whoever waits asks again after every piece: were each of its questions as long as the file has pieces, this test
/// would not end.
#[test]
fn a_file_in_very_many_pieces_is_fetched_in_a_time_that_grows_with_them() {
    const PIECES: u64 = 50_000;
    let mut pull = Pull::new();
    for piece in 0..PIECES {
        let command = written(FILE, piece * 8192, piece * 8192 + 4096);
        pull.on_command(v(1, piece / 512 + 1), &command, Origin::Remote);
    }
    let through = Seq(PIECES / 512 + 1);
    pull.on_committed(through);
    let all = r(0, u64::MAX);
    let mut installed = 0;
    while !pull.has_through(FILE, through) {
        pull.want(FILE, all);
        for fetch in pull.next_fetches(u64::MAX, 64) {
            let last = Version {
                epoch: Epoch(1),
                seq: through,
            };
            pull.on_fetched(fetch.id, fetch.range, last, Holds::Yes);
            pull.on_installed(fetch.id);
            pull.want(FILE, all);
            assert!(!pull.has_through(FILE, through) || pull.is_valid(FILE, all));
            installed += 1;
        }
    }
    assert_eq!(installed, PIECES);
}

#[test]
fn what_changes_all_the_time_does_not_keep_the_rest_back() {
    let mut pull = follower(&[(1, 0, 100), (2, 200, 300)]);
    for seq in 3..9 {
        let fetches = pull.next_fetches(1, 1);
        pull.on_fetched(fetches[0].id, fetches[0].range, v(1, seq - 1), Holds::Yes);
        pull.on_installed(fetches[0].id);
        pull.on_command(v(1, seq), &written(FILE, 0, 100), Origin::Remote);
        pull.on_committed(Seq(seq));
    }
    assert!(pull.is_valid(FILE, r(200, 300)));
}

#[test]
fn what_may_not_have_been_cut_off_takes_no_room() {
    let mut pull = Pull::new();
    let cut = DataCommand::Resized {
        inode: FILE,
        size: 100,
    };
    pull.on_command(v(1, 1), &cut, Origin::Unsynced);
    pull.on_command(v(1, 2), &written(FILE, 150, 200), Origin::Remote);
    pull.on_command(v(1, 3), &written(OTHER, 0, 7), Origin::Remote);
    pull.on_committed(Seq(3));
    assert!(!pull.is_valid(FILE, r(300, 400)));
    // The gap before what was written later counts as if it were to be fetched.
    assert_eq!(pull.missing_bytes(), 50 + 50 + 7);
}

#[test]
fn corrupt_bytes_are_not_replaced_by_those_of_a_member_that_lags() {
    let mut pull = Pull::new();
    for seq in [1, 3] {
        pull.on_command(v(1, seq), &written(FILE, 0, 100), Origin::Own);
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
    pull.on_command(v(1, 1), &written(FILE, 0, 100), Origin::Own);
    pull.on_corrupt(FILE, r(40, 60), Version::default());
    assert_eq!(
        pull.next_fetches(u64::MAX, 8),
        [],
        "members have older bytes at best"
    );
    pull.on_command(v(1, 2), &written(FILE, 50, 55), Origin::Own);
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
    pull.on_command(v(2, 8), &written(FILE, 10, 20), Origin::Remote);
    pull.on_committed(Seq(8));
    assert_eq!(pull.complete_through(Seq(8)), Seq(7));
    assert_eq!(one(&mut pull).range, r(10, 20));
    // An older word about it says nothing of the new bytes.
    let mut late = joiner();
    let fetch = one(&mut late);
    late.on_command(v(2, 8), &written(FILE, 10, 20), Origin::Remote);
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
    pull.on_command(v(1, 5), &written(FILE, 50, 100), Origin::Remote);
    pull.on_committed(Seq(5));
    assert!(pull.is_unreadable(FILE, r(0, 100)));
    assert!(!pull.is_unreadable(FILE, r(50, 100)));
    assert_eq!(pull.spoiled(FILE, r(0, 100)), [r(0, 50), r(50, 100)]);
    assert!(!pull.has_older(FILE, r(50, 100)));
    // Of what a restart finds in the log nobody knows whether it had come.
    let mut pull = follower(&[]);
    pull.on_corrupt(FILE, r(0, 100), v(1, 4));
    pull.on_command(v(1, 5), &written(FILE, 0, 100), Origin::Unsynced);
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
    pull.on_command(v(1, 1), &command, Origin::Unsynced);
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
    pull.on_command(v(1, 4), &written(FILE, 0, 10), Origin::Unsynced);
    assert!(!pull.has_older(FILE, block), "a write that was half done");
    let mut pull = Pull::new();
    pull.distrust(FILE, block, v(1, 3));
    pull.on_corrupt(FILE, block, v(1, 3));
    assert!(!pull.has_older(FILE, block));
}

#[test]
fn the_bytes_of_a_logged_record_are_asked_for_once_and_installed_when_it_is_committed() {
    let mut pull = Pull::new();
    pull.on_command(v(1, 1), &written(FILE, 0, 100), Origin::Remote);
    assert_eq!(pull.next_fetches(u64::MAX, 8), []);
    let fetches = pull.next_ahead(&Holding::default());
    let [fetch] = fetches[..] else {
        panic!("{fetches:?}");
    };
    assert_eq!((fetch.range, fetch.needed), (r(0, 100), v(1, 1)));
    assert_eq!(pull.next_ahead(&Holding::default()), []);
    let arrived = pull.on_fetched(fetch.id, r(0, 100), v(1, 1), Holds::NotYet);
    assert_eq!(arrived, Fetched::Hold);
    pull.on_committed(Seq(1));
    assert!(!pull.is_valid(FILE, r(0, 100)), "not in place yet");
    let held = pull.decidable(|_| Holds::Yes);
    assert_eq!(held, [fetch.id]);
    assert_eq!(pull.next_ahead(&Holding::default()), [], "they are here");
    let again = pull.on_fetched(fetch.id, r(0, 100), v(1, 1), Holds::Yes);
    assert_eq!(again, install(&[r(0, 100)]));
    pull.on_installed(fetch.id);
    assert!(pull.is_valid(FILE, r(0, 100)));
}

#[test]
fn what_was_asked_for_ahead_and_did_not_come_is_asked_for_again_when_its_record_is_committed() {
    let mut pull = Pull::new();
    pull.on_command(v(1, 1), &written(FILE, 0, 100), Origin::Remote);
    let fetch = pull.next_ahead(&Holding::default())[0];
    pull.on_fetch_failed(fetch.id);
    // Not at once: whoever has no answer now may have none for long.
    assert_eq!(pull.next_ahead(&Holding::default()), []);
    pull.on_committed(Seq(1));
    assert_eq!(one(&mut pull).range, r(0, 100));
}

#[test]
fn a_record_that_is_larger_than_what_may_be_asked_for_ahead_is_asked_for_once_too() {
    let mut pull = Pull::new();
    let large = written(FILE, 0, 3 * AHEAD_BYTES_MAX);
    pull.on_command(v(1, 1), &large, Origin::Remote);
    for fetch in pull.next_ahead(&Holding::default()) {
        pull.on_fetch_failed(fetch.id);
    }
    assert_eq!(pull.next_ahead(&Holding::default()), []);
}

#[test]
fn a_record_in_the_place_of_a_truncated_one_is_asked_for_ahead_too() {
    let mut pull = Pull::new();
    pull.on_command(v(1, 1), &written(FILE, 0, 10), Origin::Remote);
    pull.on_command(v(1, 2), &written(FILE, 20, 30), Origin::Remote);
    let fetches = pull.next_ahead(&Holding::default());
    assert_eq!(fetches.len(), 2);
    // As of a record that never was.
    let held = pull.on_fetched(fetches[1].id, r(20, 30), v(1, 2), Holds::NotYet);
    assert_eq!(held, Fetched::Hold);
    pull.on_truncated(Seq(1), v(1, 1));
    assert_eq!(pull.decidable(|_| Holds::Never), [fetches[1].id]);
    let dropped = pull.on_fetched(fetches[1].id, r(20, 30), v(1, 2), Holds::Never);
    assert_eq!(dropped, Fetched::Drop);
    pull.on_command(v(2, 2), &written(OTHER, 0, 10), Origin::Remote);
    let fetches = pull.next_ahead(&Holding::default());
    let [fetch] = fetches[..] else {
        panic!("{fetches:?}");
    };
    assert_eq!((fetch.inode, fetch.range), (OTHER, r(0, 10)));
}

#[test]
fn what_is_here_or_on_its_way_or_nobodys_is_not_asked_for_ahead() {
    let mut pull = follower(&[(1, 0, 10)]);
    one(&mut pull);
    pull.on_command(v(1, 2), &written(FILE, 5, 20), Origin::Remote);
    let fetches = pull.next_ahead(&Holding::default());
    assert_eq!(fetches.len(), 1);
    assert_eq!(fetches[0].range, r(10, 20), "the rest is on its way");
    pull.on_command(v(1, 3), &written(OTHER, 20, 30), Origin::Own);
    pull.on_command(v(1, 4), &written(OTHER, 40, 50), Origin::Unsynced);
    assert_eq!(pull.next_ahead(&Holding::default()), []);
}

#[test]
fn many_small_records_that_wait_keep_nothing_from_being_asked_for() {
    let mut pull = Pull::new();
    for seq in 1..=2_000 {
        let command = written(FILE, seq * 10, seq * 10 + 5);
        pull.on_command(v(1, seq), &command, Origin::Remote);
    }
    let fetches = pull.next_ahead(&Holding::default());
    assert_eq!(fetches.len(), AHEAD_FETCHES_MAX);
    pull.on_corrupt(OTHER, r(0, 10), v(1, 0));
    assert_eq!(pull.next_fetches(u64::MAX, 1).len(), 1);
    // With room again it goes on where it was.
    pull.on_fetch_failed(fetches[0].id);
    let next = pull.next_ahead(&Holding::default());
    assert_eq!(next.len(), 1);
    assert_eq!(next[0].range.start, (AHEAD_FETCHES_MAX as u64 + 1) * 10);
}

#[test]
fn no_more_is_asked_for_ahead_than_may_wait_for_its_record() {
    let mut pull = Pull::new();
    for seq in 1..=100 {
        let start = seq * FETCH_LEN_MAX;
        let command = written(FILE, start, start + FETCH_LEN_MAX);
        pull.on_command(v(1, seq), &command, Origin::Remote);
    }
    let fetches = pull.next_ahead(&Holding::default());
    let bytes: u64 = fetches.iter().map(|fetch| fetch.range.len()).sum();
    assert_eq!(bytes, AHEAD_BYTES_MAX);
    for fetch in &fetches {
        let held = pull.on_fetched(fetch.id, fetch.range, v(1, 100), Holds::NotYet);
        assert_eq!(held, Fetched::Hold);
    }
    assert_eq!(pull.next_ahead(&Holding::default()), []);
    pull.on_committed(Seq(50));
    let missing = pull.next_fetches(u64::MAX, 1_000);
    assert_eq!(
        missing.len(),
        50 - fetches.len(),
        "what is committed comes as ever"
    );
}

/// A record of these bytes, which it carries, comes into the log.
fn carried(pull: &mut Pull, version: Version, start: u64, end: u64, origin: Origin) {
    let parts = vec![r(start, end)];
    pull.on_carrying(version, &written(FILE, start, end), origin, parts);
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
    pull.on_command(v(1, 2), &written(FILE, 10, 20), Origin::Remote);
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
    pull.on_command(v(1, 2), &punched, Origin::Unsynced);
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
