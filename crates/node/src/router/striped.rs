//! Striped files for mounts: the jobs of [`perigee_meta::stripe::job`], run wherever the owners of the columns are.

use super::{CALL, PATIENCE, Router, errno};
use crate::container::WriteRequest;
use crate::env::Env;
use crate::search::at_owner;
use bytes::Bytes;
use futures_util::future::join_all;
use perigee_client::fs::{Done, Seek};
use perigee_cluster::nearness::are_at_one_site;
use perigee_cluster::{Directory, Node, Purpose};
use perigee_meta::stripe::job::{Ask, Change, Cut, Job, Known, NewWrite, Read, Step, Told, Write};
use perigee_meta::stripe::{Cuts, Faults, UNIT, pieces};
use perigee_meta::xattr::CAPABILITY;
use perigee_meta::{Attr, Comes, LockKind, NewNode, Op, Reply, Touched, WriteAt};
use perigee_proto::message::file;
use perigee_types::{ByteRange, ContainerId, Errno, InodeId, NodeId, OpId, SessionId, StripeWidth};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// Before a node that may not end a cut looks again whether others have.
const OTHERS_HELP: Duration = Duration::from_millis(50);

/// By then a kernel has the answer to a call that has just been answered.
const ANSWERED: Duration = Duration::from_millis(100);

/// Whether a job has brought a cut on its way that somebody else has made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Helped {
    No,
    Yes,
}

/// A job that is over.
struct Ran<T> {
    result: Result<T, Errno>,
    helped: Helped,
}

/// What a job writes that writes nothing.
const fn nothing<J>(_: &J) -> (u64, Bytes) {
    (0, Bytes::new())
}

/// What a session asked, and for how long it may keep the answer.
type Answered = Result<(Reply, Duration), Errno>;

/// Where the columns of a file lie that is made in a container: one with each owner, as far as there are so many. They begin
/// with another one for each file.
fn containers_for_columns(
    directory: &Directory,
    inode: InodeId,
    width: StripeWidth,
) -> Vec<ContainerId> {
    let own = inode.container();
    let owner = |id: ContainerId| directory.container(id)?.chain.first().copied();
    let mut there: Vec<ContainerId> = match directory.is_of_directory(own) {
        true => {
            let root = directory.root_of(own);
            let columns = directory.made_for(root, Purpose::Columns);
            std::iter::once(root).chain(columns).collect()
        }
        false => {
            let nodes = directory
                .live_storage()
                .filter(|node| node.takes_containers());
            nodes
                .filter_map(|node: &Node| directory.newest_home_of(node.id))
                .collect()
        }
    };
    there.retain(|id| *id != own);
    let node = |id| directory.node(owner(id)?);
    let at_site = |id: &ContainerId| {
        let both = node(own).zip(node(*id));
        both.is_some_and(|(own, other)| are_at_one_site(directory, own, other))
    };
    let (near, far): (Vec<_>, Vec<_>) = there.into_iter().partition(at_site);
    let there = [near, far].into_iter().flat_map(|mut of_site| {
        if !of_site.is_empty() {
            let first = inode.index().0 % of_site.len() as u64;
            of_site.rotate_left(first as usize);
        }
        of_site
    });
    let mut owners: BTreeSet<NodeId> = owner(own).into_iter().collect();
    // Where nodes own several, or none, some owner has two columns.
    let (apart, together): (Vec<_>, Vec<_>) =
        there.partition(|id| owner(*id).is_some_and(|owner| owners.insert(owner)));
    let others = usize::from(width.get()) - 1;
    apart.into_iter().chain(together).take(others).collect()
}

impl Router {
    /// Whether a range of a file lies in more than its first chunk, and the file is striped: all else is done as for
    /// any other file.
    pub(super) fn is_spread(&self, inode: InodeId, range: ByteRange) -> bool {
        range.end > UNIT && self.env.stripes.has(inode)
    }

    /// Up to where a write goes, as far as that is known here. Its owner gives an append its place and takes the bytes in one
    /// step, where both are in the first chunk.
    pub(super) fn reach(
        &self,
        session: SessionId,
        inode: InodeId,
        at: WriteAt,
        len: u64,
    ) -> ByteRange {
        let start = match at {
            WriteAt::Offset(offset) => offset,
            WriteAt::End => {
                let known = self.env.stripes.known(session, inode);
                known.map_or(0, |known| known.size)
            }
        };
        ByteRange::with_len(start, len)
    }

    pub(super) fn note_opened(&self, attr: &Attr) {
        let sessions = &self.env.sessions;
        let is_open = |inode| !sessions.open_among(&[inode]).is_empty();
        self.env.stripes.opened(attr, is_open);
    }

    async fn ask(self: &Arc<Self>, session: SessionId, op: Op) -> Result<Reply, Errno> {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        // The receiver waits below.
        self.execute_once(session, op, Box::new(move |result| _ = sender.send(result)));
        let answer: Answered = receiver.await.unwrap_or(Err(Errno::EIO));
        answer.map(|(reply, _)| reply)
    }

    /// Brings a step of a cut to its end that somebody began. A node that may only read has to wait for others to do that.
    async fn help(self: &Arc<Self>, session: SessionId, op: Op) -> Result<Reply, Errno> {
        let helped = self.ask(session, op).await;
        if helped == Err(Errno::EROFS) {
            tokio::time::sleep(OTHERS_HELP).await;
        }
        helped
    }

    /// Where this node has cut a file, or a column of it, for somebody else, its own mounts have heard nothing of that. Of its
    /// own cuts their kernels have the answer: one more word, after that, would make them pass over answers that tell of
    /// others.
    fn forget_cut(&self, inode: InodeId, helped: Helped) {
        if helped == Helped::No {
            return;
        }
        let env = self.env.clone();
        self.env.runtime.spawn(async move {
            // A kernel takes the new end from the answer to a read, unless it hears of a change before that.
            tokio::time::sleep(ANSWERED).await;
            let touched = [Touched::Attr(inode), Touched::Data(inode)];
            let runtime = env.runtime.clone();
            runtime.spawn_blocking(move || env.sessions.revoke_all(&touched));
        });
    }

    /// Asks all of a step at once. `data`: the bytes of a write that begins at `start`.
    async fn ask_all(
        self: &Arc<Self>,
        session: SessionId,
        asks: Vec<Ask>,
        (start, data): (u64, Bytes),
    ) -> Vec<Told> {
        let data = &data;
        let asked = asks.into_iter().map(|ask| async move {
            match ask {
                Ask::Do(op) if is_of_cut(&op) => Told::Reply(self.help(session, op).await),
                Ask::Do(op) => Told::Reply(self.ask(session, op).await),
                Ask::Read { inode, range, cuts } => {
                    let (sender, receiver) = tokio::sync::oneshot::channel();
                    let told: Done<Bytes> = Box::new(move |result| _ = sender.send(result));
                    self.read_part(session, inode, range, Some(cuts), told);
                    Told::Bytes(receiver.await.unwrap_or(Err(Errno::EIO)))
                }
                Ask::Write {
                    inode,
                    range,
                    cuts,
                    kill_privileges,
                } => {
                    let from = range.start.saturating_sub(start) as usize;
                    let to = range.end.saturating_sub(start) as usize;
                    let Some(part) = data.get(from..to) else {
                        return Told::Wrote(Err(Errno::EPROTO));
                    };
                    let (sender, receiver) = tokio::sync::oneshot::channel();
                    let told: Done<ByteRange> = Box::new(move |result| _ = sender.send(result));
                    let write = WriteRequest {
                        session,
                        op: None,
                        answered_through: OpId::default(),
                        inode,
                        at: file::At::Offset(range.start),
                        kill_privileges,
                        cuts: Some(cuts),
                        behind: None,
                        comes: Comes::Home,
                    };
                    self.write_part(write, part, told);
                    let wrote = receiver.await.unwrap_or(Err(Errno::EIO));
                    if wrote == Err(Errno::EIO) {
                        self.env.stripes.note_unsure(session);
                    }
                    Told::Wrote(wrote.map(|_| ()))
                }
            }
        });
        join_all(asked).await
    }

    /// Whether this is a mount that is no more.
    fn is_over(&self, session: SessionId) -> bool {
        let sessions = &self.env.sessions;
        session != sessions.own() && sessions.mounted(&[session]).is_empty()
    }

    /// Runs a job to its end, from these questions on if it has asked some. `bytes`: what is to be written, from where it begins.
    async fn run<J: Job>(
        self: &Arc<Self>,
        session: SessionId,
        (inode, job): (InodeId, &mut J),
        first: Option<Vec<Ask>>,
        bytes: impl Fn(&J) -> (u64, Bytes),
    ) -> Ran<J::Outcome> {
        let within = |width| containers_for_columns(&self.env.directory.read(), inode, width);
        let mut helped = Helped::No;
        let mut next = first.map_or_else(|| job.step(&within), Step::Ask);
        loop {
            match next {
                Step::Done(result) => return Ran { result, helped },
                // What a mount has left goes no further: the file's next owner may not know that its locks are others' now.
                Step::Ask(_) if self.is_over(session) => {
                    let result = Err(Errno::EIO);
                    return Ran { result, helped };
                }
                Step::Ask(asks) => {
                    if asks.iter().any(|ask| helps(ask, job.own_cut())) {
                        helped = Helped::Yes;
                    }
                    let told = self.ask_all(session, asks, bytes(job)).await;
                    job.told(told);
                    self.learn(session, job.known());
                    next = job.step(&within);
                }
            }
        }
    }

    pub(super) fn read_striped(
        self: Arc<Self>,
        session: SessionId,
        inode: InodeId,
        range: ByteRange,
        done: Done<Bytes>,
    ) {
        let env = self.env.clone();
        let at_work = self.env.stripes.at_work(session);
        env.runtime.spawn(async move {
            let known = self.env.stripes.known(session, inode);
            let mut job = Read::new(inode, range, known, Faults::default());
            let ran = self.run(session, (inode, &mut job), None, nothing).await;
            drop(at_work);
            done(ran.result);
            self.forget_cut(inode, ran.helped);
        });
    }

    pub(super) fn write_striped(
        self: Arc<Self>,
        session: SessionId,
        (inode, at): (InodeId, WriteAt),
        data: Bytes,
        kill_privileges: bool,
        done: Done<ByteRange>,
    ) {
        let env = self.env.clone();
        let at_work = self.env.stripes.at_work(session);
        env.runtime.spawn(async move {
            let now = self.env.clock.now();
            let begin = self.env.stripes.begin_write(session, inode, now);
            let new = NewWrite {
                inode,
                at,
                len: data.len() as u64,
                kill_privileges,
                claims: begin.claims,
            };
            let mut job = Write::new(new, begin.known, Faults::default());
            let bytes = |job: &Write| {
                let start = job.range().map_or(0, |range| range.start);
                (start, data.clone())
            };
            let ran = self.run(session, (inode, &mut job), None, bytes).await;
            drop(at_work);
            if let Ok(wrote) = &ran.result {
                self.env.stripes.wrote(inode, wrote.claimed, now);
            }
            done(ran.result.map(|wrote| wrote.range));
            self.forget_cut(inode, ran.helped);
        });
    }

    fn learn(&self, session: SessionId, known: Option<&Known>) {
        if let Some(known) = known.filter(|_| !self.is_over(session)) {
            self.env.stripes.know(session, known);
        }
    }

    /// Runs an operation that changes a file's length, or frees a part of it, and on a striped one has more to do.
    pub(super) fn change_striped(
        self: Arc<Self>,
        session: SessionId,
        op: Op,
        done: Done<(Reply, Duration)>,
    ) {
        let Some(mut job) = Change::by(op.clone(), Faults::default()) else {
            return self.execute_once(session, op, done);
        };
        let me = self.clone();
        let first = move |answer: Answered| {
            let ttl = answer.as_ref().map_or(Duration::ZERO, |(_, ttl)| *ttl);
            job.told(vec![Told::Reply(answer.map(|(reply, _)| reply))]);
            match job.step(&|_| Vec::new()) {
                Step::Done(result) => done(result.map(|reply| (reply, ttl))),
                Step::Ask(asks) => {
                    let env = me.env.clone();
                    let at_work = env.stripes.at_work(session);
                    env.runtime.spawn(async move {
                        let inode = job.inode();
                        let of = (inode, &mut job);
                        let ran = me.run(session, of, Some(asks), nothing).await;
                        drop(at_work);
                        done(ran.result.map(|reply| (reply, Duration::ZERO)));
                        me.forget_cut(inode, ran.helped);
                    });
                }
            }
        };
        self.execute_once(session, op, Box::new(first));
    }

    /// Brings a cut of a file to its end, if one is under way.
    pub(crate) async fn end_cut(self: Arc<Self>, inode: InodeId) -> Result<(), Errno> {
        let session = self.env.sessions.own();
        let mut job = Cut::of(inode, Faults::default());
        let ran = self.run(session, (inode, &mut job), None, nothing).await;
        self.forget_cut(inode, ran.helped);
        ran.result.map(|_| ())
    }

    /// Makes durable what was acknowledged of a striped file, and tells its owner of the last write.
    pub(super) fn sync_striped(self: Arc<Self>, inode: InodeId, done: Done<()>) {
        let env = self.env.clone();
        env.runtime.spawn(async move {
            if let Err(errno) = self.tell_owner(inode).await {
                return done(Err(errno));
            }
            // Also what others have written is to be on the disks.
            let known = match self.columns(inode).await {
                Ok(known) => known,
                Err(errno) => return done(Err(errno)),
            };
            self.learn(self.env.sessions.own(), Some(&known));
            let all = self.env.stripes.all_of(inode);
            let synced = all.into_iter().map(|inode| {
                let (sender, receiver) = tokio::sync::oneshot::channel();
                self.sync_part(inode, Box::new(move |result| _ = sender.send(result)));
                async move { receiver.await.unwrap_or(Err(Errno::EIO)) }
            });
            let synced: Result<Vec<()>, Errno> = join_all(synced).await.into_iter().collect();
            done(synced.map(|_| ()));
        });
    }

    /// What the owner of a striped file says of it.
    async fn columns(self: &Arc<Self>, inode: InodeId) -> Result<Known, Errno> {
        let session = self.env.sessions.own();
        match self.ask(session, Op::Columns { inode }).await? {
            Reply::Columns { attr, columns } => Known::of(&attr, columns).ok_or(Errno::EPROTO),
            _ => Err(Errno::EPROTO),
        }
    }

    /// A file's owner hears of the last write to a column of which it has not.
    async fn tell_owner(self: &Arc<Self>, inode: InodeId) -> Result<(), Errno> {
        if !self.env.stripes.take_unclaimed(inode) {
            return Ok(());
        }
        let claim = Op::Claim {
            inode,
            at: WriteAt::Offset(0),
            len: 0,
            kill_privileges: false,
        };
        let session = self.env.sessions.own();
        let began = self.env.clock.now();
        let told = self.ask(session, claim).await.map(|_| ());
        self.env.stripes.told_owner(inode, told.is_ok(), began);
        told
    }

    /// Runs an operation that sets what a write changes, too: its owner hears of the writes before it. `fsync` would undo it, else.
    pub(super) fn set_after_writes(
        self: Arc<Self>,
        session: SessionId,
        (inode, op): (InodeId, Op),
        done: Done<(Reply, Duration)>,
    ) {
        let env = self.env.clone();
        env.runtime.spawn(async move {
            match self.tell_owner(inode).await {
                Ok(()) => self.execute_once(session, op, done),
                Err(errno) => done(Err(errno)),
            }
        });
    }

    /// `lseek(2)` over the holes of a striped file.
    pub(super) async fn seek_striped(
        self: Arc<Self>,
        inode: InodeId,
        offset: u64,
        what: Seek,
    ) -> Result<u64, Errno> {
        let known = self.columns(inode).await?;
        if offset >= known.size {
            return Err(Errno::ENXIO);
        }
        let all: Vec<InodeId> = std::iter::once(inode).chain(known.columns).collect();
        match what {
            Seek::Data => {
                let found = all
                    .iter()
                    .map(|column| seek_part(&self.env, *column, offset, what));
                let mut first = None;
                for found in join_all(found).await {
                    match found {
                        Ok(at) => first = Some(first.map_or(at, |first: u64| first.min(at))),
                        Err(Errno::ENXIO) => {}
                        Err(errno) => return Err(errno),
                    }
                }
                first.filter(|at| *at < known.size).ok_or(Errno::ENXIO)
            }
            Seek::Hole => {
                let range = ByteRange::new(offset, known.size);
                for piece in pieces(known.striping.width, range) {
                    let Some(column) = all.get(piece.column) else {
                        return Ok(piece.range.start);
                    };
                    match seek_part(&self.env, *column, piece.range.start, what).await {
                        Ok(at) if at < piece.range.end => return Ok(at),
                        Ok(_) => {}
                        // The column ends before.
                        Err(Errno::ENXIO) => return Ok(piece.range.start),
                        Err(errno) => return Err(errno),
                    }
                }
                Ok(known.size)
            }
        }
    }
}

/// `lseek(2)` in a file's own inode, or in a column.
pub(super) async fn seek_part(
    env: &Arc<Env>,
    inode: InodeId,
    offset: u64,
    what: Seek,
) -> Result<u64, Errno> {
    let whence = match what {
        Seek::Data => file::Whence::Data,
        Seek::Hole => file::Whence::Hole,
    };
    let here = |container: Arc<crate::container::Container>| async move {
        container.seek_here(inode, offset, whence).await.map(Ok)
    };
    let request = file::Seek {
        inode,
        offset,
        whence,
    };
    let there = |node| {
        let request = &request;
        async move { Ok(super::asks::ask(env, node, request, CALL).await?.result) }
    };
    let found = at_owner(env, inode.container(), PATIENCE, here, there).await;
    found.map_err(errno).flatten()
}

/// Whether an operation brings a cut on its way.
const fn is_of_cut(op: &Op) -> bool {
    matches!(op, Op::CutColumn { .. } | Op::EndCut { .. })
}

/// Whether a question brings a cut on its way, and another one than `own`.
fn helps(ask: &Ask, own: Option<Cuts>) -> bool {
    match ask {
        Ask::Do(Op::CutColumn { cuts, .. } | Op::EndCut { cuts, .. }) => Some(*cuts) != own,
        _ => false,
    }
}

/// Whether an operation makes a file that may be striped, or has more to do where one is.
pub(super) fn concerns(op: &Op) -> bool {
    let resizes = |op: &Op| matches!(op, Op::SetAttr { set, .. } if set.size.is_some());
    let allocates = |op: &Op| matches!(op, Op::Allocate { .. });
    makes_file(op) || resizes(op) || allocates(op) || is_lock(op) || set_like_a_write(op).is_some()
}

/// The file of which an operation sets what every write to it sets, or takes away: the time of last change, or a capability.
pub(super) fn set_like_a_write(op: &Op) -> Option<InodeId> {
    match op {
        Op::SetAttr { inode, set, .. } if set.mtime.is_some() && set.size.is_none() => Some(*inode),
        Op::SetXattr { inode, name, .. } if name == CAPABILITY => Some(*inode),
        _ => None,
    }
}

/// Whether an operation asks for a lock that waits for the end of a cut. Who is refused a cover asks for its locks.
fn is_lock(op: &Op) -> bool {
    let Op::SetLock { lock, .. } = op else {
        return false;
    };
    lock.mode.is_some() && lock.kind != LockKind::Cover
}

/// Whether an operation makes a file.
pub(super) fn makes_file(op: &Op) -> bool {
    matches!(
        op,
        Op::Make {
            node: NewNode::File,
            ..
        }
    )
}
