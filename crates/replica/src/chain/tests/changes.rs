use super::*;

#[test]
fn a_member_takes_over_only_after_its_last_lease_and_its_turn() {
    let mut script = Script::running(3);
    script.pass(3_000, &[]);
    script.wire.clear();
    let granted = script.hosts[&n(2)].chain.granted.unwrap();
    script.now = granted.0 + 2_650 * MS - 1;
    script.input(n(2), Input::Tick);
    assert!(script.host(2).proposed.is_empty());
    script.now += 1;
    script.input(n(2), Input::Tick);
    script.input(n(3), Input::Tick);
    assert_eq!(script.host(2).proposed, [view(3, &[2, 3])]);
    assert!(
        script.host(3).proposed.is_empty(),
        "its turn comes 150 ms later"
    );
    assert_eq!(script.lease(1), None);
}

#[test]
fn a_new_owner_serves_once_all_logs_are_equal() {
    let mut script = Script::running(3);
    script.propose(1, "a").unwrap();
    script.wire.retain(|(_, to, _)| *to == n(2));
    script.settle();
    assert_eq!((script.log(2).len(), script.log(3).len()), (2, 1));
    script.pass(2_650, &[1]);
    script.decide(n(2), CasOutcome::Won);
    assert_eq!(script.role(2), Role::Reconciling { epoch: Epoch(3) });
    script.pass(20, &[1]);
    assert_eq!(script.role(2), Role::Owner { epoch: Epoch(3) });
    assert_eq!(
        script.log(3),
        [(2, 1), (2, 2), (3, 3)],
        "the old record keeps its version"
    );
    assert_eq!(script.committed(2), 3);
}

#[test]
fn records_that_the_new_owner_has_not_are_truncated() {
    let mut script = Script::running(3);
    script.propose(1, "a").unwrap();
    script.wire.retain(|(_, to, _)| *to == n(3));
    script.settle();
    script.pass(2_650, &[1]);
    script.decide(n(2), CasOutcome::Won);
    script.pass(20, &[1]);
    assert_eq!(script.log(3), [(2, 1), (3, 2)]);
    assert_eq!(script.host(3).truncated.len(), 1);
    assert_eq!(script.host(3).disk.entries.len(), 2);
    assert_eq!(script.committed(2), 2);
}

#[test]
fn a_record_that_was_truncated_on_its_way_to_the_disk_is_not_durable() {
    let mut script = Script::running(3);
    script.slow = vec![n(3)];
    script.propose(1, "a").unwrap();
    script.wire.retain(|(_, to, _)| *to == n(3));
    script.deliver();
    script.pass(2_650, &[1]);
    script.decide(n(2), CasOutcome::Won);
    script.lose(&[1]);
    script.settle();
    let (first, change) = script.host(3).writes.pop_front().unwrap();
    change.apply(&mut script.host(3).disk);
    script.input(n(3), Input::Persisted(first));
    assert_eq!(script.hosts[&n(3)].chain.durable(), Seq(1));
    script.settle();
    assert_eq!(
        script.committed(2),
        0,
        "the third member has the new record only in memory"
    );
}

#[test]
fn replacing_a_committed_record_is_fatal() {
    let mut script = Script::running(2);
    script.propose(1, "a").unwrap();
    script.settle();
    script.input(n(1), Input::Announce);
    script.settle();
    let conflicting = Entry {
        version: Version {
            epoch: Epoch(3),
            seq: Seq(2),
        },
        payload: Bytes::new(),
    };
    let message = Message::Append {
        view: view(3, &[1, 2]),
        prev: Version {
            epoch: Epoch(2),
            seq: Seq(1),
        },
        entries: vec![conflicting],
        commit: Seq(0),
        admit: None,
        sent_at: Tick(0),
    };
    let from = n(1);
    script.input(n(2), Input::Receive { from, message });
    assert!(script.host(2).faults[0].is_fatal());
    assert_eq!(script.host(2).disk.entries.len(), 2);
    assert!(script.wire.is_empty());
}

#[test]
fn the_owner_of_an_older_epoch_is_refused_and_stops() {
    let mut script = Script::running(3);
    script.propose(1, "a").unwrap();
    script.settle();
    script.pass(2_650, &[1]);
    script.decide(n(2), CasOutcome::Won);
    script.pass(20, &[1]);
    script.pass(320, &[]);
    let known = Refusal::StaleEpoch { promised: Epoch(3) };
    let old = Message::Append {
        view: view(2, &[1, 2, 3]),
        prev: Version::default(),
        entries: Vec::new(),
        commit: Seq(0),
        admit: None,
        sent_at: Tick(0),
    };
    let from = n(1);
    script.wire.clear();
    script.input(n(3), Input::Receive { from, message: old });
    assert_eq!(
        script.waiting(3, 1).first().and_then(|m| is_refusal(m)),
        Some(known)
    );
    assert_eq!(script.lease(1), None);
    assert_eq!(script.propose(1, "b"), Err(NotOwner));
}

#[test]
fn a_member_that_proposed_grants_nothing_until_it_is_refused() {
    let mut script = Script::running(2);
    script.pass(2_650, &[1]);
    assert_eq!(script.host(2).proposed.len(), 1);
    script.pass(310, &[]);
    assert_eq!(script.lease(1), None, "its proposal may win");
    script.decide(n(2), CasOutcome::Unknown);
    script.pass(310, &[]);
    assert_eq!(script.lease(1), None, "it may still win");
    let again = script.host(2).proposed.len();
    assert_eq!(again, 2, "proposed again, to get an answer");
    script.decide(n(2), CasOutcome::Unavailable);
    script.pass(310, &[]);
    assert_eq!(script.lease(1), None, "the first one is in doubt still");
    let mut script = Script::running(2);
    script.pass(2_650, &[1]);
    script.decide(n(2), CasOutcome::Unavailable);
    script.pass(310, &[]);
    assert!(
        script.lease(1).is_some(),
        "it was not done, and will not be"
    );
}

#[test]
fn an_unknown_proposal_that_shows_up_as_the_view_was_won() {
    let mut script = Script::running(2);
    script.pass(2_650, &[1]);
    script.decide(n(2), CasOutcome::Unknown);
    script.input(n(2), Input::View(view(3, &[2])));
    assert_eq!(script.role(2), Role::Owner { epoch: Epoch(3) });
}

#[test]
fn a_restarted_owner_wins_the_next_epoch_before_it_serves() {
    let mut script = Script::running(2);
    script.propose(1, "a").unwrap();
    script.settle();
    script.restart(1);
    script.input(n(1), Input::View(view(2, &[1, 2])));
    assert_eq!(script.role(1), Role::Returning);
    assert_eq!(
        script.host(1).proposed,
        [view(3, &[1, 2])],
        "it granted no lease"
    );
    script.decide(n(1), CasOutcome::Won);
    script.settle();
    assert_eq!(script.role(1), Role::Owner { epoch: Epoch(3) });
    assert_eq!(script.committed(1), 3);
}

#[test]
fn a_restarted_member_waits_for_leases_of_its_former_life() {
    let mut script = Script::running(2);
    script.restart(2);
    let start = script.now;
    script.input(n(2), Input::View(view(2, &[1, 2])));
    script.now = start + 2_650 * MS - 1;
    script.input(n(2), Input::Tick);
    assert!(script.host(2).proposed.is_empty());
    script.now += 1;
    script.input(n(2), Input::Tick);
    assert_eq!(script.host(2).proposed.len(), 1);
}

#[test]
fn a_view_that_names_this_node_first_is_not_a_victory() {
    let mut script = Script::running(2);
    script.input(n(2), Input::View(view(3, &[2])));
    assert_eq!(script.role(2), Role::Returning);
    assert_eq!(script.lease(2), None);
    assert!(
        script.host(2).proposed.is_empty(),
        "a lease that it granted may still run"
    );
    script.pass(2_650, &[1]);
    assert_eq!(script.host(2).proposed, [view(4, &[2])]);
}

#[test]
fn an_older_view_is_reported_and_ignored() {
    let mut script = Script::running(2);
    script.input(n(1), Input::View(view(1, &[1, 2])));
    let fault = Fault::ViewWentBack {
        held: Epoch(2),
        got: Epoch(1),
    };
    assert_eq!(script.host(1).faults, [fault]);
    assert!(script.lease(1).is_some());
}

#[test]
fn the_owner_goes_on_while_the_control_store_is_away() {
    let mut script = Script::running(3);
    for round in 0..600 {
        script.pass(1_000, &[]);
        assert!(script.lease(1).is_some(), "second {round}");
    }
    script.propose(1, "a").unwrap();
    script.settle();
    assert_eq!(script.committed(1), 2);
    for id in 1..=3 {
        let asked = script.host(id).proposed.len();
        assert_eq!(
            asked,
            usize::from(id == 1),
            "only the first epoch was asked for"
        );
    }
}

#[test]
fn a_silent_member_is_removed_and_an_unreachable_one_sooner() {
    let mut script = Script::running(3);
    script.pass(1_900, &[3]);
    assert_eq!(script.host(1).proposed.len(), 1);
    script.pass(200, &[3]);
    assert_eq!(script.host(1).proposed[1], view(3, &[1, 2]));
    script.decide(n(1), CasOutcome::Won);
    script.pass(20, &[3]);
    assert_eq!(script.role(1), Role::Owner { epoch: Epoch(3) });

    let mut script = Script::running(3);
    script.input(n(1), Input::Unreachable(n(3)));
    script.pass(650, &[3]);
    assert_eq!(script.host(1).proposed[1], view(3, &[1, 2]));
}

#[test]
fn a_member_whose_disk_hangs_is_removed() {
    let mut script = Script::running(2);
    script.slow = vec![n(2)];
    script.propose(1, "a").unwrap();
    script.pass(9_900, &[]);
    assert_eq!(script.host(1).proposed.len(), 1);
    script.pass(500, &[]);
    assert_eq!(script.host(1).proposed[1], view(3, &[1]));
}

#[test]
fn a_dismissed_member_is_removed() {
    let mut script = Script::running(3);
    script.input(n(1), Input::Dismiss(n(2)));
    assert_eq!(script.host(1).proposed[1], view(3, &[1, 3]));
}

#[test]
fn an_owner_hands_over_only_what_all_members_have() {
    let mut script = Script::running(3);
    let before = script.host(1).proposed.len();
    let try_it = |script: &mut Script| {
        script.input(n(1), Input::Announce);
        script.settle();
        script.input(n(1), Input::HandOver);
        script.host(1).proposed.len() - before
    };
    script.propose(1, "a").unwrap();
    assert_eq!(try_it(&mut script), 0, "nobody has the bytes");
    script.input(n(2), Input::DataThrough(Seq(2)));
    script.input(n(3), Input::DataThrough(Seq(1)));
    assert_eq!(try_it(&mut script), 0, "one member lacks bytes");
    script.input(n(3), Input::DataThrough(Seq(2)));
    script.input(n(1), Input::Candidate(n(4)));
    assert_eq!(try_it(&mut script), 0, "another one comes in");
    script.input(n(1), Input::Dismiss(n(4)));
    script.propose(1, "b").unwrap();
    script.lose(&[2]);
    assert_eq!(try_it(&mut script), 0, "one member lacks a record");
    script.pass(1_000, &[]);
    for member in [2, 3] {
        script.input(n(member), Input::DataThrough(Seq(3)));
    }
    assert_eq!(try_it(&mut script), 1);
    assert_eq!(script.host(1).proposed.last(), Some(&view(3, &[2, 3])));

    script.decide(n(1), CasOutcome::Won);
    assert_eq!((script.role(1), script.lease(1)), (Role::Outside, None));
    script.input(n(2), Input::View(view(3, &[2, 3])));
    script.pass(2_000, &[]);
    assert_eq!(
        script.role(2),
        Role::Returning,
        "leases that it granted still run"
    );
    script.pass(1_000, &[]);
    assert_eq!(script.host(2).proposed, [view(4, &[2, 3])]);
    script.decide(n(2), CasOutcome::Won);
    script.pass(20, &[]);
    assert_eq!(script.role(2), Role::Owner { epoch: Epoch(4) });
    assert!(script.host(1).truncated.is_empty());
}

#[test]
fn the_only_member_does_not_leave() {
    let mut script = Script::running(1);
    let before = script.host(1).proposed.len();
    script.input(n(1), Input::HandOver);
    assert_eq!(script.host(1).proposed.len(), before);
}

#[test]
fn what_never_left_a_deposed_owner_is_dropped() {
    let mut script = Script::running(2);
    let now = Tick(script.now);
    script
        .host(1)
        .chain
        .propose(now, Bytes::from_static(b"a"))
        .unwrap();
    script.input(n(1), Input::View(view(3, &[2])));
    assert_eq!(script.host(1).truncated.len(), 1);
    assert_eq!(script.log(1), [(2, 1)]);
    assert_eq!(script.role(1), Role::Outside);
}

#[test]
fn bytes_of_an_object_wait_for_the_commit_of_its_own_records() {
    let mut script = Script::running(3);
    let changed = script.propose(1, "a").unwrap();
    script.propose(1, "b of another object").unwrap();
    let chain = &script.hosts[&n(1)].chain;
    assert!(chain.committed() < changed.seq);
    assert_eq!(chain.content_version_of(changed.seq), changed);
    let unchanged = chain.content_version_of(Seq::ZERO);
    assert_eq!(unchanged, chain.committed_version());
}

#[test]
fn an_owner_that_goes_on_gives_out_bytes_as_of_its_last_record() {
    let mut script = Script::running(3);
    script.propose(1, "a").unwrap();
    script.wire.clear();
    script.input(n(1), Input::Dismiss(n(3)));
    script.decide(n(1), CasOutcome::Won);
    assert_eq!(script.role(1), Role::Reconciling { epoch: Epoch(3) });
    let chain = &script.hosts[&n(1)].chain;
    assert_eq!(chain.content_version(), chain.last());
    let chain = &script.hosts[&n(2)].chain;
    assert_eq!(chain.content_version(), chain.committed_version());
}
