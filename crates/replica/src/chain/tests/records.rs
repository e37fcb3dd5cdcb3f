use super::*;

#[test]
fn a_fresh_member_wins_the_second_epoch_at_once() {
    let mut script = Script::fresh(1);
    script.input(n(1), Input::View(view(1, &[1])));
    assert_eq!(script.host(1).proposed, [view(2, &[1])]);
    script.decide(n(1), CasOutcome::Won);
    assert_eq!(script.role(1), Role::Owner { epoch: Epoch(2) });
    assert_eq!(script.lease(1), Some(Tick(u64::MAX)));
}

#[test]
fn a_record_is_committed_when_every_member_has_it_on_disk() {
    let mut script = Script::running(3);
    script.slow = vec![n(3)];
    script.propose(1, "a").unwrap();
    script.settle();
    assert_eq!(
        script.committed(1),
        1,
        "the third member's disk has not got it"
    );
    script.persist(n(3));
    script.settle();
    assert_eq!(script.committed(1), 2);
}

#[test]
fn nothing_is_acknowledged_before_it_is_on_disk() {
    let mut script = Script::running(2);
    script.slow = vec![n(2)];
    script.propose(1, "a").unwrap();
    script.deliver();
    assert!(script.waiting(2, 1).is_empty());
    script.persist(n(2));
    assert!(matches!(
        script.waiting(2, 1)[..],
        [Message::AppendAck {
            durable: Seq(2),
            ..
        }]
    ));
}

#[test]
fn a_heartbeat_is_answered_while_records_are_on_their_way_to_the_disk() {
    let mut script = Script::running(2);
    script.slow = vec![n(2)];
    script.propose(1, "a").unwrap();
    script.deliver();
    script.now += 300 * MS;
    script.input(n(1), Input::Tick);
    script.deliver();
    assert!(matches!(
        script.waiting(2, 1)[..],
        [Message::AppendAck {
            durable: Seq(1),
            ..
        }]
    ));
}

#[test]
fn the_promise_of_an_epoch_is_on_disk_before_it_is_answered() {
    let mut script = Script::fresh(2);
    for id in [1, 2] {
        script.input(n(id), Input::View(view(1, &[1, 2])));
    }
    script.slow = vec![n(2)];
    script.decide(n(1), CasOutcome::Won);
    script.deliver();
    assert!(script.waiting(2, 1).is_empty());
    assert_eq!(script.host(2).disk.promised, Epoch(1));
    script.persist(n(2));
    assert_eq!(script.waiting(2, 1).len(), 1);
    assert_eq!(script.host(2).disk.promised, Epoch(2));
}

#[test]
fn an_owner_sends_nothing_before_its_own_promise_is_on_disk() {
    let mut script = Script::fresh(2);
    for id in [1, 2] {
        script.input(n(id), Input::View(view(1, &[1, 2])));
    }
    script.slow = vec![n(1)];
    script.decide(n(1), CasOutcome::Won);
    script.pass(1_000, &[]);
    assert!(script.wire.is_empty());
    script.persist(n(1));
    assert_eq!(script.waiting(1, 2).len(), 1);
}

#[test]
fn what_was_proposed_is_sent_by_flush_in_one_message() {
    let mut script = Script::running(2);
    let now = Tick(script.now);
    for text in ["a", "b", "c"] {
        script
            .host(1)
            .chain
            .propose(now, Bytes::from_static(text.as_bytes()))
            .unwrap();
    }
    assert!(script.wire.is_empty());
    script.input(n(1), Input::Flush);
    assert!(matches!(
        script.waiting(1, 2)[..],
        [Message::Append { entries, .. }] if entries.len() == 3
    ));
}

#[test]
fn only_an_owner_with_leases_takes_records() {
    let mut script = Script::running(2);
    assert_eq!(script.propose(2, "a"), Err(NotOwner));
    script.now += lease().0 + 1;
    assert_eq!(script.propose(1, "a"), Err(NotOwner));
}

#[test]
fn the_lease_counts_from_the_moment_of_sending() {
    let mut script = Script::running(2);
    script.now = Timing::default().next_heartbeat(Tick(script.now)).0;
    script.input(n(1), Input::Tick);
    let sent = script.now;
    script.now += 250 * MS;
    script.settle();
    assert_eq!(script.lease(1), Some(Tick(sent) + lease()));
    script.now = sent + lease().0 - 1;
    assert!(script.lease(1).is_some());
    script.now += 1;
    assert_eq!(script.lease(1), None);
    script.input(n(1), Input::Tick);
    assert_eq!(script.role(1), Role::Suspended { epoch: Epoch(2) });
}

#[test]
fn one_silent_member_ends_the_lease() {
    let mut script = Script::running(3);
    script.pass(1_900, &[3]);
    assert_eq!(script.lease(1), None);
}

#[test]
fn lost_and_repeated_messages_change_nothing() {
    let mut script = Script::running(2);
    script.propose(1, "a").unwrap();
    script.wire.clear();
    script.propose(1, "b").unwrap();
    let again: Vec<_> = script.wire.iter().cloned().collect();
    script.wire.extend(again);
    script.settle();
    assert_eq!(script.committed(1), 3, "a gap is sent again");
    assert_eq!(script.log(1), script.log(2));
}

#[test]
fn members_learn_what_is_committed_with_the_next_message_or_at_once() {
    let mut script = Script::running(2);
    script.propose(1, "a").unwrap();
    script.settle();
    assert_eq!((script.committed(1), script.committed(2)), (2, 1));
    script.input(n(1), Input::Announce);
    script.settle();
    assert_eq!(script.committed(2), 2);
}

#[test]
fn a_failed_write_ends_the_chain() {
    let mut script = Script::running(2);
    script.input(n(1), Input::PersistFailed);
    assert_eq!(script.host(1).faults, [Fault::PersistFailed]);
    assert_eq!(script.role(1), Role::Outside);
    assert_eq!(script.propose(1, "a"), Err(NotOwner));
    script.pass(1_000, &[]);
    assert!(script.wire.is_empty());
}

#[test]
fn a_log_keeps_a_window_of_what_is_committed_applied_and_synced() {
    let mut script = Script::running(1);
    script.host(1).chain.limits.retain_bytes = 500;
    for _ in 0..40 {
        script.propose(1, "0123456789").unwrap();
    }
    assert_eq!(script.host(1).disk.entries.len(), 41, "nothing was synced");
    script.input(n(1), Input::Synced(Seq(30)));
    script.propose(1, "0123456789").unwrap();
    assert_eq!(script.host(1).disk.base.seq, Seq(30));
    script.input(n(1), Input::Synced(Seq(42)));
    script.propose(1, "0123456789").unwrap();
    let kept = script.host(1).disk.entries.len();
    assert!((5..10).contains(&kept), "{kept} records of 74 bytes");
    assert_eq!(script.host(1).chain.last().seq, Seq(43));
}

#[test]
fn large_logs_travel_in_bounded_messages_and_windows() {
    let mut script = Script::running(2);
    script.host(1).chain.limits.append_bytes = 200;
    script.host(1).chain.limits.window_bytes = 600;
    let now = Tick(script.now);
    for _ in 0..30 {
        script
            .host(1)
            .chain
            .propose(now, Bytes::from_static(b"0123456789"))
            .unwrap();
    }
    script.input(n(1), Input::Flush);
    let sent = script.waiting(1, 2);
    assert_eq!(sent.len(), 5, "148 bytes each, until 600 are reached");
    for message in sent {
        assert!(matches!(message, Message::Append { entries, .. } if entries.len() == 2));
    }
    script.settle();
    assert_eq!(script.committed(1), 31);
}

#[test]
fn malformed_messages_are_ignored() {
    let mut script = Script::running(2);
    let version = |epoch, seq| Version {
        epoch: Epoch(epoch),
        seq: Seq(seq),
    };
    let entry = |epoch, seq| Entry {
        version: version(epoch, seq),
        payload: Bytes::from_static(b"x"),
    };
    let good = view(2, &[1, 2]);
    let before = script.log(2);
    for (from, view, prev, entries) in [
        (1, good.clone(), version(2, 1), vec![entry(2, 3)]),
        (1, good.clone(), version(2, 1), vec![entry(9, 2)]),
        (1, good.clone(), version(2, 1), vec![entry(1, 2)]),
        (3, good.clone(), version(2, 1), vec![entry(2, 2)]),
        (1, super::view(2, &[1, 3]), version(2, 1), vec![entry(2, 2)]),
        (2, super::view(3, &[2]), version(2, 1), vec![entry(2, 2)]),
        (1, super::view(3, &[]), version(2, 1), vec![entry(2, 2)]),
    ] {
        let message = Message::Append {
            view,
            prev,
            entries,
            commit: Seq(99),
            admit: None,
            sent_at: Tick(0),
        };
        let from = n(from);
        script.input(n(2), Input::Receive { from, message });
    }
    let ack = |durable, sent_at| Message::AppendAck {
        epoch: Epoch(2),
        durable: Seq(durable),
        data: Seq(0),
        sent_at: Tick(sent_at),
    };
    let now = script.now;
    for message in [ack(50, now), ack(1, now + 1)] {
        let from = n(2);
        script.input(n(1), Input::Receive { from, message });
    }
    assert!(script.wire.is_empty());
    assert_eq!(script.log(2), before);
    assert_eq!(script.committed(1), 1);
}
