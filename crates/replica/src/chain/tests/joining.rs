use super::*;

/// Two members and a joiner that has caught up with the log.
fn with_joiner() -> Script {
    let mut script = Script::running(2);
    script.propose(1, "a").unwrap();
    script.settle();
    script.start(n(3), HardState::default());
    script.input(n(3), Input::View(view(2, &[1, 2])));
    script.input(n(1), Input::Candidate(n(3)));
    script.pass(650, &[]);
    script
}

/// The owner's records do not fit node 3's log.
fn misfit(script: &mut Script) {
    misfit_of(script, view(2, &[1, 2]));
}

/// The same, of the owner of that view.
fn misfit_of(script: &mut Script, view: ChainView) {
    let from = view.chain[0];
    let message = Message::Append {
        prev: Version {
            epoch: view.epoch,
            seq: Seq(99),
        },
        view,
        entries: Vec::new(),
        commit: Seq::ZERO,
        admit: None,
        sent_at: Tick(script.now),
    };
    script.input(n(3), Input::Receive { from, message });
}

/// The owner's call to fetch the state in place of the log that node 3 has, sent then.
fn state_needed(script: &mut Script, at: u64) -> Message {
    Message::StateNeeded {
        view: view(2, &[1, 2]),
        last: script.host(3).chain.last(),
        sent_at: Tick(at),
    }
}

#[test]
fn a_joiner_is_listed_once_it_holds_records_and_data() {
    let mut script = with_joiner();
    assert_eq!(script.role(3), Role::Joining { owner: n(1) });
    assert_eq!(script.log(3), script.log(1));
    script.pass(1_000, &[]);
    assert_eq!(script.host(1).proposed.len(), 1, "it has not the data");
    assert!(!script.host(3).disk.complete);
    script.input(n(3), Input::DataThrough(Seq(2)));
    script.pass(350, &[]);
    assert!(script.host(3).disk.complete);
    assert_eq!(script.host(1).proposed[1], view(3, &[1, 2, 3]));
    script.decide(n(1), CasOutcome::Won);
    script.settle();
    assert_eq!(script.role(1), Role::Owner { epoch: Epoch(3) });
    let three = Role::Replica {
        owner: n(1),
        epoch: Epoch(3),
    };
    assert_eq!(script.role(3), three);
}

#[test]
fn commits_and_leases_wait_for_a_joiner_that_may_be_listed() {
    let mut script = with_joiner();
    script.input(n(3), Input::DataThrough(Seq(2)));
    script.pass(350, &[]);
    script.decide(n(1), CasOutcome::Unknown);
    script.propose(1, "b").unwrap();
    script.pass(100, &[3]);
    assert_eq!(script.committed(1), 2);
    assert_eq!(
        script.host(1).chain.counted().collect::<Vec<_>>(),
        [n(2), n(3)]
    );
    script.pass(2_000, &[3]);
    assert_eq!(
        script.lease(1),
        None,
        "the joiner may be a member, and take over"
    );
}

#[test]
fn a_joiner_that_falls_silent_before_it_was_proposed_is_forgotten() {
    let mut script = with_joiner();
    script.propose(1, "b").unwrap();
    script.input(n(3), Input::DataThrough(Seq(2)));
    script.pass(350, &[]);
    script.propose(1, "c").unwrap();
    script.pass(1_000, &[3]);
    assert_eq!(script.committed(1), 3);
    script.pass(1_500, &[3]);
    assert_eq!(script.committed(1), 4);
    assert_eq!(script.host(1).chain.member_progress().len(), 1);
}

#[test]
fn nothing_waits_for_a_joiner_that_has_much_to_fetch() {
    let mut script = with_joiner();
    let counted = |script: &mut Script| script.host(1).chain.counted().collect::<Vec<_>>();
    script.propose(1, "b").unwrap();
    script.pass(1_000, &[3]);
    assert_eq!(script.committed(1), 3);
    assert_eq!(counted(&mut script), [n(2)]);
    // What was written during a long round is the next one's.
    script.input(n(3), Input::DataThrough(Seq(2)));
    script.pass(350, &[]);
    assert_eq!(counted(&mut script), [n(2)]);
    script.propose(1, "c").unwrap();
    script.input(n(3), Input::DataThrough(Seq(3)));
    script.pass(350, &[]);
    assert_eq!(counted(&mut script), [n(2), n(3)], "there is little left");
    assert_eq!(script.host(1).proposed.len(), 1);
    script.input(n(3), Input::DataThrough(Seq(4)));
    script.pass(350, &[]);
    assert_eq!(script.host(1).proposed[1], view(3, &[1, 2, 3]));
}

#[test]
fn a_joiner_that_writers_outrun_is_awaited() {
    let mut script = with_joiner();
    for round in 0.. {
        if script.host(1).chain.counted().count() == 2 {
            break;
        }
        assert!(round < 3, "its rounds do not get shorter");
        script.propose(1, "more").unwrap();
        script.pass(2_000, &[]);
        let all = script.host(1).chain.last().seq;
        script.input(n(3), Input::DataThrough(Seq(all.0 - 1)));
        script.propose(1, "more").unwrap();
        script.pass(350, &[]);
    }
    assert_eq!(
        script.host(1).proposed.len(),
        1,
        "not listed before it has all"
    );
}

#[test]
fn a_joiner_that_lost_its_disk_while_it_was_listed_refuses() {
    let mut script = with_joiner();
    script.input(n(3), Input::DataThrough(Seq(2)));
    script.pass(350, &[]);
    script.start(n(3), HardState::default());
    script.input(n(3), Input::View(view(2, &[1, 2])));
    script.decide(n(1), CasOutcome::Won);
    script.settle();
    assert_eq!(script.role(3), Role::Outside);
    script.pass(10, &[]);
    assert_eq!(script.host(1).proposed[2], view(4, &[1, 2]));
    script.pass(5_000, &[1, 2]);
    assert!(
        script.host(3).proposed.is_empty(),
        "it does not take over either"
    );
}

#[test]
fn what_is_in_doubt_is_settled_without_a_joiner_that_lost_its_disk() {
    let mut script = with_joiner();
    script.input(n(3), Input::DataThrough(Seq(2)));
    script.pass(350, &[]);
    assert_eq!(script.host(1).proposed[1], view(3, &[1, 2, 3]));
    script.decide(n(1), CasOutcome::Unknown);
    script.start(n(3), HardState::default());
    script.input(n(3), Input::View(view(2, &[1, 2])));
    script.pass(1_000, &[]);
    let settles = script.host(1).proposed.last().cloned();
    assert_eq!(settles, Some(view(3, &[1, 2])));
    script.decide(n(1), CasOutcome::Won);
    script.pass(650, &[3]);
    assert!(script.lease(1).is_some(), "nobody waits for it any more");
}

#[test]
fn a_wiped_member_refuses_and_is_removed_and_comes_back() {
    let mut script = Script::running(2);
    script.propose(1, "a").unwrap();
    script.settle();
    script.start(n(2), HardState::default());
    script.pass(310, &[]);
    assert!(
        script.wire.is_empty(),
        "it says nothing before it knows the view"
    );
    script.input(n(2), Input::View(view(2, &[1, 2])));
    script.pass(310, &[]);
    assert_eq!(script.host(1).proposed[1], view(3, &[1]));
    assert_eq!(script.host(2).disk, HardState::default());
    script.decide(n(1), CasOutcome::Won);
    script.input(n(1), Input::Candidate(n(2)));
    script.pass(310, &[]);
    assert_eq!(script.role(2), Role::Joining { owner: n(1) });
    script.input(n(2), Input::DataThrough(Seq(3)));
    script.pass(650, &[]);
    assert_eq!(script.host(1).proposed[2], view(4, &[1, 2]));
}

#[test]
fn a_joiner_behind_the_retained_log_fetches_the_state() {
    let mut script = Script::running(1);
    script.host(1).chain.limits.retain_bytes = 500;
    script.host(1).chain.limits.retain_for_joiners_bytes = 500;
    for _ in 0..40 {
        script.propose(1, "0123456789").unwrap();
    }
    script.input(n(1), Input::Synced(Seq(40)));
    script.propose(1, "0123456789").unwrap();
    assert!(script.host(1).chain.base().seq > Seq(20));
    script.start(n(2), HardState::default());
    script.input(n(2), Input::View(view(2, &[1])));
    script.input(n(1), Input::Candidate(n(2)));
    script.pass(310, &[]);
    assert!(script.host(2).needs_state);
    let base = script.host(1).chain.committed_version();
    script.host(2).disk.base = base;
    script.input(n(2), Input::StateInstalled { base });
    script.propose(1, "b").unwrap();
    script.pass(310, &[]);
    assert_eq!(script.host(2).chain.last(), script.host(1).chain.last());
    assert_eq!(script.committed(2), 43);
    assert_eq!(script.host(2).disk.entries.len(), 1);
}

#[test]
fn a_state_older_than_what_is_committed_is_fatal() {
    let mut script = with_joiner();
    misfit(&mut script);
    let at = script.now + 1;
    let message = state_needed(&mut script, at);
    let from = n(1);
    script.input(n(3), Input::Receive { from, message });
    let base = Version {
        epoch: Epoch(2),
        seq: Seq(1),
    };
    script.input(n(3), Input::StateInstalled { base });
    assert!(matches!(
        script.host(3).faults[..],
        [Fault::StateTooOld { .. }]
    ));
}

#[test]
fn a_late_call_for_the_state_discards_nothing_that_was_acknowledged() {
    let mut script = with_joiner();
    script.slow = vec![n(3)];
    script.propose(1, "b").unwrap();
    script.settle();
    misfit(&mut script);
    let at = script.now + 1;
    let message = state_needed(&mut script, at);
    let from = n(1);
    script.input(n(3), Input::Receive { from, message });
    let state = |seq| Version {
        epoch: Epoch(2),
        seq: Seq(seq),
    };
    assert!(script.host(3).chain.accepts_state(state(2)));
    script.persist(n(3));
    script.settle();
    let durable = script.host(1).chain.member_progress()[1].durable;
    assert_eq!(
        durable,
        Seq(2),
        "what the state may replace is not promised"
    );
    assert!(!script.host(3).chain.accepts_state(state(1)));
    script.input(n(3), Input::StateFailed);
    script.pass(310, &[]);
    assert_eq!(script.committed(1), 3);
}

#[test]
fn what_an_owner_before_was_told_does_not_keep_the_state_of_the_present_one_away() {
    let mut script = with_joiner();
    script.slow = vec![n(2)];
    script.propose(1, "b").unwrap();
    script.settle();
    let progress = script.host(1).chain.member_progress();
    assert_eq!(progress[1].durable, Seq(3));
    assert_eq!(script.committed(3), 2);
    // Node 2 owns now, and has never written the record that node 3 acknowledged.
    let owner = view(3, &[2]);
    script.input(n(3), Input::View(owner.clone()));
    let state = Version {
        epoch: Epoch(3),
        seq: Seq(2),
    };
    misfit_of(&mut script, owner.clone());
    let message = Message::StateNeeded {
        view: owner,
        last: script.host(3).chain.last(),
        sent_at: Tick(script.now + 1),
    };
    let from = n(2);
    script.input(n(3), Input::Receive { from, message });
    assert!(script.host(3).needs_state);
    assert!(script.host(3).chain.accepts_state(state));
}

#[test]
fn a_late_call_for_the_state_does_not_empty_who_may_be_listed() {
    let mut script = with_joiner();
    let at = script.now;
    let late = state_needed(&mut script, at);
    script.pass(310, &[]);
    script.input(n(3), Input::DataThrough(Seq(2)));
    script.pass(350, &[]);
    assert_eq!(script.host(1).proposed[1], view(3, &[1, 2, 3]));
    let from = n(1);
    misfit(&mut script);
    let message = late;
    script.input(n(3), Input::Receive { from, message });
    assert!(!script.host(3).needs_state, "older than what it said");
    // One that comes once more finds records that fit.
    script.pass(350, &[]);
    let at = script.now + 1;
    let message = state_needed(&mut script, at);
    script.input(n(3), Input::Receive { from, message });
    assert!(!script.host(3).needs_state);
}

#[test]
fn while_a_state_is_on_its_way_no_data_is_promised() {
    let mut script = with_joiner();
    script.input(n(3), Input::DataThrough(Seq(2)));
    misfit(&mut script);
    let at = script.now + 1;
    let (from, message) = (n(1), state_needed(&mut script, at));
    script.input(n(3), Input::Receive { from, message });
    script.pass(650, &[]);
    assert_eq!(script.host(1).proposed.len(), 1, "it is not listed");
    let told = script.host(1).chain.member_progress()[1].data;
    assert_eq!(told, Seq::ZERO);
}

#[test]
fn a_state_replaces_nothing_that_an_earlier_process_has_acknowledged() {
    let mut script = with_joiner();
    // The owner's disk is slow: only the joiner has the record, and has said so.
    script.slow = vec![n(1)];
    script.propose(1, "b").unwrap();
    script.settle();
    let last = script.host(3).chain.last();
    assert_eq!(script.host(3).chain.durable(), last.seq);
    script.restart(3);
    script.input(n(3), Input::View(view(2, &[1, 2])));
    let from = n(1);
    misfit(&mut script);
    let at = script.now + 1;
    let message = state_needed(&mut script, at);
    script.input(n(3), Input::Receive { from, message });
    let before = Version {
        seq: Seq(last.seq.0 - 1),
        ..last
    };
    assert!(!script.host(3).chain.accepts_state(before));
    assert!(script.host(3).chain.accepts_state(last));
}

#[test]
fn a_call_for_the_state_that_an_earlier_process_was_sent_empties_nobody() {
    let mut script = Script::running(2);
    script.start(n(3), HardState::default());
    script.input(n(3), Input::View(view(2, &[1, 2])));
    let at = script.now;
    let late = state_needed(&mut script, at);
    script.input(n(1), Input::Candidate(n(3)));
    script.pass(650, &[]);
    script.input(n(3), Input::DataThrough(Seq(1)));
    script.pass(350, &[]);
    assert_eq!(script.host(1).proposed[1], view(3, &[1, 2, 3]));
    script.restart(3);
    script.input(n(3), Input::View(view(2, &[1, 2])));
    misfit(&mut script);
    let from = n(1);
    let message = late;
    script.input(n(3), Input::Receive { from, message });
    assert!(!script.host(3).needs_state, "it may be listed meanwhile");
    let at = script.now;
    let message = state_needed(&mut script, at);
    script.input(n(3), Input::Receive { from, message });
    assert!(script.host(3).needs_state);
}
