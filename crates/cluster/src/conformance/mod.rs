//! What every control store must do, as checks that run against any of them.
//!
//! The embedded engine in process, the same over the network, a simulated one and etcd all pass the
//! same checks, so that the rest of Perigee need not know which it has.

mod leases;
mod transactions;
mod watches;

use crate::store::{BoxFuture, ControlStore, Event, Revision, StoreError, Txn, Watch, WatchError};
use perigee_types::Span;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

/// The store under test and what the checks need beside it. Nobody else writes to the store meanwhile.
pub trait Subject: Sync {
    /// The store.
    fn store(&self) -> Arc<dyn ControlStore>;
    /// Waits, by the clock that the store's leases run on.
    fn sleep(&self, span: Span) -> BoxFuture<'static, ()>;
    /// The step in which the store counts the terms of leases; none is shorter.
    fn lease_step(&self) -> Span {
        Span::from_millis(100)
    }
}

/// A promise that the store does not keep.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{check}: {what}")]
pub struct Broken {
    /// The check that found it.
    pub check: &'static str,
    /// What was seen.
    pub what: String,
}

/// What is seen inside a check.
type Seen<T = ()> = Result<T, String>;

macro_rules! ensure {
    ($holds:expr, $($what:tt)+) => {
        if !$holds {
            return Err(format!($($what)+));
        }
    };
}
use ensure;

/// Runs every check. Takes about two seconds of the store's clock, or eight steps of its leases, for those that must end.
///
/// # Errors
/// The first promise that is broken.
pub async fn check(subject: &dyn Subject) -> Result<(), Broken> {
    let store = &*subject.store();
    macro_rules! run {
        ($($module:ident :: $name:ident ( $($arg:expr),* );)*) => {
            $($module::$name($($arg),*).await.map_err(|what| Broken {
                check: stringify!($name),
                what,
            })?;)*
        };
    }
    run! {
        transactions::reads_what_was_written(store);
        transactions::counts_revisions(store);
        transactions::compares_before_it_writes(store);
        transactions::writes_all_or_nothing(store);
        transactions::lists_in_order(store);
        transactions::refuses_what_breaks_limits(store);
        transactions::lets_one_of_many_win(store);
        transactions::loses_no_increment(store);
        watches::tells_of_every_change_once(store);
        watches::replays_the_past(store);
        watches::survives_a_dropped_wait(store);
        watches::keeps_the_past_or_says_that_it_is_gone(store);
        leases::end_with_their_keys(subject, store);
        leases::live_while_renewed(subject, store);
        leases::are_revoked(subject, store);
        leases::follow_the_last_put(subject, store);
    }
    Ok(())
}

fn told<T>(result: Result<T, StoreError>) -> Seen<T> {
    result.map_err(|error| format!("unexpected: {error}"))
}

async fn put(store: &dyn ControlStore, key: &str, value: &str) -> Seen<Revision> {
    let txn = Txn::default().put(key, value.as_bytes().to_vec());
    Ok(told(store.commit(txn).await)?.revision)
}

async fn value(store: &dyn ControlStore, key: &str) -> Seen<Option<String>> {
    let found = told(store.get(key).await)?;
    Ok(found.map(|found| String::from_utf8_lossy(&found.value).into_owned()))
}

/// The next `count` events.
async fn events(watch: &mut dyn Watch, count: usize) -> Result<Vec<Event>, WatchError> {
    let mut events = Vec::with_capacity(count);
    while events.len() < count {
        events.push(watch.next().await?);
    }
    Ok(events)
}

/// Runs futures side by side and gives their results in order.
async fn join_all<T>(futures: Vec<BoxFuture<'_, T>>) -> Vec<T> {
    let mut running: Vec<_> = futures.into_iter().map(|f| (Some(f), None)).collect();
    poll_fn(|context| {
        for (future, result) in &mut running {
            if let Some(Poll::Ready(value)) = future.as_mut().map(|f| f.as_mut().poll(context)) {
                *result = Some(value);
                *future = None;
            }
        }
        if running.iter().any(|(future, _)| future.is_some()) {
            return Poll::Pending;
        }
        Poll::Ready(())
    })
    .await;
    running
        .into_iter()
        .filter_map(|(_, result)| result)
        .collect()
}
