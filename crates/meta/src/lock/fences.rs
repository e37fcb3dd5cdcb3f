//! What an owner remembers of sessions whose locks were ended without their word.

use crate::record::HeldLocks;
use perigee_types::{InodeId, SessionId};
use std::collections::{BTreeMap, BTreeSet};

/// The files that sessions must not change, since their programs may believe to have locks there that were ended. It says
/// again what the tables of locks say, so that a write needs to read none of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Fences {
    files: BTreeMap<InodeId, BTreeSet<SessionId>>,
}

impl Fences {
    /// The locks on a file are these now.
    pub fn note(&mut self, inode: InodeId, locks: &HeldLocks) {
        let sessions: BTreeSet<SessionId> = locks.fenced().collect();
        if sessions.is_empty() {
            self.files.remove(&inode);
        } else {
            self.files.insert(inode, sessions);
        }
    }

    /// Whether any session is kept from changing a file.
    pub(crate) fn are_on(&self, inode: InodeId) -> bool {
        self.files.contains_key(&inode)
    }

    /// Whether a session is kept from changing a file.
    #[must_use]
    pub fn keeps_out(&self, inode: InodeId, session: SessionId) -> bool {
        let sessions = self.files.get(&inode);
        sessions.is_some_and(|sessions| sessions.contains(&session))
    }

    /// The sessions that are kept from changing something.
    #[must_use]
    pub fn sessions(&self) -> BTreeSet<SessionId> {
        self.files.values().flatten().copied().collect()
    }
}
