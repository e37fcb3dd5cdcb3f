//! A node's sign of life in the cluster's record, with what its disk has left, how fast that is and where the node is, by
//! which copies and owners are placed.

use crate::control_place::ControlPlaces;
use crate::env::Env;
use perigee_cluster::codec::Record as _;
use perigee_cluster::{Coordinate, LeaseNumber, Live, StoreError, Txn, key};
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

/// Where the node is is told anew at most so often; it differs only while the network does ([`Coordinates::to_tell`]).
///
/// [`Coordinates::to_tell`]: crate::coordinates::Coordinates::to_tell
const PLACE_TOLD: Duration = Duration::from_secs(5);

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
    /// What all were told with it, and when.
    told: Told,
    at: Instant,
}

/// What all are told with a sign of life.
#[derive(Debug, Clone, Copy)]
struct Told {
    free: u64,
    coordinate: Option<Coordinate>,
    disk: Option<Span>,
}

impl Told {
    /// As it is at the beginning, or after `before`, since which more may be known.
    fn now(env: &Env, before: Option<Self>) -> Self {
        let coordinate = before.and_then(|told| told.coordinate);
        Self {
            free: env.store.space().map_or(0, |space| space.available),
            coordinate: env.coordinates.to_tell(coordinate).or(coordinate),
            disk: env.coordinates.disk(),
        }
    }

    /// Whether anybody could choose differently for it. The first word of where a node is need not wait for its turn.
    fn differs(self, before: Self, since: Duration) -> bool {
        let moved = self.coordinate != before.coordinate;
        let placed = moved && (before.coordinate.is_none() || since >= PLACE_TOLD);
        let disk = match (self.disk, before.disk) {
            (Some(now), Some(before)) => has_changed(before.as_micros(), now.as_micros()),
            (now, before) => now != before,
        };
        placed || (since >= TOLD && (has_changed(before.free, self.free) || disk))
    }
}

/// Shows the cluster that this node lives.
pub(crate) async fn begin(env: &Arc<Env>, version: &str) -> Result<Life, StoreError> {
    let lease = env.control.grant_lease(TERM).await?;
    tell(env, version, lease, Told::now(env, None)).await
}

async fn tell(
    env: &Arc<Env>,
    version: &str,
    lease: LeaseNumber,
    told: Told,
) -> Result<Life, StoreError> {
    let Told {
        free,
        coordinate,
        disk,
    } = told;
    let live = Live {
        node: env.me,
        free,
        version: version.to_owned(),
        coordinate,
        disk,
    };
    let txn = Txn::default().put_leased(key::live(env.me), live.encode(), lease);
    env.control.commit(txn).await?;
    let at = Instant::now();
    Ok(Life { lease, told, at })
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
    let told = Told::now(env, Some(life.told));
    match told.differs(life.told, life.at.elapsed()) {
        true => tell(env, version, life.lease, told).await,
        false => Ok(life),
    }
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
    fn where_a_node_is_is_told_at_once_and_where_it_has_moved_to_in_its_turn() {
        let (long, short) = (TOLD, Duration::from_secs(1));
        let at = |coordinate| Told {
            free: 1_000,
            coordinate,
            disk: Some(Span(500)),
        };
        let [none, here, there] = [None, Some(&[0_u8, 0, 0, 0]), Some(&[8, 0, 0, 0])]
            .map(|note| at(note.and_then(|note| Coordinate::from_note(note))));
        assert!(here.coordinate.is_some() && here.coordinate != there.coordinate);
        assert!(here.differs(none, short));
        assert!(!there.differs(here, short));
        assert!(there.differs(here, PLACE_TOLD));
        assert!(!here.differs(here, long));
        let slow = Told {
            disk: Some(Span(5_000)),
            ..here
        };
        assert!(slow.differs(here, long));
        let as_fast = Told {
            disk: Some(Span(510)),
            ..here
        };
        assert!(!as_fast.differs(here, long));
    }

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
