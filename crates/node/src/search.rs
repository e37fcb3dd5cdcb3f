//! Finding the owner of a container, and having it do something.

use crate::container::{Container, Failed};
use crate::env::{AskError, Env};
use perigee_types::{ContainerId, Errno, NodeId};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tracing::{debug, warn};

/// The pause before asking again, unless an owner changes first.
const PAUSE: Duration = Duration::from_millis(20);

/// Until when an owner is looked for. What an owner needs for its work does not count.
#[derive(Debug, Clone, Copy)]
struct Search {
    patience: Duration,
    until: Instant,
}

impl Search {
    fn begin(now: Instant, patience: Duration) -> Self {
        let until = now + patience;
        Self { patience, until }
    }

    /// An owner was at it for so long.
    fn worked_for(&mut self, time: Duration) {
        self.until += time;
    }

    /// An owner says that it is at it.
    fn is_worked_on(&mut self, now: Instant) {
        self.until = now + self.patience;
    }

    fn is_over(&self, now: Instant) -> bool {
        now > self.until
    }
}

/// Asks the owner of a container, here or at another node, until one answers or patience ends.
pub(crate) async fn at_owner<T, L, LF, R, RF>(
    env: &Arc<Env>,
    container: ContainerId,
    patience: Duration,
    here: L,
    there: R,
) -> Result<T, Failed>
where
    L: Fn(Arc<Container>) -> LF,
    LF: Future<Output = Result<T, Failed>>,
    R: Fn(NodeId) -> RF,
    RF: Future<Output = Result<T, AskError>>,
{
    let mut search = Search::begin(Instant::now(), patience);
    let mut owners = env.owners.subscribe();
    loop {
        let owner = owners
            .borrow_and_update()
            .get(&container)
            .map(|(_, node)| *node);
        match owner {
            Some(node) if node == env.me => {
                if let Some(container) = env.container(container) {
                    let began = Instant::now();
                    let result = here(container.clone()).await;
                    match container.or_elsewhere(result) {
                        Err(Failed::Elsewhere(_)) => search.worked_for(began.elapsed()),
                        result => return result,
                    }
                }
            }
            Some(node) => {
                let asked = there(node);
                let answer = tokio::select! {
                    answer = asked => answer,
                    // The one who was asked may be dead: the new owner knows what it did.
                    () = owner_is_not(&mut owners, container, node) => continue,
                };
                match answer {
                    Ok(value) => return Ok(value),
                    Err(AskError::NotOwner) => {}
                    Err(AskError::NotNow(why)) => {
                        debug!(%container, %node, %why, "owner not ready");
                    }
                    Err(AskError::Working) => search.is_worked_on(Instant::now()),
                    Err(AskError::Refused(why)) => {
                        warn!(%container, %node, %why, "owner refused");
                        return Err(Errno::EIO.into());
                    }
                }
            }
            None => {}
        }
        if search.is_over(Instant::now()) {
            let here = env.container(container);
            let here = here.map_or_else(String::new, |here| here.hindrances());
            warn!(%container, ?owner, here, "no owner answered in time");
            return Err(Errno::EIO.into());
        }
        // A sender that is gone means that the node stops; the pause then bounds the loop.
        _ = tokio::time::timeout(PAUSE, owners.changed()).await;
    }
}

/// Returns when a container's owner is another than `node`.
async fn owner_is_not(
    owners: &mut tokio::sync::watch::Receiver<crate::env::Owners>,
    container: ContainerId,
    node: NodeId,
) {
    let changed =
        |owners: &crate::env::Owners| owners.get(&container).is_some_and(|(_, now)| *now != node);
    if owners.wait_for(changed).await.is_err() {
        // The node stops: the call that this races with ends the wait.
        std::future::pending::<()>().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_ends_where_nobody_works_and_not_before() {
        let begun = Instant::now();
        let at = |secs| begun + Duration::from_secs(secs);
        let mut search = Search::begin(begun, Duration::from_secs(30));
        assert!(!search.is_over(at(30)));
        assert!(search.is_over(at(31)));
        search.worked_for(Duration::from_secs(60));
        assert!(!search.is_over(at(90)));
        assert!(search.is_over(at(91)));
        search.is_worked_on(at(100));
        assert!(!search.is_over(at(130)));
        assert!(search.is_over(at(131)));
    }
}
