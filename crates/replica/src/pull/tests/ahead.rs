//! Bytes that are asked for before their record is committed.

use super::*;

#[test]
fn the_bytes_of_a_logged_record_are_asked_for_once_and_installed_when_it_is_committed() {
    let mut pull = Pull::new();
    pull.on_command(v(1, 1), &written(FILE, 0, 100), Origin::Remote, Vec::new());
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
    pull.on_command(v(1, 1), &written(FILE, 0, 100), Origin::Remote, Vec::new());
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
    pull.on_command(v(1, 1), &large, Origin::Remote, Vec::new());
    for fetch in pull.next_ahead(&Holding::default()) {
        pull.on_fetch_failed(fetch.id);
    }
    assert_eq!(pull.next_ahead(&Holding::default()), []);
}

#[test]
fn a_record_in_the_place_of_a_truncated_one_is_asked_for_ahead_too() {
    let mut pull = Pull::new();
    pull.on_command(v(1, 1), &written(FILE, 0, 10), Origin::Remote, Vec::new());
    pull.on_command(v(1, 2), &written(FILE, 20, 30), Origin::Remote, Vec::new());
    let fetches = pull.next_ahead(&Holding::default());
    assert_eq!(fetches.len(), 2);
    // As of a record that never was.
    let held = pull.on_fetched(fetches[1].id, r(20, 30), v(1, 2), Holds::NotYet);
    assert_eq!(held, Fetched::Hold);
    pull.on_truncated(Seq(1), v(1, 1));
    assert_eq!(pull.decidable(|_| Holds::Never), [fetches[1].id]);
    let dropped = pull.on_fetched(fetches[1].id, r(20, 30), v(1, 2), Holds::Never);
    assert_eq!(dropped, Fetched::Drop);
    pull.on_command(v(2, 2), &written(OTHER, 0, 10), Origin::Remote, Vec::new());
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
    pull.on_command(v(1, 2), &written(FILE, 5, 20), Origin::Remote, Vec::new());
    let fetches = pull.next_ahead(&Holding::default());
    assert_eq!(fetches.len(), 1);
    assert_eq!(fetches[0].range, r(10, 20), "the rest is on its way");
    pull.on_command(v(1, 3), &written(OTHER, 20, 30), Origin::Own, Vec::new());
    pull.on_command(
        v(1, 4),
        &written(OTHER, 40, 50),
        Origin::Unsynced,
        Vec::new(),
    );
    assert_eq!(pull.next_ahead(&Holding::default()), []);
}

#[test]
fn many_small_records_that_wait_keep_nothing_from_being_asked_for() {
    let mut pull = Pull::new();
    for seq in 1..=2_000 {
        let command = written(FILE, seq * 10, seq * 10 + 5);
        pull.on_command(v(1, seq), &command, Origin::Remote, Vec::new());
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
        pull.on_command(v(1, seq), &command, Origin::Remote, Vec::new());
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
