//! What an operation sees at this node as owner: the store's committed state below what is ordered and not yet applied.

use bytes::Bytes;
use perigee_meta::Overlay;
use perigee_meta::owner_view::Base;
use perigee_store::{Space, Store, StoreError};
use perigee_types::ContainerId;

pub(crate) use perigee_meta::owner_view::{Foreign, Stacked};

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
