//! Finds the owner of what an operation concerns, here or elsewhere, and asks again when the owner
//! changes: sessions see a pause, not an error.
//!
//! `places` knows what an operation concerns, `backend` is what mounts ask, and `asks` what the node itself wants of owners;
//! `parts` reads and writes one inode, `behind` answers programs before owners do, and `striped` the files that have several.

mod asks;
mod backend;
mod behind;
mod nearer;
mod parts;
mod places;
mod striped;
mod way;

pub(crate) use asks::{
    ask_as_node, decision, holders, part_of_snapshot, past_use, prepare, read_keys,
    release_session, resolve,
};
pub(crate) use places::{container_of, place_for_guest, place_of};

use crate::container::{
    AsHolder, Container, Elsewhere, Failed, Kept, Repeatable, Request, Word, WriteRequest, changes,
};
use crate::env::Env;
use crate::heat::Served;
use crate::search::at_owner;
use bytes::Bytes;
use parking_lot::Mutex;
use perigee_client::fs::Done;
use perigee_meta::stripe::Cuts;
use perigee_meta::{Attr, Comes, NewNode, Op, Reply};
use perigee_net::begun::spawn_begun;
use perigee_proto::message::file::{self, HeldChunk};
use perigee_proto::message::session::Execute;
use perigee_replica::work::Done as What;
use perigee_types::{ByteRange, ContainerId, Errno, InodeId, OpId, SessionId, Span};
use places::{further, what_of};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// How long a session's operation may look for an owner that answers, or says that it is at it.
const PATIENCE: Duration = Duration::from_secs(30);
/// The same for a write whose program has its answer: the host with the only copy may start anew meanwhile.
const PATIENCE_BEHIND: Duration = Duration::from_secs(120);
/// How long one call to an owner may take.
const CALL: Duration = Duration::from_secs(10);

/// How often a name may lead elsewhere while it is looked up.
const LOOKUPS: u32 = 64;

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
            names_max: 0,
            operation,
            comes: Comes::Home,
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
        let elsewhere = &AtomicBool::new(false);
        let here = |container: Arc<Container>| async move {
            let (sender, receiver) = tokio::sync::oneshot::channel();
            let request = Request {
                comes: comes(elsewhere),
                ..request.clone()
            };
            let named = changes(&request.operation).then_some(Repeatable {
                session: request.session,
                op: request.op,
                answered_through: request.answered_through,
                comes: request.comes,
            });
            // The receiver waits below.
            container.execute(request, Box::new(move |result| _ = sender.send(result)));
            let told = receiver.await.unwrap_or(Err(Elsewhere::NotReady.into()));
            let answered = env.clock.now();
            let word = match &told {
                Ok(told) => Some(Word::Done(&told.reply)),
                Err(Failed::Errno(errno)) => Some(Word::Refused(*errno)),
                Err(Failed::Elsewhere(_)) => None,
            };
            if let (Some(named), Some(word)) = (named, word) {
                container.told_for_good(named, word).await?;
            }
            let told = told?;
            let waited = env.clock.now().since(answered).as_micros();
            let ttl = Span(told.ttl.as_micros().saturating_sub(waited));
            Ok((Ok(told.reply), ttl))
        };
        let execute = Execute {
            session: request.session,
            op: request.op,
            answered_through: request.answered_through,
            new_directory_in: request.new_directory_in,
            content_max: env
                .sessions
                .content_wanted(request.session, &request.operation),
            names_max: env.sessions.names_wanted(
                request.session,
                &request.operation,
                env.clock.now(),
            ),
            operation: request.operation.clone(),
        };
        env.sessions.asks_names(request.session, &request.operation);
        let there = |node| {
            let execute = &execute;
            elsewhere.store(true, Ordering::Relaxed);
            async move {
                let asked = env.sessions.asks();
                let sent = env.clock.now();
                let (answer, content) = env.ask(node, execute, Bytes::new(), CALL).await?;
                let (session, op) = (execute.session, &execute.operation);
                let now = env.clock.now();
                env.sessions
                    .told(session, op, (asked, sent, now), &answer, content);
                let took = now.since(sent);
                Ok((
                    answer.result,
                    Span(answer.ttl_us.saturating_sub(took.as_micros())),
                ))
            }
        };
        let container = container_of(&request.operation);
        let ran = at_owner(env, container, PATIENCE, here, there).await;
        let ran = ran.and_then(|(result, ttl)| Ok((result?, ttl)));
        if !matches!(ran, Err(Failed::Errno(Errno::EIO) | Failed::Elsewhere(_))) {
            // Else it may be done later.
            env.sessions
                .names_settled(request.session, &request.operation);
        }
        ran
    }

    /// What a session's host keeps of an inode that another host owns.
    fn kept_attr(&self, session: SessionId, inode: InodeId) -> Option<(Attr, Span)> {
        self.env
            .sessions
            .kept_attr(session, inode, self.env.clock.now())
    }

    /// What this host can answer by what it keeps of other owners' inodes.
    fn near_answer(&self, session: SessionId, op: &Op) -> Option<Result<(Reply, Duration), Errno>> {
        match op {
            Op::GetAttr { inode } => {
                let (attr, left) = self.kept_attr(session, *inode)?;
                let mut reply = Reply::Attr(attr);
                if let Some(container) = self.env.container(inode.container()) {
                    container.freshen_held(&mut reply);
                    // What this host holds may have become the owner's word meanwhile: then that is to be asked for.
                    let (again, _) = self.kept_attr(session, *inode)?;
                    if again != attr {
                        return None;
                    }
                }
                Some(Ok((reply, left.as_duration())))
            }
            Op::Lookup { parent, name } => {
                let now = self.env.clock.now();
                let left = self.env.sessions.absent(session, *parent, name, now)?;
                Some(Ok((Reply::Absent, left.as_duration())))
            }
            Op::GetXattr { inode, name } => {
                let now = self.env.clock.now();
                let lacks = self.env.sessions.lacks(session, *inode, name, now);
                lacks.then_some(Err(Errno::ENODATA))
            }
            _ => None,
        }
    }

    /// A program of this host is served; the node's own questions are not counted.
    fn note_asked(&self, session: SessionId, id: ContainerId, what: What, bytes: u64) {
        if session != self.env.sessions.own() {
            self.env.heats.of(id).note(Served::Asked, what, bytes);
        }
    }

    /// The same as [`Self::execute_once`], for what [`striped::concerns`].
    fn execute_beside_stripes(&self, session: SessionId, op: Op, done: Done<(Reply, Duration)>) {
        let Some(me) = self.me() else {
            return done(Err(Errno::EIO));
        };
        if striped::makes_file(&op) {
            let made = move |result: Result<(Reply, Duration), Errno>| {
                if let Ok((Reply::Created { attr, .. }, _)) = &result {
                    me.note_opened(attr);
                }
                done(result);
            };
            return self.execute_once(session, op, Box::new(made));
        }
        match striped::set_like_a_write(&op) {
            Some(inode) if me.env.stripes.is_unclaimed(inode) => {
                me.set_after_writes(session, (inode, op), done);
            }
            Some(_) => me.execute_once(session, op, done),
            None => me.change_striped(session, op, done),
        }
    }

    /// From where nothing is held that the owner, if it is this node after all, may want.
    fn route_now(&self, request: Request, done: Done<(Reply, Duration)>) {
        spawn_begun(&self.env.runtime, self.routing(request, done));
    }

    fn route_later(&self, request: Request, done: Done<(Reply, Duration)>) {
        self.env.runtime.spawn(self.routing(request, done));
    }

    /// Asks the owner, wherever it is.
    fn routing(
        &self,
        request: Request,
        done: Done<(Reply, Duration)>,
    ) -> impl Future<Output = ()> + Send + 'static {
        let (id, what) = (
            container_of(&request.operation),
            what_of(&request.operation),
        );
        self.note_asked(request.session, id, what, 0);
        let env = self.env.clone();
        let me = self.me();
        if let Some(inode) = request.operation.data_inode() {
            // Other programs here may see it before it is answered.
            env.sessions.ask_again(request.session, inode);
        }
        async move {
            let result = Self::route(&env, &request).await;
            if result.is_err() {
                env.sessions
                    .told_nothing(request.session, &request.operation);
            }
            // Members carry such a change out when they hear that it is committed, which may be after this.
            if let Some(inode) = request.operation.data_inode() {
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
        }
    }

    fn me(&self) -> Option<Arc<Self>> {
        self.env.router()
    }

    /// Runs an operation; when a lookup leads into another container, goes on there.
    fn execute_once(&self, session: SessionId, op: Op, done: Done<(Reply, Duration)>) {
        let request = self.request(session, op);
        let container = self.env.container(container_of(&request.operation));
        let Some(container) = container.filter(|container| container.owned().is_some()) else {
            if let Some(answer) = self.near_answer(session, &request.operation) {
                return done(answer);
            }
            return self.route_with_way(request, done);
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
                    done(plain(result.map(|told| (told.reply, told.ttl))));
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
        let here = self.env.container(parent.container());
        let known = match here.is_some_and(|container| container.owned().is_some()) {
            true => None,
            false => {
                let now = self.env.clock.now();
                self.env.sessions.leads(session, parent, &name, now)
            }
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
                    router.env.sessions.leads_elsewhere(session, parent);
                    router.look_up(session, parent, name, times - 1, done);
                }
                Err(errno) => done(Err(errno)),
            };
            me.execute_once(session, Op::GetAttr { inode }, Box::new(known));
        };
        match known {
            Some((inode, left)) => found(Ok((Reply::Leads(inode), left.as_duration()))),
            None => self.execute_once(session, op, Box::new(found)),
        }
    }

    async fn read_elsewhere(
        env: &Arc<Env>,
        session: SessionId,
        inode: InodeId,
        range: ByteRange,
        cuts: Option<Cuts>,
    ) -> Result<Bytes, Failed> {
        let (offset, len) = (range.start, range.len() as u32);
        let request = file::Read {
            session,
            inode,
            offset,
            len,
            want_lease: true,
            cuts,
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
            let read = receiver.await.unwrap_or(Err(Elsewhere::NotReady.into()))?;
            container.admit_read(inode, range, cuts)?;
            Ok(Ok(read.bytes))
        };
        let there = |node| {
            let request = &request;
            async move {
                let sent = env.clock.now();
                let asked = env.sessions.asked_to_read(inode);
                let (answer, payload) = env.ask(node, request, Bytes::new(), CALL).await?;
                if answer.result.is_ok() && answer.read_ttl_us > 0 {
                    let until = sent + Span(answer.read_ttl_us);
                    let reads = (session, inode, answer.copy);
                    let term = (env.clock.now(), until);
                    env.sessions.lease_reads(reads, term, asked);
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
        let elsewhere = AtomicBool::new(false);
        let here = |container: Arc<Container>| {
            let data = data.clone();
            let write = WriteRequest {
                comes: comes(&elsewhere),
                ..write
            };
            if write.behind.is_some() {
                env.behind.on_sent(op, env.me);
            }
            async move {
                let named = Repeatable {
                    session: write.session,
                    op,
                    answered_through: write.answered_through,
                    comes: write.comes,
                };
                let wrote = container.write_in_turn(write, Kept::Bytes(data)).await;
                // One that was done has a record.
                if let Err(Failed::Errno(errno)) = &wrote {
                    let word = Word::NotWritten(*errno);
                    container.told_for_good(named, word).await?;
                }
                wrote.map(Ok)
            }
        };
        let request = file::Write {
            session: write.session,
            op,
            answered_through: write.answered_through,
            inode: write.inode,
            at: write.at,
            kill_privileges: write.kill_privileges,
            cuts: write.cuts,
            behind: write.behind,
        };
        let there = |node| {
            let (request, data) = (&request, data.clone());
            elsewhere.store(true, Ordering::Relaxed);
            async move {
                if write.behind.is_some() {
                    env.behind.on_sent(op, node);
                }
                let written = env.ask(node, request, data, CALL).await?.0;
                if let Some(HeldChunk { chunk, hold }) = written.row {
                    env.behind.on_row(env, chunk, hold);
                }
                Ok(written.result)
            }
        };
        let patience = match write.behind {
            Some(_) => PATIENCE_BEHIND,
            None => PATIENCE,
        };
        let wrote = at_owner(env, write.inode.container(), patience, here, there).await?;
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

/// How something comes to this node, if it owns, of whose programs it is.
fn comes(elsewhere: &AtomicBool) -> Comes {
    match elsewhere.load(Ordering::Relaxed) {
        true => Comes::HomeAgain,
        false => Comes::Home,
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
