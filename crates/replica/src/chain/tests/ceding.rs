//! Ownership that goes from one member to another.

use super::*;

/// All members have what the owner has, and were just heard.
fn ready(count: u32) -> Script {
    let mut script = Script::running(count);
    script.propose(1, "a").unwrap();
    script.settle();
    for member in 2..=count {
        script.input(n(member), Input::DataThrough(Seq(2)));
    }
    script.input(n(1), Input::Announce);
    script.settle();
    // The processes are older than every lease that those before them may have granted.
    script.pass(3_000, &[]);
    script
}

fn cede(script: &mut Script, heir: u32) {
    let data = script.hosts[&n(1)].chain.last().seq;
    let heir = n(heir);
    script.input(n(1), Input::Cede { heir, data });
}

fn cedes(script: &Script, to: u32) -> bool {
    let words = script.waiting(1, to);
    words
        .iter()
        .any(|word| matches!(word, Message::Cede { .. }))
}

#[test]
fn the_heir_owns_after_one_word_and_one_proposal() {
    let mut script = ready(3);
    let began = script.now;
    cede(&mut script, 2);
    assert_eq!(script.lease(1), None, "the owner stops first");
    assert_eq!(script.role(1), Role::Suspended { epoch: Epoch(2) });
    script.settle();
    assert_eq!(script.host(2).proposed, [view(3, &[2, 1, 3])]);
    script.decide(n(2), CasOutcome::Won);
    script.settle();
    assert_eq!(script.role(2), Role::Owner { epoch: Epoch(3) });
    let (owner, epoch) = (n(2), Epoch(3));
    assert_eq!(script.role(1), Role::Replica { owner, epoch });
    assert_eq!(script.now, began, "nobody waited for the clock");
    assert!(script.host(1).truncated.is_empty());
    script.propose(2, "b").unwrap();
    script.settle();
    assert_eq!(script.committed(2), 4);
}

#[test]
fn nothing_is_ceded_that_a_member_lacks() {
    let mut script = ready(3);
    script.propose(1, "b").unwrap();
    script.settle();
    cede(&mut script, 2);
    assert!(!cedes(&script, 2), "nobody has the bytes");
    for member in [2, 3] {
        script.input(n(member), Input::DataThrough(Seq(3)));
    }
    script.input(n(1), Input::Announce);
    script.settle();
    script.start(n(4), HardState::default());
    script.input(n(4), Input::View(view(2, &[1, 2, 3])));
    script.input(n(1), Input::Candidate(n(4)));
    script.settle();
    cede(&mut script, 4);
    assert!(!cedes(&script, 4), "it is no member yet");
    assert!(script.lease(1).is_some(), "no member");
    script.pass(400, &[3]);
    cede(&mut script, 2);
    assert!(!cedes(&script, 2), "one member may be away");
    script.pass(400, &[]);
    cede(&mut script, 2);
    assert!(cedes(&script, 2));
}

#[test]
fn an_owner_whose_word_is_lost_goes_on_with_the_next_heartbeat() {
    let mut script = ready(3);
    cede(&mut script, 2);
    script.wire.clear();
    assert!(script.propose(1, "b").is_err());
    script.pass(310, &[]);
    assert_eq!(script.role(1), Role::Owner { epoch: Epoch(2) });
    assert!(script.host(2).proposed.is_empty());
    script.propose(1, "b").unwrap();
    script.settle();
    assert_eq!(script.committed(1), 3);
}

#[test]
fn who_has_acknowledged_more_since_heeds_no_late_word() {
    let mut script = ready(3);
    cede(&mut script, 2);
    let late = script.waiting(1, 2)[0].clone();
    script.wire.clear();
    script.pass(310, &[]);
    assert!(script.lease(1).is_some());
    let (from, message) = (n(1), late);
    script.input(n(2), Input::Receive { from, message });
    assert!(script.host(2).proposed.is_empty());
}

#[test]
fn an_acknowledgement_from_before_is_no_lease() {
    let mut script = ready(3);
    script.input(n(1), Input::Announce);
    let early: Vec<_> = script.wire.drain(..).collect();
    cede(&mut script, 2);
    script.wire.clear();
    script.wire.extend(early);
    script.settle();
    assert_eq!(script.lease(1), None);
}

#[test]
fn an_heir_that_the_control_store_refuses_lets_the_owner_go_on() {
    let mut script = ready(3);
    cede(&mut script, 2);
    script.settle();
    script.pass(310, &[]);
    assert_eq!(script.lease(1), None, "its proposal may still win");
    script.decide(n(2), CasOutcome::Unavailable);
    script.pass(310, &[]);
    assert_eq!(script.role(1), Role::Owner { epoch: Epoch(2) });
    script.pass(2_000, &[]);
    assert_eq!(script.host(2).proposed.len(), 1, "it does not try again");
}

#[test]
fn an_heir_in_doubt_asks_until_it_knows() {
    let mut script = ready(3);
    cede(&mut script, 2);
    script.settle();
    script.decide(n(2), CasOutcome::Unknown);
    script.pass(310, &[]);
    assert_eq!(script.lease(1), None);
    assert_eq!(
        script.host(2).proposed,
        [view(3, &[2, 1, 3]), view(3, &[2, 1, 3])]
    );
    script.decide(n(2), CasOutcome::Unavailable);
    script.pass(310, &[]);
    assert_eq!(script.lease(1), None, "the first may still win");
    script.decide(n(2), CasOutcome::Won);
    script.pass(20, &[]);
    assert_eq!(script.role(2), Role::Owner { epoch: Epoch(3) });
}

#[test]
fn the_next_process_of_the_heir_heeds_no_word_to_the_one_before() {
    let mut script = ready(3);
    cede(&mut script, 2);
    let late = script.waiting(1, 2)[0].clone();
    script.wire.clear();
    script.pass(310, &[]);
    assert!(script.lease(1).is_some());
    script.restart(2);
    script.input(n(2), Input::View(view(2, &[1, 2, 3])));
    let (from, message) = (n(1), late);
    script.input(n(2), Input::Receive { from, message });
    assert!(script.host(2).proposed.is_empty());
}

#[test]
fn an_heir_that_dies_is_removed_like_any_member() {
    let mut script = ready(3);
    cede(&mut script, 2);
    script.pass(2_100, &[2]);
    assert_eq!(script.host(1).proposed.last(), Some(&view(3, &[1, 3])));
    script.decide(n(1), CasOutcome::Won);
    script.pass(20, &[2]);
    assert_eq!(script.role(1), Role::Owner { epoch: Epoch(3) });
}
