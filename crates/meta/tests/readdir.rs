//! Listings while the directory changes.

mod fixture;

use fixture::{Fs, ROOT, unlink};
use perigee_meta::{Op, Reply};
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
            let Ok(Reply::Listing(entries)) = fs.run(&op) else { panic!("not a listing") };
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
