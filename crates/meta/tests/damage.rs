//! States that no operation writes, and views that lack a part: refusals, never a panic.

mod fixture;

use bytes::Bytes;
use fixture::{Fs, HERE, ROOT, THERE, USER, at, lock, make, rename, session, unlink};
use perigee_meta::tx::{self, Intent};
use perigee_meta::{
    Allocate, Context, Key, Leftovers, LockKind, NewNode, Op, Patience, Refusal, RenameMode, Reply,
    SetAttr, TrashId, WaitId, execute,
};
use perigee_types::{Batch, ByteRange, Epoch, InodeId, TxId, WallTime};
use proptest::prelude::*;

const KEPT_UNTIL: WallTime = at(500);

/// A namespace with a key of every kind.
fn populated() -> (Fs, Vec<InodeId>) {
    let mut fs = Fs::new();
    let dir = fs.dir(ROOT, "d");
    let file = fs.file(dir, "f");
    let gone = fs.file(dir, "gone");
    let kept = fs.file(dir, "kept");
    let link = fs.make(dir, "s", NewNode::Symlink(b"f".to_vec()), 0).inode;
    fs.home = Some(THERE);
    let away = fs.dir(dir, "away");
    fs.home = None;
    fs.setxattr(file, b"user.a", b"value", 0).expect("set");
    let acl = [
        2, 0, 0, 0, 1, 0, 7, 0, 255, 255, 255, 255, 2, 0, 6, 0, 10, 0, 0, 0, 4, 0, 5, 0, 255, 255,
        255, 255, 16, 0, 7, 0, 255, 255, 255, 255, 32, 0, 4, 0, 255, 255, 255, 255,
    ];
    fs.setxattr(file, b"system.posix_acl_access", &acl, 0)
        .expect("set");
    fs.setxattr(dir, b"system.posix_acl_default", &acl, 0)
        .expect("set");
    let policy = vec![("a".to_string(), "b".to_string())];
    fs.run(&Op::SetPolicy {
        inode: ROOT,
        policy,
    })
    .expect("set");
    fs.run(&unlink(dir, "gone")).expect("there");
    fs.keep_until = Some(KEPT_UNTIL);
    fs.run(&unlink(dir, "kept")).expect("there");
    fs.keep_until = None;
    let asked = lock(LockKind::Posix, 1, 0, 10, Some(true));
    fs.run(&Op::SetLock {
        inode: file,
        session: session(1),
        lock: asked,
        patience: Patience::Refuse,
    })
    .expect("free");
    let intent = sample_intent();
    fs.view.apply(
        HERE,
        &tx::prepare(&mut fs.view.clone(), HERE, &intent).expect("free"),
    );
    fs.view
        .apply(HERE, &tx::decide(intent.tx, tx::Decision::Abort));
    (fs, vec![ROOT, dir, file, gone, link, away, kept])
}

fn sample_intent() -> Intent {
    let tx = TxId {
        container: HERE,
        epoch: Epoch(1),
        count: 1,
    };
    Intent {
        tx,
        coordinator: HERE,
        participants: vec![HERE],
        batch: Batch::default(),
        reads: vec![],
    }
}

/// Every operation, on this inode.
fn all_ops(inode: InodeId) -> Vec<Op> {
    let name = || b"f".to_vec();
    let range = ByteRange::new(5, 15);
    let asked = lock(LockKind::Posix, 2, 0, 10, Some(true));
    let session = session(1);
    let set = SetAttr {
        mode: Some(0o600),
        size: Some(3),
        uid: Some(1),
        ..SetAttr::default()
    };
    vec![
        Op::Lookup {
            parent: inode,
            name: name(),
        },
        Op::Lookup {
            parent: inode,
            name: b"..".to_vec(),
        },
        Op::GetAttr { inode },
        Op::SetAttr {
            inode,
            set,
            cred: USER,
        },
        Op::SetAttr {
            inode,
            set: SetAttr { size: None, ..set },
            cred: USER,
        },
        Op::ReadLink { inode },
        make(inode, "new", NewNode::File, 0o644),
        make(inode, "newdir", NewNode::Directory, 0o755),
        unlink(inode, "f"),
        Op::Rmdir {
            parent: inode,
            name: b"away".to_vec(),
            cred: USER,
        },
        rename((inode, "f"), (ROOT, "g"), RenameMode::Replace),
        rename((inode, "f"), (inode, "away"), RenameMode::Exchange),
        rename((ROOT, "d"), (inode, "x"), RenameMode::NoReplace),
        Op::Link {
            inode,
            new_parent: ROOT,
            new_name: b"h".to_vec(),
            cred: USER,
        },
        Op::ReadDir {
            inode,
            cookie: 0,
            limit: 100,
        },
        Op::GetXattr {
            inode,
            name: b"user.a".to_vec(),
        },
        Op::ListXattr { inode },
        Op::SetXattr {
            inode,
            name: b"user.a".to_vec(),
            value: vec![1],
            flags: 0,
            cred: USER,
        },
        Op::RemoveXattr {
            inode,
            name: b"system.posix_acl_access".to_vec(),
            cred: USER,
        },
        Op::Wrote {
            inode,
            ranges: vec![range],
            size_at_least: Some(9),
            mtime: at(9),
            kill_privileges: true,
        },
        Op::Allocate {
            inode,
            range,
            how: Allocate::ZeroRange,
        },
        Op::GetLock {
            inode,
            session,
            lock: asked,
        },
        Op::SetLock {
            inode,
            session,
            lock: asked,
            patience: Patience::Refuse,
        },
        Op::WithdrawLock {
            inode,
            session,
            wait: WaitId(1),
        },
        Op::ReleaseLocks {
            inode,
            session,
            owner: None,
            kind: None,
        },
        Op::ReleaseSession {
            container: inode.container(),
            session,
            leftovers: Leftovers::Perhaps,
        },
        Op::Orphans {
            container: inode.container(),
            after: Some(inode.index()),
            limit: 10,
        },
        Op::Reap { inode },
        Op::Rehome {
            parent: inode,
            name: b"d".to_vec(),
            container: THERE,
            policy: Vec::new(),
        },
        Op::SetPolicy {
            inode,
            policy: vec![],
        },
        Op::GetPolicy { inode },
        Op::Trash {
            container: inode.container(),
            after: None,
            limit: 10,
        },
        Op::Undelete {
            id: TrashId::new(KEPT_UNTIL, inode),
            new_parent: ROOT,
            new_name: b"back".to_vec(),
            cred: USER,
        },
        Op::Purge {
            container: inode.container(),
            entries: vec![TrashId::new(KEPT_UNTIL, inode)],
            cred: USER,
        },
    ]
}

fn try_all(fs: &mut Fs, inodes: &[InodeId]) -> usize {
    let mut corrupt = 0;
    for inode in inodes {
        for op in all_ops(*inode) {
            let context = Context::new(at(99), Some(THERE));
            match execute(&op, &context, &mut fs.view) {
                Err(Refusal::Corrupt { .. }) => corrupt += 1,
                Ok(_) | Err(Refusal::Errno(_) | Refusal::Missing(_)) => {}
            }
        }
    }
    let intent = sample_intent();
    let view = &mut fs.view;
    let results = [
        tx::prepare(view, HERE, &intent).is_err(),
        tx::commit(view, HERE, intent.tx).is_err(),
        tx::abort(view, HERE, intent.tx).is_err(),
        tx::decision(view, intent.tx).is_err(),
        tx::decisions(view, HERE).is_err(),
    ];
    corrupt + results.into_iter().filter(|failed| *failed).count()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_values_are_refused_not_trusted(
        pick in any::<prop::sample::Index>(),
        value in prop::collection::vec(any::<u8>(), 0..80),
        cut in any::<Option<prop::sample::Index>>(),
        flip in any::<prop::sample::Index>(),
    ) {
        let (mut fs, inodes) = populated();
        let state = fs.view.states.get_mut(&HERE).expect("formatted");
        let nth = pick.index(state.len());
        let old = state.values_mut().nth(nth).expect("in range");
        *old = match cut {
            // A value that was right, and is not any more.
            Some(cut) if !old.is_empty() => {
                let mut bytes = old.to_vec();
                let at = flip.index(bytes.len());
                bytes[at] = bytes[at].wrapping_add(1);
                bytes.truncate(cut.index(bytes.len() + 1));
                bytes.into()
            }
            _ => Bytes::from(value),
        };
        try_all(&mut fs, &inodes);
    }
}

#[test]
fn a_damaged_value_of_each_kind_is_named() {
    let (clean, inodes) = populated();
    let keys: Vec<Vec<u8>> = clean.view.states[&HERE].keys().cloned().collect();
    let mut kinds: Vec<u8> = keys.iter().map(|key| key[0]).collect();
    kinds.dedup();
    assert_eq!(kinds, b"dilnoprstuxy");
    for key in keys {
        assert!(Key::decode(&key).is_some());
        let (mut fs, _) = populated();
        let state = fs.view.states.get_mut(&HERE).expect("formatted");
        state.insert(key.clone(), Bytes::from_static(&[0xff; 20]));
        // Values of orphans, link targets and plain attributes have no form that could be wrong.
        let free = matches!(key[0], b'o' | b's') || key.ends_with(b"user.a");
        assert_eq!(try_all(&mut fs, &inodes) == 0, free, "{key:02x?}");
    }
}

#[test]
fn a_name_without_an_inode_is_damage_at_home_and_stale_elsewhere() {
    let (mut fs, inodes) = populated();
    let (dir, file, away) = (inodes[1], inodes[2], inodes[5]);
    for inode in [file, away] {
        let key = Key::Inode(inode.index()).encode();
        fs.view
            .states
            .get_mut(&inode.container())
            .expect("formatted")
            .remove(&key);
    }
    let lookup = |name: &[u8]| Op::Lookup {
        parent: dir,
        name: name.to_vec(),
    };
    let corrupt = fs.outcome(&lookup(b"f")).expect_err("no inode");
    assert!(matches!(
        corrupt,
        Refusal::Corrupt {
            container: HERE,
            ..
        }
    ));
    assert_eq!(corrupt.errno(), Some(perigee_types::Errno::EIO));
    assert_eq!(fs.run(&lookup(b"away")), Ok(Reply::Leads(away)));
    let stale = Err(perigee_types::Errno::ESTALE);
    assert_eq!(fs.run(&Op::GetAttr { inode: away }), stale);
    let entries = match fs.run(&Op::ReadDir {
        inode: dir,
        cookie: 0,
        limit: 9,
    }) {
        Ok(Reply::Listing(entries)) => entries,
        other => panic!("a listing gave {other:?}"),
    };
    assert_eq!(
        entries.iter().filter(|entry| entry.attr.is_none()).count(),
        2
    );
}

#[test]
fn a_view_without_the_other_container_is_asked_for_it() {
    let (mut fs, inodes) = populated();
    let dir = inodes[1];
    fs.view.hidden.insert(THERE);
    let lookup = Op::Lookup {
        parent: dir,
        name: b"away".to_vec(),
    };
    assert_eq!(fs.run(&lookup), Ok(Reply::Leads(inodes[5])));
    let rmdir = Op::Rmdir {
        parent: dir,
        name: b"away".to_vec(),
        cred: USER,
    };
    assert!(matches!(fs.outcome(&rmdir), Err(Refusal::Missing(_))));
    let key = Key::Inode(inodes[5].index()).encode();
    assert!(fs.view.noted.contains(&(THERE, key)));
    let Ok(Reply::Listing(entries)) = fs.run(&Op::ReadDir {
        inode: dir,
        cookie: 0,
        limit: 9,
    }) else {
        panic!("a listing does without")
    };
    let away = entries
        .iter()
        .find(|entry| entry.name == b"away")
        .expect("listed");
    assert_eq!((away.inode, away.attr), (inodes[5], None));
    fs.view.hidden.clear();
    assert!(matches!(fs.run(&rmdir), Ok(Reply::Removed { .. })));
}

#[test]
fn a_loop_of_parents_ends_the_walk() {
    let (mut fs, _) = populated();
    let (a, b) = (fs.dir(ROOT, "a"), fs.dir(ROOT, "b"));
    fs.dir(ROOT, "c");
    let state = fs.view.states.get_mut(&HERE).expect("formatted");
    let key = |inode: InodeId| Key::Parent(inode.index()).encode();
    let [root, in_a, in_b] = {
        let value = |inode: InodeId| postcard::to_stdvec(&(0u8, inode)).expect("plain").into();
        [value(ROOT), value(a), value(b)]
    };
    assert_eq!(state.insert(key(a), in_b), Some(root));
    state.insert(key(b), in_a);
    let op = rename((ROOT, "c"), (a, "c"), RenameMode::Replace);
    assert_eq!(fs.run(&op), Err(perigee_types::Errno::ELOOP));
    assert_eq!(
        fs.run(&Op::GetPolicy { inode: b }),
        Err(perigee_types::Errno::ELOOP)
    );
}
