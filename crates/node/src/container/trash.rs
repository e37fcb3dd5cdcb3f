//! The end of what was removed and kept.

use super::{Container, Elsewhere, State};
use perigee_meta::{Credential, Op, Reply, TrashId};
use perigee_types::WallTime;
use std::sync::Arc;
use tracing::{debug, info, warn};

/// What one record purges, and one round of an owner.
const RECORD_MAX: usize = 200;
const ROUND_MAX: usize = 5_000;

impl Container {
    /// An owner keeps no more what was to be kept until `now`.
    pub(crate) fn purge_due(self: &Arc<Self>, now: WallTime) {
        let mut purged = 0;
        while purged < ROUND_MAX {
            match self.purge_some(now) {
                Ok(0) => break,
                Ok(some) => purged += some,
                Err(elsewhere) => {
                    debug!(container = %self.id, %elsewhere, "purging ends");
                    break;
                }
            }
        }
        if purged > 0 {
            info!(container = %self.id, purged, "what was removed has been kept for its time");
        }
    }

    fn purge_some(self: &Arc<Self>, now: WallTime) -> Result<usize, Elsewhere> {
        let mut st = self.state.lock();
        let tick = self.env.clock.now();
        Self::reign(&st, tick)?;
        if tick < st.changes_from || self.is_backed_up(&st) {
            return Ok(0);
        }
        let look = Op::Trash {
            container: self.id,
            after: None,
            limit: 1,
        };
        // Most of the time nothing is due.
        if self.due(&st, &look, now).is_empty() {
            return Ok(0);
        }
        let look = Op::Trash {
            container: self.id,
            after: None,
            limit: RECORD_MAX,
        };
        let mut entries = self.due(&st, &look, now);
        entries.retain(|id| !st.transactions.holds_inode(id.inode));
        let count = entries.len();
        let purge = Op::Purge {
            container: self.id,
            entries,
            cred: Credential::default(),
        };
        let Ok(outcome) = self.run_own(&st, &purge) else {
            return Ok(0);
        };
        for batch in outcome.batches.into_values() {
            self.order(&mut st, tick, batch, false)?;
        }
        Ok(count)
    }

    fn due(&self, st: &State, look: &Op, now: WallTime) -> Vec<TrashId> {
        match self.run_own(st, look).map(|outcome| outcome.reply) {
            Ok(Reply::Trash(rows)) => {
                let ids = rows.into_iter().map(|row| row.id);
                ids.filter(|id| id.is_due(now)).collect()
            }
            Ok(_) => Vec::new(),
            Err(errno) => {
                warn!(container = %self.id, %errno, "what is kept cannot be listed");
                Vec::new()
            }
        }
    }
}
