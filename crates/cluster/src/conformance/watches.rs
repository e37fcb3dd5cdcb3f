//! Watches: every change once, in order, none left out.

use super::{Seen, ensure, events, put, told};
use crate::store::{ControlStore, Event, Txn, WatchError};
use std::future::poll_fn;
use std::task::Poll;

fn shown(events: &[Event]) -> Vec<(String, Option<String>)> {
    let text = |value: &Vec<u8>| String::from_utf8_lossy(value).into_owned();
    events
        .iter()
        .map(|e| (e.key.clone(), e.value.as_ref().map(text)))
        .collect()
}

fn expected(list: &[(&str, Option<&str>)]) -> Vec<(String, Option<String>)> {
    list.iter()
        .map(|(key, value)| ((*key).to_owned(), value.map(str::to_owned)))
        .collect()
}

pub(super) async fn tells_of_every_change_once(store: &dyn ControlStore) -> Seen {
    let (a, b) = ("/conformance/watch/a", "/conformance/watch/b");
    put(store, a, "before").await?;
    let (_, at) = told(store.list("/conformance/watch/").await)?;
    let mut watch = store.watch("/conformance/watch/", at.next());
    put(store, a, "1").await?;
    put(store, "/conformance/watch-not-this", "x").await?;
    let both = Txn::default().put(b, b"2".to_vec()).delete(a);
    let last = told(store.commit(both).await)?.revision;
    put(store, b, "3").await?;
    let seen = events(&mut *watch, 4).await.map_err(|e| e.to_string())?;
    let wanted = [(a, Some("1")), (b, Some("2")), (a, None), (b, Some("3"))];
    ensure!(shown(&seen) == expected(&wanted), "the watch told {seen:?}");
    ensure!(
        seen[0].revision > at,
        "a change at {} is old",
        seen[0].revision
    );
    ensure!(
        seen[1].revision == last && seen[2].revision == last,
        "one transaction has two revisions: {seen:?}"
    );
    // A second watch does not take from the first.
    let mut other = store.watch(b, last.next());
    let seen = events(&mut *other, 1).await.map_err(|e| e.to_string())?;
    ensure!(shown(&seen) == expected(&[(b, Some("3"))]), "told {seen:?}");
    Ok(())
}

pub(super) async fn replays_the_past(store: &dyn ControlStore) -> Seen {
    let first = put(store, "/conformance/past/a", "1").await?;
    put(store, "/conformance/past/a", "2").await?;
    let third = put(store, "/conformance/past/b", "3").await?;
    for (from, count) in [(first, 3), (first.next(), 2), (third, 1)] {
        let mut watch = store.watch("/conformance/past/", from);
        let seen = events(&mut *watch, count)
            .await
            .map_err(|e| e.to_string())?;
        ensure!(seen[0].revision == from, "{from} begins with {seen:?}");
        ensure!(
            seen[count - 1].revision == third,
            "{from} ends with {seen:?}"
        );
    }
    Ok(())
}

pub(super) async fn survives_a_dropped_wait(store: &dyn ControlStore) -> Seen {
    let key = "/conformance/dropped/a";
    let (_, at) = told(store.list(key).await)?;
    let mut watch = store.watch(key, at.next());
    for round in 0..20 {
        // Begin to wait, and give up at once.
        let mut wait = watch.next();
        let early = poll_fn(|context| Poll::Ready(wait.as_mut().poll(context))).await;
        drop(wait);
        ensure!(
            early.is_pending(),
            "told of a change that nobody made: {early:?}"
        );
        put(store, key, &round.to_string()).await?;
        let mut wait = watch.next();
        let seen = poll_fn(|context| Poll::Ready(wait.as_mut().poll(context))).await;
        drop(wait);
        let seen = match seen {
            Poll::Ready(seen) => seen,
            Poll::Pending => watch.next().await,
        };
        let seen = seen.map_err(|error| error.to_string())?;
        ensure!(
            seen.value == Some(round.to_string().into_bytes()),
            "round {round} told {seen:?}"
        );
    }
    Ok(())
}

pub(super) async fn keeps_the_past_or_says_that_it_is_gone(store: &dyn ControlStore) -> Seen {
    const CHANGES: usize = 200;
    let key = "/conformance/long/a";
    let first = put(store, key, "0").await?;
    for n in 1..CHANGES {
        put(store, key, &n.to_string()).await?;
    }
    let mut watch = store.watch(key, first);
    match events(&mut *watch, CHANGES).await {
        Ok(seen) => {
            let whole = seen.iter().zip(first.0..).all(|(e, r)| e.revision.0 == r);
            ensure!(whole, "a change is missing");
        }
        Err(WatchError::Compacted { oldest }) => {
            ensure!(oldest > first, "{first} is there, for {oldest} is");
            let mut later = store.watch(key, oldest);
            let seen = later.next().await.map_err(|error| error.to_string())?;
            ensure!(seen.revision == oldest, "{oldest} begins with {seen:?}");
        }
        Err(WatchError::Lost) => return Err("a new watch is lost".to_owned()),
    }
    Ok(())
}
