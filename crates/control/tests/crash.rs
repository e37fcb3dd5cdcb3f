//! Crashes at every moment and damage at every byte: what is opened again is a prefix of what was
//! committed, and has everything that was acknowledged.
#![expect(clippy::unwrap_used, reason = "a test that fails says so")]

mod support;

use perigee_cluster::{ControlStore, KeyValue, Revision, StoreError, Txn};
use perigee_control::{Engine, EngineConfig, EngineError};
use perigee_types::Span;
use std::collections::BTreeMap;
use support::{Call, MemDisk, crash_states, local, small};

type Content = BTreeMap<String, Vec<u8>>;

fn content(list: Vec<KeyValue>) -> Content {
    list.into_iter().map(|kv| (kv.key, kv.value)).collect()
}

fn reopened(disk: &MemDisk) -> Result<(Content, Revision), EngineError> {
    let engine = Engine::open_on(disk.boxed(), small())?;
    let (list, more, revision) = engine.list_page("/", None, usize::MAX).unwrap();
    assert!(!more);
    Ok((content(list), revision))
}

/// A history of the store: its content at each revision, and how many calls of the disk had been
/// made when that revision was acknowledged.
struct History {
    disk: MemDisk,
    contents: Vec<Content>,
    acknowledged: Vec<usize>,
}

async fn history(commits: usize, config: EngineConfig) -> History {
    let disk = MemDisk::default();
    let store = local(Engine::create_on(disk.boxed(), config).unwrap());
    let mut contents = vec![Content::new()];
    let mut acknowledged = vec![disk.calls().len()];
    for n in 0..commits {
        let key = format!("/k{}", n % 7);
        let txn = match n % 5 {
            4 => Txn::default().delete(format!("/k{}", (n - 1) % 7)),
            _ => Txn::default()
                .put(&*key, format!("value {n}").into_bytes())
                .put("/last", n.to_string().into_bytes()),
        };
        let done = store.commit(txn).await.unwrap();
        let (list, at) = store.list("/").await.unwrap();
        assert_eq!((at, done.revision), (done.revision, Revision(n as u64 + 1)));
        contents.push(content(list));
        acknowledged.push(disk.calls().len());
    }
    History {
        disk,
        contents,
        acknowledged,
    }
}

#[tokio::test]
async fn a_crash_between_any_two_calls_loses_nothing_acknowledged() {
    let past = history(150, small()).await;
    let calls = past.disk.calls();
    let renames = calls
        .iter()
        .filter(|c| matches!(c, Call::Rename(..)))
        .count();
    assert!(
        renames > 4,
        "only {renames} switches: the test has no point"
    );
    let mut states = 0;
    for done in past.acknowledged[0]..=calls.len() {
        // A switch may still be on its way when its commit was answered: the calls before `done`.
        let least = past
            .acknowledged
            .iter()
            .rposition(|at| *at <= done)
            .unwrap();
        for files in crash_states(&BTreeMap::new(), &calls, done) {
            states += 1;
            let (found, at) = reopened(&MemDisk::with(files)).unwrap();
            assert!(
                at.0 as usize >= least,
                "{at} after {least} were acknowledged"
            );
            assert_eq!(found, past.contents[at.0 as usize], "{at} at call {done}");
        }
    }
    assert!(states > 500, "{states}");
}

#[tokio::test]
async fn a_log_cut_at_any_byte_opens_with_all_whole_commits() {
    let config = EngineConfig::default();
    let past = history(12, config).await;
    let whole = past.disk.file("control.log");
    let mut ends = Vec::new();
    let mut len = 0;
    for call in past.disk.calls() {
        if let Call::Append(_, bytes) = call {
            len += bytes.len();
            ends.push(len);
        }
    }
    assert_eq!((ends.len(), len), (13, whole.len()));
    for cut in 0..=whole.len() {
        let files = [("control.log".to_owned(), whole[..cut].to_vec())];
        let result = reopened(&MemDisk::with(files.into()));
        // No crash shortens the base, which has its name only once it is durable.
        let Some(last) = ends.iter().rposition(|end| *end <= cut) else {
            let error = result.unwrap_err();
            assert!(matches!(error, EngineError::Corrupt { .. }), "{error}");
            continue;
        };
        let (found, at) = result.unwrap();
        assert_eq!(
            (at.0 as usize, &found),
            (last, &past.contents[last]),
            "cut at {cut}"
        );
    }
}

#[tokio::test]
async fn a_flipped_byte_is_cut_off_at_the_end_and_named_elsewhere() {
    let past = history(6, EngineConfig::default()).await;
    let whole = past.disk.file("control.log");
    let last = past.disk.calls().iter().rev().find_map(|call| match call {
        Call::Append(_, bytes) => Some(bytes.len()),
        _ => None,
    });
    let last = whole.len() - last.unwrap();
    for at in 0..whole.len() {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x10;
        let disk = MemDisk::with([("control.log".to_owned(), bytes.clone())].into());
        match reopened(&disk) {
            Ok((found, revision)) => {
                assert!(at >= last, "a flip at {at} was not noticed");
                assert_eq!((revision, found), (Revision(5), past.contents[5].clone()));
            }
            Err(EngineError::Corrupt { file, offset, .. }) => {
                assert!(at < last && offset <= at as u64 && file.ends_with("control.log"));
                assert_eq!(
                    disk.file("control.log"),
                    bytes,
                    "a damaged file was changed"
                );
            }
            Err(other) => panic!("a flip at {at} gave {other}"),
        }
    }
}

#[tokio::test]
async fn a_failed_sync_is_never_taken_for_a_success() {
    let disk = MemDisk::default();
    let store = local(Engine::create_on(disk.boxed(), EngineConfig::default()).unwrap());
    let put = |value: &str| Txn::default().put("/a", value.as_bytes().to_vec());
    store.commit(put("1")).await.unwrap();
    disk.fail("sync", 0);
    assert_eq!(store.commit(put("2")).await, Err(StoreError::Unknown));
    store.engine().failed().await;
    disk.mend();
    assert_eq!(store.commit(put("3")).await, Err(StoreError::Unavailable));
    assert_eq!(store.get("/a").await, Err(StoreError::Unavailable));
    // The next process writes all that it reads anew, before it answers from it.
    drop(store);
    let before = disk.calls().len();
    let (found, _) = reopened(&disk).unwrap();
    assert!(found["/a"] == b"1" || found["/a"] == b"2");
    assert!(matches!(
        &disk.calls()[before..],
        [
            Call::Create(_),
            Call::Append(..),
            Call::Sync(_),
            Call::Rename(..),
            Call::SyncDir
        ]
    ));
}

#[tokio::test]
async fn a_full_disk_refuses_and_goes_on_when_there_is_room() {
    let disk = MemDisk::default();
    let store = local(Engine::create_on(disk.boxed(), EngineConfig::default()).unwrap());
    let put = |value: &str| Txn::default().put("/a", value.as_bytes().to_vec());
    store.commit(put("1")).await.unwrap();
    let lease = store.grant_lease(Span::from_millis(200)).await.unwrap();
    let leased = Txn::default().put_leased("/leased", Vec::new(), lease);
    store.commit(leased).await.unwrap();
    disk.fail("append", 0);
    assert_eq!(store.commit(put("2")).await, Err(StoreError::Unavailable));
    let found = store.get("/a").await.unwrap().unwrap();
    assert_eq!(found.value, b"1");
    tokio::time::sleep(std::time::Duration::from_millis(400)).await;
    assert!(store.get("/leased").await.unwrap().is_some());
    disk.mend();
    let done = store.commit(put("3")).await.unwrap();
    assert!(done.revision > found.revision);
    // The end of the lease is not forgotten.
    let mut watch = store.watch("/leased", done.revision);
    assert_eq!(watch.next().await.unwrap().value, None);
    drop((store, watch));
    assert_eq!(reopened(&disk).unwrap().0["/a"], b"3");
}

#[tokio::test]
async fn a_switch_that_fails_leaves_the_old_file_in_use() {
    for kind in ["create", "rename"] {
        let disk = MemDisk::default();
        let store = local(Engine::create_on(disk.boxed(), small()).unwrap());
        disk.fail(kind, 0);
        for n in 0..50 {
            let txn = Txn::default().put("/a", vec![n; 40]);
            store.commit(txn).await.unwrap();
        }
        disk.mend();
        drop(store);
        assert_eq!(
            reopened(&disk).unwrap(),
            ([("/a".to_owned(), vec![49; 40])].into(), Revision(50))
        );
    }
}

#[tokio::test]
async fn a_directory_has_one_store_and_one_process() {
    let dir = tempfile::tempdir().unwrap();
    let config = EngineConfig::default;
    let missing = Engine::open(dir.path(), config()).unwrap_err();
    assert!(matches!(missing, EngineError::Missing { .. }), "{missing}");
    let engine = Engine::create(dir.path(), config()).unwrap();
    let locked = Engine::open(dir.path(), config()).unwrap_err();
    assert!(matches!(locked, EngineError::Locked { .. }), "{locked}");
    drop(engine);
    let exists = Engine::create(dir.path(), config()).unwrap_err();
    assert!(matches!(exists, EngineError::Exists { .. }), "{exists}");
    Engine::open(dir.path(), config()).unwrap();
    use std::os::unix::fs::PermissionsExt as _;
    let log = std::fs::metadata(dir.path().join("control.log")).unwrap();
    assert_eq!(log.permissions().mode() & 0o777, 0o600);
}
