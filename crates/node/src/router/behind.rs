//! Writes whose programs are answered before the owner is ([`crate::behind`]), and what waits for these.

use super::places::only_file_of;
use super::{LOOKUPS, Router, container_of, errno, striped};
use crate::behind::{Asked, Forgets, May, Sent};
use crate::container::{WriteRequest, changes, shown};
use bytes::Bytes;
use perigee_client::fs::Done;
use perigee_meta::{Op, Reply, Touched};
use perigee_proto::message::file::At;
use perigee_replica::Chunk;
use perigee_types::{ByteRange, Errno, InodeId, OpId, SessionId};
use std::sync::Arc;
use std::time::Duration;
use tracing::warn;

/// How often one write has the owner asked for the right to it.
const ASKS: u32 = 2;

/// What a write that may be answered before the owner is goes to.
pub(super) fn may_be(write: &WriteRequest, len: usize) -> Option<ByteRange> {
    match write.at {
        At::Offset(offset) if len > 0 && write.cuts.is_none() => {
            Some(ByteRange::with_len(offset, len as u64))
        }
        At::Offset(_) | At::End => None,
    }
}

impl Router {
    /// A write to `range`: its program is answered at once where that may be.
    pub(super) fn write_behind(
        &self,
        op: OpId,
        write: WriteRequest,
        range: ByteRange,
        data: Bytes,
        done: Done<ByteRange>,
    ) {
        let Some(me) = self.me() else {
            self.answered(op);
            return done(Err(Errno::EIO));
        };
        match me
            .env
            .behind
            .begin(&me.env, write.session, write.inode, range, op)
        {
            May::Send(sent) => {
                me.send(op, write, sent, data);
                done(Ok(range));
            }
            first => {
                let runtime = self.env.runtime.clone();
                runtime.spawn(async move {
                    let wrote = me.write_when_it_may(op, write, range, data, first).await;
                    done(wrote);
                });
            }
        }
    }

    async fn write_when_it_may(
        self: &Arc<Self>,
        op: OpId,
        write: WriteRequest,
        range: ByteRange,
        data: Bytes,
        first: May,
    ) -> Result<ByteRange, Errno> {
        let (env, inode) = (&self.env, write.inode);
        let (mut asks, mut may) = (ASKS, first);
        loop {
            match may {
                May::Send(sent) => {
                    self.send(op, write, sent, data);
                    return Ok(range);
                }
                May::Ask(chunk) if asks > 0 => {
                    asks -= 1;
                    if env.behind.ask_right(env, chunk).await == Asked::Unanswered {
                        break;
                    }
                }
                May::Want(chunk) => env.behind.want(env, write.session, chunk).await,
                May::Wait(seen) => env.behind.more_than(seen).await,
                // Where the right is over before its answer comes, nothing is gained by it.
                May::Ask(_) | May::No => break,
            }
            may = env.behind.begin(env, write.session, inode, range, op);
        }
        env.behind.settle(inode).await;
        let wrote = Self::write_elsewhere(env, op, write, data).await;
        env.sessions.changed(inode);
        self.answered(op);
        wrote.map_err(errno)
    }

    /// Sends a write whose program has its answer.
    fn send(self: &Arc<Self>, op: OpId, write: WriteRequest, sent: Sent, data: Bytes) {
        let (me, session, inode) = (self.clone(), write.session, write.inode);
        let range = may_be(&write, data.len());
        self.env.runtime.spawn(async move {
            let env = &me.env;
            let write = WriteRequest {
                behind: Some(sent.hold),
                ..write
            };
            let wrote = Self::write_elsewhere(env, op, write, data).await;
            env.sessions.changed(inode);
            me.answered(op);
            if let Err(failed) = wrote {
                let errno = errno(failed);
                warn!(%inode, %errno, "a write that its program was answered for has failed");
                env.losses.note_why([inode], errno);
                if env.behind.on_failed(inode, sent) == Forgets::Once {
                    me.forget_pages(inode);
                }
            }
            env.behind.arrived(env, op, sent);
        });
        let to_ask = range.and_then(|range| {
            let chunk = Chunk::around(inode, range)?;
            self.env.behind.to_ask(&self.env, session, chunk, range)
        });
        if let Some(chunk) = to_ask {
            let env = self.env.clone();
            // Without an answer the next write asks.
            self.env
                .runtime
                .spawn(async move { _ = env.behind.ask_right(&env, chunk).await });
        }
    }

    /// Kernels of this host have pages of writes that have failed. A read that waits for more of these keeps one locked: so
    /// one thread sees to each file.
    fn forget_pages(&self, inode: InodeId) {
        let env = self.env.clone();
        self.env.runtime.spawn_blocking(move || {
            loop {
                let gone = [Touched::Attr(inode), Touched::Data(inode)];
                env.sessions.revoke_all(&gone);
                if env.behind.forgot(inode) == Forgets::Once {
                    return;
                }
            }
        });
    }

    /// Nothing that this node's programs have written stands before an operation.
    pub(super) fn execute_settled(
        &self,
        session: SessionId,
        op: Op,
        done: Done<(Reply, Duration)>,
    ) {
        match op {
            Op::Lookup { parent, name } => self.look_up(session, parent, name, LOOKUPS, done),
            op if striped::concerns(&op) => self.execute_beside_stripes(session, op, done),
            op => self.execute_once(session, op, done),
        }
    }

    /// The same while writes are under way: what changes something comes after those to files of the
    /// same container, what shows attributes of a file after
    /// those to it. A kernel passes over the length in an answer that a later write of its own has overtaken.
    pub(super) fn execute_beside_writes(
        self: &Arc<Self>,
        session: SessionId,
        op: Op,
        done: Done<(Reply, Duration)>,
    ) {
        let me = self.clone();
        self.env.runtime.spawn(async move {
            let behind = &me.env.behind;
            match &op {
                Op::GetAttr { inode } => behind.settle(*inode).await,
                op if changes(op) => match only_file_of(op) {
                    Some(inode) => behind.settle(inode).await,
                    None => behind.settle_in(container_of(op)).await,
                },
                _ => return me.execute_shown_settled(session, op, done),
            }
            me.execute_settled(session, op, done);
        });
    }

    /// What shows attributes of files that it does not name: asked for again when what is under way to them has arrived.
    fn execute_shown_settled(
        self: &Arc<Self>,
        session: SessionId,
        op: Op,
        done: Done<(Reply, Duration)>,
    ) {
        let (router, again) = (self.clone(), op.clone());
        let unsettled = self.env.behind.unsettled();
        let shown_settled = move |result: Result<(Reply, Duration), Errno>| {
            let early: Vec<InodeId> = match &result {
                Ok((reply, _)) => {
                    let inodes = shown(reply).map(|attr| attr.inode);
                    inodes.filter(|inode| unsettled.contains(inode)).collect()
                }
                Err(_) => Vec::new(),
            };
            if early.is_empty() {
                return done(result);
            }
            let runtime = router.env.runtime.clone();
            runtime.spawn(async move {
                for inode in early {
                    router.env.behind.settle(inode).await;
                }
                router.execute_settled(session, again, done);
            });
        };
        self.execute_settled(session, op, Box::new(shown_settled));
    }

    /// Reads where nothing that this node's programs have written to the file is under way.
    pub(super) fn read_settled(
        &self,
        session: SessionId,
        inode: InodeId,
        range: ByteRange,
        done: Done<Bytes>,
    ) {
        match self.me().filter(|me| me.is_spread(inode, range)) {
            Some(me) => me.read_striped(session, inode, range, done),
            None => self.read_part(session, inode, range, None, done),
        }
    }
}
