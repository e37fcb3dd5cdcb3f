//! What mounts ask for.

use super::asks::ask;
use super::{CALL, LOOKUPS, PATIENCE, Router, errno};
use crate::container::{Answer, AsHolder, Container, Failed, WriteRequest};
use crate::heat::Served;
use crate::search::at_owner;
use bytes::Bytes;
use perigee_client::Backend;
use perigee_client::backend::{At, Found, Local, MapWriter, Purpose};
use perigee_client::fs::{Done, Seek, Space};
use perigee_meta::lock::kept::Life;
use perigee_meta::{Op, Reply};
use perigee_proto::message::session::CONTENT_MAX;
use perigee_proto::message::{file, past};
use perigee_replica::work::Done as What;
use perigee_types::{
    ByteRange, CheckpointId, ContainerId, Errno, InodeId, OpId, SessionId, WallTime,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

impl Backend for Router {
    fn execute(&self, session: SessionId, op: Op, done: Done<(Reply, Duration)>) {
        match op {
            Op::Lookup { parent, name } => self.look_up(session, parent, name, LOOKUPS, done),
            op => self.execute_once(session, op, done),
        }
    }

    fn open(&self, session: SessionId, inode: InodeId, purpose: Purpose, done: Done<Found>) {
        let Some(me) = self.me() else {
            return done(Err(Errno::EIO));
        };
        self.execute_once(
            session,
            Op::GetAttr { inode },
            Box::new(move |result| {
                let attr = match result {
                    Ok((Reply::Attr(attr), _)) => attr,
                    Ok(_) => return done(Err(Errno::EPROTO)),
                    Err(errno) => return done(Err(errno)),
                };
                let container = me.env.container(inode.container());
                let home = container.as_ref().and_then(|container| container.owned());
                let found = move |local| Ok(Found { attr, home, local });
                let Some(container) = container else {
                    return done(found(Local::None));
                };
                match (purpose, container.whole_file(&attr)) {
                    (_, Err(_)) => done(found(Local::None)),
                    (Purpose::Read, Ok(file)) => done(found(Local::Read(file))),
                    (Purpose::Write, Ok(file)) => done(found(container.beside_maps(inode, file))),
                    (Purpose::WriteAlone, Ok(file)) => {
                        let runtime = &me.env.runtime;
                        runtime.spawn_blocking(move || {
                            done(found(container.local_for_writing(session, &attr, file)));
                        });
                    }
                }
            }),
        );
    }

    fn read(&self, session: SessionId, inode: InodeId, offset: u64, len: u32, done: Done<Bytes>) {
        let id = inode.container();
        let container = self.env.container(id);
        let range = ByteRange::with_len(offset, u64::from(len));
        let now = self.env.clock.now();
        if container.as_ref().is_none_or(|here| here.owned().is_none())
            && let Some(bytes) = self.env.sessions.read_kept(session, inode, range, now)
        {
            self.note_asked(session, id, What::Read, bytes.len() as u64);
            return done(Ok(bytes));
        }
        let env = self.env.clone();
        let elsewhere = move |done: Done<Bytes>| {
            let runtime = env.runtime.clone();
            let heat = env.heats.of(id);
            heat.note(Served::Asked, What::Read, u64::from(len));
            runtime.spawn(async move {
                let read = Self::read_elsewhere(&env, session, inode, offset, len).await;
                if offset == 0 && len <= CONTENT_MAX && read.is_ok() {
                    env.sessions.read_small(session);
                }
                done(read.map_err(errno));
            });
        };
        match container {
            Some(container) if container.owned().is_some() => {
                let heat = container.heat.clone();
                container.read(
                    session,
                    inode,
                    offset,
                    len,
                    false,
                    Box::new(move |result| match result {
                        Ok((bytes, _)) => {
                            heat.note(Served::Here, What::Read, bytes.len() as u64);
                            done(Ok(bytes));
                        }
                        Err(Failed::Errno(errno)) => done(Err(errno)),
                        Err(Failed::Elsewhere(_)) => elsewhere(done),
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
                match container.read_copy(inode, offset, len) {
                    Some(bytes) => {
                        let len = bytes.len() as u64;
                        container.heat.note(Served::Here, What::Read, len);
                        done(Ok(bytes));
                    }
                    None => elsewhere(done),
                }
            }
            Some(container) => {
                let range = ByteRange::with_len(offset, u64::from(len));
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
                    None => elsewhere(done),
                }
            }
            None => elsewhere(done),
        }
    }

    fn write(
        &self,
        session: SessionId,
        inode: InodeId,
        at: At,
        data: &[u8],
        kill_privileges: bool,
        done: Done<ByteRange>,
    ) {
        let at = match at {
            At::Offset(offset) => file::At::Offset(offset),
            At::End => file::At::End,
        };
        let write = WriteRequest {
            session,
            op: None,
            inode,
            at,
            kill_privileges,
        };
        let container = self.env.container(inode.container());
        let mut done = done;
        let mut asks_as_holder = None;
        if let Some(container) = container {
            if container.owned().is_some() {
                let answer: Answer<ByteRange> = Box::new(move |result| done(result.map_err(errno)));
                match container.write(write, data, answer) {
                    Ok(()) => {
                        let len = data.len() as u64;
                        return container.heat.note(Served::Here, What::Change, len);
                    }
                    Err(back) => done = Box::new(move |result| back(result.map_err(Failed::Errno))),
                }
            } else {
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
        let op = {
            let mut waiting = self.waiting.lock();
            let op = OpId(self.next.fetch_add(1, Ordering::Relaxed));
            waiting.insert(op);
            op
        };
        let (env, me) = (self.env.clone(), self.me());
        let data = Bytes::copy_from_slice(data);
        self.env.sessions.changed(inode);
        self.env.runtime.spawn(async move {
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

    fn sync(&self, inode: InodeId, done: Done<()>) {
        let env = self.env.clone();
        self.env.runtime.spawn(async move {
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

    fn losses(&self) -> u64 {
        self.env.losses.count()
    }

    fn lost(&self, inode: InodeId, since: u64) -> Option<u64> {
        self.env.losses.tell(inode, since)
    }

    fn map_writer(
        &self,
        session: SessionId,
        inode: InodeId,
        writer: MapWriter,
    ) -> Result<(), Errno> {
        // It was this node's own file that the kernel was given, so its container is here.
        let container = self.env.container(inode.container()).ok_or(Errno::EIO)?;
        match writer {
            MapWriter::Comes => container.map_writer_comes(session, inode),
            MapWriter::Goes => {
                let runtime = &self.env.runtime;
                runtime.spawn_blocking(move || container.map_writer_goes(inode));
                Ok(())
            }
        }
    }

    fn seek(&self, inode: InodeId, offset: u64, what: Seek, done: Done<u64>) {
        let whence = match what {
            Seek::Data => file::Whence::Data,
            Seek::Hole => file::Whence::Hole,
        };
        let env = self.env.clone();
        self.env.runtime.spawn(async move {
            let here = |container: Arc<Container>| async move {
                container.seek_here(inode, offset, whence).await.map(Ok)
            };
            let request = file::Seek {
                inode,
                offset,
                whence,
            };
            let there = |node| {
                let (env, request) = (&env, &request);
                async move { Ok(ask(env, node, request, CALL).await?.result) }
            };
            let found = at_owner(&env, inode.container(), PATIENCE, here, there).await;
            done(match found {
                Ok(result) => result,
                Err(failed) => Err(errno(failed)),
            });
        });
    }

    fn query_past(
        &self,
        container: ContainerId,
        checkpoint: CheckpointId,
        op: Op,
        done: Done<Reply>,
    ) {
        let env = self.env.clone();
        self.env.runtime.spawn(async move {
            let request = past::Query {
                container,
                checkpoint,
                operation: op,
            };
            let asked = &request;
            let here = |container: Arc<Container>| async move {
                let reply = container.query_past(checkpoint, &asked.operation)?;
                Ok(Ok(reply))
            };
            let there = |node| {
                let env = &env;
                async move { Ok(ask(env, node, asked, CALL).await?.result) }
            };
            let reply = at_owner(&env, container, PATIENCE, here, there).await;
            done(reply.map_err(errno).flatten());
        });
    }

    fn read_past(
        &self,
        inode: InodeId,
        checkpoint: CheckpointId,
        offset: u64,
        len: u32,
        done: Done<Bytes>,
    ) {
        let env = self.env.clone();
        self.env.runtime.spawn(async move {
            let here = |container: Arc<Container>| async move {
                let bytes = container.read_past(inode, checkpoint, offset, len).await?;
                Ok(Ok(bytes))
            };
            let request = past::ReadPast {
                inode,
                checkpoint,
                offset,
                len,
            };
            let there = |node| {
                let (env, request) = (&env, &request);
                async move {
                    let (answer, payload) = env.ask(node, request, Bytes::new(), CALL).await?;
                    Ok(answer.result.map(|()| payload))
                }
            };
            let read = at_owner(&env, inode.container(), PATIENCE, here, there).await;
            done(read.map_err(errno).flatten());
        });
    }

    fn life(&self) -> Life {
        self.env.life.at(self.env.clock.now())
    }

    fn space(&self, done: Done<Space>) {
        done(match self.env.store.space() {
            Ok(space) => {
                let here = crate::room::of_this_node(&self.env, &space);
                // A file needs room on every disk that keeps it.
                let least = self.env.rooms.least();
                Ok(match least.filter(|room| room.left() < here.left()) {
                    Some(elsewhere) => crate::env::statfs(&elsewhere, 0),
                    None => crate::env::statfs(&here, space.reserved),
                })
            }
            Err(error) => Err(error.errno()),
        });
    }

    fn after(&self, delay: Duration, then: Box<dyn FnOnce() + Send>) {
        self.env.runtime.spawn(async move {
            tokio::time::sleep(delay).await;
            then();
        });
    }

    fn now(&self) -> WallTime {
        self.env.clock.wall()
    }
}
