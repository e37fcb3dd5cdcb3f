//! What is removed and kept: sessions look for it and bring it back, owners purge it after its time.

use super::Mark;
use super::calls::Request;
use super::chain::Haste;
use super::session::changes;
use super::world::Names;
use perigee_meta::owner_view::Foreign;
use perigee_meta::tx::Turn;
use perigee_meta::{Context, Credential, Op, Plant, Reply, TrashId};
use perigee_types::{ContainerId, OpId, Rng, SessionId, WallTime};

/// How long things are kept: some are purged while sessions still try to bring them back.
const KEPT_SECS: i64 = 3;
/// One in so many operations looks for what is kept.
const LOOKS: u64 = 12;
/// One in so many brings something back.
const BRINGS: u64 = 5;
/// What sessions remember of it.
const REMEMBERED: usize = 12;
/// What one look and one purge take.
const ENTRIES: usize = 50;
/// The session of owners' own operations.
const NOBODY: SessionId = SessionId(0);

/// See the module.
#[derive(Debug, Default)]
pub struct Trash {
    /// Whether what is removed is kept in this history.
    keeps: bool,
    known: Vec<TrashId>,
}

impl Trash {
    /// Two of sixteen seeds keep what is removed, and in one of these ownership moves, too.
    pub(super) fn of(seed: u64) -> Self {
        Self {
            keeps: matches!(seed % 16, 13 | 14),
            known: Vec::new(),
        }
    }
}

impl Names {
    /// The time that files carry, so many seconds from now.
    pub(crate) fn wall(&self, later_secs: i64) -> WallTime {
        WallTime {
            secs: i64::try_from(self.now / 1_000_000).unwrap_or(0) + later_secs,
            nanos: (self.now % 1_000_000 * 1_000) as u32,
        }
    }

    /// Until when what is removed now is kept.
    pub(super) fn kept_until(&self) -> Option<WallTime> {
        self.trash.keeps.then(|| self.wall(KEPT_SECS))
    }

    /// Whether what is removed is kept in this history.
    pub(crate) fn trash_keeps(&self) -> bool {
        self.trash.keeps
    }

    /// What a session may do about what is kept.
    pub(super) fn trash_operation(&self, rng: &mut Rng) -> Option<Op> {
        if !self.trash.keeps {
            return None;
        }
        if rng.chance(1, LOOKS) {
            let container = ContainerId(rng.below(self.stores.len() as u64) as u32 + 1);
            return Some(Op::Trash {
                container,
                after: None,
                limit: ENTRIES,
            });
        }
        let known = &self.trash.known;
        if known.is_empty() || !rng.chance(1, BRINGS) {
            return None;
        }
        Some(Op::Undelete {
            id: known[rng.below(known.len() as u64) as usize],
            new_parent: self.any_directory(rng),
            new_name: Self::any_name(rng),
            cred: Credential::default(),
        })
    }

    /// Sessions bring back what any of them was shown.
    pub(super) fn remember_trash(&mut self, reply: &Reply) {
        let Reply::Trash(rows) = reply else { return };
        let known = &mut self.trash.known;
        for row in rows {
            if !known.contains(&row.id) {
                known.push(row.id);
            }
        }
        let old = known.len().saturating_sub(REMEMBERED);
        known.drain(..old);
    }

    /// An owner purges what has been kept for its time.
    pub(super) fn purge_due(&mut self, host: usize, container: ContainerId) {
        if !self.trash.keeps
            || self.reign(host, container).is_none()
            || self.is_quiet(host, container)
        {
            return;
        }
        let look = Op::Trash {
            container,
            after: None,
            limit: ENTRIES,
        };
        let found = self.own(host, container, look);
        let (Turn::Answer(Ok(outcome)) | Turn::Alone(outcome)) = found.1 else {
            return;
        };
        let Reply::Trash(rows) = outcome.reply else {
            return;
        };
        let early = i64::from(self.planted(Plant::PurgedEarly));
        let now = self.wall(early);
        let due = rows.into_iter().map(|row| row.id);
        let entries: Vec<TrashId> = due.filter(|id| id.is_due(now)).collect();
        if entries.is_empty() {
            return;
        }
        let purge = Op::Purge {
            container,
            entries,
            cred: Credential::default(),
        };
        let (request, turn) = self.own(host, container, purge);
        let Turn::Alone(mut outcome) = turn else {
            return;
        };
        let batch = outcome.batches.remove(&container).unwrap_or_default();
        if let Some(version) = self.order(host, container, &batch, Haste::None) {
            self.note(Mark::Purged);
            self.note_executed(container, &request, &outcome.reply, version);
        }
    }

    /// Runs an operation of an owner's own.
    fn own(&mut self, host: usize, container: ContainerId, operation: Op) -> (Request, Turn) {
        let op = OpId(self.fresh_own(changes(&operation)));
        let request = Request {
            session: NOBODY,
            op,
            answered_through: OpId(0),
            context: Context::new(self.wall(0), None),
            operation,
            sent: false,
        };
        let mut foreign = Foreign::default();
        let turn = self.run_once(host, container, &request, &mut foreign).turn;
        (request, turn)
    }

    /// A number for an owner's own operation; of a look, none that anybody notes.
    fn fresh_own(&mut self, noted: bool) -> u64 {
        if noted { self.fresh_id() } else { 0 }
    }
}
