//! What an owner decides about repeats and about transactions.

use perigee_meta::memory::MemView;
use perigee_meta::tx::{
    Count, DOUBT, Intent, Known, Plan, RETELL, ReadSet, Transactions, Verdict, Vote, When,
};
use perigee_meta::{Answers, Comes, Key, Seen, Touched};
use perigee_types::{
    Batch, ContainerId, Epoch, Errno, InodeId, InodeIndex, Mutation, NodeId, OpId, SessionId, Span,
    Tick,
};
use std::collections::BTreeMap;

const HERE: ContainerId = ContainerId(1);
const THERE: ContainerId = ContainerId(2);
const EPOCH: Epoch = Epoch(3);

fn session() -> SessionId {
    SessionId::new(NodeId(1), 1)
}

fn put(key: &[u8]) -> Batch {
    let value = Some(b"new".to_vec());
    let key = key.to_vec();
    Batch {
        mutations: vec![Mutation { key, value }],
        data: Vec::new(),
    }
}

/// A transaction that changes one key here and one there.
fn begun(transactions: &mut Transactions) -> (Plan, Intent) {
    let batches = BTreeMap::from([(HERE, put(b"i1")), (THERE, put(b"i2"))]);
    let plan = transactions.begin(EPOCH, &[], &ReadSet::default(), batches);
    let intent = plan.intents[0].1.clone();
    (plan, intent)
}

#[test]
fn a_repeat_gets_the_first_answer_until_the_session_has_it() {
    let (mut view, mut answers) = (MemView::new(), Answers::default());
    let seen = |answers: &Answers, view: &mut MemView, op| {
        answers
            .seen(view, HERE, session(), OpId(op))
            .expect("sound")
    };
    assert_eq!(seen(&answers, &mut view, 1), Seen::Never);
    let mut batch = Batch::default();
    answers.keep(session(), OpId(1), OpId(0), b"one", &mut batch);
    view.apply(HERE, &batch);
    assert_eq!(
        seen(&answers, &mut view, 1),
        Seen::Answered(b"one".to_vec())
    );
    let mut batch = Batch::default();
    answers.keep(session(), OpId(3), OpId(1), b"three", &mut batch);
    view.apply(HERE, &batch);
    let restored = std::mem::take(&mut answers).restore(&mut view, HERE);
    let restored = restored.expect("sound");
    assert_eq!(seen(&restored, &mut view, 1), Seen::TooLate);
    assert_eq!(seen(&restored, &mut view, 2), Seen::Never);
    assert_eq!(
        seen(&restored, &mut view, 3),
        Seen::Answered(b"three".to_vec())
    );
}

#[test]
fn what_an_owner_elsewhere_may_still_carry_out_is_refused_for_good() {
    let (mut view, mut answers) = (MemView::new(), Answers::default());
    assert!(answers.must_keep(Comes::Abroad) && answers.must_keep(Comes::HomeAgain));
    assert!(!answers.must_keep(Comes::Home));
    let mut batch = Batch::default();
    answers.keep_refusal(session(), OpId(4), OpId(2), Errno::ENOENT, &mut batch);
    view.apply(HERE, &batch);
    let restored = Answers::default().restore(&mut view, HERE).expect("sound");
    let mut seen = |op| restored.seen(&mut view, HERE, session(), OpId(op));
    assert_eq!(seen(4), Ok(Seen::Refused(Errno::ENOENT)));
    assert_eq!(seen(3), Ok(Seen::Never), "its answer may not have come");
    assert_eq!(seen(2), Ok(Seen::TooLate));
}

#[test]
fn what_a_node_asks_of_itself_is_no_repeat_of_anything() {
    let (mut view, mut answers) = (MemView::new(), Answers::default());
    let mut batch = Batch::default();
    answers.keep(session(), OpId(9), OpId(8), b"nine", &mut batch);
    view.apply(HERE, &batch);
    let mut none = Batch::default();
    for _ in 0..2 {
        let seen = answers.seen(&mut view, HERE, session(), OpId::UNREPEATED);
        assert_eq!(seen, Ok(Seen::Never));
        answers.begin(session(), OpId::UNREPEATED);
        answers.keep(
            session(),
            OpId::UNREPEATED,
            OpId::UNREPEATED,
            b"",
            &mut none,
        );
    }
    assert_eq!(none, Batch::default());
}

#[test]
fn a_repeat_waits_for_an_execution_of_this_reign_alone() {
    let (mut view, mut answers) = (MemView::new(), Answers::default());
    let run = answers.begin(session(), OpId(1));
    let seen = answers.seen(&mut view, HERE, session(), OpId(1));
    assert_eq!(seen, Ok(Seen::Running));
    let mut answers = answers.restore(&mut view, HERE).expect("sound");
    assert!(!answers.is_running(run));
    let other = answers.begin(session(), OpId(1));
    assert_ne!(run, other, "not even when it is executed again");
    answers.end(other);
    let seen = answers.seen(&mut view, HERE, session(), OpId(1));
    assert_eq!(seen, Ok(Seen::Never));
}

/// An operation whose answer is kept may still wait for leases that are taken back.
#[test]
fn what_is_kept_is_no_answer_before_the_execution_has_ended() {
    let (mut view, mut answers) = (MemView::new(), Answers::default());
    let mut batch = Batch::default();
    answers.keep(session(), OpId(1), OpId(0), b"one", &mut batch);
    view.apply(HERE, &batch);
    let run = answers.begin(session(), OpId(1));
    let seen = answers.seen(&mut view, HERE, session(), OpId(1));
    assert_eq!(seen, Ok(Seen::Running));
    answers.end(run);
    let seen = answers.seen(&mut view, HERE, session(), OpId(1));
    assert_eq!(seen, Ok(Seen::Answered(b"one".to_vec())));
}

#[test]
fn a_coordinator_commits_when_all_said_yes_and_in_its_epoch_only() {
    let mut transactions = Transactions::new(HERE);
    let (plan, _) = begun(&mut transactions);
    assert_eq!(transactions.count(plan.tx), Count::Open);
    assert_eq!(
        transactions.vote(plan.tx, THERE, Vote::Yes),
        Count::Unanimous
    );
    assert_eq!(transactions.decide(plan.tx, EPOCH.next()), None);
    let batch = transactions.decide(plan.tx, EPOCH).expect("unanimous");
    let mut view = MemView::new();
    let step = transactions.decision(&mut view, plan.tx).expect("sound");
    assert_eq!((step.say, step.when), (Known::Open, When::Now));
    view.apply(HERE, &batch);
    let step = transactions.decided(Tick(1), plan.tx);
    assert_eq!(step.when, When::Replicated);
    assert_eq!(step.say.participants, [THERE]);
    assert!(transactions.is_idle(), "its own part is done");
    let step = transactions.decision(&mut view, plan.tx).expect("sound");
    let committed = Known::Ended(Verdict::Commit);
    assert_eq!((step.say, step.when), (committed, When::Replicated));
}

#[test]
fn a_participant_that_does_not_confirm_is_told_again_also_by_the_next_owner() {
    let mut transactions = Transactions::new(HERE);
    let (plan, _) = begun(&mut transactions);
    transactions.vote(plan.tx, THERE, Vote::Yes);
    let batch = transactions.decide(plan.tx, EPOCH).expect("unanimous");
    let mut view = MemView::new();
    view.apply(HERE, &batch);
    transactions.decided(Tick(5), plan.tx);
    assert!(transactions.untold(Tick(6)).say.is_empty());
    let later = Tick(6) + RETELL;
    assert_eq!(transactions.untold(later).say.len(), 1);
    let mut next = Transactions::new(HERE).restore(&mut view).expect("sound");
    assert_eq!(next.untold(Tick(1)).say.len(), 1, "at once");
    let forgotten = next.confirmed(plan.tx, THERE).expect("the last one");
    view.apply(HERE, &forgotten);
    let step = next.decision(&mut view, plan.tx).expect("sound");
    assert_eq!(
        step.say,
        Known::Ended(Verdict::Abort),
        "nobody asks any more"
    );
}

#[test]
fn a_refused_transaction_holds_nothing_and_aborts() {
    let mut transactions = Transactions::new(HERE);
    let (plan, _) = begun(&mut transactions);
    assert!(!transactions.is_idle());
    assert_eq!(transactions.vote(plan.tx, THERE, Vote::No), Count::Refused);
    let tell = transactions.abandon(&plan);
    assert_eq!(
        (tell.verdict, tell.participants),
        (Verdict::Abort, vec![THERE])
    );
    assert!(transactions.is_idle());
    let step = transactions.decision(&mut MemView::new(), plan.tx);
    let aborted = Known::Ended(Verdict::Abort);
    assert_eq!(step.expect("sound").say, aborted);
}

#[test]
fn a_participant_keeps_its_locks_over_a_change_of_owner_and_asks_when_in_doubt() {
    let (_, intent) = begun(&mut Transactions::new(HERE));
    let mut view = MemView::new();
    let mut there = Transactions::new(THERE);
    let step = there.prepare(Tick(1), &mut view, &intent).expect("sound");
    assert_eq!((step.say, step.when), (Vote::Yes, When::Replicated));
    view.apply(THERE, &step.record.expect("the intent"));
    assert!(there.doubts(Tick(2)).is_empty());
    let later = Tick(1) + DOUBT + Span(1);
    assert_eq!(there.doubts(later), [intent.tx]);
    let mut next = Transactions::new(THERE).restore(&mut view).expect("sound");
    assert_eq!(next.doubts(Tick(1)), [intent.tx], "at once");
    assert!(next.hides(&[(b"i2".to_vec(), None)]));
    let (_, mut other) = begun(&mut Transactions::new(ContainerId(7)));
    other.batch = put(b"i2");
    let refused = next.prepare(Tick(1), &mut view, &other).expect("sound");
    assert_eq!((refused.say, refused.record), (Vote::No, None));
    let end = next.end(&mut view, intent.tx, Verdict::Commit);
    let end = end.expect("sound");
    assert_eq!(end.when, When::Replicated);
    view.apply(THERE, &end.record.expect("its part"));
    next.ended(intent.tx);
    assert!(next.is_idle());
    let again = next.end(&mut view, intent.tx, Verdict::Commit);
    assert_eq!(again.expect("sound").record, None, "once is enough");
}

#[test]
fn whoever_prepares_a_part_learns_what_sessions_must_forget_first() {
    let inode = InodeId::new(THERE, InodeIndex(5));
    let (_, mut intent) = begun(&mut Transactions::new(HERE));
    intent.batch = put(&Key::Inode(inode.index()).encode());
    intent.batch.mutations[0].value = None;
    let mut view = MemView::new();
    let there = Transactions::new(THERE);
    let touched = there.touched(&mut view, &intent).expect("sound");
    assert_eq!(touched, [Touched::Attr(inode)]);
}
