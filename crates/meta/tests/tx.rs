//! Transactions over two containers, step by step as their owners run them.

mod fixture;

use bytes::Bytes;
use fixture::{Fs, HERE, ROOT, THERE, at, make, rename, unlink};
use perigee_meta::memory::MemView;
use perigee_meta::tx::{self, Conflict, Decision, Intent, KeyLock, ReadSet};
use perigee_meta::{Context, Missing, NewNode, Op, RenameMode, Reply, View, execute};
use perigee_types::{Batch, ContainerId, Epoch, TxId};

/// A view that keeps what was read, as a driver's does.
struct Recorded<'a> {
    view: &'a mut MemView,
    reads: ReadSet,
}

impl View for Recorded<'_> {
    fn get(&mut self, container: ContainerId, key: &[u8]) -> Result<Option<Bytes>, Missing> {
        let value = self.view.get(container, key)?;
        self.reads.note(container, key, value.as_deref());
        Ok(value)
    }

    fn scan(
        &mut self,
        container: ContainerId,
        from: &[u8],
        to: &[u8],
        limit: usize,
    ) -> Result<Vec<(Bytes, Bytes)>, Missing> {
        self.view.scan(container, from, to, limit)
    }
}

const fn tx(count: u64) -> TxId {
    TxId {
        container: HERE,
        epoch: Epoch(1),
        count,
    }
}

/// What an operation would do, cut into the parts of the containers.
fn plan(fs: &mut Fs, op: &Op, count: u64) -> (Reply, Vec<(ContainerId, Intent)>) {
    let context = Context::new(at(fs.clock), fs.home).keeping(fs.keep_until);
    let reads = ReadSet::default();
    let mut view = Recorded {
        view: &mut fs.view,
        reads,
    };
    let outcome = execute(op, &context, &mut view).expect("possible");
    let mut reads = view.reads.by_container();
    let participants: Vec<_> = reads.keys().copied().collect();
    assert!(
        outcome
            .batches
            .keys()
            .all(|container| reads.contains_key(container))
    );
    let part = |container: &ContainerId| Intent {
        tx: tx(count),
        coordinator: HERE,
        participants: participants.clone(),
        batch: outcome.batches.get(container).cloned().unwrap_or_default(),
        reads: reads.remove(container).unwrap_or_default(),
    };
    let parts: Vec<Intent> = participants.iter().map(part).collect();
    (
        outcome.reply,
        participants.clone().into_iter().zip(parts).collect(),
    )
}

fn prepare(fs: &mut Fs, container: ContainerId, intent: &Intent) -> Result<(), Conflict> {
    let batch = tx::prepare(&mut fs.view, container, intent)?;
    fs.view.apply(container, &batch);
    Ok(())
}

fn commit(fs: &mut Fs, container: ContainerId, count: u64) -> Batch {
    let batch = tx::commit(&mut fs.view, container, tx(count)).expect("readable");
    fs.view.apply(container, &batch);
    batch
}

/// A directory here with a subdirectory there: removing and moving it takes both containers.
fn two_containers() -> Fs {
    let mut fs = Fs::new();
    fs.home = Some(THERE);
    fs.dir(ROOT, "d");
    fs
}

#[test]
fn a_committed_transaction_is_what_one_container_would_have_done() {
    let mut fs = two_containers();
    let mut whole = Fs {
        view: fs.view.clone(),
        ..Fs::new()
    };
    (whole.clock, whole.home) = (fs.clock, fs.home);
    let op = make(ROOT, "e", NewNode::Directory, 0o755);
    let reply = whole.run(&op).expect("made");

    let (planned, parts) = plan(&mut fs, &op, 1);
    assert_eq!(planned, reply);
    assert_eq!(parts.len(), 2);
    for (container, intent) in &parts {
        prepare(&mut fs, *container, intent).expect("nobody else is there");
        prepare(&mut fs, *container, intent).expect("again");
    }
    let decision = Decision::Commit {
        participants: vec![THERE],
    };
    fs.view.apply(HERE, &tx::decide(tx(1), decision.clone()));
    for (container, _) in &parts {
        assert!(!commit(&mut fs, *container, 1).is_empty());
        assert!(commit(&mut fs, *container, 1).is_empty(), "once is enough");
    }
    assert_eq!(
        tx::decision(&mut fs.view, tx(1)),
        Ok(Some(decision.clone()))
    );
    assert_eq!(
        tx::decisions(&mut fs.view, HERE),
        Ok(vec![(tx(1), decision)])
    );
    fs.view.apply(HERE, &tx::forget(tx(1)));
    assert_eq!(tx::decision(&mut fs.view, tx(1)), Ok(None));
    assert_eq!(fs.view, whole.view);
}

#[test]
fn an_aborted_transaction_leaves_nothing() {
    let mut fs = two_containers();
    let before = fs.view.clone();
    let (_, parts) = plan(
        &mut fs,
        &rename((ROOT, "d"), (ROOT, "e"), RenameMode::Replace),
        1,
    );
    for (container, intent) in &parts {
        prepare(&mut fs, *container, intent).expect("free");
        assert_eq!(
            tx::intents(&mut fs.view, *container),
            Ok(vec![intent.clone()])
        );
    }
    for (container, _) in &parts {
        let batch = tx::abort(&mut fs.view, *container, tx(1)).expect("readable");
        fs.view.apply(*container, &batch);
        assert!(
            tx::abort(&mut fs.view, *container, tx(1))
                .expect("readable")
                .is_empty()
        );
        assert!(commit(&mut fs, *container, 1).is_empty(), "too late");
    }
    assert_eq!(fs.view, before);
}

#[test]
fn what_was_read_must_be_so_still() {
    let mut fs = two_containers();
    let Ok(Reply::Leads(dir)) = fs.run(&Op::Lookup {
        parent: ROOT,
        name: b"d".to_vec(),
    }) else {
        panic!("it is there")
    };
    let dir = fs.attr(dir);
    let rmdir = Op::Rmdir {
        parent: ROOT,
        name: b"d".to_vec(),
        cred: fixture::USER,
    };
    let (_, parts) = plan(&mut fs, &rmdir, 1);
    // The same second, and the same number of entries in the end: only the change count differs.
    fs.clock = dir.ctime.secs;
    fs.file(dir.inode, "f");
    fs.clock = dir.ctime.secs;
    fs.run(&unlink(dir.inode, "f")).expect("there");
    assert_eq!(fs.attr(dir.inode), dir);
    let there = parts
        .iter()
        .find(|(container, _)| *container == THERE)
        .expect("takes part");
    assert!(matches!(
        prepare(&mut fs, THERE, &there.1),
        Err(Conflict::Changed { .. })
    ));
}

#[test]
fn a_prepared_transaction_locks_what_it_changes_from_all_and_what_it_read_from_writers() {
    let mut fs = two_containers();
    let (_, first) = plan(
        &mut fs,
        &rename((ROOT, "d"), (ROOT, "e"), RenameMode::Replace),
        1,
    );
    let (_, second) = plan(
        &mut fs,
        &rename((ROOT, "d"), (ROOT, "f"), RenameMode::Replace),
        2,
    );
    prepare(&mut fs, HERE, &first[0].1).expect("free");
    let refused = prepare(&mut fs, HERE, &second[0].1);
    assert!(matches!(refused, Err(Conflict::Locked { by, .. }) if by == tx(1)));
    let reader = |key: &Vec<u8>| Intent {
        tx: tx(3),
        coordinator: HERE,
        participants: vec![HERE],
        batch: Batch::default(),
        reads: vec![(key.clone(), None)],
    };
    for (key, lock) in tx::locked_keys(&first[0].1) {
        let value = fs.view.get(HERE, &key).expect("here");
        let mut intent = reader(&key);
        intent.reads[0].1 = value.as_deref().map(tx::value_hash);
        let got = prepare(&mut fs.clone(), HERE, &intent);
        assert_eq!(got.is_ok(), lock == KeyLock::Shared, "{key:02x?}");
    }
}

#[test]
fn creations_at_home_do_not_wait_for_directories_made_from_elsewhere() {
    let mut fs = two_containers();
    let (_, away) = plan(&mut fs, &make(ROOT, "e", NewNode::Directory, 0o755), 1);
    let Ok(Reply::Leads(dir)) = fs.run(&Op::Lookup {
        parent: ROOT,
        name: b"d".to_vec(),
    }) else {
        panic!("it is there")
    };
    let (_, local) = plan(&mut fs, &make(dir, "f", NewNode::File, 0o644), 2);
    let there = away
        .iter()
        .find(|(container, _)| *container == THERE)
        .expect("takes part");
    prepare(&mut fs, THERE, &there.1).expect("free");
    prepare(&mut fs, THERE, &local[0].1).expect("no key is shared");
}
