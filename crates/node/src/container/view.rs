//! What an operation sees at this node as owner: the store's committed state below what is ordered and not yet applied.

use bytes::Bytes;
use perigee_meta::owner_view::Base;
use perigee_meta::{Key, Overlay};
use perigee_store::{Space, Store, StoreError};
use perigee_types::{ContainerId, InodeId};

pub(crate) use perigee_meta::owner_view::Foreign;

/// A container's committed state in the store.
pub(crate) struct Kept<'a> {
    id: ContainerId,
    store: &'a Store,
}

impl Base for Kept<'_> {
    type Error = StoreError;

    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        self.store.get(Space::State(self.id), key)
    }

    fn scan(
        &self,
        from: &[u8],
        to: &[u8],
        limit: usize,
    ) -> Result<Vec<(Bytes, Bytes)>, StoreError> {
        self.store
            .scan(Space::State(self.id), from, Some(to), limit)
    }
}

/// How long a file is by the records whose effects are on this node's disk, in bytes; 0 where they have no such file.
pub(crate) fn stored_len(store: &Store, inode: InodeId) -> Result<u64, StoreError> {
    let space = Space::State(inode.container());
    let row = store.get(space, &Key::Inode(inode.index()).encode())?;
    Ok(len_of(inode, row.as_deref()))
}

/// How long a file is by its row, in bytes; 0 where there is none.
pub(super) fn len_of(inode: InodeId, row: Option<&[u8]>) -> u64 {
    let attr = row.map(|row| perigee_meta::stored_attr(inode, row));
    // An unreadable row is the state's to tell of.
    attr.and_then(Result::ok).map_or(0, |attr| attr.size)
}

/// The view of one operation.
pub(crate) type OwnerView<'a> = perigee_meta::OwnerView<'a, Kept<'a>>;

/// See [`OwnerView`].
pub(crate) fn owner_view<'a>(
    id: ContainerId,
    overlay: &'a Overlay,
    store: &'a Store,
    foreign: &'a mut Foreign,
) -> OwnerView<'a> {
    perigee_meta::OwnerView::new(id, overlay, Kept { id, store }, foreign)
}
