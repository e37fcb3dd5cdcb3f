//! Reads, compares, writes.

use super::{Seen, ensure, join_all, put, told, value};
use crate::store::{
    BoxFuture, ControlStore, LeaseNumber, Refusal, StoreError, TXN_OPS_MAX, Txn, VALUE_LEN_MAX,
};

pub(super) async fn reads_what_was_written(store: &dyn ControlStore) -> Seen {
    let key = "/conformance/read/a";
    ensure!(
        value(store, key).await?.is_none(),
        "a key was there already"
    );
    let revision = put(store, key, "1").await?;
    let found = told(store.get(key).await)?;
    let Some(found) = found else {
        return Err("a key that was put is not there".to_owned());
    };
    ensure!(found.key == key && found.value == b"1", "got {found:?}");
    ensure!(
        found.revision == revision,
        "{} is not {revision}",
        found.revision
    );
    told(store.commit(Txn::default().delete(key)).await)?;
    ensure!(value(store, key).await?.is_none(), "a deleted key is there");
    Ok(())
}

pub(super) async fn counts_revisions(store: &dyn ControlStore) -> Seen {
    let key = "/conformance/count/a";
    let first = put(store, key, "1").await?;
    let second = put(store, key, "1").await?;
    ensure!(second == first.next(), "{second} does not follow {first}");
    let read = Txn::default().when(key, Some(second));
    let read = told(store.commit(read).await)?.revision;
    ensure!(read == second, "a transaction without writes made {read}");
    let delete = Txn::default().delete("/conformance/count/absent");
    let deleted = told(store.commit(delete).await)?.revision;
    ensure!(deleted == second, "a delete of nothing made {deleted}");
    let (_, listed) = told(store.list("/conformance/count/").await)?;
    ensure!(listed == second, "a list says {listed}, not {second}");
    Ok(())
}

pub(super) async fn compares_before_it_writes(store: &dyn ControlStore) -> Seen {
    let key = "/conformance/compare/a";
    let create = Txn::default().when(key, None).put(key, b"1".to_vec());
    let first = told(store.commit(create.clone()).await)?.revision;
    match store.commit(create.clone()).await {
        Err(StoreError::Conflict { current }) => {
            let is = current.first().map(|kv| (kv.key.as_str(), kv.revision));
            ensure!(is == Some((key, first)), "a conflict says {current:?}");
        }
        other => return Err(format!("a second create gave {other:?}")),
    }
    let change = |at| Txn::default().when(key, Some(at)).put(key, b"2".to_vec());
    let second = told(store.commit(change(first)).await)?.revision;
    let stale = store.commit(change(first)).await;
    ensure!(
        matches!(stale, Err(StoreError::Conflict { .. })),
        "a stale compare gave {stale:?}"
    );
    told(
        store
            .commit(Txn::default().when(key, Some(second)).delete(key))
            .await,
    )?;
    match store.commit(change(second)).await {
        Err(StoreError::Conflict { current }) => {
            ensure!(current.is_empty(), "a deleted key is in {current:?}");
        }
        other => return Err(format!("a change of a deleted key gave {other:?}")),
    }
    // A new life of the key is not the old one.
    let third = told(store.commit(create).await)?.revision;
    ensure!(third > second, "{third} is not above {second}");
    Ok(())
}

pub(super) async fn writes_all_or_nothing(store: &dyn ControlStore) -> Seen {
    let (a, b) = ("/conformance/atomic/a", "/conformance/atomic/b");
    let both = Txn::default().put(a, b"1".to_vec()).put(b, b"1".to_vec());
    let revision = told(store.commit(both).await)?.revision;
    let half = Txn::default()
        .when(a, Some(revision))
        .when(b, None)
        .put(a, b"2".to_vec())
        .delete(b);
    match store.commit(half).await {
        Err(StoreError::Conflict { current }) => {
            let keys: Vec<_> = current.iter().map(|kv| kv.key.as_str()).collect();
            ensure!(keys == [a, b], "a conflict says {keys:?}");
        }
        other => return Err(format!("half a compare gave {other:?}")),
    }
    let (list, _) = told(store.list("/conformance/atomic/").await)?;
    ensure!(
        list.len() == 2 && list.iter().all(|kv| kv.revision == revision),
        "after one transaction and one conflict: {list:?}"
    );
    Ok(())
}

pub(super) async fn lists_in_order(store: &dyn ControlStore) -> Seen {
    for key in ["b", "a/2", "a/1", "ab", "a0"] {
        put(store, &format!("/conformance/list/{key}"), key).await?;
    }
    let (all, _) = told(store.list("/conformance/list/").await)?;
    let keys: Vec<_> = all.iter().map(|kv| kv.value.clone()).collect();
    ensure!(
        keys == [&b"a/1"[..], b"a/2", b"a0", b"ab", b"b"],
        "a list has {all:?}"
    );
    let (some, at) = told(store.list("/conformance/list/a/").await)?;
    ensure!(some.len() == 2, "a list of a prefix has {some:?}");
    ensure!(some.iter().all(|kv| kv.revision <= at), "{at} is too old");
    let (none, _) = told(store.list("/conformance/list/none/").await)?;
    ensure!(none.is_empty(), "a list of nothing has {none:?}");
    Ok(())
}

pub(super) async fn refuses_what_breaks_limits(store: &dyn ControlStore) -> Seen {
    let key = "/conformance/limits/a";
    let many = (0..=TXN_OPS_MAX).map(|n| format!("{key}{n}"));
    let lease = LeaseNumber(u64::MAX >> 2);
    let cases = [
        Txn::default().put("no-slash", Vec::new()),
        Txn::default().put("/new\nline", Vec::new()),
        Txn::default().put(format!("/{}", "k".repeat(600)), Vec::new()),
        Txn::default().put(key, Vec::new()).delete(key),
        Txn::default().put(key, vec![0; VALUE_LEN_MAX + 1]),
        many.fold(Txn::default(), |txn, key| txn.put(key, Vec::new())),
        Txn::default().put_leased(key, Vec::new(), lease),
    ];
    for (at, txn) in cases.into_iter().enumerate() {
        let result = store.commit(txn).await;
        ensure!(
            matches!(result, Err(StoreError::Refused { .. })),
            "case {at} gave {result:?}"
        );
    }
    ensure!(
        value(store, key).await?.is_none(),
        "a refused write is there"
    );
    let renewed = store.keep_alive(lease).await;
    let gone = Err(Refusal::NoLease { lease }.into());
    ensure!(renewed == gone, "renewing no lease gave {renewed:?}");
    let large = Txn::default().put(key, vec![7; VALUE_LEN_MAX]);
    told(store.commit(large).await)?;
    let found = told(store.get(key).await)?.map(|kv| kv.value.len());
    ensure!(
        found == Some(VALUE_LEN_MAX),
        "the largest value is {found:?}"
    );
    Ok(())
}

pub(super) async fn lets_one_of_many_win(store: &dyn ControlStore) -> Seen {
    for round in 0..8 {
        let key = format!("/conformance/race/{round}");
        let racers = (0..16).map(|racer: u8| {
            let txn = Txn::default().when(&*key, None).put(&*key, vec![racer]);
            store.commit(txn)
        });
        let results = join_all(racers.collect()).await;
        let winners: Vec<_> = (0_u8..).zip(&results).filter(|(_, r)| r.is_ok()).collect();
        ensure!(winners.len() == 1, "{} won the race", winners.len());
        let found = told(store.get(&key).await)?.map(|kv| kv.value);
        ensure!(
            found == Some(vec![winners[0].0]),
            "{found:?} is not the winner's"
        );
        let lost = |r: &Result<_, _>| matches!(r, Ok(_) | Err(StoreError::Conflict { .. }));
        ensure!(results.iter().all(lost), "a loser got {results:?}");
    }
    Ok(())
}

pub(super) async fn loses_no_increment(store: &dyn ControlStore) -> Seen {
    let key = "/conformance/counter";
    put(store, key, "0").await?;
    let adders = (0..8).map(|_| Box::pin(add_five(store, key)) as BoxFuture<'_, Seen>);
    for result in join_all(adders.collect()).await {
        result?;
    }
    let sum = value(store, key).await?;
    ensure!(
        sum.as_deref() == Some("40"),
        "8 times 5 increments make {sum:?}"
    );
    Ok(())
}

async fn add_five(store: &dyn ControlStore, key: &str) -> Seen {
    for _ in 0..5 {
        loop {
            let found = told(store.get(key).await)?;
            let found = found.ok_or("the counter is gone")?;
            let number = String::from_utf8_lossy(&found.value).parse::<u32>();
            let number = number.map_err(|error| error.to_string())?;
            let txn = Txn::default()
                .when(key, Some(found.revision))
                .put(key, (number + 1).to_string().into_bytes());
            match store.commit(txn).await {
                Ok(_) => break,
                Err(StoreError::Conflict { .. }) => {}
                Err(error) => return Err(error.to_string()),
            }
        }
    }
    Ok(())
}
