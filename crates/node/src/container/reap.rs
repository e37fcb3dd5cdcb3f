//! Inodes that have lost their last name: removed when nobody has them open any more.

use super::{Container, Elsewhere, State};
use bytes::Bytes;
use perigee_meta::{Op, Reply, remove_with_name};
use perigee_proto::Rpc;
use perigee_proto::message::session::{Open, OpenIn, StillOpen};
use perigee_types::{Batch, InodeId, NodeId};
use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tracing::{debug, warn};

/// The most unlinked inodes that one round asks about.
const ROUND_MAX: usize = 1_000;

/// Unlinked inodes that one round asks about.
struct Page {
    inodes: Vec<InodeId>,
    /// There may be others behind these.
    more: bool,
}

/// What became of a round.
enum Round {
    /// All that it asked about went, and there may be more.
    AllWent,
    /// The next one waits for its time.
    Last,
}

impl Container {
    /// When an operation of this node takes an inode's last name, and nobody can have it open,
    /// its removal joins the same record.
    pub(super) fn add_reap(&self, st: &mut State, local: bool, reply: &Reply, batch: &mut Batch) {
        let candidate = match reply {
            Reply::Removed {
                inode, nlink: 0, ..
            } => Some(*inode),
            Reply::Renamed { replaced, .. } => *replaced,
            _ => None,
        };
        let Some(inode) = candidate else { return };
        if inode.container() != self.id {
            return;
        }
        // It waits for the reaper, who asks again when a checkpoint goes.
        if !matches!(self.is_spared(st, inode.index()), Ok(false)) {
            return;
        }
        if !local || !st.transactions.is_idle() || st.visitors.may_have_open() {
            return;
        }
        if !self.env.sessions.open_among(&[inode]).is_empty() {
            return;
        }
        let tables = st.lock_tables.as_ref();
        let locked = tables.is_none_or(|tables| tables.contains(&inode.index()));
        if let Err(refusal) = remove_with_name(batch, inode, locked) {
            debug!(container = %self.id, %inode, %refusal, "left for the reaper");
        }
    }

    /// Finds what an earlier owner left to reap.
    pub(super) fn find_orphans(self: &Arc<Self>) {
        let mut after = None;
        loop {
            let mut st = self.state.lock();
            if Self::reign(&st, self.env.clock.now()).is_err() {
                return;
            }
            let op = Op::Orphans {
                container: self.id,
                after,
                limit: ROUND_MAX,
            };
            let found = match self.run_own(&st, &op).map(|outcome| outcome.reply) {
                Ok(Reply::Inodes(inodes)) => inodes,
                Ok(_) => return,
                Err(errno) => {
                    warn!(container = %self.id, %errno, "orphans not found");
                    return;
                }
            };
            let Some(last) = found.last() else { return };
            after = Some(last.index());
            st.orphans.extend(found);
        }
    }

    /// Asks every node which unlinked inodes its mounts still have open, and removes the others.
    pub(crate) async fn reap(self: &Arc<Self>, nodes: &[NodeId]) {
        self.ask_for_visitors(nodes).await;
        while let Round::AllWent = self.reap_round(nodes).await {}
    }

    /// Asks every node whether its mounts have anything open here, where that is in the way and may have changed.
    async fn ask_for_visitors(self: &Arc<Self>, nodes: &[NodeId]) {
        let asked = {
            let st = self.state.lock();
            let now = self.env.clock.now();
            // Leases of an earlier reign may stand until changes are taken.
            if Self::reign(&st, now).is_err() || now < st.changes_from {
                return;
            }
            match st.visitors.ask(now) {
                Some(asked) if !st.leases.are_kept_elsewhere(now) => asked,
                _ => return,
            }
        };
        let request = OpenIn {
            container: self.id,
            most: 1,
        };
        let Some(open) = self.open_elsewhere(nodes, &request).await else {
            return;
        };
        let mut st = self.state.lock();
        if open.is_empty() {
            st.visitors.none_has_any(asked);
        } else {
            let now = self.env.clock.now();
            st.visitors.some_have(now);
        }
    }

    /// What other nodes have open; nothing is known if any of them does not answer.
    async fn open_elsewhere<R: Rpc<Reply = Open>>(
        &self,
        nodes: &[NodeId],
        request: &R,
    ) -> Option<BTreeSet<InodeId>> {
        let mut open = BTreeSet::new();
        for node in nodes.iter().filter(|node| **node != self.env.me) {
            let ask = self
                .env
                .ask(*node, request, Bytes::new(), Duration::from_secs(2));
            match ask.await {
                Ok((answer, _)) => open.extend(answer.inodes),
                Err(error) => {
                    // It may have any of them open; it answers next time, or it is declared dead.
                    debug!(container = %self.id, %node, %error, "reaping waits for a node");
                    return None;
                }
            }
        }
        Some(open)
    }

    async fn reap_round(self: &Arc<Self>, nodes: &[NodeId]) -> Round {
        let Some(Page {
            inodes: asked,
            more,
        }) = self.next_orphans()
        else {
            return Round::Last;
        };
        let mut open: BTreeSet<InodeId> =
            self.env.sessions.open_among(&asked).into_iter().collect();
        let request = StillOpen {
            inodes: asked.clone(),
        };
        match self.open_elsewhere(nodes, &request).await {
            Some(elsewhere) => open.extend(elsewhere),
            None => return Round::Last,
        }
        let closed = asked.iter().copied().filter(|inode| !open.contains(inode));
        let (striped, others): (Vec<_>, Vec<_>) =
            closed.partition(|inode| self.has_columns(*inode));
        if !striped.is_empty() && !self.drops_columns.swap(true, Ordering::AcqRel) {
            // The owners of columns may not answer: nothing else waits for them.
            let me = self.clone();
            self.env
                .runtime
                .spawn(async move { me.reap_striped(striped).await });
        }
        for inode in others {
            if let Err(elsewhere) = self.reap_one(inode) {
                debug!(container = %self.id, %elsewhere, "reaping ends");
                return Round::Last;
            }
            tokio::task::yield_now().await;
        }
        if more && open.is_empty() {
            Round::AllWent
        } else {
            Round::Last
        }
    }

    /// The next unlinked inodes in the order of their numbers, so that those that stay open keep no others waiting.
    fn next_orphans(&self) -> Option<Page> {
        let mut st = self.state.lock();
        Self::reign(&st, self.env.clock.now()).ok()?;
        let from = st.reaped_through.map_or(Bound::Unbounded, Bound::Excluded);
        let next = st.orphans.range((from, Bound::Unbounded));
        let looked_at: Vec<InodeId> = next.copied().take(ROUND_MAX).collect();
        let more = looked_at.len() == ROUND_MAX;
        st.reaped_through = looked_at.last().copied().filter(|_| more);
        let inodes = self.spare_orphans(&mut st, looked_at);
        (more || !inodes.is_empty()).then_some(Page { inodes, more })
    }

    /// Drops the columns of files that nobody has open, and removes these. What a checkpoint shows of columns, it keeps.
    async fn reap_striped(self: Arc<Self>, files: Vec<InodeId>) {
        for inode in files {
            let drop = crate::router::ask_as_node(&self.env, Op::DropColumns { inode });
            if let Err(errno) = drop.await {
                debug!(container = %self.id, %inode, %errno, "columns are dropped later");
            } else if let Err(elsewhere) = self.reap_one(inode) {
                debug!(container = %self.id, %elsewhere, "reaping ends");
                break;
            }
        }
        self.drops_columns.store(false, Ordering::Release);
    }

    /// Whether a file is a striped one with columns in other containers.
    pub(super) fn has_columns(&self, inode: InodeId) -> bool {
        let attr = self.attr(&self.state.lock(), inode);
        attr.is_ok_and(|attr| attr.layout.has_columns())
    }

    /// Sets those aside that a checkpoint shows, and gives the others.
    fn spare_orphans(&self, st: &mut State, mut inodes: Vec<InodeId>) -> Vec<InodeId> {
        if st.checkpoints.is_empty() {
            return inodes;
        }
        inodes.retain(|&inode| match self.is_spared(st, inode.index()) {
            Ok(false) => true,
            Ok(true) => {
                st.orphans.remove(&inode);
                st.spared.insert(inode);
                false
            }
            Err(failed) => {
                warn!(container = %self.id, %inode, ?failed, "not known whether a checkpoint shows it");
                st.orphans.remove(&inode);
                false
            }
        });
        inodes
    }

    fn reap_one(self: &Arc<Self>, inode: InodeId) -> Result<(), Elsewhere> {
        {
            let mut st = self.state.lock();
            let now = self.env.clock.now();
            Self::reign(&st, now)?;
            if self.is_backed_up(&st) {
                return Err(Elsewhere::NotReady);
            }
            if st.transactions.holds_inode(inode) {
                return Ok(());
            }
            // A checkpoint may have been made since it was looked at.
            if !matches!(self.is_spared(&st, inode.index()), Ok(false)) {
                return Ok(());
            }
            // What was written to a file that is about to go needs no record.
            st.dirty.take(inode);
            let last = st.chain.last().seq;
            st.intents.on_recorded(last, inode);
            if let Ok(outcome) = self.run_own(&st, &Op::Reap { inode }) {
                if outcome
                    .batches
                    .keys()
                    .any(|container| *container != self.id)
                {
                    return Ok(());
                }
                for batch in outcome.batches.into_values() {
                    if let Err(error) = self.carry_out(&mut st, &batch) {
                        warn!(%inode, %error, "object of a removed inode stays");
                    }
                    self.order(&mut st, now, batch, false)?;
                }
            }
            st.orphans.remove(&inode);
        }
        Ok(())
    }
}
