//! Finds the owner of what an operation concerns, here or elsewhere, and asks again when the owner
//! changes: sessions see a pause, not an error.

use crate::container::{
    Answer, AsHolder, Container, Elsewhere, Failed, Request, WriteRequest, changes, data_inode,
};
use crate::env::{AskError, Env};
use crate::heat::Served;
use crate::search::at_owner;
use crate::sessions::Whom;
use bytes::Bytes;
use parking_lot::Mutex;
use perigee_client::Backend;
use perigee_client::backend::{At, Found, MapWriter};
use perigee_client::fs::{Done, Seek, Space};
use perigee_cluster::Directory;
use perigee_meta::{NewNode, Op, Reply, Touched};
use perigee_proto::Rpc;
use perigee_proto::message::file;
use perigee_proto::message::past;
use perigee_proto::message::report::{AskHolders, Holders};
use perigee_proto::message::session::Execute;
use perigee_proto::message::tx::{
    AskDecision, Decided, Keys, Prepare, Prepared, ReadKeys, Resolve,
};
use perigee_replica::work::Done as What;
use perigee_types::{
    ByteRange, CheckpointId, ContainerId, Errno, InodeId, NodeId, OpId, SessionId, Span, WallTime,
};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tracing::warn;

/// How long a session's operation may look for an owner that answers, or says that it is at it.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long the end of a session tries to tell an owner.
const RELEASE: Duration = Duration::from_secs(1);
/// How long one call to an owner may take.
const CALL: Duration = Duration::from_secs(10);

/// How often a name may lead elsewhere while it is looked up.
const LOOKUPS: u32 = 64;

/// What an operation works on first, whose owner runs it: an inode, or a container as a whole.
pub(crate) fn place_of(op: &Op) -> Result<InodeId, ContainerId> {
    match op {
        Op::Lookup { parent, .. }
        | Op::Make { parent, .. }
        | Op::Unlink { parent, .. }
        | Op::Rmdir { parent, .. }
        | Op::Rename { parent, .. }
        | Op::Rehome { parent, .. } => Ok(*parent),
        Op::Link { new_parent, .. } | Op::Undelete { new_parent, .. } => Ok(*new_parent),
        Op::GetAttr { inode }
        | Op::SetAttr { inode, .. }
        | Op::ReadLink { inode }
        | Op::ReadDir { inode, .. }
        | Op::GetXattr { inode, .. }
        | Op::ListXattr { inode }
        | Op::SetXattr { inode, .. }
        | Op::RemoveXattr { inode, .. }
        | Op::Wrote { inode, .. }
        | Op::Allocate { inode, .. }
        | Op::GetLock { inode, .. }
        | Op::SetLock { inode, .. }
        | Op::WithdrawLock { inode, .. }
        | Op::ReleaseLocks { inode, .. }
        | Op::Reap { inode }
        | Op::SetPolicy { inode, .. }
        | Op::GetPolicy { inode } => Ok(*inode),
        Op::ReleaseSession { container, .. }
        | Op::ExpireSession { container, .. }
        | Op::Orphans { container, .. }
        | Op::Trash { container, .. }
        | Op::Purge { container, .. } => Err(*container),
        Op::Snapshots | Op::KeepSnapshot { .. } | Op::ForgetSnapshot { .. } => {
            Err(ContainerId::ROOT)
        }
    }
}

/// Where what would start in a container does so instead, since that is as large as it may be.
fn further(directory: &Directory, id: ContainerId) -> Option<ContainerId> {
    Some(directory.goes_on_in(id)).filter(|newest| *newest != id)
}

/// Where a directory starts that another node makes, and of which it says nothing.
pub(crate) fn place_for_guest(env: &Env, op: &Op) -> Option<ContainerId> {
    match op {
        Op::Make {
            parent,
            node: NewNode::Directory,
            ..
        } => further(&env.directory.read(), parent.container()),
        _ => None,
    }
}

/// Whether an operation reads or changes.
fn what_of(op: &Op) -> What {
    match changes(op) {
        true => What::Change,
        false => What::Read,
    }
}

/// The container whose owner runs an operation.
pub(crate) fn container_of(op: &Op) -> ContainerId {
    match place_of(op) {
        Ok(inode) => inode.container(),
        Err(container) => container,
    }
}

/// The plain answer of a peer, without the bytes beside it.
async fn ask<R: Rpc>(
    env: &Env,
    node: NodeId,
    request: &R,
    deadline: Duration,
) -> Result<R::Reply, AskError> {
    env.ask(node, request, Bytes::new(), deadline)
        .await
        .map(|(reply, _)| reply)
}

/// Runs an operation of this node's own.
pub(crate) async fn ask_as_node(env: &Env, op: Op) -> Result<Reply, Errno> {
    let router = env.router().ok_or(Errno::EIO)?;
    let (sender, receiver) = tokio::sync::oneshot::channel();
    let session = env.sessions.own();
    // The receiver waits below.
    router.execute(session, op, Box::new(move |result| _ = sender.send(result)));
    let answer = receiver.await.unwrap_or(Err(Errno::EIO));
    answer.map(|(reply, _)| reply)
}

/// Reads keys of a container at its owner.
pub(crate) async fn read_keys(env: &Arc<Env>, request: &ReadKeys) -> Result<Keys, Failed> {
    let here = |container: Arc<Container>| async move { container.read_keys(request).await };
    let there = |node| ask(env, node, request, CALL);
    at_owner(env, request.container, CALL, here, there).await
}

/// Has a container's owner prepare its part of a transaction.
pub(crate) async fn prepare(env: &Arc<Env>, request: &Prepare) -> Result<Prepared, Failed> {
    let here = |container: Arc<Container>| async move { container.prepare(&request.intent).await };
    let there = |node| ask(env, node, request, CALL);
    at_owner(env, request.container, CALL, here, there).await
}

/// Has a container's owner end its part of a transaction.
pub(crate) async fn resolve(env: &Arc<Env>, request: &Resolve) -> Result<(), Failed> {
    let here = |container: Arc<Container>| async move {
        container.resolve(request.tx, request.commit).await
    };
    let there = |node| async move { ask(env, node, request, CALL).await.map(|_| ()) };
    at_owner(env, request.container, CALL, here, there).await
}

/// Asks a container's owner who may keep an inode, or has locks on it.
pub(crate) async fn holders(
    env: &Arc<Env>,
    inode: InodeId,
    patience: Duration,
) -> Result<Holders, Failed> {
    let request = AskHolders { inode };
    let here = |container: Arc<Container>| async move {
        container.holders(inode).map(|holders| Holders {
            holders: holders.into_iter().collect(),
        })
    };
    let there = |node| ask(env, node, &request, patience);
    at_owner(env, inode.container(), patience, here, there).await
}

/// Has a container's owner do a step of its part of a snapshot.
pub(crate) async fn part_of_snapshot(
    env: &Arc<Env>,
    request: &past::PartOfSnapshot,
    patience: Duration,
) -> Result<Option<CheckpointId>, Failed> {
    let here = |container: Arc<Container>| async move {
        let done = container.do_part(request.snapshot, request.step).await?;
        Ok(Ok(done))
    };
    let there = |node| async move { Ok(ask(env, node, request, CALL).await?.result) };
    let done = at_owner(env, request.container, patience, here, there).await?;
    done.map_err(Failed::Errno)
}

/// Asks a container's owner what content of its checkpoints takes.
pub(crate) async fn past_use(
    env: &Arc<Env>,
    container: ContainerId,
) -> Result<Vec<past::PastUse>, Failed> {
    let request = past::AskPastUse { container };
    let here = |container: Arc<Container>| async move {
        let uses = env.runtime.spawn_blocking(move || container.past_use());
        uses.await.map_err(|_| Errno::EIO)?.map(Ok)
    };
    let there = |node| {
        let request = &request;
        async move { Ok(ask(env, node, request, CALL).await?.result) }
    };
    let uses = at_owner(env, container, CALL, here, there).await?;
    uses.map_err(Failed::Errno)
}

/// Asks a transaction's coordinator how it ended.
pub(crate) async fn decision(env: &Arc<Env>, request: &AskDecision) -> Result<Decided, Failed> {
    let here = |container: Arc<Container>| async move { container.decision(request.tx).await };
    let there = |node| ask(env, node, request, CALL);
    at_owner(env, request.tx.container, CALL, here, there).await
}

/// A node's [`Backend`].
pub(crate) struct Router {
    env: Arc<Env>,
    next: AtomicU64,
    /// Changes whose answers have not come.
    waiting: Mutex<BTreeSet<OpId>>,
}

impl Router {
    pub(crate) fn new(env: Arc<Env>) -> Arc<Self> {
        Arc::new(Self {
            env,
            next: AtomicU64::new(1),
            waiting: Mutex::default(),
        })
    }

    fn request(&self, session: SessionId, operation: Op) -> Request {
        let new_directory_in = match &operation {
            Op::Make {
                parent,
                node: NewNode::Directory,
                ..
            } => self.home_for(parent.container()),
            _ => None,
        };
        let mut waiting = self.waiting.lock();
        let op = OpId(self.next.fetch_add(1, Ordering::Relaxed));
        if changes(&operation) {
            // Under the same lock: no other operation may say that this one's answer has come.
            waiting.insert(op);
        }
        let oldest = waiting.first().copied().unwrap_or(op);
        let answered_through = OpId(oldest.0.min(op.0) - 1);
        Request {
            session,
            op,
            answered_through,
            new_directory_in,
            operation,
        }
    }

    /// An operation's answer has come, or nobody waits for it any more.
    pub(crate) fn answered(&self, op: OpId) {
        self.waiting.lock().remove(&op);
    }

    /// Where a new directory starts: with its parent when this node owns that or its container belongs
    /// to a directory with a policy, else at home. Where the parent's container is as large as it may be, it goes on at home,
    /// or in another one of its family.
    fn home_for(&self, parent: ContainerId) -> Option<ContainerId> {
        let (further, of_directory) = {
            let directory = self.env.directory.read();
            let me = directory.node(self.env.me);
            // For one that only mounts the owner says where.
            me.filter(|node| node.role.stores())?;
            (
                further(&directory, parent),
                directory.is_of_directory(parent),
            )
        };
        if of_directory {
            return further;
        }
        let mine = |id| {
            self.env
                .container(id)
                .is_some_and(|container| container.owned().is_some())
        };
        let home = *self.env.home.read();
        match home.filter(|home| *home != parent && mine(*home)) {
            Some(home) => (further.is_some() || !mine(parent)).then_some(home),
            None => further,
        }
    }

    /// Runs an operation wherever its owner is, as often as that changes.
    async fn route(env: &Arc<Env>, request: &Request) -> Result<(Reply, Span), Failed> {
        let here = |container: Arc<Container>| async move {
            let (sender, receiver) = tokio::sync::oneshot::channel();
            // The receiver waits below.
            container.execute(
                request.clone(),
                Box::new(move |result| _ = sender.send(result)),
            );
            let (reply, ttl) = receiver.await.unwrap_or(Err(Elsewhere::NotReady.into()))?;
            Ok((Ok(reply), ttl))
        };
        let execute = Execute {
            session: request.session,
            op: request.op,
            answered_through: request.answered_through,
            new_directory_in: request.new_directory_in,
            operation: request.operation.clone(),
        };
        let there = |node| {
            let execute = &execute;
            async move {
                let sent = env.clock.now();
                let answer = ask(env, node, execute, CALL).await?;
                let took = env.clock.now().since(sent);
                Ok((
                    answer.result,
                    Span(answer.ttl_us.saturating_sub(took.as_micros())),
                ))
            }
        };
        let container = container_of(&request.operation);
        let (result, ttl) = at_owner(env, container, PATIENCE, here, there).await?;
        Ok((result?, ttl))
    }

    /// A program of this host is served; the node's own questions are not counted.
    fn note_asked(&self, session: SessionId, id: ContainerId, what: What, bytes: u64) {
        if session != self.env.sessions.own() {
            self.env.heats.of(id).note(Served::Asked, what, bytes);
        }
    }

    fn route_later(&self, request: Request, done: Done<(Reply, Duration)>) {
        let (id, what) = (
            container_of(&request.operation),
            what_of(&request.operation),
        );
        self.note_asked(request.session, id, what, 0);
        let env = self.env.clone();
        let me = self.me();
        self.env.runtime.spawn(async move {
            let result = Self::route(&env, &request).await;
            // Members carry such a change out when they hear that it is committed, which may be after this.
            if let Some(inode) = data_inode(&request.operation) {
                env.sessions.ask_again(request.session, inode);
            }
            if let Some(me) = me {
                me.answered(request.op);
            }
            let mut result = result;
            if let Ok((reply, _)) = &mut result
                && let Some(container) = env.container(container_of(&request.operation))
            {
                container.freshen_held(reply);
            }
            done(plain(result));
        });
    }

    fn me(&self) -> Option<Arc<Self>> {
        self.env.router()
    }

    /// Runs an operation; when a lookup leads into another container, goes on there.
    fn execute_once(&self, session: SessionId, op: Op, done: Done<(Reply, Duration)>) {
        let request = self.request(session, op);
        let container = self.env.container(container_of(&request.operation));
        let Some(container) = container.filter(|container| container.owned().is_some()) else {
            return self.route_later(request, done);
        };
        let again = request.clone();
        let (me, asked) = (self.me(), container.clone());
        container.execute(
            request,
            Box::new(move |result| match (asked.or_elsewhere(result), me) {
                (Err(Failed::Elsewhere(_)), Some(me)) => me.route_later(again, done),
                (result, me) => {
                    if let Some(me) = &me
                        && again.session != me.env.sessions.own()
                    {
                        let what = what_of(&again.operation);
                        asked.heat.note(Served::Here, what, 0);
                    }
                    if let Some(me) = me.filter(|_| changes(&again.operation)) {
                        me.answered(again.op);
                    }
                    done(plain(result));
                }
            }),
        );
    }

    /// Looks a name up, and what it leads to where that is another container's, so many times at most: the name may lead
    /// elsewhere before that is asked about.
    fn look_up(
        &self,
        session: SessionId,
        parent: InodeId,
        name: Vec<u8>,
        times: u32,
        done: Done<(Reply, Duration)>,
    ) {
        let Some(me) = self.me() else {
            return done(Err(Errno::EIO));
        };
        let op = Op::Lookup {
            parent,
            name: name.clone(),
        };
        let found = move |result| {
            let (inode, name_ttl) = match result {
                Ok((Reply::Leads(inode), ttl)) => (inode, ttl),
                result => return done(result),
            };
            let router = me.clone();
            let asked = me.env.clock.now();
            let known = move |result: Result<(Reply, Duration), Errno>| match result {
                Ok((Reply::Attr(attr), ttl)) => {
                    let took = router.env.clock.now().since(asked).as_duration();
                    let ttl = ttl.min(name_ttl.saturating_sub(took));
                    done(Ok((Reply::Entry(attr), ttl)));
                }
                Ok(_) => done(Err(Errno::EPROTO)),
                Err(Errno::ESTALE) if times > 1 => {
                    router.look_up(session, parent, name, times - 1, done);
                }
                Err(errno) => done(Err(errno)),
            };
            me.execute_once(session, Op::GetAttr { inode }, Box::new(known));
        };
        self.execute_once(session, op, Box::new(found));
    }

    async fn read_elsewhere(
        env: &Arc<Env>,
        session: SessionId,
        inode: InodeId,
        offset: u64,
        len: u32,
    ) -> Result<Bytes, Failed> {
        let want_lease = env.container(inode.container()).is_some();
        let request = file::Read {
            session,
            inode,
            offset,
            len,
            want_lease,
        };
        let here = |container: Arc<Container>| async move {
            let (sender, receiver) = tokio::sync::oneshot::channel();
            container.read(
                session,
                inode,
                offset,
                len,
                false,
                Box::new(move |result| _ = sender.send(result)),
            );
            let (bytes, _) = receiver.await.unwrap_or(Err(Elsewhere::NotReady.into()))?;
            Ok(Ok(bytes))
        };
        let there = |node| {
            let request = &request;
            async move {
                let sent = env.clock.now();
                let revision = env.sessions.revision();
                let (answer, payload) = env.ask(node, request, Bytes::new(), CALL).await?;
                if answer.result.is_ok() && answer.read_ttl_us > 0 {
                    let until = sent + Span(answer.read_ttl_us);
                    env.sessions.lease_reads(session, inode, until, revision);
                }
                Ok(answer.result.map(|()| payload))
            }
        };
        let read = at_owner(env, inode.container(), PATIENCE, here, there).await?;
        read.map_err(Failed::Errno)
    }

    async fn write_elsewhere(
        env: &Arc<Env>,
        op: OpId,
        write: WriteRequest,
        data: Bytes,
    ) -> Result<ByteRange, Failed> {
        let write = WriteRequest {
            op: Some(op),
            ..write
        };
        let here = |container: Arc<Container>| {
            let data = data.clone();
            async move { container.write_in_turn(write, data).await.map(Ok) }
        };
        let request = file::Write {
            session: write.session,
            op,
            inode: write.inode,
            at: write.at,
            kill_privileges: write.kill_privileges,
        };
        let there = |node| {
            let (request, data) = (&request, data.clone());
            async move { Ok(env.ask(node, request, data, CALL).await?.0.result) }
        };
        let wrote = at_owner(env, write.inode.container(), PATIENCE, here, there).await?;
        wrote.map_err(Failed::Errno)
    }
}

impl Router {
    /// Writes as a holder, once the owner has given the right to; else the owner does it.
    async fn write_with_right(
        env: &Arc<Env>,
        container: &Arc<Container>,
        op: OpId,
        write: WriteRequest,
        data: Bytes,
    ) -> Result<ByteRange, Failed> {
        if let file::At::Offset(offset) = write.at
            && container
                .ask_right(write.inode, ByteRange::with_len(offset, data.len() as u64))
                .await
        {
            let (here, bytes) = (container.clone(), data.clone());
            let wrote = env
                .runtime
                .spawn_blocking(move || here.write_as_holder(&write, &bytes));
            if let Ok(AsHolder::Done(result)) = wrote.await {
                return result;
            }
        }
        Self::write_elsewhere(env, op, write, data).await
    }
}

/// What a session gets to see.
fn plain(result: Result<(Reply, Span), Failed>) -> Result<(Reply, Duration), Errno> {
    match result {
        Ok((reply, ttl)) => Ok((reply, ttl.as_duration())),
        Err(failed) => Err(errno(failed)),
    }
}

fn errno(failed: Failed) -> Errno {
    match failed {
        Failed::Errno(errno) => errno,
        Failed::Elsewhere(_) => Errno::EIO,
    }
}

impl Backend for Router {
    fn execute(&self, session: SessionId, op: Op, done: Done<(Reply, Duration)>) {
        match op {
            Op::Lookup { parent, name } => self.look_up(session, parent, name, LOOKUPS, done),
            op => self.execute_once(session, op, done),
        }
    }

    fn open(&self, session: SessionId, inode: InodeId, write: bool, done: Done<Found>) {
        let Some(me) = self.me() else {
            return done(Err(Errno::EIO));
        };
        self.execute_once(
            session,
            Op::GetAttr { inode },
            Box::new(move |result| {
                done(match result {
                    Ok((Reply::Attr(attr), _)) => {
                        let container = me.env.container(inode.container());
                        let home = container.as_ref().and_then(|container| container.owned());
                        let local = match container {
                            Some(container) if !write => container.whole_file(&attr),
                            _ => None,
                        };
                        Ok(Found { attr, home, local })
                    }
                    Ok(_) => Err(Errno::EPROTO),
                    Err(errno) => Err(errno),
                });
            }),
        );
    }

    fn read(&self, session: SessionId, inode: InodeId, offset: u64, len: u32, done: Done<Bytes>) {
        let id = inode.container();
        let container = self.env.container(id);
        let env = self.env.clone();
        let elsewhere = move |done: Done<Bytes>| {
            let runtime = env.runtime.clone();
            let heat = env.heats.of(id);
            heat.note(Served::Asked, What::Read, u64::from(len));
            runtime.spawn(async move {
                let read = Self::read_elsewhere(&env, session, inode, offset, len).await;
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
                match container.write_as_holder(&write, data) {
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
        self.env.runtime.spawn(async move {
            let wrote = match asks_as_holder {
                Some(container) => Self::write_with_right(&env, &container, op, write, data).await,
                None => Self::write_elsewhere(&env, op, write, data).await,
            };
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
            let there = |node| {
                let (env, request) = (&env, &request);
                async move {
                    let synced = ask(env, node, request, CALL).await?.result;
                    if let Some(container) = env.container(request.inode.container()) {
                        container.concede();
                    }
                    Ok(synced)
                }
            };
            let synced = at_owner(&env, inode.container(), PATIENCE, here, there).await;
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

/// How long a kernel is waited for that may wait for a write of its own mount.
const WRITING: Duration = Duration::from_millis(3);

/// Makes mounts of this node forget what has changed. Their kernels may wait for reads that only the runtime's threads, and
/// those of the mounts, can answer: none of these waits for them.
///
/// A kernel that has a page locked for a write of its own mount is not waited for either: the write may wait for another
/// kernel, which waits for the change that this one is told of. It has forgotten the attributes, and so asks before it shows
/// a page, and drops the pages when the write has its answer.
pub(crate) async fn revoke(
    env: &Arc<Env>,
    whom: Whom,
    touched: Vec<Touched>,
) -> Result<(), Failed> {
    let touched = Arc::new(touched);
    let (here, changed) = (env.clone(), touched.clone());
    let asks_again = env
        .runtime
        .spawn_blocking(move || here.sessions.revoke_attributes(whom, &changed));
    asks_again.await.map_err(|_| Errno::EIO)?;
    if !touched
        .iter()
        .any(|change| matches!(change, Touched::Data(_) | Touched::Listing(_)))
    {
        return Ok(());
    }
    let (here, changed) = (env.clone(), touched.clone());
    let mut told = env
        .runtime
        .spawn_blocking(move || here.sessions.revoke_pages(whom, &changed));
    loop {
        match tokio::time::timeout(WRITING, &mut told).await {
            Ok(told) => return told.map_err(|_| Errno::EIO.into()),
            Err(_) if env.sessions.is_writing(whom, &touched) => return Ok(()),
            Err(_) => {}
        }
    }
}

/// Ends the locks of a session that is gone, in one container. A container whose owner cannot be
/// asked ends them itself when it notices that the node is gone.
pub(crate) async fn release_session(env: &Arc<Env>, container: ContainerId, session: SessionId) {
    let Some(router) = env.router() else { return };
    let request = router.request(session, Op::ReleaseSession { container, session });
    let released = tokio::time::timeout(RELEASE, Router::route(env, &request)).await;
    router.answered(request.op);
    if !matches!(released, Ok(Ok(_))) {
        warn!(%container, %session, "locks of an ended session not released");
    }
}
