//! What a container's log carries: effects, not operations, so that replay needs no judgement and
//! repeating it does no harm.

use crate::{ByteRange, InodeId};
use serde::{Deserialize, Serialize};

/// A change of one key of a container's state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mutation {
    /// The key.
    pub key: Vec<u8>,
    /// The new value; `None` deletes.
    pub value: Option<Vec<u8>>,
}

/// A change of a data object, ordered by the log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum DataCommand {
    /// The owner has new bytes here. A replica marks the range invalid, and fetches it.
    Written {
        /// The file.
        inode: InodeId,
        /// The bytes that changed.
        range: ByteRange,
    },
    /// The object has this length now. Bytes beyond are gone; growth reads as zeros.
    Resized {
        /// The file.
        inode: InodeId,
        /// Its new length in bytes.
        size: u64,
    },
    /// The range reads as zeros now, and takes no space.
    Punched {
        /// The file.
        inode: InodeId,
        /// The bytes that became zeros.
        range: ByteRange,
    },
    /// The object is gone.
    Removed {
        /// The file.
        inode: InodeId,
    },
}

impl DataCommand {
    /// The file that it changes.
    #[must_use]
    pub const fn inode(&self) -> InodeId {
        match self {
            Self::Written { inode, .. }
            | Self::Resized { inode, .. }
            | Self::Punched { inode, .. }
            | Self::Removed { inode } => *inode,
        }
    }
}

/// The effects of one operation on one container, applied wholly or not at all.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Batch {
    /// Changes of the state, in order; a later one of the same key wins.
    pub mutations: Vec<Mutation>,
    /// Changes of data objects, in order.
    pub data: Vec<DataCommand>,
}

impl Batch {
    /// Whether it changes nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.mutations.is_empty() && self.data.is_empty()
    }

    /// Adds the effects of what happens next; changes of keys that it changes again go.
    pub fn follow_with(&mut self, later: Self) {
        let again = |earlier: &Mutation| later.mutations.iter().any(|m| m.key == earlier.key);
        self.mutations.retain(|earlier| !again(earlier));
        self.mutations.extend(later.mutations);
        self.data.extend(later.data);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn mutations() -> impl Strategy<Value = Vec<Mutation>> {
        let mutation = (0..6u8, any::<Option<u8>>()).prop_map(|(key, value)| Mutation {
            key: vec![key],
            value: value.map(|value| vec![value]),
        });
        prop::collection::vec(mutation, 0..12)
    }

    fn apply(state: &mut BTreeMap<Vec<u8>, Vec<u8>>, batch: &Batch) {
        for mutation in &batch.mutations {
            match &mutation.value {
                Some(value) => state.insert(mutation.key.clone(), value.clone()),
                None => state.remove(&mutation.key),
            };
        }
    }

    proptest! {
        #[test]
        fn two_batches_in_one_do_what_they_did_in_a_row(
            before in mutations(),
            first in mutations(),
            second in mutations(),
        ) {
            let batch = |mutations| Batch { mutations, data: Vec::new() };
            let (first, second) = (batch(first), batch(second));
            let mut in_a_row = BTreeMap::new();
            apply(&mut in_a_row, &batch(before));
            let mut at_once = in_a_row.clone();
            apply(&mut in_a_row, &first);
            apply(&mut in_a_row, &second);
            let mut both = first;
            both.follow_with(second.clone());
            apply(&mut at_once, &both);
            prop_assert_eq!(at_once, in_a_row);
            let kept = both.mutations.len() - second.mutations.len();
            let changed_again = |m: &Mutation| second.mutations.iter().any(|s| s.key == m.key);
            prop_assert!(!both.mutations[..kept].iter().any(changed_again));
        }
    }
}
