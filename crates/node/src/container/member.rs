//! The control store's word on the chain, and the search for new members.

use super::{After, Container, State};
use perigee_cluster::{ChangeError, Directory, PlanError, Step, StoreError, Whom};
use perigee_cluster::{key, next_step, transition};
use perigee_replica::{CasOutcome, ChainView, Input, MemberProgress, Role, Standing};
use perigee_types::{Epoch, NodeId, Span, Tick};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tracing::{info, warn};

/// How long a node that did not become a member is tried after all others.
const AVOID: Span = Span::from_millis(60_000);
/// How long a member that is away is waited for before another node fetches everything in its place: long enough for a
/// daemon, or a host, to start again.
const PATIENCE: Span = Span::from_millis(30_000);
/// The same where one copy is left.
const PATIENCE_ALONE: Span = Span::from_millis(10_000);
/// Longer than a sign of life outlives its node.
const JUST_GONE: Span = Span::from_millis(8_000);
/// How long a member has to say that it has what was committed at one moment, before another moment is taken.
const MARK: Span = Span::from_millis(3_000);
/// For how long changes wait for a hand-over: members say within a second what they have.
const HAND_OVER: Span = Span::from_millis(6_000);
/// How much of that is kept for the control store's answer.
const HAND_OVER_ANSWER: Span = Span::from_millis(1_500);
/// How long programs are left alone after a hand-over that came to nothing.
const HAND_OVER_AGAIN: Span = Span::from_millis(30_000);
/// How long the owner tries to cede its place to the node to which its copy moves; then it hands over, which stops changes
/// for longer.
const CEDE_PATIENCE: Span = Span::from_millis(15_000);
/// How long programs are left alone after it could not.
const CEDE_AGAIN: Span = Span::from_millis(2_000);
/// How long the record of a move stays that is over: the node that gave its copy up frees it meanwhile.
const MOVE_OVER: Span = Span::from_millis(15_000);
/// How often a member whose disk is full is dismissed: many may wait for it.
const AGAIN: Span = Span::from_millis(1_000);
/// How often an owner that leaves looks whether it may.
const HAND_OVER_PAUSE: Span = Span::from_millis(20);

impl Container {
    /// Asks the control store to change the chain; the protocol hears how it went.
    pub(super) fn propose_view(self: &Arc<Self>, expect: Epoch, view: ChainView) {
        let me = self.clone();
        self.env.runtime.spawn(async move {
            if me.env.stopping.load(Ordering::Relaxed) {
                return me.step(Input::ViewDecided(CasOutcome::Unavailable));
            }
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

    pub(super) async fn current(&self) -> Option<ChainView> {
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
            let now = self.env.clock.now();
            let view = st.chain.view();
            let chain = view.map(|view| view.chain.clone()).unwrap_or_default();
            st.former.look(&chain, now);
            st.candidate.take_if(|candidate| chain.contains(candidate));
            if !matches!(st.role, Role::Owner { .. }) {
                return;
            }
            self.look_after_move(&mut st, directory, &chain, now);
            self.look_after_rows(&mut st, None);
            let progress = st.chain.member_progress();
            let mut joining = progress
                .iter()
                .filter(|member| member.standing != Standing::Member);
            if let Some(joiner) = joining.next() {
                let node = directory.node(joiner.node);
                if !node.is_some_and(perigee_cluster::Node::takes_containers) {
                    let joiner = joiner.node;
                    drop(st);
                    self.step(Input::Dismiss(joiner));
                }
                return;
            }
            let committed = st.chain.committed();
            let fresh = st.mark.filter(|(at, _)| now.since(*at) < MARK);
            let (at, mark) = fresh.unwrap_or((now, committed));
            st.mark = Some((at, mark));
            let has = |member: &&MemberProgress| member.data >= mark;
            let up_to_date = progress.iter().filter(has);
            let mut whole: Vec<NodeId> = up_to_date.map(|member| member.node).collect();
            if st.pull.is_whole() {
                whole.push(self.env.me);
            }
            (chain, whole)
        };
        let is_whole = |node| whole.contains(&node);
        match next_step(directory, self.id, &chain, record.copies.into(), &is_whole) {
            Step::Nothing => {}
            Step::BringIn(whom) => self.bring_in(directory, &chain, whom),
            // What it holds comes back first: else programs there would lose what they have not synced.
            Step::Dismiss(node) if self.look_after_rows(&mut self.state.lock(), Some(node)) => {}
            Step::Dismiss(node) => {
                info!(container = %self.id, %node, "dismissing a member");
                self.step(Input::Dismiss(node));
            }
            Step::Cede(heir) => self.cede_place(heir),
            Step::HandOver => {
                let me = self.clone();
                self.env.runtime.spawn(async move { me.hand_over().await });
            }
        }
    }

    /// A member has no room for what others are to be shown: it loses its place, as one that is silent does. Not where nobody
    /// else but this owner would be left, nor where this owner may need what it has.
    pub(super) fn dismiss_full(self: &Arc<Self>, node: NodeId, rows: Rows) {
        {
            let mut st = self.state.lock();
            let now = self.env.clock.now();
            let lately = st.dismissed_full_at.is_some_and(|at| now < at + AGAIN);
            let listed = self.listed(&st);
            let keeps = |other: &NodeId| *other != node && !st.refusals.refuses(*other, now);
            let spared = listed.iter().any(keeps) && st.pull.is_whole();
            if lately || !listed.contains(&node) || !spared {
                return;
            }
            st.dismissed_full_at = Some(now);
            if self.look_after_rows(&mut st, Some(node)) && rows == Rows::ComeBack {
                return;
            }
            st.avoid.insert(node, now + AVOID);
            warn!(container = %self.id, %node, "dismissing a member whose disk is full");
        }
        self.step(Input::Dismiss(node));
    }

    /// Has the record of a move forgotten that is over, or has come to nothing.
    fn look_after_move(&self, st: &mut State, directory: &Directory, chain: &[NodeId], now: Tick) {
        let noted = directory.moves.contains_key(&self.id);
        if !noted || directory.move_of(self.id, chain).is_some() {
            st.move_over = None;
            return;
        }
        let since = *st.move_over.get_or_insert(now);
        if now.since(since) < MOVE_OVER {
            return;
        }
        st.move_over = Some(now);
        let (env, id) = (self.env.clone(), self.id);
        self.env.runtime.spawn(async move {
            // Another one may have begun meanwhile.
            let over = transition::Ends::Over;
            let plan = |directory: &Directory| Ok(transition::end_move(directory, id, over));
            if let Err(error) = perigee_cluster::change(env.control.as_ref(), plan).await {
                warn!(container = %id, %error, "the record of a move stays");
            }
        });
    }

    /// Leaves the ownership to the member that has got this one's place. Where programs keep it from doing so for long, it
    /// does as an owner that leaves altogether.
    fn cede_place(self: &Arc<Self>, heir: NodeId) {
        let hands_over = {
            let mut st = self.state.lock();
            let now = self.env.clock.now();
            if st.moving || now < st.hands_over_from || now < st.changes_from {
                return;
            }
            let since = *st.cedes_since.get_or_insert(now);
            let waited = now.since(since) > CEDE_PATIENCE;
            if waited {
                st.cedes_since = None;
            } else {
                st.hands_over_from = now + CEDE_AGAIN;
                st.moving = true;
            }
            waited
        };
        let me = self.clone();
        self.env.runtime.spawn(async move {
            match hands_over {
                true => me.hand_over().await,
                false => me.try_to_cede(heir).await,
            }
        });
    }

    fn bring_in(self: &Arc<Self>, directory: &Directory, chain: &[NodeId], whom: Whom) {
        let now = self.env.clock.now();
        let (avoid, former): (Vec<NodeId>, Former) = {
            let mut st = self.state.lock();
            // One that has just died looks alive for some seconds: it may try again when it is back.
            let failed = |last: &NodeId| {
                !chain.contains(last)
                    && directory.live.contains_key(last)
                    && !st.former.has_just_gone(*last, now)
            };
            let last = st.candidate.filter(failed);
            st.candidate = None;
            if let Some(last) = last {
                st.avoid.insert(last, now + AVOID);
            }
            st.avoid.retain(|_, until| *until > now);
            (st.avoid.keys().copied().collect(), st.former.clone())
        };
        let missed = former.missed(directory, chain.len(), &avoid, now);
        let chosen = match (whom, missed) {
            // One that did not become a member may do so later.
            (Whom::This(node), _) => Some(node).filter(|node| !avoid.contains(node)),
            (Whom::Best, Missed::Back(node)) => Some(node),
            (Whom::Best, Missed::Away) => None,
            (Whom::Best, Missed::Nobody) => choose(directory, chain, &avoid),
        };
        if let Some(node) = chosen {
            info!(container = %self.id, %node, "bringing in a member");
            self.state.lock().candidate = Some(node);
            self.step(Input::Candidate(node));
        }
    }

    /// Leaves the container to the next member. Takes no changes until that is done, or has taken too long.
    async fn hand_over(self: Arc<Self>) {
        {
            let mut st = self.state.lock();
            let now = self.env.clock.now();
            if now < st.hands_over_from || now < st.changes_from {
                return;
            }
            st.hands_over_from = now + HAND_OVER_AGAIN;
            if !st.alone.is_empty() {
                info!(container = %self.id, "not handed over while programs write files past the daemon");
                return;
            }
        }
        self.take_in_all_unseen().await;
        let until = {
            let mut st = self.state.lock();
            let now = self.env.clock.now();
            // The reign may have ended meanwhile, and what the next one may change is not for this one to say.
            if Self::reign(&st, now).is_err() || now < st.changes_from || !st.alone.is_empty() {
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
                    self.step_locked(&mut st, Input::Announce, &mut after);
                    let members = self.hear_of_data(&mut st);
                    let everywhere = st.data.iter().all(|(_, seq)| seq <= members)
                        && st.data.before().is_none_or(|before| before <= members);
                    let recorded = st.dirty.inodes().is_empty() && st.leases.has_no_changes();
                    // While the answer of the control store may come: what is written after it goes with the reign.
                    let in_time = now + HAND_OVER_ANSWER < until;
                    if recorded && everywhere && in_time {
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

/// What becomes of chunks that belong to a member which is to lose its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rows {
    /// They come back first.
    ComeBack,
    /// They have had their time: its programs lose what they have not synced, as where a member is silent.
    GivenUp,
}

/// Members that the chain does without: they have most of what a new one would have to fetch.
#[derive(Debug, Clone, Default)]
pub(super) struct Former {
    listed: Vec<NodeId>,
    /// Since when.
    since: BTreeMap<NodeId, Tick>,
}

/// Whether a place in the chain is for one who had it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Missed {
    /// This one is there again.
    Back(NodeId),
    /// One may come back soon.
    Away,
    /// None, or not any more.
    Nobody,
}

impl Former {
    /// Notes who is listed now.
    fn look(&mut self, chain: &[NodeId], now: Tick) {
        if self.listed == chain {
            return;
        }
        for node in std::mem::replace(&mut self.listed, chain.to_vec()) {
            self.since.entry(node).or_insert(now);
        }
        self.since.retain(|node, _| !chain.contains(node));
    }

    /// Whether a node that is gone may still look alive.
    fn has_just_gone(&self, node: NodeId, now: Tick) -> bool {
        let since = self.since.get(&node);
        since.is_some_and(|since| now.since(*since) < JUST_GONE)
    }

    fn missed(&self, dir: &Directory, members: usize, avoid: &[NodeId], now: Tick) -> Missed {
        let patience = if members > 1 {
            PATIENCE
        } else {
            PATIENCE_ALONE
        };
        let takes = |node: &NodeId| {
            dir.node(*node)
                .is_some_and(perigee_cluster::Node::takes_containers)
        };
        let mut wanted = self.since.iter().filter(|(node, since)| {
            takes(node) && !avoid.contains(node) && now.since(**since) < patience
        });
        let is_back = |node: &NodeId| dir.live.get(node).is_some_and(|live| live.record.free > 0);
        match wanted.clone().find(|(node, _)| is_back(node)) {
            Some((node, _)) => Missed::Back(*node),
            None if wanted.next().is_some() => Missed::Away,
            None => Missed::Nobody,
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

#[cfg(test)]
mod tests {
    use super::*;
    use perigee_cluster::directory::Known;
    use perigee_cluster::{Live, Node, NodeState, Revision};
    use perigee_types::WallTime;

    fn known<T>(record: T) -> Known<T> {
        let revision = Revision::default();
        Known { record, revision }
    }

    fn directory(live: &[u32]) -> Directory {
        let mut directory = Directory::default();
        for id in (1..=4).map(NodeId) {
            let node = Node {
                id,
                name: id.to_string(),
                address: ([127, 0, 0, 1], 7).into(),
                site: None,
                role: perigee_cluster::Role::Stores,
                joined: WallTime::default(),
                cert_serial: Vec::new(),
                state: NodeState::Active,
                capacity: 0,
            };
            directory.nodes.insert(id, known(node));
            let life = Live {
                node: id,
                free: 1,
                ..Live::default()
            };
            if live.contains(&id.0) {
                directory.live.insert(id, known(life));
            }
        }
        directory
    }

    #[test]
    fn a_member_that_is_away_keeps_its_place_for_a_while() {
        let [n1, n2, n3] = [1, 2, 3].map(NodeId);
        let mut former = Former::default();
        let at = |ms| Tick(0) + Span::from_millis(ms);
        former.look(&[n1, n2, n3], at(1_000));
        former.look(&[n1, n2, n3], at(2_000));
        let (away, back) = (directory(&[1, 2, 4]), directory(&[1, 2, 3, 4]));
        let missed = |former: &Former, dir, ms| former.missed(dir, 2, &[], at(ms));
        assert_eq!(missed(&former, &back, 2_000), Missed::Nobody);
        former.look(&[n1, n2], at(3_000));
        former.look(&[n2, n1], at(4_000));
        assert_eq!(missed(&former, &away, 32_000), Missed::Away);
        assert_eq!(missed(&former, &back, 32_000), Missed::Back(n3));
        assert_eq!(missed(&former, &away, 33_000), Missed::Nobody);
        assert_eq!(former.missed(&away, 1, &[], at(12_000)), Missed::Away);
        assert_eq!(former.missed(&away, 1, &[], at(13_000)), Missed::Nobody);
        // Alive, and it did not become a member: its disk may fail.
        assert_eq!(former.missed(&back, 2, &[n3], at(4_000)), Missed::Nobody);
        former.look(&[n2, n1, n3], at(5_000));
        assert_eq!(missed(&former, &back, 5_000), Missed::Nobody);
    }
}
