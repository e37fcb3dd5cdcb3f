//! Reading, writing and syncing one inode: a file, or a column of a striped one, wherever its owner is.

use super::asks::ask;
use super::behind;
use super::nearer::Reading;
use super::{CALL, PATIENCE, Router, errno};
use crate::container::{Answer, AsHolder, Container, Content, Failed, WriteRequest};
use crate::heat::Served;
use crate::search::at_owner;
use bytes::Bytes;
use perigee_client::fs::Done;
use perigee_meta::stripe::Cuts;
use perigee_net::begun::spawn_begun;
use perigee_proto::message::file;
use perigee_proto::message::session::CONTENT_MAX;
use perigee_replica::work::Done as What;
use perigee_types::{ByteRange, Errno, InodeId, OpId, SessionId};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

impl Router {
    /// Reads of one inode. `cuts`: it is a part of a striped file, of which the reader knows so many; ESTALE where
    /// there were more.
    pub(super) fn read_part(
        &self,
        session: SessionId,
        inode: InodeId,
        range: ByteRange,
        cuts: Option<Cuts>,
        done: Done<Bytes>,
    ) {
        let id = inode.container();
        let container = self.env.container(id);
        let (offset, len) = (range.start, range.len() as u32);
        let now = self.env.clock.now();
        if container.as_ref().is_none_or(|here| here.owned().is_none())
            && let Some(bytes) = self.env.sessions.read_kept(session, inode, range, now)
        {
            self.note_asked(session, id, What::Read, bytes.len() as u64);
            return done(Ok(bytes));
        }
        let env = self.env.clone();
        let elsewhere = move |done: Done<Bytes>| {
            let heat = env.heats.of(id);
            heat.note(Served::Asked, What::Read, u64::from(len));
            async move {
                let reading = Reading {
                    session,
                    inode,
                    range,
                    cuts,
                };
                let read = match Self::read_nearer(&env, reading).await {
                    Some(read) => read,
                    None => Self::read_elsewhere(&env, session, inode, range, cuts).await,
                };
                if offset == 0 && len <= CONTENT_MAX && read.is_ok() {
                    env.sessions.read_small(session);
                }
                done(read.map_err(errno));
            }
        };
        let runtime = self.env.runtime.clone();
        match container {
            Some(container) if container.owned().is_some() => {
                let asked = container.clone();
                container.read(
                    session,
                    inode,
                    offset,
                    len,
                    false,
                    Box::new(move |result| match result {
                        Ok(read) => match asked.admit_read(inode, range, cuts) {
                            Ok(()) => {
                                let len = read.bytes.len() as u64;
                                asked.heat.note(Served::Here, What::Read, len);
                                done(Ok(read.bytes));
                            }
                            Err(Failed::Errno(errno)) => done(Err(errno)),
                            Err(Failed::Elsewhere(_)) => _ = runtime.spawn(elsewhere(done)),
                        },
                        Err(Failed::Errno(errno)) => done(Err(errno)),
                        Err(Failed::Elsewhere(_)) => _ = runtime.spawn(elsewhere(done)),
                    }),
                );
            }
            Some(container)
                if container.holds_copy()
                    && self
                        .env
                        .sessions
                        .may_read(session, inode, self.env.clock.now()) =>
            {
                let copy = container.read_copy(inode, offset, len);
                // A lease of after a cut is had by who knows of the cut; this copy may have been cut since it was looked at.
                let same = |cuts| {
                    let now = self.env.clock.now();
                    self.env.stripes.cuts_of(session, inode) == Some(cuts)
                        && self.env.sessions.may_read(session, inode, now)
                };
                match copy.filter(|_| cuts.is_none_or(same)) {
                    Some(bytes) => {
                        let len = bytes.len() as u64;
                        container.heat.note(Served::Here, What::Read, len);
                        done(Ok(bytes));
                    }
                    None => spawn_begun(&self.env.runtime, elsewhere(done)),
                }
            }
            // No chunk of a column is ever lent.
            Some(container) if cuts.is_none() => {
                let may = container.may_read_as_holder(session, inode, range);
                let copy = match may {
                    AsHolder::Done(()) => {
                        let copy = container.read_copy(inode, offset, len);
                        copy.inspect(|bytes| {
                            let len = bytes.len() as u64;
                            container.heat.note(Served::Here, What::Read, len);
                        })
                    }
                    AsHolder::Ask => {
                        // This time the owner answers.
                        let runtime = &self.env.runtime;
                        runtime.spawn(async move { container.ask_right(inode, range).await });
                        None
                    }
                    AsHolder::No => None,
                };
                match copy {
                    Some(bytes) => done(Ok(bytes)),
                    None => spawn_begun(&self.env.runtime, elsewhere(done)),
                }
            }
            Some(_) | None => spawn_begun(&self.env.runtime, elsewhere(done)),
        }
    }

    /// Writes to one inode.
    pub(super) fn write_part(&self, write: WriteRequest, data: &[u8], done: Done<ByteRange>) {
        let (session, inode) = (write.session, write.inode);
        let container = self.env.container(inode.container());
        let mut done = done;
        let mut asks_as_holder = None;
        if let Some(container) = container {
            if self.env.behind.concerns(inode)
                && let Some(me) = self.me()
            {
                // This node has become a member, or the owner: what it sent before comes first.
                let data = Bytes::copy_from_slice(data);
                self.env.runtime.spawn(async move {
                    me.env.behind.settle(inode).await;
                    me.write_part(write, &data, done);
                });
                return;
            }
            if container.owned().is_some() {
                let answer: Answer<ByteRange> = Box::new(move |result| done(result.map_err(errno)));
                match container.write(write, Content::Bytes(data), answer) {
                    Ok(()) => {
                        let len = data.len() as u64;
                        return container.heat.note(Served::Here, What::Change, len);
                    }
                    Err(back) => done = Box::new(move |result| back(result.map_err(Failed::Errno))),
                }
            } else if write.cuts.is_none() {
                let wrote = container.write_as_holder(&write, data);
                self.env.sessions.changed(inode);
                match wrote {
                    AsHolder::Done(result) => {
                        let len = data.len() as u64;
                        container.heat.note(Served::Here, What::Change, len);
                        return done(result.map_err(errno));
                    }
                    AsHolder::Ask => asks_as_holder = Some(container),
                    AsHolder::No => {}
                }
            }
        }
        let id = inode.container();
        self.note_asked(session, id, What::Change, data.len() as u64);
        let (op, write) = {
            let mut waiting = self.waiting.lock();
            let op = OpId(self.next.fetch_add(1, Ordering::Relaxed));
            waiting.insert(op);
            let oldest = waiting.first().copied().unwrap_or(op);
            let answered_through = OpId(oldest.0 - 1);
            let write = WriteRequest {
                answered_through,
                ..write
            };
            (op, write)
        };
        let (env, me) = (self.env.clone(), self.me());
        let data = Bytes::copy_from_slice(data);
        self.env.sessions.changed(inode);
        if asks_as_holder.is_none()
            && let Some(range) = behind::may_be(&write, data.len())
        {
            return self.write_behind(op, write, range, data, done);
        }
        spawn_begun(&self.env.runtime, async move {
            env.behind.settle(inode).await;
            let wrote = match asks_as_holder {
                Some(container) => Self::write_with_right(&env, &container, op, write, data).await,
                None => Self::write_elsewhere(&env, op, write, data).await,
            };
            env.sessions.changed(inode);
            if let Some(me) = me {
                me.answered(op);
            }
            done(wrote.map_err(errno));
        });
    }

    /// Makes durable what was acknowledged of one inode.
    pub(super) fn sync_part(&self, inode: InodeId, done: Done<()>) {
        let env = self.env.clone();
        self.env.runtime.spawn(async move {
            env.behind.settle(inode).await;
            if let Some(container) = env.container(inode.container()) {
                let sent = container.send_file(inode);
                if tokio::time::timeout(PATIENCE, sent).await.is_err() {
                    return done(Err(Errno::EIO));
                }
            }
            let here =
                |container: Arc<Container>| async move { container.sync(inode).await.map(Ok) };
            let request = file::Sync { inode };
            let elsewhere = AtomicBool::new(false);
            let there = |node| {
                let (env, request, elsewhere) = (&env, &request, &elsewhere);
                async move {
                    let synced = ask(env, node, request, CALL).await?.result;
                    elsewhere.store(true, Ordering::Relaxed);
                    if let Some(container) = env.container(request.inode.container()) {
                        container.concede();
                    }
                    Ok(synced)
                }
            };
            let mut synced = at_owner(&env, inode.container(), PATIENCE, here, there).await;
            if elsewhere.into_inner()
                && let Some(container) = env.container(inode.container())
                && let Err(failed) = container.take_in_unseen(inode).await
            {
                // What was changed unseen since the ownership went is lost, and nobody could say of what.
                synced = Err(failed);
            }
            done(match synced {
                Ok(result) => result,
                Err(failed) => Err(errno(failed)),
            });
        });
    }
}
