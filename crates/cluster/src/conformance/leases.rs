//! Leases and the keys that go with them.

use super::{Seen, Subject, ensure, events, put, told, value};
use crate::store::{ControlStore, LeaseNumber, Refusal, StoreError, Txn};
use perigee_types::Span;

/// A short term that the store has: two of its steps at least.
fn short(subject: &dyn Subject) -> Span {
    Span::from_millis(400).max(steps(subject, 2))
}

/// A term that a busy machine does not take for over.
fn long(subject: &dyn Subject) -> Span {
    Span::from_millis(900).max(steps(subject, 2))
}

/// By what the end of a lease may be late.
fn late(subject: &dyn Subject) -> Span {
    Span::from_millis(500).max(steps(subject, 2))
}

fn steps(subject: &dyn Subject, count: u64) -> Span {
    Span::from_millis(subject.lease_step().as_micros() * count / 1000)
}

async fn leased(store: &dyn ControlStore, key: &str, lease: LeaseNumber) -> Seen {
    let txn = Txn::default().put_leased(key, b"alive".to_vec(), lease);
    told(store.commit(txn).await)?;
    Ok(())
}

pub(super) async fn end_with_their_keys(subject: &dyn Subject, store: &dyn ControlStore) -> Seen {
    let (a, b) = ("/conformance/lease/a", "/conformance/lease/b");
    let term = short(subject);
    let lease = told(store.grant_lease(term).await)?;
    leased(store, a, lease).await?;
    leased(store, b, lease).await?;
    let (_, at) = told(store.list("/conformance/lease/").await)?;
    let mut watch = store.watch("/conformance/lease/", at.next());
    ensure!(value(store, a).await?.is_some(), "the lease ended at once");
    subject.sleep(term + late(subject)).await;
    for key in [a, b] {
        ensure!(
            value(store, key).await?.is_none(),
            "`{key}` outlives its lease"
        );
    }
    let seen = events(&mut *watch, 2).await.map_err(|e| e.to_string())?;
    ensure!(seen.iter().all(|e| e.value.is_none()), "told {seen:?}");
    let renewed = store.keep_alive(lease).await;
    let gone: Result<Span, StoreError> = Err(Refusal::NoLease { lease }.into());
    ensure!(renewed == gone, "an ended lease renews to {renewed:?}");
    let late = Txn::default().put_leased(a, Vec::new(), lease);
    let late = store.commit(late).await;
    ensure!(
        late == Err(Refusal::NoLease { lease }.into()),
        "it takes keys: {late:?}"
    );
    Ok(())
}

pub(super) async fn live_while_renewed(subject: &dyn Subject, store: &dyn ControlStore) -> Seen {
    let key = "/conformance/renewed/a";
    let asked = long(subject);
    let lease = told(store.grant_lease(asked).await)?;
    leased(store, key, lease).await?;
    for _ in 0..6 {
        subject
            .sleep(Span::from_millis(asked.as_micros() / 4500))
            .await;
        let term = told(store.keep_alive(lease).await)?;
        ensure!(term == asked, "a term of {asked} is renewed to {term}");
    }
    ensure!(value(store, key).await?.is_some(), "a renewed lease ended");
    told(store.revoke(lease).await)
}

pub(super) async fn are_revoked(subject: &dyn Subject, store: &dyn ControlStore) -> Seen {
    let key = "/conformance/revoked/a";
    let lease = told(store.grant_lease(long(subject)).await)?;
    let other = told(store.grant_lease(long(subject)).await)?;
    ensure!(lease != other, "two leases have one number");
    leased(store, key, lease).await?;
    leased(store, "/conformance/revoked/b", other).await?;
    told(store.revoke(lease).await)?;
    ensure!(
        value(store, key).await?.is_none(),
        "a key outlives its lease"
    );
    told(store.revoke(lease).await)?;
    let kept = value(store, "/conformance/revoked/b").await?;
    ensure!(kept.is_some(), "another lease's key is gone");
    told(store.revoke(other).await)
}

pub(super) async fn follow_the_last_put(subject: &dyn Subject, store: &dyn ControlStore) -> Seen {
    let (a, b) = ("/conformance/moved/a", "/conformance/moved/b");
    let first = told(store.grant_lease(long(subject)).await)?;
    let second = told(store.grant_lease(long(subject)).await)?;
    leased(store, a, first).await?;
    leased(store, b, first).await?;
    put(store, a, "mine").await?;
    leased(store, b, second).await?;
    told(store.revoke(first).await)?;
    ensure!(value(store, a).await?.is_some(), "a detached key is gone");
    ensure!(value(store, b).await?.is_some(), "a moved key is gone");
    told(store.revoke(second).await)?;
    ensure!(value(store, b).await?.is_none(), "a moved key stayed");
    Ok(())
}
