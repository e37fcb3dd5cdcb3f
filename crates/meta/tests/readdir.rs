//! Listings while the directory changes.

mod fixture;

use fixture::{Fs, HERE, ROOT, unlink};
use perigee_meta::{Key, Kind, ListEntry, Op, Reply};
use proptest::prelude::*;
use std::collections::BTreeSet;

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn an_entry_that_stays_is_listed_exactly_once(
        changes in prop::collection::vec((any::<bool>(), 0..60u32), 0..200),
        limit in 1..7usize,
    ) {
        let mut fs = Fs::new();
        let mut passing = BTreeSet::new();
        for n in 0..40 {
            fs.file(ROOT, &format!("stays{n}"));
        }
        let mut changes = changes.into_iter();
        let (mut cookie, mut seen) = (0, Vec::new());
        loop {
            for (insert, n) in changes.by_ref().take(6) {
                let name = format!("passes{n}");
                if insert && passing.insert(n) {
                    fs.file(ROOT, &name);
                } else if !insert && passing.remove(&n) {
                    fs.run(&unlink(ROOT, &name)).expect("there");
                }
            }
            let op = Op::ReadDir { inode: ROOT, cookie, limit };
            let entries = listing(&mut fs, &op);
            prop_assert!(entries.len() <= limit);
            let Some(last) = entries.last() else { break };
            cookie = last.cookie;
            seen.extend(entries.into_iter().map(|e| e.name).filter(|n| n.starts_with(b"stays")));
        }
        seen.sort();
        let mut stays: Vec<_> = (0..40).map(|n| format!("stays{n}").into_bytes()).collect();
        stays.sort();
        prop_assert_eq!(seen, stays);
    }
}

/// The entries that a listing gives.
fn listing(fs: &mut Fs, op: &Op) -> Vec<ListEntry> {
    match fs.run(op) {
        Ok(Reply::Listing(entries)) => entries,
        other => panic!("{op:?} gave {other:?}"),
    }
}

/// Names and cookies of the root, one listing for each.
fn listed(fs: &mut Fs) -> Vec<(Vec<u8>, u64)> {
    let (mut found, mut cookie) = (Vec::new(), 0);
    loop {
        let op = Op::ReadDir {
            inode: ROOT,
            cookie,
            limit: 1,
        };
        let mut entries = listing(fs, &op);
        let Some(entry) = entries.pop() else {
            return found;
        };
        cookie = entry.cookie;
        found.push((entry.name, entry.cookie));
    }
}

#[test]
fn names_of_equal_hash_stand_side_by_side() {
    let mut fs = Fs::new();
    let twin = fs.file(ROOT, "f");
    let cookie = listed(&mut fs)[0].1;
    // No two names of equal hash are known: the stored name is made to be another one.
    let key = Key::Dentry(ROOT.index(), cookie).encode();
    let value = postcard::to_stdvec(&(0u8, b"twin".to_vec(), twin, Kind::File)).expect("plain");
    fs.view
        .states
        .get_mut(&HERE)
        .expect("formatted")
        .insert(key, value.into());
    for _ in 0..2 {
        let file = fs.file(ROOT, "f");
        let both = vec![(b"twin".to_vec(), cookie), (b"f".to_vec(), cookie + 1)];
        assert_eq!(listed(&mut fs), both);
        let lookup = Op::Lookup {
            parent: ROOT,
            name: b"f".to_vec(),
        };
        assert!(matches!(fs.run(&lookup), Ok(Reply::Entry(attr)) if attr.inode == file));
        fs.run(&unlink(ROOT, "f")).expect("there");
    }
}
