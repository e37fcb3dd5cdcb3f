//! Random transactions, revocations and restarts beside a plain map.
#![expect(clippy::unwrap_used, reason = "a test that fails says so")]

mod support;

use perigee_cluster::{ControlStore, LeaseNumber, Revision, StoreError, Txn};
use perigee_control::Engine;
use perigee_types::Span;
use proptest::prelude::*;
use std::collections::BTreeMap;
use support::{MemDisk, local, small};

#[derive(Debug, Clone)]
enum Step {
    /// Keys to compare (rightly, or not), and what to write where.
    Commit(Vec<(u8, bool)>, BTreeMap<u8, Put>),
    Grant,
    Revoke(usize),
    Restart,
}

#[derive(Debug, Clone)]
enum Put {
    Plain(u8),
    Leased(u8, usize),
    Delete,
}

fn step() -> impl Strategy<Value = Step> {
    let put = prop_oneof![
        4 => any::<u8>().prop_map(Put::Plain),
        2 => (any::<u8>(), 0..4_usize).prop_map(|(value, lease)| Put::Leased(value, lease)),
        2 => Just(Put::Delete),
    ];
    let compare = prop::collection::vec((0..6_u8, prop::bool::weighted(0.9)), 0..3);
    let writes = prop::collection::btree_map(0..6_u8, put, 0..4);
    prop_oneof![
        12 => (compare, writes).prop_map(|(compare, writes)| Step::Commit(compare, writes)),
        2 => Just(Step::Grant),
        2 => (0..4_usize).prop_map(Step::Revoke),
        1 => Just(Step::Restart),
    ]
}

type Entry = (u8, Revision, Option<LeaseNumber>);

#[derive(Debug, Default)]
struct Model {
    keys: BTreeMap<String, Entry>,
    revision: Revision,
    leases: Vec<LeaseNumber>,
}

impl Model {
    fn lease(&self, at: usize) -> Option<LeaseNumber> {
        self.leases.get(at).copied()
    }

    /// The transaction, and whether it should be done.
    fn txn(&self, compare: &[(u8, bool)], writes: &BTreeMap<u8, Put>) -> (Txn, bool) {
        let mut txn = Txn::default();
        for (key, right) in compare {
            let key = format!("/{key}");
            let now = self.keys.get(&key).map(|entry| entry.1);
            let said = if *right { now } else { Some(Revision(9_999)) };
            txn = txn.when(key, said);
        }
        for (key, put) in writes {
            let key = format!("/{key}");
            txn = match put {
                Put::Plain(value) => txn.put(key, vec![*value]),
                Put::Leased(value, at) => match self.lease(*at) {
                    Some(lease) => txn.put_leased(key, vec![*value], lease),
                    None => txn.put(key, vec![*value]),
                },
                Put::Delete => txn.delete(key),
            };
        }
        (txn, compare.iter().all(|(_, right)| *right))
    }

    fn write(&mut self, writes: &BTreeMap<u8, Put>) {
        let exists = |key: &u8| self.keys.contains_key(&format!("/{key}"));
        let moves = |(key, put): (&u8, &Put)| !matches!(put, Put::Delete) || exists(key);
        if !writes.iter().any(moves) {
            return;
        }
        self.revision = self.revision.next();
        for (key, put) in writes {
            let key = format!("/{key}");
            let (value, lease) = match put {
                Put::Plain(value) => (*value, None),
                Put::Leased(value, at) => (*value, self.lease(*at)),
                Put::Delete => {
                    self.keys.remove(&key);
                    continue;
                }
            };
            self.keys.insert(key, (value, self.revision, lease));
        }
    }

    fn revoke(&mut self, lease: LeaseNumber) {
        let before = self.keys.len();
        self.keys.retain(|_, entry| entry.2 != Some(lease));
        if self.keys.len() != before {
            self.revision = self.revision.next();
        }
        self.leases.retain(|other| *other != lease);
    }
}

async fn run(steps: Vec<Step>) {
    let disk = MemDisk::default();
    let mut store = local(Engine::create_on(disk.boxed(), small()).unwrap());
    let mut model = Model::default();
    for step in steps {
        match step {
            Step::Commit(compare, writes) => {
                let (txn, done) = model.txn(&compare, &writes);
                match store.commit(txn).await {
                    Ok(committed) => {
                        assert!(done);
                        model.write(&writes);
                        assert_eq!(committed.revision, model.revision);
                    }
                    Err(StoreError::Conflict { .. }) => assert!(!done),
                    Err(other) => panic!("{other}"),
                }
            }
            Step::Grant => {
                let lease = store.grant_lease(Span::from_millis(60_000)).await.unwrap();
                assert!(!model.leases.contains(&lease));
                model.leases.push(lease);
            }
            Step::Revoke(at) => {
                if let Some(lease) = model.lease(at) {
                    store.revoke(lease).await.unwrap();
                    model.revoke(lease);
                }
            }
            Step::Restart => {
                drop(store);
                store = local(Engine::open_on(disk.boxed(), small()).unwrap());
            }
        }
        let (list, at) = store.list("/").await.unwrap();
        assert_eq!(at, model.revision);
        let found: BTreeMap<_, _> = list
            .into_iter()
            .map(|kv| (kv.key, (kv.value[0], kv.revision)))
            .collect();
        let wanted: BTreeMap<_, _> = model
            .keys
            .iter()
            .map(|(key, entry)| (key.clone(), (entry.0, entry.1)))
            .collect();
        assert_eq!(found, wanted);
    }
    for lease in model.leases {
        assert!(store.keep_alive(lease).await.is_ok());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn the_engine_is_a_map_that_survives_restarts(steps in prop::collection::vec(step(), 1..80)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(run(steps));
    }
}
