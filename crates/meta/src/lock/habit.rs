//! How a host uses the locks of each file: whether it is worth keeping them.

use perigee_types::InodeId;
use std::collections::BTreeMap;

/// Uses in a row after which a lock is kept: of a file whose locks were never called for, and at most.
const USES: (u32, u32) = (2, 64);
/// Files whose uses are counted; with one more all are forgotten, and count from the beginning.
const HABITS_MAX: usize = 4_096;

#[derive(Debug, Clone, Copy)]
struct Habit {
    /// Uses since the last call.
    uses: u32,
    /// So many before a lock is kept.
    needs: u32,
}

impl Default for Habit {
    fn default() -> Self {
        Self {
            uses: 0,
            needs: USES.0,
        }
    }
}

/// Of all files. What is kept of one pays from its second use in a row on; each call for it doubles that number there, so that
/// hosts who take turns pay for few calls.
#[derive(Debug, Clone, Default)]
pub(super) struct Habits(BTreeMap<InodeId, Habit>);

impl Habits {
    /// A lock of a file is used.
    pub(super) fn used(&mut self, inode: InodeId) {
        if self.0.len() >= HABITS_MAX && !self.0.contains_key(&inode) {
            self.0.clear();
        }
        let habit = self.0.entry(inode).or_default();
        habit.uses = habit.uses.saturating_add(1);
    }

    /// Somebody else wants what is kept of it.
    pub(super) fn called(&mut self, inode: InodeId) {
        if let Some(habit) = self.0.get_mut(&inode)
            && habit.uses > 0
        {
            habit.uses = 0;
            habit.needs = (habit.needs * 2).min(USES.1);
        }
    }

    /// Whether it was used often enough.
    pub(super) fn pays(&self, inode: InodeId) -> bool {
        let habit = self.0.get(&inode).copied().unwrap_or_default();
        habit.uses >= habit.needs
    }
}
