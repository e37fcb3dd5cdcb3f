//! Inodes that have lost their last name: removed when nobody has them open any more.

use super::view::{Foreign, owner_view};
use super::{Container, Elsewhere, State};
use bytes::Bytes;
use perigee_meta::{Context, Key, Op, Reply};
use perigee_proto::message::session::StillOpen;
use perigee_types::{Batch, InodeId, NodeId};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tracing::{debug, warn};

/// The most unlinked inodes that one round asks about.
const ROUND_MAX: usize = 1_000;

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
        let alone = local && st.foreign.is_empty() && st.transactions.is_idle();
        if !alone || !self.env.sessions.open_among(&[inode]).is_empty() {
            return;
        }
        let context = Context::new(self.env.clock.wall(), None);
        let mut overlay = perigee_meta::Overlay::default();
        let mut foreign = Foreign::default();
        let below = owner_view(self.id, &st.overlay, &self.env.store, &mut foreign);
        overlay.apply(perigee_types::Seq(1), batch);
        let mut view = super::view::Stacked {
            id: self.id,
            over: &overlay,
            below,
        };
        match perigee_meta::execute(&Op::Reap { inode }, &context, &mut view) {
            Ok(outcome) => {
                for (_, more) in outcome.batches {
                    batch.follow_with(more);
                    // It was none before this record, and is none after it.
                    let orphan = Key::Orphan(inode.index()).encode();
                    batch.mutations.retain(|mutation| mutation.key != orphan);
                }
            }
            Err(refusal) => {
                debug!(container = %self.id, %inode, %refusal, "left for the reaper");
            }
        }
    }

    /// Finds what an earlier owner left to reap.
    pub(super) fn find_orphans(self: &Arc<Self>) {
        let mut st = self.state.lock();
        if Self::reign(&st, self.env.clock.now()).is_err() {
            return;
        }
        let op = Op::Orphans {
            container: self.id,
            limit: ROUND_MAX,
        };
        match self.run_own(&st, &op).map(|outcome| outcome.reply) {
            Ok(Reply::Inodes(inodes)) => st.orphans.extend(inodes),
            Ok(_) => {}
            Err(errno) => warn!(container = %self.id, %errno, "orphans not found"),
        }
    }

    /// Asks every node which unlinked inodes its mounts still have open, and removes the others.
    pub(crate) async fn reap(self: &Arc<Self>, nodes: &[NodeId]) {
        let asked: Vec<InodeId> = {
            let mut st = self.state.lock();
            if Self::reign(&st, self.env.clock.now()).is_err() {
                return;
            }
            self.spare_orphans(&mut st);
            st.orphans.iter().copied().take(ROUND_MAX).collect()
        };
        if asked.is_empty() {
            return;
        }
        let mut open: BTreeSet<InodeId> =
            self.env.sessions.open_among(&asked).into_iter().collect();
        for node in nodes.iter().filter(|node| **node != self.env.me) {
            let request = StillOpen {
                inodes: asked.clone(),
            };
            let ask = self
                .env
                .ask(*node, &request, Bytes::new(), Duration::from_secs(2));
            match ask.await {
                Ok((answer, _)) => open.extend(answer.inodes),
                Err(error) => {
                    // It may have any of them open; it answers next time, or it is declared dead.
                    debug!(container = %self.id, %node, %error, "reaping waits for a node");
                    return;
                }
            }
        }
        let closed = asked.into_iter().filter(|inode| !open.contains(inode));
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
                return;
            }
            tokio::task::yield_now().await;
        }
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

    /// Sets those aside that a checkpoint shows.
    fn spare_orphans(&self, st: &mut State) {
        if st.checkpoints.is_empty() {
            return;
        }
        let looked_at: Vec<InodeId> = st.orphans.iter().copied().take(ROUND_MAX).collect();
        for inode in looked_at {
            match self.is_spared(st, inode.index()) {
                Ok(false) => {}
                Ok(true) => {
                    st.orphans.remove(&inode);
                    st.spared.insert(inode);
                }
                Err(failed) => {
                    warn!(container = %self.id, %inode, ?failed, "not known whether a checkpoint shows it");
                    st.orphans.remove(&inode);
                }
            }
        }
    }

    fn reap_one(self: &Arc<Self>, inode: InodeId) -> Result<(), Elsewhere> {
        {
            let mut st = self.state.lock();
            let now = self.env.clock.now();
            Self::reign(&st, now)?;
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
                    self.order(&mut st, now, &batch, false)?;
                }
            }
            st.orphans.remove(&inode);
        }
        Ok(())
    }
}
