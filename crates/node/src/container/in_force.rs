//! What an owner decides about an operation by the policies that are in force where it makes or removes a name.

use super::view::{Foreign, owner_view};
use super::{Container, Request, State};
use crate::in_force::{Again, InForce};
use crate::policy::{STRIPES, TRASH};
use perigee_meta::{Context, Nearest, NewNode, Op, RenameMode, nearest_setting};
use perigee_types::{Epoch, InodeId, Retention, StripeWidth, Tick, WallTime};

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
}
