//! Numbers for what a mount shows of snapshots. A kernel knows an inode by one number, so what an inode was in a snapshot
//! has a number of its own, which does not change when the kernel has forgotten it.

use parking_lot::Mutex;
use perigee_meta::Snapshot;
use perigee_types::{ContainerId, InodeId, InodeIndex, SnapshotId};
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

/// The container that such numbers have: no real one gets that far.
const SHOWN_IN: ContainerId = ContainerId::MAX;
/// How many numbers there are, from 1 on.
const NUMBERS: u64 = InodeIndex::MAX.0 - 1;

/// What such a number means.
#[derive(Debug, Clone)]
pub(super) enum Place {
    /// The list of a directory's snapshots.
    List(InodeId),
    /// An inode as it was.
    Past(Arc<Snapshot>, InodeId),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Name {
    List(InodeId),
    Past(SnapshotId, InodeId),
}

impl Name {
    /// The number that it has where that is free, whenever it is asked for: programs compare what they saw at different times.
    fn number(self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        1 + hasher.finish() % NUMBERS
    }
}

impl Place {
    fn name(&self) -> Name {
        match self {
            Self::List(directory) => Name::List(*directory),
            Self::Past(snapshot, inode) => Name::Past(snapshot.id, *inode),
        }
    }
}

#[derive(Debug)]
struct Shown {
    place: Place,
    references: u64,
}

#[derive(Debug, Default)]
struct Known {
    numbers: HashMap<Name, u64>,
    shown: HashMap<u64, Shown>,
}

/// All numbers that the kernel refers to.
#[derive(Debug, Default)]
pub(super) struct Table(Mutex<Known>);

/// Whether a number is of a snapshot.
pub(super) fn is_past(inode: InodeId) -> bool {
    inode.container() == SHOWN_IN
}

impl Table {
    /// What a number means, if the kernel may know it.
    pub(super) fn place(&self, inode: InodeId) -> Option<Place> {
        let known = self.0.lock();
        let shown = known.shown.get(&inode.index().0);
        shown.map(|shown| shown.place.clone())
    }

    /// The number of a place, to which the kernel refers once more.
    pub(super) fn refer(&self, place: Place) -> InodeId {
        let mut known = self.0.lock();
        let name = place.name();
        let number = match known.numbers.get(&name) {
            Some(number) => *number,
            None => {
                let mut number = name.number();
                while known.shown.contains_key(&number) {
                    number = 1 + number % NUMBERS;
                }
                known.numbers.insert(name, number);
                number
            }
        };
        let shown = known.shown.entry(number).or_insert_with(|| Shown {
            place,
            references: 0,
        });
        shown.references += 1;
        InodeId::new(SHOWN_IN, InodeIndex(number))
    }

    /// A number for a listing alone: the one that the kernel knows, or is to know.
    pub(super) fn hint(&self, place: &Place) -> InodeId {
        let name = place.name();
        let number = self.0.lock().numbers.get(&name).copied();
        let number = number.unwrap_or_else(|| name.number());
        InodeId::new(SHOWN_IN, InodeIndex(number))
    }

    /// The kernel has dropped references.
    pub(super) fn forget(&self, inode: InodeId, count: u64) {
        let mut known = self.0.lock();
        let number = inode.index().0;
        let Some(shown) = known.shown.get_mut(&number) else {
            return;
        };
        shown.references = shown.references.saturating_sub(count);
        if shown.references > 0 {
            return;
        }
        let name = shown.place.name();
        known.shown.remove(&number);
        known.numbers.remove(&name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_means_the_same_whenever_the_kernel_refers_to_it() {
        let table = Table::default();
        let place = || Place::List(InodeId(7));
        let first = table.refer(place());
        assert_eq!(table.refer(place()), first);
        assert_ne!(table.refer(Place::List(InodeId(8))), first);
        assert!(is_past(first) && !is_past(InodeId(7)));
        assert_eq!(table.hint(&place()), first);
        table.forget(first, 1);
        assert!(matches!(table.place(first), Some(Place::List(InodeId(7)))));
        table.forget(first, 1);
        assert!(table.place(first).is_none());
        assert_eq!(table.hint(&place()), first, "as it was");
        assert_eq!(table.refer(place()), first, "as it was");
    }
}
