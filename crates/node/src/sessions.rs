//! The mounts of this node, and telling them what other hosts have changed.

use crate::container::{Elsewhere, Failed};
use crate::env::Env;
use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use perigee_client::Session;
use perigee_meta::lock::cycle::Wait;
use perigee_meta::lock::kept::{Fate, KeptId};
use perigee_meta::near::{Asked, Near, Word};
use perigee_meta::{Attr, Op, Reply, Touched};
use perigee_proto::message::session::{CONTENT_MAX, Executed};
use perigee_types::{ByteRange, ContainerId, InodeId, NodeId, SessionId, Span, Tick};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Leases to read that a node remembers; each is asked for again when it is forgotten.
const READS_MAX: usize = 65_536;

/// Which mounts of this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Whom {
    /// This one, if it is there.
    One(SessionId),
    /// All others.
    AllBut(SessionId),
}

/// All sessions of one node.
pub(crate) struct Sessions {
    me: NodeId,
    own: SessionId,
    next: AtomicU32,
    open: RwLock<BTreeMap<SessionId, Arc<Session>>>,
    /// Until when a session may read this node's own copy of a file that another node owns.
    reads: RwLock<BTreeMap<(SessionId, InodeId), Tick>>,
    /// Counts revocations, so that a lease that crossed one on its way is not believed.
    revision: AtomicU64,
    near: Mutex<Near>,
    /// Calls of which one follows the other go as one.
    compounds: bool,
}

impl Sessions {
    pub(crate) fn new(me: NodeId, compounds: bool) -> Self {
        // Not from 1: the sessions of this process must not be taken for those of an earlier one.
        let start = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(1, |since| since.as_millis() as u32);
        Self {
            me,
            own: SessionId::new(me, start),
            next: AtomicU32::new(start.wrapping_add(1)),
            open: RwLock::default(),
            reads: RwLock::default(),
            revision: AtomicU64::new(0),
            near: Mutex::default(),
            compounds,
        }
    }

    /// A session is about to ask another host's owner.
    pub(crate) fn asks(&self) -> Asked {
        self.near.lock().ask()
    }

    /// The owner has answered what was asked, and sent, then.
    pub(crate) fn told(
        &self,
        id: SessionId,
        op: &Op,
        (asked, sent): (Asked, Tick),
        answer: &Executed,
        content: Bytes,
    ) {
        let Ok(reply) = &answer.result else {
            return self.told_nothing(id, op);
        };
        let word = |attr, ttl_us| Word {
            attr,
            until: sent + Span(ttl_us),
        };
        let directory = answer.directory.iter();
        let mut words: Vec<Word> = directory
            .map(|after| word(after.attr, after.ttl_us))
            .collect();
        if let Reply::Attr(attr) | Reply::Entry(attr) | Reply::Created { attr, .. } = reply {
            words.push(word(*attr, answer.ttl_us));
        }
        // The answer is of the state of one container, which orders what is said of it.
        let home = crate::router::container_of(op);
        words.retain(|word| word.attr.inode.container() == home);
        let mut near = self.near.lock();
        near.told(id, op, reply, (asked, answer.as_of), &words);
        if answer.with_content
            && let Some(word) = words.last()
        {
            near.told_content(id, (asked, answer.as_of), *word, content);
        }
    }

    /// How many bytes of content are to come beside an operation, at most.
    pub(crate) fn content_wanted(&self, id: SessionId, op: &Op) -> u32 {
        let wanted =
            self.compounds && matches!(op, Op::Lookup { .. }) && self.near.lock().wants_content(id);
        if wanted { CONTENT_MAX } else { 0 }
    }

    /// A session has read something at an owner, from the file's beginning.
    pub(crate) fn read_small(&self, id: SessionId) {
        if self.compounds {
            self.near.lock().read_small(id);
        }
    }

    /// What a session reads of a file whose content came beside its look-up.
    pub(crate) fn read_kept(
        &self,
        id: SessionId,
        inode: InodeId,
        range: ByteRange,
        now: Tick,
    ) -> Option<Bytes> {
        self.near.lock().read(now, id, inode, range)
    }

    /// Whether a file is known not to have an extended attribute.
    pub(crate) fn lacks(&self, id: SessionId, inode: InodeId, name: &[u8], now: Tick) -> bool {
        self.compounds && self.near.lock().lacks(now, id, inode, name)
    }

    /// A program of this host changes a file elsewhere, or has just been told that it did.
    pub(crate) fn changed(&self, inode: InodeId) {
        let open: Vec<SessionId> = self.open.read().keys().copied().collect();
        let mut near = self.near.lock();
        for session in open {
            near.changed(session, inode);
        }
    }

    /// It has not, or refused: what became of an operation may not be known.
    pub(crate) fn told_nothing(&self, id: SessionId, op: &Op) {
        self.near.lock().unknown(id, op);
    }

    /// What a session keeps of a directory that another host owns, and for how long it may.
    pub(crate) fn kept_attr(
        &self,
        id: SessionId,
        inode: InodeId,
        now: Tick,
    ) -> Option<(Attr, Span)> {
        self.near.lock().attr(now, id, inode)
    }

    pub(crate) fn next_id(&self) -> SessionId {
        SessionId::new(self.me, self.next.fetch_add(1, Ordering::Relaxed))
    }

    /// The session of the node itself: it keeps nothing, and mounts nothing. Of this process alone: owners keep the answers
    /// that an earlier one was given, to operations of the same numbers.
    pub(crate) const fn own(&self) -> SessionId {
        self.own
    }

    pub(crate) fn add(&self, session: Arc<Session>) {
        self.open.write().insert(session.id(), session);
    }

    pub(crate) fn remove(&self, id: SessionId) -> Option<Arc<Session>> {
        self.near.lock().session_ended(id);
        self.open.write().remove(&id)
    }

    pub(crate) fn get(&self, id: SessionId) -> Option<Arc<Session>> {
        self.open.read().get(&id).cloned()
    }

    /// Whether a session is one of this process, and goes on.
    pub(crate) fn is_open(&self, id: SessionId) -> bool {
        self.open.read().contains_key(&id)
    }

    /// Which of `sessions` are mounted here.
    pub(crate) fn mounted(&self, sessions: &[SessionId]) -> Vec<SessionId> {
        let open = self.open.read();
        let known = sessions.iter().filter(|session| open.contains_key(session));
        known.copied().collect()
    }

    /// Who waits for whom by what mounts of this node decide by themselves.
    pub(crate) fn lock_waits(&self) -> Vec<Wait> {
        let open: Vec<_> = self.open.read().values().cloned().collect();
        open.iter()
            .flat_map(|session| session.lock_waits())
            .collect()
    }

    /// This node has shown no sign of life for so long that its locks may have been ended: no mount keeps any that it does
    /// not use.
    pub(crate) fn lapsed(&self) {
        let open: Vec<_> = self.open.read().values().cloned().collect();
        for session in open {
            session.locks_lapsed();
        }
    }

    /// Which of `inodes` any mount of this node has open.
    pub(crate) fn open_among(&self, inodes: &[InodeId]) -> Vec<InodeId> {
        let open = self.open.read();
        inodes
            .iter()
            .copied()
            .filter(|inode| {
                open.values()
                    .any(|session| !session.open_among(&[*inode]).is_empty())
            })
            .collect()
    }

    /// The inodes of a container that any mount of this node has open, or is opening.
    pub(crate) fn open_in(&self, container: ContainerId) -> BTreeSet<InodeId> {
        let open = self.open.read();
        open.values()
            .flat_map(|session| session.open_in(container))
            .collect()
    }

    /// How many revocations there were.
    pub(crate) fn revision(&self) -> u64 {
        self.revision.load(Ordering::SeqCst)
    }

    /// The owner lets a session read this node's copy, as of `revision`.
    pub(crate) fn lease_reads(&self, id: SessionId, inode: InodeId, until: Tick, revision: u64) {
        let mut reads = self.reads.write();
        if self.revision() == revision {
            if reads.len() >= READS_MAX {
                reads.clear();
            }
            reads.insert((id, inode), until);
        }
    }

    /// Whether a session may read this node's copy now.
    pub(crate) fn may_read(&self, id: SessionId, inode: InodeId, now: Tick) -> bool {
        self.reads
            .read()
            .get(&(id, inode))
            .is_some_and(|until| now < *until)
    }

    /// A session itself has changed a file's content at its owner, in a way that this node's copy may not have heard of:
    /// it asks the owner again, who knows which copies have it.
    pub(crate) fn ask_again(&self, id: SessionId, inode: InodeId) {
        self.end_reads(id, &[Touched::Data(inode)]);
    }

    fn end_reads(&self, id: SessionId, touched: &[Touched]) {
        self.near.lock().revoked(id, touched);
        let mut reads = self.reads.write();
        self.revision.fetch_add(1, Ordering::SeqCst);
        for change in touched {
            if let Touched::Data(inode) | Touched::Attr(inode) = change {
                reads.remove(&(id, *inode));
            }
        }
    }

    /// Makes mounts ask again for attributes and names. May take some time, and waits for nobody.
    pub(crate) fn revoke_attributes(&self, whom: Whom, touched: &[Touched]) {
        if let Whom::One(id) = whom {
            self.end_reads(id, touched);
        }
        for session in self.who(whom) {
            session.revoke_attributes(touched);
        }
    }

    /// Makes mounts drop content. May block for reads and writes of these mounts that are under way: not for the threads of
    /// the runtime.
    pub(crate) fn revoke_pages(&self, whom: Whom, touched: &[Touched]) {
        for session in self.who(whom) {
            session.revoke_pages(touched);
        }
    }

    /// Makes every mount of this node forget. Blocks as [`Sessions::revoke_pages`].
    pub(crate) fn revoke_all(&self, touched: &[Touched]) {
        let all = Whom::AllBut(self.own());
        self.revoke_attributes(all, touched);
        self.revoke_pages(all, touched);
    }

    /// Whether programs of these mounts are writing to what [`Sessions::revoke_pages`] would have them drop.
    pub(crate) fn is_writing(&self, whom: Whom, touched: &[Touched]) -> bool {
        let sessions = self.who(whom);
        sessions.iter().any(|session| session.is_writing(touched))
    }

    fn who(&self, whom: Whom) -> Vec<Arc<Session>> {
        let open = self.open.read();
        match whom {
            Whom::One(id) => open.get(&id).cloned().into_iter().collect(),
            Whom::AllBut(except) => {
                let others = open.values().filter(|session| session.id() != except);
                others.cloned().collect()
            }
        }
    }

    /// A container has another owner: no mount keeps content of its files unasked.
    pub(crate) fn forget_content(&self, container: ContainerId) {
        let sessions: Vec<_> = self.open.read().values().cloned().collect();
        self.near.lock().owner_changed(container);
        {
            let mut reads = self.reads.write();
            self.revision.fetch_add(1, Ordering::SeqCst);
            reads.retain(|(_, inode), _| inode.container() != container);
        }
        for session in sessions {
            session.forget_content(container);
        }
    }

    /// The mounts on this node.
    pub(crate) fn mounts(&self) -> Vec<SessionId> {
        self.open.read().keys().copied().collect()
    }

    /// Whether there is a mount on this node but `except`.
    pub(crate) fn has_others(&self, except: SessionId) -> bool {
        let open = self.open.read();
        open.len() > usize::from(open.contains_key(&except))
    }
}

/// A lock of a mount of this node stands in somebody's way.
///
/// Errors: the session is no more, and nobody can say of its locks what became of them: the owner ends them.
pub(crate) async fn call_lock(env: &Env, session: SessionId, id: KeptId) -> Result<Fate, Failed> {
    let Some(session) = env.sessions.get(session) else {
        return Err(Elsewhere::NotReady.into());
    };
    let (sender, receiver) = tokio::sync::oneshot::channel();
    // The receiver waits below.
    session.lock_called(id, Box::new(move |fate| _ = sender.send(fate)));
    receiver.await.map_err(|_| Elsewhere::NotReady.into())
}
