//! What other nodes may call here: decoding, authority, and handing over to the right container.

use crate::authority::{self, Denied};
use crate::container::{
    Answer, Container, Elsewhere, Failed, Kept, Request, Told, WriteRequest, is_well_formed,
};
use crate::env::Env;
use crate::sessions::Whom;
use bytes::Bytes;
use perigee_meta::{Comes, Kind, Reply};
use perigee_net::{AUDIT, Answer as NetAnswer, Call, PeerName, Refusal, Refusals, Service};
use perigee_proto::message::session::{CONTENT_MAX, NAMES_MAX};
use perigee_proto::message::{chain, data, file, hold, past, report, session, tx};
use perigee_proto::{Code, Rpc, decode, encode};
use perigee_replica::Input;
use perigee_replica::chunk::Manner;
use perigee_types::limits::IO_LEN_MAX;
use perigee_types::{ByteRange, ContainerId, Errno, NodeId, SessionId, Span, Version};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};
use tracing::{debug, info, warn};

type BoxFuture<T> = std::pin::Pin<Box<dyn Future<Output = T> + Send>>;

/// The node's side of the wire.
#[derive(Default)]
pub(crate) struct NodeService {
    env: OnceLock<Weak<Env>>,
    /// Bounds the lines about calls that are refused.
    refusals: Arc<Refusals>,
}

/// Why a call is refused, with words for the caller's log.
struct Refused(Code, String);

impl From<Failed> for Refused {
    fn from(failed: Failed) -> Self {
        match failed {
            Failed::Elsewhere(Elsewhere::NotOwner) => Self(Code::NotOwner, String::new()),
            Failed::Elsewhere(Elsewhere::NotReady) => Self(Code::NotReady, String::new()),
            Failed::Errno(errno) => Self(Code::Failed, errno.to_string()),
        }
    }
}

impl From<Denied> for Refused {
    fn from(denied: Denied) -> Self {
        Self(denied.code(), denied.to_string())
    }
}

impl From<perigee_proto::service::Malformed> for Refused {
    fn from(malformed: perigee_proto::service::Malformed) -> Self {
        Self(Code::Malformed, malformed.to_string())
    }
}

type Handled = Result<(Bytes, Bytes), Refused>;

fn reply<R: Rpc>(reply: &R::Reply) -> Handled {
    Ok((encode(reply), Bytes::new()))
}

/// A result that is part of the answer, apart from one that sends the caller elsewhere.
fn inner<T>(container: &Container, result: Result<T, Failed>) -> Result<Result<T, Errno>, Refused> {
    match container.or_elsewhere(result) {
        Ok(value) => Ok(Ok(value)),
        Err(Failed::Errno(errno)) => Ok(Err(errno)),
        Err(elsewhere) => Err(elsewhere.into()),
    }
}

/// Waits for an answer that is given by call-back.
async fn answered<T: Send + 'static>(start: impl FnOnce(Answer<T>)) -> Result<T, Failed> {
    let (sender, receiver) = tokio::sync::oneshot::channel();
    // The receiver waits below.
    start(Box::new(move |result| _ = sender.send(result)));
    receiver.await.unwrap_or(Err(Elsewhere::NotReady.into()))
}

/// Runs what may wait for the disk or for the kernel apart from the runtime's threads.
async fn blocking<T: Send + 'static>(
    env: &Env,
    work: impl FnOnce() -> Result<T, Failed> + Send + 'static,
) -> Result<T, Failed> {
    env.runtime
        .spawn_blocking(work)
        .await
        .unwrap_or(Err(Errno::EIO.into()))
}

impl NodeService {
    pub(crate) fn attach(&self, env: &Arc<Env>) {
        // Called once, by the start of the node.
        _ = self.env.set(Arc::downgrade(env));
    }

    fn env(&self) -> Option<Arc<Env>> {
        self.env.get()?.upgrade()
    }
}

fn container(env: &Env, id: ContainerId) -> Result<Arc<Container>, Refused> {
    env.container(id)
        .ok_or_else(|| Refused(Code::NotOwner, String::new()))
}

async fn execute(env: &Arc<Env>, from: NodeId, body: &[u8]) -> Handled {
    let request: session::Execute = decode(body)?;
    let may_run = {
        let directory = env.directory.read();
        authority::check_request(&directory, from, &request)?;
        authority::may_run(&directory, from, &request.operation)
    };
    if !may_run {
        return refused(Errno::EROFS);
    }
    let container = container(env, crate::router::container_of(&request.operation))?;
    let (session, content_max) = (request.session, request.content_max.min(CONTENT_MAX));
    let request = Request {
        session,
        op: request.op,
        answered_through: request.answered_through,
        new_directory_in: request
            .new_directory_in
            .or_else(|| crate::router::place_for_guest(env, &request.operation)),
        names_max: request.names_max.min(NAMES_MAX),
        operation: request.operation,
        comes: Comes::Abroad,
    };
    let result = answered(|answer| container.execute(request, answer)).await;
    let told = match inner(&container, result)? {
        Ok(told) => told,
        Err(errno) => return refused(errno),
    };
    let content = content_beside(&container, session, &told, content_max).await;
    let executed = session::Executed {
        result: Ok(told.reply),
        ttl_us: told.ttl.as_micros(),
        as_of: told.as_of,
        directory: told.directory,
        with_content: content.is_some(),
    };
    Ok((encode(&executed), content.unwrap_or_default()))
}

/// An operation's error for the program.
fn refused(errno: Errno) -> Handled {
    reply::<session::Execute>(&session::Executed {
        result: Err(errno),
        ttl_us: 0,
        as_of: Version::default(),
        directory: None,
        with_content: false,
    })
}

/// For so long a look-up waits for content to be on every member.
const CONTENT_WAIT: Duration = Duration::from_millis(20);

/// All of a small file that a look-up has found, once it is on every member, which the program would wait for next. The lease
/// on its attributes covers it: whoever changes it changes them, too.
async fn content_beside(
    container: &Arc<Container>,
    session: SessionId,
    told: &Told,
    len_max: u32,
) -> Option<Bytes> {
    let Reply::Entry(attr) = &told.reply else {
        return None;
    };
    let small = 1..=u64::from(len_max);
    let is_file = attr.kind == Kind::File && attr.inode.container() == container.id;
    if !is_file || !small.contains(&attr.size) || told.ttl == Span::ZERO {
        return None;
    }
    if !container.is_all_here(attr.inode) {
        return None;
    }
    // `small` says that it fits.
    let (inode, len) = (attr.inode, attr.size as u32);
    let read = answered(|answer| container.read(session, inode, 0, len, false, answer));
    let read = tokio::time::timeout(CONTENT_WAIT, read).await;
    let bytes = read.ok()?.ok()?.bytes;
    (bytes.len() as u64 == attr.size).then_some(bytes)
}

async fn read(env: &Arc<Env>, from: NodeId, body: &[u8]) -> Handled {
    let request: file::Read = decode(body)?;
    authority::check_session(from, request.session)?;
    if request.len as usize > IO_LEN_MAX {
        return Err(Refused(
            Code::Malformed,
            format!("a read of {} bytes", request.len),
        ));
    }
    let container = container(env, request.inode.container())?;
    let file::Read {
        session,
        inode,
        offset,
        len,
        want_lease,
        cuts,
    } = request;
    let read =
        answered(|answer| container.read(session, inode, offset, len, want_lease, answer)).await;
    let range = ByteRange::with_len(offset, u64::from(len));
    let read = read.and_then(|read| container.admit_read(inode, range, cuts).map(|()| read));
    let (result, ttl, copy, payload) = match inner(&container, read)? {
        Ok(read) => (Ok(()), read.ttl, read.copy, read.bytes),
        Err(errno) => (Err(errno), Span::ZERO, file::CopyAt::Own, Bytes::new()),
    };
    Ok((
        encode(&file::ReadDone {
            result,
            read_ttl_us: ttl.as_micros(),
            copy,
        }),
        payload,
    ))
}

/// Reads this member's copy for a session that the owner lets do so.
async fn read_copy(env: &Arc<Env>, body: &[u8]) -> Handled {
    let request: file::ReadCopy = decode(body)?;
    if request.len as usize > IO_LEN_MAX {
        return Err(Refused(
            Code::Malformed,
            format!("a read of {} bytes", request.len),
        ));
    }
    let container = container(env, request.inode.container())?;
    let range = ByteRange::with_len(request.offset, u64::from(request.len));
    let read = blocking(env, move || {
        Ok(container.read_copy_for(range, request.inode, request.epoch))
    });
    Ok(match read.await? {
        Some(bytes) => (encode(&file::CopyRead::Valid), bytes),
        None => (encode(&file::CopyRead::Not), Bytes::new()),
    })
}

async fn write(env: &Arc<Env>, from: NodeId, body: &[u8], payload: Bytes) -> Handled {
    let request: file::Write = decode(body)?;
    authority::check_session(from, request.session)?;
    if !authority::may_write(&env.directory.read(), from) {
        let result = Err(Errno::EROFS);
        return reply::<file::Write>(&file::Written { result, row: None });
    }
    if let Some(hold) = request.behind {
        authority::check_session(from, hold.holder)?;
    }
    if payload.len() > IO_LEN_MAX {
        return Err(Refused(
            Code::Malformed,
            format!("a write of {} bytes", payload.len()),
        ));
    }
    let container = container(env, request.inode.container())?;
    let write = WriteRequest {
        session: request.session,
        op: Some(request.op),
        answered_through: request.answered_through,
        inode: request.inode,
        at: request.at,
        kill_privileges: request.kill_privileges,
        cuts: request.cuts,
        behind: request.behind,
        comes: Comes::Abroad,
    };
    let wrote = container.write_in_turn(write, Kept::Bytes(payload)).await;
    let result = inner(&container, wrote)?;
    let row = match &result {
        Ok(range) => container.row_after(&request, *range),
        Err(_) => None,
    };
    reply::<file::Write>(&file::Written { result, row })
}

async fn files(env: &Arc<Env>, from: NodeId, method: u16, body: &[u8], payload: Bytes) -> Handled {
    match method {
        file::Read::METHOD => read(env, from, body).await,
        file::ReadCopy::METHOD => read_copy(env, body).await,
        file::Write::METHOD => write(env, from, body, payload).await,
        file::Sync::METHOD => {
            let request: file::Sync = decode(body)?;
            let container = container(env, request.inode.container())?;
            let result = inner(&container, container.sync(request.inode).await)?;
            reply::<file::Sync>(&file::Synced { result })
        }
        _ => {
            let request: file::Seek = decode(body)?;
            let container = container(env, request.inode.container())?;
            let seek = container.seek_for_other(request.inode, request.offset, request.whence);
            reply::<file::Seek>(&file::Sought {
                result: inner(&container, seek.await)?,
            })
        }
    }
}

async fn members(env: &Arc<Env>, method: u16, body: &[u8]) -> Handled {
    match method {
        data::Fetch::METHOD => {
            let request: data::Fetch = decode(body)?;
            let container = container(env, request.container)?;
            let fetched = blocking(env, move || container.fetch_for(&request)).await?;
            Ok((encode(&fetched.0), fetched.1))
        }
        data::SyncData::METHOD => {
            let request: data::SyncData = decode(body)?;
            let container = container(env, request.container)?;
            let result = inner(&container, container.sync_data(&request).await)?;
            reply::<data::SyncData>(&data::DataSynced { result })
        }
        data::AskValid::METHOD => {
            let request: data::AskValid = decode(body)?;
            let container = container(env, request.inode.container())?;
            reply::<data::AskValid>(&container.valid(request.inode, request.size))
        }
        data::AskRoom::METHOD => {
            let _: data::AskRoom = decode(body)?;
            let me = env.clone();
            let room = blocking(env, move || match me.store.space() {
                Ok(space) => Ok(crate::room::of_this_node(&me, &space)),
                Err(error) => Err(Failed::Errno(error.errno())),
            })
            .await?;
            reply::<data::AskRoom>(&room)
        }
        _ => {
            let request: data::StatePage = decode(body)?;
            let container = container(env, request.container)?;
            let rows = blocking(env, move || container.state_page(&request)).await?;
            reply::<data::StatePage>(&rows)
        }
    }
}

/// What owners and holders of chunks say to each other.
async fn holders(
    env: &Arc<Env>,
    from: NodeId,
    method: u16,
    body: &[u8],
    payload: Bytes,
) -> Handled {
    match method {
        hold::AskRight::METHOD => {
            let request: hold::AskRight = decode(body)?;
            authority::check_session(from, request.hold.holder)?;
            let container = container(env, request.chunk.inode.container())?;
            let granted = container.grant_right(request.chunk, request.hold, request.asked)?;
            reply::<hold::AskRight>(&hold::Right { granted })
        }
        hold::WantChunk::METHOD => {
            let request: hold::WantChunk = decode(body)?;
            authority::check_session(from, request.session)?;
            if !authority::may_write(&env.directory.read(), from) {
                return reply::<hold::WantChunk>(&hold::Wanted { given: None });
            }
            let container = container(env, request.chunk.inode.container())?;
            let given = container
                .give_wanted(request.chunk, request.session)
                .await?;
            reply::<hold::WantChunk>(&hold::Wanted { given })
        }
        hold::WriteOrdered::METHOD => {
            let request: hold::WriteOrdered = decode(body)?;
            env.behind.on_ordered(env, from, &request);
            reply::<hold::WriteOrdered>(&hold::OrderedHeard)
        }
        hold::SendWritten::METHOD => {
            let request: hold::SendWritten = decode(body)?;
            authority::check_session(from, request.hold.holder)?;
            if !is_well_formed(&request, payload.len() as u64) || !request.mtime.is_valid() {
                let why = "ranges that a holder cannot have written".to_owned();
                return Err(Refused(Code::Malformed, why));
            }
            let container = container(env, request.chunk.inode.container())?;
            let taken = container.take_written(request, payload).await;
            reply::<hold::SendWritten>(&container.or_elsewhere(taken)?)
        }
        _ => {
            let request: hold::CallHolder = decode(body)?;
            let report = match request.hold.manner {
                Manner::WriteBehind => env.behind.answer_call(from, &request).await,
                Manner::InPlace => {
                    let container = container(env, request.chunk.inode.container())?;
                    container.answer_call(from, &request).await?
                }
            };
            reply::<hold::CallHolder>(&hold::HolderReport { report })
        }
    }
}

async fn sessions(env: &Arc<Env>, method: u16, body: &[u8]) -> Handled {
    if method == session::Revoke::METHOD {
        let request: session::Revoke = decode(body)?;
        let whom = Whom::One(request.session);
        crate::revoke::revoke(env, whom, request.touched).await?;
        return reply::<session::Revoke>(&session::Revoked);
    }
    if method == session::AskSessions::METHOD {
        let request: session::AskSessions = decode(body)?;
        let sessions = env.sessions.mounted(&request.sessions);
        return reply::<session::AskSessions>(&session::OpenSessions { sessions });
    }
    if method == session::AskWaits::METHOD {
        let waits = crate::deadlock::waits_here(env);
        return reply::<session::AskWaits>(&session::Waits { waits });
    }
    if method == session::LockTurn::METHOD {
        let request: session::LockTurn = decode(body)?;
        if let Some(session) = env.sessions.get(request.session) {
            session.lock_turn(request.wait);
        }
        return reply::<session::LockTurn>(&session::LockTurnHeard);
    }
    if method == session::CallLock::METHOD {
        let request: session::CallLock = decode(body)?;
        let fate = crate::sessions::call_lock(env, request.session, request.id).await?;
        return reply::<session::CallLock>(&session::LockCalled { fate });
    }
    if method == session::OpenIn::METHOD {
        let request: session::OpenIn = decode(body)?;
        let open = env.sessions.open_in(request.container).into_iter();
        let inodes = open.take(request.most as usize).collect();
        return reply::<session::OpenIn>(&session::Open { inodes });
    }
    let request: session::StillOpen = decode(body)?;
    let inodes = env.sessions.open_among(&request.inodes);
    reply::<session::StillOpen>(&session::Open { inodes })
}

async fn transactions(env: &Arc<Env>, method: u16, body: &[u8]) -> Handled {
    match method {
        tx::ReadKeys::METHOD => {
            let request: tx::ReadKeys = decode(body)?;
            let keys = container(env, request.container)?
                .read_keys(&request)
                .await?;
            reply::<tx::ReadKeys>(&keys)
        }
        tx::Prepare::METHOD => {
            let request: tx::Prepare = decode(body)?;
            let vote = container(env, request.container)?
                .prepare(&request.intent)
                .await?;
            reply::<tx::Prepare>(&vote)
        }
        tx::Resolve::METHOD => {
            let request: tx::Resolve = decode(body)?;
            let container = container(env, request.container)?;
            container.resolve(request.tx, request.commit).await?;
            reply::<tx::Resolve>(&tx::Resolved)
        }
        _ => {
            let request: tx::AskDecision = decode(body)?;
            let decided = container(env, request.tx.container)?
                .decision(request.tx)
                .await?;
            reply::<tx::AskDecision>(&decided)
        }
    }
}

async fn reports(env: &Arc<Env>, method: u16, body: &[u8]) -> Handled {
    if method == report::AskReport::METHOD {
        let _: report::AskReport = decode(body)?;
        return reply::<report::AskReport>(&crate::report::of_this_node(env).await);
    }
    if method == report::Scrub::METHOD {
        let request: report::Scrub = decode(body)?;
        let pass = env.scrub.wish(request.wish);
        return reply::<report::Scrub>(&report::Scrubbing { pass });
    }
    let request: report::AskHolders = decode(body)?;
    let holders = container(env, request.inode.container())?.holders(request.inode)?;
    reply::<report::AskHolders>(&report::Holders {
        holders: holders.into_iter().collect(),
    })
}

/// Containers as of a checkpoint.
async fn pasts(env: &Arc<Env>, method: u16, body: &[u8]) -> Handled {
    match method {
        past::Query::METHOD => {
            let request: past::Query = decode(body)?;
            let container = container(env, request.container)?;
            let result = container.query_past(request.checkpoint, &request.operation);
            let result = inner(&container, result)?;
            reply::<past::Query>(&past::Queried { result })
        }
        past::ReadPast::METHOD => {
            let request: past::ReadPast = decode(body)?;
            if request.len as usize > IO_LEN_MAX {
                let why = format!("a read of {} bytes", request.len);
                return Err(Refused(Code::Malformed, why));
            }
            let container = container(env, request.inode.container())?;
            let (inode, at) = (request.inode, request.checkpoint);
            let read = container.read_past(inode, at, request.offset, request.len);
            let (result, payload) = match inner(&container, read.await)? {
                Ok(bytes) => (Ok(()), bytes),
                Err(errno) => (Err(errno), Bytes::new()),
            };
            Ok((encode(&past::PastRead { result }), payload))
        }
        past::PartOfSnapshot::METHOD => {
            let request: past::PartOfSnapshot = decode(body)?;
            let container = container(env, request.container)?;
            let done = container.do_part(request.snapshot, request.step).await;
            let result = inner(&container, done)?;
            reply::<past::PartOfSnapshot>(&past::PartDone { result })
        }
        _ => {
            let request: past::AskPastUse = decode(body)?;
            let container = container(env, request.container)?;
            let asked = container.clone();
            let uses = blocking(env, move || asked.past_use()).await;
            let result = inner(&container, uses)?;
            reply::<past::AskPastUse>(&past::PastUses { result })
        }
    }
}

/// Whether a call may wait for disks or for other nodes, and goes on, or can be begun anew, when it is asked again.
fn may_take_long(method: u16) -> bool {
    matches!(
        method,
        session::Execute::METHOD
            | file::Read::METHOD
            | file::Write::METHOD
            | file::Sync::METHOD
            | data::SyncData::METHOD
            | hold::SendWritten::METHOD
            | hold::CallHolder::METHOD
            | hold::WantChunk::METHOD
            | past::ReadPast::METHOD
            | past::PartOfSnapshot::METHOD
    )
}

/// A holder says after so long that it is at it: the rest of the caller's time is for links that take theirs.
const HOLDER_AT_IT: Duration = Duration::from_millis(300);

/// Gives up waiting for `work` early enough to say so before the caller's deadline.
async fn in_time(method: u16, deadline: Instant, work: impl Future<Output = Handled>) -> Handled {
    let left = deadline.saturating_duration_since(Instant::now());
    let wait = match method {
        hold::CallHolder::METHOD => HOLDER_AT_IT.min(left.mul_f32(0.75)),
        _ => left.mul_f32(0.75),
    };
    match tokio::time::timeout(wait, work).await {
        Ok(handled) => handled,
        Err(_) => Err(Refused(Code::Working, String::new())),
    }
}

async fn dispatch(env: &Arc<Env>, from: NodeId, call: Call) -> Handled {
    let Call {
        method,
        body,
        payload,
    } = call;
    authority::check_call(&env.directory.read(), from, method)?;
    match method {
        session::Execute::METHOD => execute(env, from, &body).await,
        file::Read::METHOD
        | file::ReadCopy::METHOD
        | file::Write::METHOD
        | file::Sync::METHOD
        | file::Seek::METHOD => files(env, from, method, &body, payload).await,
        hold::AskRight::METHOD
        | hold::WantChunk::METHOD
        | hold::SendWritten::METHOD
        | hold::CallHolder::METHOD
        | hold::WriteOrdered::METHOD => holders(env, from, method, &body, payload).await,
        session::Revoke::METHOD
        | session::StillOpen::METHOD
        | session::OpenIn::METHOD
        | session::LockTurn::METHOD
        | session::CallLock::METHOD
        | session::AskSessions::METHOD
        | session::AskWaits::METHOD => sessions(env, method, &body).await,
        data::Fetch::METHOD
        | data::SyncData::METHOD
        | data::StatePage::METHOD
        | data::AskRoom::METHOD
        | data::AskValid::METHOD => members(env, method, &body).await,
        tx::ReadKeys::METHOD
        | tx::Prepare::METHOD
        | tx::Resolve::METHOD
        | tx::AskDecision::METHOD => transactions(env, method, &body).await,
        past::Query::METHOD
        | past::ReadPast::METHOD
        | past::PartOfSnapshot::METHOD
        | past::AskPastUse::METHOD => pasts(env, method, &body).await,
        report::AskReport::METHOD | report::AskHolders::METHOD | report::Scrub::METHOD => {
            reports(env, method, &body).await
        }
        other => Err(Refused(
            Code::Unknown,
            format!("method {other:#06x} is not known here"),
        )),
    }
}

impl Service for NodeService {
    fn call(
        &self,
        from: PeerName,
        call: Call,
        deadline: Instant,
    ) -> BoxFuture<Result<NetAnswer, Refusal>> {
        let (env, refusals) = (self.env(), Arc::clone(&self.refusals));
        Box::pin(async move {
            let PeerName::Node(node) = from else {
                let detail = Bytes::from_static(b"only nodes may call a node");
                return Err(Refusal {
                    code: Code::Forbidden.number(),
                    detail,
                });
            };
            // Its connections are there before the rest of it.
            let Some(env) = env else {
                return Err(Refusal {
                    code: Code::NotReady.number(),
                    detail: Bytes::from_static(b"the node is starting or stopping"),
                });
            };
            let method = call.method;
            let handled = match may_take_long(method) {
                true => in_time(method, deadline, dispatch(&env, node, call)).await,
                false => dispatch(&env, node, call).await,
            };
            match handled {
                Ok((body, payload)) => Ok(NetAnswer { body, payload }),
                Err(Refused(code, why)) => {
                    let name = perigee_proto::service::method_name(method);
                    debug!(%node, call = name, ?code, why, "call refused");
                    if code == Code::Forbidden
                        && let Some(left_out) = refusals.line(Instant::now())
                    {
                        let event = "call";
                        info!(target: AUDIT, event, outcome = "refused", peer = %node, call = name, why, left_out);
                    }
                    Err(Refusal {
                        code: code.number(),
                        detail: why.into(),
                    })
                }
            }
        })
    }

    fn cast(&self, from: PeerName, call: Call) {
        let (PeerName::Node(node), Some(env)) = (from, self.env()) else {
            return;
        };
        if call.method != chain::Envelope::METHOD {
            return debug!(%node, method = call.method, "unknown cast dropped");
        }
        if let Err(denied) = authority::check_call(&env.directory.read(), node, call.method) {
            return debug!(%node, %denied, "cast dropped");
        }
        match decode::<chain::Envelope>(&call.body) {
            Ok(envelope) => match env.container(envelope.container) {
                Some(container) => container.receive(node, &call.payload),
                None => env.unknown_container(envelope.container),
            },
            Err(error) => warn!(%node, %error, "cast dropped"),
        }
    }

    fn round_trip(&self, peer: PeerName, took: Duration, note: &[u8]) {
        if let (PeerName::Node(node), Some(env)) = (peer, self.env()) {
            let now = env.clock.now();
            env.coordinates.on_round_trip(now, node, took, note);
        }
    }

    fn link(&self, peer: PeerName, up: bool) {
        let (PeerName::Node(node), Some(env)) = (peer, self.env()) else {
            return;
        };
        if !up {
            for container in env.all_containers() {
                container.step(Input::Unreachable(node));
            }
        }
    }
}
