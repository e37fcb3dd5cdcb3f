//! A node's sign of life in the cluster's record, and what its disk has left, by which new copies are placed.

use crate::control_place::ControlPlaces;
use crate::env::Env;
use perigee_cluster::codec::Record as _;
use perigee_cluster::{LeaseNumber, Live, StoreError, Txn, key};
use perigee_meta::lock::kept;
use perigee_types::{Span, Tick};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tracing::debug;

/// A node that has not renewed its sign of life for so long is shown as down.
const TERM: Span = Span::from_millis(4_000);
/// How often the sign of life is renewed.
const RENEWAL: Duration = Duration::from_millis(1_000);
/// What is free is told anew at most so often: every node hears of it.
const TOLD: Duration = Duration::from_secs(20);

/// The last sign of life that was given counts for so long from the moment when it was sent: less than its term by as much
/// as clocks may differ, and more.
const COUNTS: Span = Span::from_millis(TERM.as_micros() / 1_000 * 9 / 10);

/// Until when this node's sign of life counts surely, by its own clock.
#[derive(Debug, Default)]
pub(crate) struct Shown {
    until: AtomicU64,
}

impl Shown {
    fn given(&self, sent: Tick) {
        self.until.fetch_max((sent + COUNTS).0, Ordering::Relaxed);
    }

    pub(crate) fn at(&self, now: Tick) -> kept::Life {
        match now.0 < self.until.load(Ordering::Relaxed) {
            true => kept::Life::Shown,
            false => kept::Life::Unsure,
        }
    }
}

/// A sign of life.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Life {
    lease: LeaseNumber,
    /// What was said to be free, and when.
    free: u64,
    at: Instant,
}

/// Shows the cluster that this node lives.
pub(crate) async fn begin(env: &Arc<Env>, version: &str) -> Result<Life, StoreError> {
    let lease = env.control.grant_lease(TERM).await?;
    tell(env, version, lease, free(env)).await
}

fn free(env: &Env) -> u64 {
    env.store.space().map_or(0, |space| space.available)
}

async fn tell(
    env: &Arc<Env>,
    version: &str,
    lease: LeaseNumber,
    free: u64,
) -> Result<Life, StoreError> {
    let live = Live {
        node: env.me,
        free,
        version: version.to_owned(),
    };
    let txn = Txn::default().put_leased(key::live(env.me), live.encode(), lease);
    env.control.commit(txn).await?;
    let at = Instant::now();
    Ok(Life { lease, free, at })
}

/// Goes on showing it.
pub(crate) async fn keep(
    env: Arc<Env>,
    places: Arc<ControlPlaces>,
    version: String,
    mut life: Option<Life>,
) {
    loop {
        let sent = env.clock.now();
        let renewed = match life {
            Some(life) => renew(&env, &version, life).await,
            None => {
                let begun = begin(&env, &version).await;
                if begun.is_ok() {
                    // There was none for a while: others may have taken this node for lost.
                    env.sessions.lapsed();
                }
                begun
            }
        };
        if renewed.is_ok() {
            env.life.given(sent);
        }
        places.note(matches!(
            renewed,
            Ok(_) | Err(StoreError::Refused { .. } | StoreError::WentBack)
        ));
        life = match renewed {
            Ok(life) => Some(life),
            Err(StoreError::Refused { .. }) => None,
            Err(error) => {
                debug!(%error, "sign of life not renewed");
                life
            }
        };
        tokio::time::sleep(RENEWAL).await;
    }
}

async fn renew(env: &Arc<Env>, version: &str, life: Life) -> Result<Life, StoreError> {
    env.control.keep_alive(life.lease).await?;
    let free = free(env);
    if life.at.elapsed() < TOLD || !has_changed(life.free, free) {
        return Ok(life);
    }
    tell(env, version, life.lease, free).await
}

/// Whether placement could see a difference: it compares by factors of two, and wants any room at all.
fn has_changed(told: u64, free: u64) -> bool {
    let quarter = told / 4;
    told.abs_diff(free) > quarter || (told == 0) != (free == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_free_is_told_anew_when_placement_could_see_it() {
        assert!(!has_changed(1_000, 1_000));
        assert!(!has_changed(1_000, 800));
        assert!(has_changed(1_000, 700));
        assert!(has_changed(1_000, 1_300));
        assert!(has_changed(1_000, 0));
        assert!(has_changed(0, 1));
        assert!(has_changed(3, 0));
        assert!(!has_changed(0, 0));
    }
}
