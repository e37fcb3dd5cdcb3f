//! The control store's word on the chain, and the search for new members.

use super::{After, Container};
use perigee_cluster::{ChangeError, Directory, PlanError, Step, StoreError};
use perigee_cluster::{key, next_step, transition};
use perigee_replica::{CasOutcome, ChainView, Input, MemberProgress, Role, Standing};
use perigee_types::{Epoch, NodeId, Span};
use std::sync::Arc;
use tracing::{info, warn};

/// How long a node that did not become a member is tried after all others.
const AVOID: Span = Span::from_millis(60_000);
/// How long a member has to say that it has what was committed at one moment, before another moment is taken.
const MARK: Span = Span::from_millis(3_000);
/// For how long changes wait for a hand-over: members say within a second what they have.
const HAND_OVER: Span = Span::from_millis(5_000);
/// How long programs are left alone after a hand-over that came to nothing.
const HAND_OVER_AGAIN: Span = Span::from_millis(30_000);
/// How often an owner that leaves looks whether it may.
const HAND_OVER_PAUSE: Span = Span::from_millis(20);

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

    /// Brings a node into the chain, dismisses one, or hands the container over, as the directory asks for.
    pub(crate) fn seek_member(self: &Arc<Self>, directory: &Directory) {
        let Some(record) = directory.container(self.id) else {
            return;
        };
        let (chain, whole) = {
            let mut st = self.state.lock();
            let listed = |node: &NodeId| st.chain.view().is_some_and(|view| view.lists(*node));
            if st.candidate.as_ref().is_some_and(listed) {
                st.candidate = None;
            }
            let progress = st.chain.member_progress();
            let joining = progress
                .iter()
                .any(|member| member.standing != Standing::Member);
            if !matches!(st.role, Role::Owner { .. }) || joining {
                return;
            }
            let (now, committed) = (self.env.clock.now(), st.chain.committed());
            let fresh = st.mark.filter(|(at, _)| now.since(*at) < MARK);
            let (at, mark) = fresh.unwrap_or((now, committed));
            st.mark = Some((at, mark));
            let has = |member: &&MemberProgress| member.data >= mark;
            let up_to_date = progress.iter().filter(has);
            let mut whole: Vec<NodeId> = up_to_date.map(|member| member.node).collect();
            if st.pull.iter().next().is_none() {
                whole.push(self.env.me);
            }
            let view = st.chain.view();
            (
                view.map(|view| view.chain.clone()).unwrap_or_default(),
                whole,
            )
        };
        let is_whole = |node| whole.contains(&node);
        match next_step(directory, &chain, record.copies.into(), &is_whole) {
            Step::Nothing => {}
            Step::BringIn => self.bring_in(directory, &chain),
            Step::Dismiss(node) => {
                info!(container = %self.id, %node, "dismissing a member");
                self.step(Input::Dismiss(node));
            }
            Step::HandOver => {
                let me = self.clone();
                self.env.runtime.spawn(async move { me.hand_over().await });
            }
        }
    }

    fn bring_in(self: &Arc<Self>, directory: &Directory, chain: &[NodeId]) {
        let now = self.env.clock.now();
        let avoid: Vec<NodeId> = {
            let mut st = self.state.lock();
            if let Some(last) = st.candidate.take().filter(|last| !chain.contains(last)) {
                st.avoid.insert(last, now + AVOID);
            }
            st.avoid.retain(|_, until| *until > now);
            st.avoid.keys().copied().collect()
        };
        if let Some(node) = choose(directory, chain, &avoid) {
            info!(container = %self.id, %node, "bringing in a member");
            self.state.lock().candidate = Some(node);
            self.step(Input::Candidate(node));
        }
    }

    /// Leaves the container to the next member. Takes no changes until that is done, or has taken too long.
    async fn hand_over(self: Arc<Self>) {
        let until = {
            let mut st = self.state.lock();
            let now = self.env.clock.now();
            if now < st.hands_over_from || now < st.changes_from {
                return;
            }
            let until = now + HAND_OVER;
            st.hands_over_from = until + HAND_OVER_AGAIN;
            st.changes_from = until;
            until
        };
        info!(container = %self.id, "handing over");
        loop {
            let mut after = After::default();
            let going_on = {
                let mut st = self.state.lock();
                let now = self.env.clock.now();
                let reigns = Self::reign(&st, now).is_ok();
                if reigns {
                    self.record_all_writes(&mut st);
                    self.forget_settled(&mut st);
                    self.step_locked(&mut st, Input::Announce, &mut after);
                    if st.dirty.inodes().is_empty() && st.data_last.is_empty() {
                        self.step_locked(&mut st, Input::HandOver, &mut after);
                    }
                }
                if reigns && now >= until {
                    warn!(container = %self.id, "not handed over; trying again later");
                }
                reigns && now < until
            };
            after.run();
            if !going_on {
                return;
            }
            tokio::time::sleep(HAND_OVER_PAUSE.as_duration()).await;
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
