//! Chunks that the owner takes back as a duty, not because somebody waits for them.

use super::super::{Container, Failed, State};
use super::call::Heard;
use perigee_replica::chunk::{Access, Manner, Need, Report};
use perigee_replica::{Chunk, Hold};
use perigee_types::{NodeId, SessionId, Span};
use std::collections::BTreeSet;
use std::sync::Arc;
use tracing::debug;

/// For so long after its right is over a host that writes behind is not asked whether it goes on: its row goes.
const IDLE: Span = Span::from_millis(10_000);
/// For so long after that a host that does not answer may send what its programs were answered for.
const GONE: Span = Span::from_millis(180_000);
/// Rows that go in one turn.
const IDLE_TOGETHER: usize = 64;

impl Container {
    /// Takes chunks back as a duty, not because somebody waits for them.
    pub(super) fn take_back_later(self: &Arc<Self>, chunks: Vec<Chunk>) {
        if chunks.is_empty() {
            return;
        }
        let me = self.clone();
        self.env.runtime.spawn(async move {
            for chunk in chunks {
                let back = me.pass_holders(chunk.inode, chunk.range(), Access::Change, Vec::new());
                if let Err(failed) = back.await {
                    debug!(container = %me.id, ?failed, "held chunk not taken back");
                }
            }
        });
    }

    /// Takes back chunks that nobody wants, some in one turn, and those after them in the next.
    fn tidy_later(self: &Arc<Self>, st: &mut State) {
        if st.away.tidying {
            return;
        }
        let now = self.env.clock.now();
        let after = st.away.tidied;
        let idle = st.away.holds.idle(now, IDLE);
        let idle = idle.filter(|(chunk, _)| after.is_none_or(|after| *chunk > after));
        let idle: Vec<(Chunk, Hold)> = idle.take(IDLE_TOGETHER).collect();
        st.away.tidied = idle.last().map(|(chunk, _)| *chunk);
        if idle.is_empty() {
            return;
        }
        st.away.tidying = true;
        let me = self.clone();
        self.env.runtime.spawn(async move {
            let mut silent = BTreeSet::new();
            for (chunk, hold) in idle {
                if silent.contains(&hold.holder) {
                    continue;
                }
                match me.tidy(chunk).await {
                    Ok(Heard::Nothing) => _ = silent.insert(hold.holder),
                    Ok(Heard::Working | Heard::Report(_)) => {}
                    Err(failed) => {
                        debug!(container = %me.id, ?failed, "idle chunk not taken back");
                    }
                }
            }
            me.state.lock().away.tidying = false;
        });
    }

    /// A mount has ended: what it wrote behind is nobody's any more.
    pub(in super::super) fn take_back_of(self: &Arc<Self>, st: &State, session: SessionId) {
        let its = |hold: &Hold| hold.holder == session && hold.manner == Manner::WriteBehind;
        let rows = st.away.holds.iter().filter(|(_, hold)| its(hold));
        self.take_back_later(rows.map(|(chunk, _)| chunk).collect());
    }

    /// Takes back a chunk that nobody wants. A holder that does not answer keeps it for long: what it has answered its programs
    /// for may be on its way.
    async fn tidy(self: &Arc<Self>, chunk: Chunk) -> Result<Heard, Failed> {
        let need = {
            let mut st = self.state.lock();
            let range = chunk.range();
            let access = Access::Change;
            st.away.holds.need(chunk.inode, range, access, &[])
        };
        let mut heard = Heard::Report(Report::Stopped);
        if let Need::Call(call) = need {
            heard = self.ask_holder(call, self.env.next_call()).await;
            if let Heard::Report(report) = heard {
                let mut st = self.state.lock();
                st.away.holds.on_report(call.chunk, call.hold, report);
            }
        }
        let gone = heard == Heard::Nothing && {
            let (st, now) = (self.state.lock(), self.env.clock.now());
            st.away.holds.idle(now, GONE).any(|(at, _)| at == chunk)
        };
        if gone {
            // Nothing of it is waited for, and its other rows are looked at, too.
            heard = Heard::Report(Report::Stopped);
        }
        if need != Need::Nothing && heard == Heard::Report(Report::Stopped) {
            self.take_chunk_back(chunk).await?;
        }
        Ok(heard)
    }

    /// Takes back what belongs to nodes that are no members, and what belongs to `leaving`. Says whether that has any.
    pub(in super::super) fn look_after_rows(
        self: &Arc<Self>,
        st: &mut State,
        leaving: Option<NodeId>,
    ) -> bool {
        if st.away.holds.is_empty() {
            return false;
        }
        let listed = st.chain.view().map(|view| view.chain.clone());
        let listed = listed.unwrap_or_default();
        let (mut back, mut waits) = (Vec::new(), false);
        for (chunk, hold) in st.away.holds.iter() {
            let node = hold.holder.node();
            waits |= Some(node) == leaving;
            // What this node held before it owned is nobody's any more.
            let own = node == self.env.me;
            let nobodys = match hold.manner {
                Manner::InPlace => !listed.contains(&node),
                Manner::WriteBehind => self.has_left(node),
            };
            if own || Some(node) == leaving || nobodys {
                back.push((chunk, node));
            }
        }
        for (_, node) in &back {
            st.away.holds.recall_of(*node);
        }
        st.away.silent.retain(self.env.clock.now());
        self.tidy_later(st);
        self.take_back_later(back.into_iter().map(|(chunk, _)| chunk).collect());
        waits
    }
}
