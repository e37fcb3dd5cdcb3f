//! What is in force where an owner makes or removes a name, and the end of what was removed and kept.

use super::view::{Foreign, owner_view};
use super::{Container, Elsewhere, Request, State};
use crate::in_force::{Again, InForce};
use crate::policy::{STRIPES, TRASH};
use perigee_meta::{
    Context, Credential, Nearest, NewNode, Op, RenameMode, Reply, TrashId, nearest_setting,
};
use perigee_types::{Epoch, InodeId, Retention, StripeWidth, Tick, WallTime};
use std::sync::Arc;
use tracing::{debug, info, warn};

/// What one record purges, and one round of an owner.
const RECORD_MAX: usize = 200;
const ROUND_MAX: usize = 5_000;

/// Another container has to say what is in force in this directory.
pub(super) struct Unsaid(pub(super) InodeId);

/// The directory that an operation may take a last name from.
fn loses_a_name(op: &Op) -> Option<InodeId> {
    match op {
        Op::Unlink { parent, .. } | Op::Rmdir { parent, .. } => Some(*parent),
        Op::Rename {
            new_parent,
            mode: RenameMode::Replace,
            ..
        } => Some(*new_parent),
        _ => None,
    }
}

impl Container {
    /// What this owner decides about a session's operation.
    pub(super) fn context(
        &self,
        st: &mut State,
        (epoch, now): (Epoch, Tick),
        request: &Request,
    ) -> Result<Context, Unsaid> {
        let keep_until = self.keep_until(st, now, &request.operation)?;
        let context = Context {
            grant: st.lock_queue.next_grant(epoch),
            ..Context::new(self.env.clock.wall(), request.new_directory_in)
        };
        let width = self.width(st, now, &request.operation)?;
        Ok(context.keeping(keep_until).striping(width))
    }

    /// Over how many containers a file is spread that an operation makes.
    fn width(&self, st: &State, now: Tick, op: &Op) -> Result<StripeWidth, Unsaid> {
        match op {
            Op::Make {
                parent,
                node: NewNode::File,
                ..
            } if self.env.directory.read().stripes_files() => {
                Ok(self.in_force(st, now, *parent)?.width)
            }
            _ => Ok(StripeWidth::ONE),
        }
    }

    /// Until when what an operation removes is kept.
    fn keep_until(&self, st: &State, now: Tick, op: &Op) -> Result<Option<WallTime>, Unsaid> {
        let rehomed = matches!(op, Op::Rehome { .. });
        let directory = loses_a_name(op);
        if (directory.is_none() && !rehomed) || !self.env.directory.read().keeps_trash() {
            return Ok(None);
        }
        let kept = match directory {
            Some(directory) => self.in_force(st, now, directory)?.retention,
            // One row, for as long as anything may be kept that was removed from it.
            None => Retention::LONGEST,
        };
        let Retention::For { secs } = kept else {
            return Ok(None);
        };
        let wall = self.env.clock.wall();
        let secs = i64::try_from(secs).unwrap_or(i64::MAX);
        Ok(Some(WallTime {
            secs: wall.secs.saturating_add(secs),
            ..wall
        }))
    }

    fn in_force(&self, st: &State, now: Tick, directory: InodeId) -> Result<InForce, Unsaid> {
        let (env, known) = (&self.env, &self.env.lately);
        if let Some(known) = known.of(env, directory, Again::WhenNeeded) {
            return Ok(known);
        }
        let trash = self.nearest(st, directory, TRASH)?;
        let stripes = self.nearest(st, directory, STRIPES)?;
        let above = match (&trash, &stripes) {
            (Nearest::Above(above), _) | (_, Nearest::Above(above)) => {
                let told = known.of(env, *above, Again::InTime);
                Some(told.ok_or(Unsaid(*above))?)
            }
            _ => None,
        };
        let inherited = above.unwrap_or_default();
        let what = InForce {
            retention: match trash {
                Nearest::Is(value) => Retention::named(&value).unwrap_or_default(),
                Nearest::Unset | Nearest::Above(_) => inherited.retention,
            },
            width: match stripes {
                Nearest::Is(value) => StripeWidth::named(&value).unwrap_or_default(),
                Nearest::Unset | Nearest::Above(_) => inherited.width,
            },
        };
        if above.is_none() {
            // Else it is kept for that directory alone: for this one it would grow older than it says.
            known.note(directory, what, now);
        }
        Ok(what)
    }

    /// What this container says of a setting of a directory.
    fn nearest(&self, st: &State, directory: InodeId, name: &str) -> Result<Nearest, Unsaid> {
        let mut foreign = Foreign::default();
        let mut view = owner_view(self.id, &st.overlay, &self.env.store, &mut foreign);
        let nearest = nearest_setting(&mut view, self.id, directory, name);
        match view.failed {
            None => nearest.map_err(|_| Unsaid(directory)),
            // Whoever is asked says what is wrong.
            Some(_) => Err(Unsaid(directory)),
        }
    }

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
            self.order(&mut st, tick, &batch, false)?;
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
