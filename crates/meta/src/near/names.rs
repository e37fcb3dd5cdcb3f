//! Which names a directory may have, as far as a session knows all of them: those that were there when it was told, and those
//! that it has asked for itself, as long as its lease has stood without a gap.

use crate::dentry::{COOKIE_END, bucket, bucket_of, check_name};
use crate::draft::Draft;
use crate::error::Refusal;
use crate::key::{self, Key};
use crate::op::{Context, Op, RenameMode};
use crate::record;
use crate::view::View;
use perigee_types::{InodeId, SessionId};
use std::collections::{BTreeMap, BTreeSet};

/// The hash of a name. Names that share one are told apart by the owner alone.
pub type NameHash = u64;

/// The hash of this one.
#[must_use]
pub fn hash(name: &[u8]) -> NameHash {
    bucket(name)
}

/// That of the name of a directory's entry.
#[must_use]
pub fn hash_at(cookie: u64) -> NameHash {
    bucket_of(cookie)
}

/// Every name of a directory is among these.
#[derive(Debug, Clone, Default)]
pub(super) struct Names(BTreeSet<NameHash>);

impl Names {
    pub(super) fn of(names: impl Iterator<Item = NameHash>) -> Self {
        Self(names.collect())
    }

    /// A session asks for one. Says whether it is another one.
    pub(super) fn add(&mut self, name: &[u8]) -> bool {
        self.0.insert(hash(name))
    }

    /// Whether the directory has no such name. Of one that no directory can have the owner says why.
    pub(super) fn lack(&self, name: &[u8]) -> bool {
        check_name(name).is_ok() && !self.0.contains(&hash(name))
    }

    /// How many these are.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

/// The most names of which it is not known what became of them.
const ASKING_MAX: usize = 65_536;

/// Names that sessions have asked for, and of which no answer has come: how often each.
#[derive(Debug, Default)]
pub(super) struct Asking {
    names: BTreeMap<(SessionId, InodeId, NameHash), u32>,
    /// Of these sessions it is not known what they have asked for: too much of it had no answer.
    unknown: BTreeSet<SessionId>,
}

impl Asking {
    pub(super) fn begin(&mut self, session: SessionId, op: &Op) {
        for (directory, name) in made_by(op) {
            if self.names.len() >= ASKING_MAX {
                self.unknown.insert(session);
            }
            if !self.unknown.contains(&session) {
                let key = (session, directory, hash(name));
                *self.names.entry(key).or_default() += 1;
            }
        }
    }

    /// Whether all that a session has asked for is known.
    pub(super) fn is_known(&self, session: SessionId) -> bool {
        !self.unknown.contains(&session)
    }

    pub(super) fn end(&mut self, session: SessionId, op: &Op) {
        for (directory, name) in made_by(op) {
            let key = (session, directory, hash(name));
            if let Some(often) = self.names.get_mut(&key) {
                *often -= 1;
                if *often == 0 {
                    self.names.remove(&key);
                }
            }
        }
    }

    pub(super) fn of(
        &self,
        session: SessionId,
        directory: InodeId,
    ) -> impl Iterator<Item = NameHash> {
        let all = (session, directory, 0)..=(session, directory, NameHash::MAX);
        self.names.range(all).map(|((_, _, name), _)| *name)
    }

    pub(super) fn forget(&mut self, session: SessionId) {
        self.names.retain(|(of, ..), _| *of != session);
        self.unknown.remove(&session);
    }
}

/// The hashes of all names in a directory; nothing where it has more than `most`.
///
/// Errors: a state that cannot be read.
pub fn names_in(
    view: &mut dyn View,
    directory: InodeId,
    most: usize,
) -> Result<Option<Vec<NameHash>>, Refusal> {
    let context = Context::default();
    let draft = &mut Draft::new(&context, view);
    let entries = draft.directory(directory)?.entries;
    if entries > most as u64 {
        return Ok(None);
    }
    let container = directory.container();
    let range = key::dentries(directory.index(), 0, COOKIE_END);
    let mut names = Vec::new();
    for (key, _) in draft.scan(container, &range, most + 1)? {
        match Key::decode(&key) {
            Some(Key::Dentry(_, cookie)) => names.push(hash_at(cookie)),
            _ => return Err(record::corrupt(container, &key, "not a dentry's key")),
        }
    }
    // What is damaged is not to be taken for all.
    Ok((names.len() as u64 == entries).then_some(names))
}

/// The names that an operation may make, and in which directories: no state has another name that had it not before.
pub fn made_by(op: &Op) -> impl Iterator<Item = (InodeId, &[u8])> {
    let (name, other) = match op {
        Op::Make { parent, name, .. } | Op::Rehome { parent, name, .. } => {
            (Some((*parent, name)), None)
        }
        Op::Rename {
            parent,
            name,
            new_parent,
            new_name,
            mode,
            ..
        } => {
            let back = (*mode == RenameMode::Exchange).then_some((*parent, name));
            (Some((*new_parent, new_name)), back)
        }
        Op::Link {
            new_parent,
            new_name,
            ..
        }
        | Op::Undelete {
            new_parent,
            new_name,
            ..
        } => (Some((*new_parent, new_name)), None),
        Op::Lookup { .. }
        | Op::GetAttr { .. }
        | Op::SetAttr { .. }
        | Op::ReadLink { .. }
        | Op::Unlink { .. }
        | Op::Rmdir { .. }
        | Op::ReadDir { .. }
        | Op::GetXattr { .. }
        | Op::ListXattr { .. }
        | Op::SetXattr { .. }
        | Op::RemoveXattr { .. }
        | Op::Wrote { .. }
        | Op::Allocate { .. }
        | Op::GetLock { .. }
        | Op::SetLock { .. }
        | Op::WithdrawLock { .. }
        | Op::ReleaseLocks { .. }
        | Op::ReleaseSession { .. }
        | Op::Orphans { .. }
        | Op::Reap { .. }
        | Op::SetPolicy { .. }
        | Op::GetPolicy { .. }
        | Op::Snapshots
        | Op::KeepSnapshot { .. }
        | Op::ForgetSnapshot { .. }
        | Op::Trash { .. }
        | Op::Purge { .. }
        | Op::ExpireSession { .. }
        | Op::Columns { .. }
        | Op::MakeColumns { .. }
        | Op::Claim { .. }
        | Op::CutColumn { .. }
        | Op::PunchColumn { .. }
        | Op::DropColumns { .. }
        | Op::EndCut { .. }
        | Op::EndCover { .. } => (None, None),
    };
    let names = name.into_iter().chain(other);
    names.map(|(directory, name)| (directory, name.as_slice()))
}

/// Whether an operation may make names.
#[must_use]
pub fn makes_names(op: &Op) -> bool {
    made_by(op).next().is_some()
}
