mod ahead;
mod carried;
mod kept;
mod spoilt;

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
        pull.on_command(
            v(1, seq),
            &written(FILE, start, end),
            Origin::Remote,
            Vec::new(),
        );
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
    pull.on_command(v(1, 1), &written(FILE, 0, 100), Origin::Remote, Vec::new());
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
    pull.on_command(v(1, 2), &written(FILE, 40, 60), Origin::Remote, Vec::new());
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
    pull.on_command(v(2, 2), &written(FILE, 0, 60), Origin::Own, Vec::new());
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
    pull.on_command(v(2, 2), &written(FILE, 20, 30), Origin::Own, Vec::new());
    let answer = pull.on_fetched(fetch.id, fetch.range, v(1, 1), Holds::Yes);
    assert_eq!(answer, install(&[r(0, 20), r(30, 100)]));
}

#[test]
fn own_regions_of_truncated_records_are_invalid_and_others_are_as_before() {
    let mut pull = Pull::new();
    pull.on_command(v(1, 1), &written(FILE, 0, 10), Origin::Own, Vec::new());
    pull.on_committed(Seq(1));
    pull.on_command(v(1, 2), &written(FILE, 5, 15), Origin::Own, Vec::new());
    pull.on_command(v(1, 3), &written(OTHER, 0, 10), Origin::Remote, Vec::new());
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
    pull.on_command(v(1, 1), &written(FILE, 0, 10), Origin::Own, Vec::new());
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
    pull.on_command(v(1, 4), &punched, Origin::Unsynced, Vec::new());
    pull.on_command(
        v(1, 5),
        &written(OTHER, 0, 10),
        Origin::Unsynced,
        Vec::new(),
    );
    assert!(!pull.is_valid(FILE, r(0, 10)));
    pull.on_committed(Seq(4));
    assert_eq!(pull.complete_through(Seq(4)), Seq(3));
    assert_eq!(one(&mut pull).inode, FILE);
}

#[test]
fn an_owner_falls_back_by_logging_what_it_has() {
    let mut pull = follower(&[(1, 0, 100)]);
    pull.on_command(v(2, 2), &written(FILE, 20, 30), Origin::Own, Vec::new());
    let nobody = pull.on_nobody_has(FILE, r(0, 50), NotGiven::NotHere, v(1, 1));
    assert_eq!(nobody, Nobody::Keep(vec![r(0, 20), r(30, 50)]));
    for (seq, part) in [(3, r(0, 20)), (4, r(30, 50))] {
        let command = written(FILE, part.start, part.end);
        pull.on_command(v(2, seq), &command, Origin::Own, Vec::new());
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
        pull.on_command(v(1, seq), command, Origin::Remote, Vec::new());
        pull.on_committed(Seq(seq));
    }
    let ranges: Vec<ByteRange> = pull.iter().map(|(_, range, _)| range).collect();
    assert_eq!(ranges, [r(0, 20), r(40, 60)]);
    let fetch = one(&mut pull);
    let removed = DataCommand::Removed { inode: FILE };
    pull.on_command(v(1, 4), &removed, Origin::Remote, Vec::new());
    pull.on_committed(Seq(4));
    let answer = pull.on_fetched(fetch.id, fetch.range, v(1, 3), Holds::Yes);
    assert_eq!(answer, install(&[]));
    assert_eq!(pull.complete_through(Seq(4)), Seq(4));
}

#[test]
fn what_someone_waits_for_comes_first_and_budgets_hold() {
    let mut pull = follower(&[(1, 0, 4 * FETCH_LEN_MAX)]);
    pull.on_command(v(1, 2), &written(OTHER, 0, 10), Origin::Remote, Vec::new());
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
    pull.on_command(v(1, 2), &written(FILE, 40, 60), Origin::Remote, Vec::new());
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
        pull.on_command(v(1, piece / 512 + 1), &command, Origin::Remote, Vec::new());
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
        pull.on_command(
            v(1, seq),
            &written(FILE, 0, 100),
            Origin::Remote,
            Vec::new(),
        );
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
    pull.on_command(v(1, 1), &cut, Origin::Unsynced, Vec::new());
    pull.on_command(
        v(1, 2),
        &written(FILE, 150, 200),
        Origin::Remote,
        Vec::new(),
    );
    pull.on_command(v(1, 3), &written(OTHER, 0, 7), Origin::Remote, Vec::new());
    pull.on_committed(Seq(3));
    assert!(!pull.is_valid(FILE, r(300, 400)));
    // The gap before what was written later counts as if it were to be fetched.
    assert_eq!(pull.missing_bytes(), 50 + 50 + 7);
}
