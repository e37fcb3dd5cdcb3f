//! The control store: one view under compare-and-set. Requests and answers travel like messages: a request that
//! was given up may still arrive.

use perigee_replica::ChainView;
use perigee_types::Epoch;

/// A request to the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreRequest {
    /// Make `view` current if the epoch is `expect`.
    Cas {
        /// Names the request at its node.
        id: u64,
        /// The epoch that must be current.
        expect: Epoch,
        /// The new view.
        view: ChainView,
    },
    /// Tell the current view.
    Read,
}

/// The store's answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreReply {
    /// The compare-and-set was done.
    Won(u64),
    /// It was not; this is current.
    Lost(u64, ChainView),
    /// The current view.
    View(ChainView),
    /// The request was refused before it was sent.
    Unavailable(u64),
}

/// The store.
#[derive(Debug)]
pub struct Store {
    /// The current view.
    pub view: ChainView,
    /// When it was made: requests to the one before are lost with it.
    pub made: u64,
    /// It answers nobody before this time.
    pub away_until: u64,
}

impl Store {
    /// Handles a request that arrived. The flag: whether the view changed.
    pub fn handle(&mut self, request: StoreRequest) -> (StoreReply, bool) {
        match request {
            StoreRequest::Read => (StoreReply::View(self.view.clone()), false),
            StoreRequest::Cas { id, expect, view } if expect == self.view.epoch => {
                self.view = view;
                (StoreReply::Won(id), true)
            }
            StoreRequest::Cas { id, .. } => (StoreReply::Lost(id, self.view.clone()), false),
        }
    }
}
