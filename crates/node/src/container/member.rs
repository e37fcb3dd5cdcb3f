//! The control store's word on the chain, and the search for new members.

use super::Container;
use perigee_cluster::{ChangeError, Directory, PlanError, StoreError, key, transition};
use perigee_replica::{CasOutcome, ChainView, Input, Role};
use perigee_types::{Epoch, NodeId, Span};
use std::sync::Arc;
use tracing::{info, warn};

/// How long a node that did not become a member is tried after all others.
const AVOID: Span = Span::from_millis(60_000);

impl Container {
    /// Asks the control store to change the chain; the protocol hears how it went.
    pub(super) fn propose_view(self: &Arc<Self>, expect: Epoch, view: ChainView) {
        let me = self.clone();
        self.env.runtime.spawn(async move {
            let control = me.env.control.clone();
            let changed = perigee_cluster::change(control.as_ref(), |directory| {
                transition::change_chain(
                    directory,
                    me.id,
                    expect,
                    view.epoch,
                    view.chain.clone(),
                )
            });
            let outcome = match changed.await {
                Ok(_) => {
                    info!(container = %me.id, epoch = %view.epoch, chain = ?view.chain, "chain changed");
                    CasOutcome::Won
                }
                Err(ChangeError::Plan(PlanError::StaleEpoch { .. })) => match me.current().await {
                    Some(current) => CasOutcome::Lost(current),
                    None => CasOutcome::Unknown,
                },
                Err(ChangeError::Store(StoreError::Unknown)) => CasOutcome::Unknown,
                Err(error) => {
                    warn!(container = %me.id, %error, "chain not changed");
                    CasOutcome::Unavailable
                }
            };
            me.step(Input::ViewDecided(outcome));
        });
    }

    /// Reads the chain from the control store for the protocol.
    pub(super) fn read_view(self: &Arc<Self>) {
        let me = self.clone();
        self.env.runtime.spawn(async move {
            if let Some(view) = me.current().await {
                me.step(Input::View(view));
            }
        });
    }

    async fn current(&self) -> Option<ChainView> {
        let key = key::container(self.id);
        let found = match self.env.control.get(&key).await {
            Ok(found) => found?,
            Err(error) => {
                warn!(container = %self.id, %error, "chain not read");
                return None;
            }
        };
        match <perigee_cluster::Container as perigee_cluster::codec::Record>::decode(&found.value) {
            Ok(record) => Some(ChainView {
                epoch: record.epoch,
                chain: record.chain,
            }),
            Err(error) => {
                warn!(container = %self.id, %error, "chain record unreadable");
                None
            }
        }
    }

    /// Finds a node to bring into the chain when it has fewer members than it should, or dismisses
    /// one when it has more.
    pub(crate) fn seek_member(self: &Arc<Self>, directory: &Directory) {
        let Some(record) = directory.container(self.id) else {
            return;
        };
        let (chain, seeking) = {
            let mut st = self.state.lock();
            let listed = |node: &NodeId| st.chain.view().is_some_and(|view| view.lists(*node));
            if st.candidate.as_ref().is_some_and(listed) {
                st.candidate = None;
            }
            let owner = matches!(st.role, Role::Owner { .. });
            let joining = st
                .chain
                .member_progress()
                .iter()
                .any(|member| !matches!(member.standing, perigee_replica::Standing::Member));
            (
                st.chain
                    .view()
                    .map(|view| view.chain.clone())
                    .unwrap_or_default(),
                owner && !joining,
            )
        };
        let live = directory.live_storage().count();
        // A chain that is longer than there are live nodes is the protocol's to shorten.
        let wanted = usize::from(record.copies).min(live.max(chain.len()));
        if !seeking || chain.len() == wanted {
            return;
        }
        if chain.len() > wanted {
            // The owner is first; the last came last.
            if let Some(node) = chain.last().filter(|_| chain.len() > 1) {
                info!(container = %self.id, %node, "dismissing a member");
                self.step(Input::Dismiss(*node));
            }
            return;
        }
        let now = self.env.clock.now();
        let avoid: Vec<NodeId> = {
            let mut st = self.state.lock();
            if let Some(last) = st.candidate.take().filter(|last| !chain.contains(last)) {
                st.avoid.insert(last, now + AVOID);
            }
            st.avoid.retain(|_, until| *until > now);
            st.avoid.keys().copied().collect()
        };
        if let Some(node) = choose(directory, &chain, &avoid) {
            info!(container = %self.id, %node, "bringing in a member");
            self.state.lock().candidate = Some(node);
            self.step(Input::Candidate(node));
        }
    }
}

/// The best node for a chain; one that is to be avoided only where there is no other.
fn choose(directory: &Directory, chain: &[NodeId], avoid: &[NodeId]) -> Option<NodeId> {
    let members: Vec<_> = chain
        .iter()
        .filter_map(|node| directory.node(*node))
        .collect();
    let (others, avoided): (Vec<_>, Vec<_>) = perigee_cluster::placement::candidates(directory)
        .into_iter()
        .partition(|candidate| !avoid.contains(&candidate.node.id));
    perigee_cluster::choose_member(&members, &others)
        .or_else(|| perigee_cluster::choose_member(&members, &avoided))
}
