//! What mounts ask for.

use super::asks::ask;
use super::striped::seek_part;
use super::{CALL, PATIENCE, Router, errno};
use crate::container::{Container, WriteRequest};
use crate::search::at_owner;
use bytes::Bytes;
use perigee_client::Backend;
use perigee_client::backend::{At, Found, Hears, Local, Loss, MapWriter, Purpose};
use perigee_client::fs::{Done, Seek, Space};
use perigee_meta::lock::kept::Life;
use perigee_meta::{Comes, Op, Reply};
use perigee_proto::message::past;
use perigee_types::{
    ByteRange, CheckpointId, ContainerId, Errno, InodeId, OpId, SessionId, WallTime,
};
use std::sync::Arc;
use std::time::Duration;

impl Backend for Router {
    fn execute(&self, session: SessionId, op: Op, done: Done<(Reply, Duration)>) {
        let beside = match &op {
            Op::GetAttr { inode } => self.env.behind.concerns(*inode),
            _ => !self.env.behind.is_idle(),
        };
        match self.me().filter(|_| beside) {
            Some(me) => me.execute_beside_writes(session, op, done),
            None => self.execute_settled(session, op, done),
        }
    }

    fn open(&self, session: SessionId, inode: InodeId, purpose: Purpose, done: Done<Found>) {
        let Some(me) = self.me() else {
            return done(Err(Errno::EIO));
        };
        self.execute(
            session,
            Op::GetAttr { inode },
            Box::new(move |result| {
                let attr = match result {
                    Ok((Reply::Attr(attr), _)) => attr,
                    Ok(_) => return done(Err(Errno::EPROTO)),
                    Err(errno) => return done(Err(errno)),
                };
                if attr.layout.striping().is_some() {
                    me.note_opened(&attr);
                    let (home, local) = (None, Local::None);
                    return done(Ok(Found { attr, home, local }));
                }
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
        let range = ByteRange::with_len(offset, u64::from(len));
        let Some(me) = self.me() else {
            return done(Err(Errno::EIO));
        };
        if me.env.behind.concerns(inode) {
            self.env.runtime.spawn(async move {
                me.env.behind.settle(inode).await;
                me.read_settled(session, inode, range, done);
            });
            return;
        }
        me.read_settled(session, inode, range, done);
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
        let reach = self.reach(session, inode, at, data.len() as u64);
        if let Some(me) = self.me().filter(|me| me.is_spread(inode, reach)) {
            let data = Bytes::copy_from_slice(data);
            return me.write_striped(session, (inode, at), data, kill_privileges, done);
        }
        let write = WriteRequest {
            session,
            op: None,
            answered_through: OpId::default(),
            inode,
            at,
            kill_privileges,
            cuts: None,
            behind: None,
            comes: Comes::Home,
        };
        let Some(me) = self.me().filter(|me| me.env.stripes.has(inode)) else {
            return self.write_part(write, data, done);
        };
        let bytes = Bytes::copy_from_slice(data);
        let or_spread = move |wrote| match wrote {
            // Beyond the end of a cut that is not done, which is to come to its end first; or past the first chunk.
            Err(Errno::EAGAIN | Errno::ESTALE) => {
                me.write_striped(session, (inode, at), bytes, kill_privileges, done)
            }
            wrote => done(wrote),
        };
        self.write_part(write, data, Box::new(or_spread));
    }

    fn hand_over(&self, inode: InodeId, done: Done<()>) {
        if !self.env.behind.concerns(inode) {
            return done(Ok(()));
        }
        let env = self.env.clone();
        self.env.runtime.spawn(async move {
            env.behind.hand_over(inode).await;
            done(Ok(()));
        });
    }

    fn sync(&self, inode: InodeId, done: Done<()>) {
        match self.me().filter(|me| me.env.stripes.has(inode)) {
            Some(me) => me.sync_striped(inode, done),
            None => self.sync_part(inode, done),
        }
    }

    fn losses(&self) -> u64 {
        self.env.losses.count()
    }

    fn lost(&self, inode: InodeId, since: u64, hears: Hears) -> Option<Loss> {
        let all = self.env.stripes.all_of(inode).into_iter();
        let told = all.filter_map(|part| self.env.losses.tell(part, since, hears));
        let last = told.max_by_key(|told| told.count)?;
        Some(Loss {
            count: last.count,
            errno: last.errno,
        })
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
        let (env, me) = (self.env.clone(), self.me());
        self.env.runtime.spawn(async move {
            env.behind.settle(inode).await;
            let striped = me.filter(|me| me.env.stripes.has(inode));
            done(match striped {
                Some(me) => me.seek_striped(inode, offset, what).await,
                None => seek_part(&env, inode, offset, what).await,
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
