//! What an operation sees: the key-value states of one or more containers.

use bytes::Bytes;
use perigee_types::ContainerId;

/// The view lacks this key or range of a foreign container for now, and has noted it: the driver
/// fetches what was noted, and runs the operation again from the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the view has not fetched this part of a foreign container yet")]
pub struct Missing;

/// The states that an operation reads. Effects of earlier operations must be in it, committed or not.
///
/// An operation that ends well may still have left notes of missing parts that it could do without
/// (attributes in a listing); the driver drops those.
pub trait View {
    /// The value of `key`, if it has one.
    fn get(&mut self, container: ContainerId, key: &[u8]) -> Result<Option<Bytes>, Missing>;
    /// Entries with `from <= key < to`, ascending, at most `limit`.
    fn scan(
        &mut self,
        container: ContainerId,
        from: &[u8],
        to: &[u8],
        limit: usize,
    ) -> Result<Vec<(Bytes, Bytes)>, Missing>;
}
