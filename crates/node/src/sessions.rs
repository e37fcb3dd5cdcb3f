//! The mounts of this node, and telling them what other hosts have changed.

use crate::container::{Elsewhere, Failed};
use crate::env::Env;
use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use perigee_client::Session;
use perigee_meta::lock::cycle::Wait;
use perigee_meta::lock::kept::{Fate, KeptId};
use perigee_meta::near::names::makes_names;
use perigee_meta::near::{Asked, Near, Step, Word, directory_of};
use perigee_meta::{Attr, Kind, Op, Reply, Touched};
use perigee_proto::message::file::CopyAt;
use perigee_proto::message::session::{CONTENT_MAX, Executed, NAMES_MAX};
use perigee_replica::reads::{self, AskedToRead, Reads};
use perigee_types::{ByteRange, ContainerId, InodeId, NodeId, SessionId, Span, Tick};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Files of which a node remembers that it got no lease to read them; each is asked for again when it is forgotten.
const REFUSED_MAX: usize = 65_536;

/// So much is asked for beforehand at a time.
const HINTS_MAX: usize = 64;

/// Which mounts of this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Whom {
    /// This one, if it is there.
    One(SessionId),
    /// All others.
    AllBut(SessionId),
}

/// The owner's word that a session may read another copy.
pub(crate) type ReadLease = reads::ReadLease<CopyAt>;

/// All sessions of one node.
pub(crate) struct Sessions {
    me: NodeId,
    own: SessionId,
    next: AtomicU32,
    open: RwLock<BTreeMap<SessionId, Arc<Session>>>,
    /// What copies sessions may read of files that other nodes own.
    reads: RwLock<Reads<CopyAt>>,
    /// Members whose copies are not read for a while.
    shunned: Mutex<BTreeMap<NodeId, Tick>>,
    /// Until when a lease is not asked for before the bytes.
    refused: Mutex<BTreeMap<(SessionId, InodeId), Tick>>,
    near: Mutex<Near>,
    /// What is being asked for before programs do.
    hints: Mutex<BTreeSet<Hint>>,
    /// Calls of which one follows the other go as one.
    compounds: bool,
}

/// What is asked for before a program does: the attributes of an inode, or where a name in it leads.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Hint {
    session: SessionId,
    inode: InodeId,
    name: Option<Vec<u8>>,
}

impl Hint {
    fn of(session: SessionId, op: &Op) -> Option<Self> {
        let (inode, name) = match op {
            Op::GetAttr { inode } => (*inode, None),
            Op::Lookup { parent, name } => (*parent, Some(name.clone())),
            _ => return None,
        };
        Some(Self {
            session,
            inode,
            name,
        })
    }
}

/// The directory to which a look-up has led, or may have.
fn directory_found(reply: &Reply) -> Option<InodeId> {
    match reply {
        Reply::Entry(attr) if attr.kind == Kind::Directory => Some(attr.inode),
        Reply::Leads(inode) => Some(*inode),
        _ => None,
    }
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
            shunned: Mutex::default(),
            refused: Mutex::default(),
            near: Mutex::default(),
            hints: Mutex::default(),
            compounds,
        }
    }

    /// A session is about to ask another host's owner.
    pub(crate) fn asks(&self) -> Asked {
        self.near.lock().ask()
    }

    /// The owner has answered what was asked, and sent, then; the answer is here `now`.
    pub(crate) fn told(
        &self,
        id: SessionId,
        op: &Op,
        (asked, sent, now): (Asked, Tick, Tick),
        answer: &Executed,
        content: Bytes,
    ) {
        let reply = match &answer.result {
            Ok(reply) => reply,
            Err(_) => {
                return match op {
                    Op::Lookup { parent, name } => {
                        self.near.lock().leads_nowhere(id, *parent, name);
                    }
                    op => self.told_nothing(id, op),
                };
            }
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
        near.told(now, id, op, reply, (asked, answer.as_of), &words);
        if let Some(after) = &answer.directory
            && let Some(names) = &after.names
            && directory_of(op) == Some(after.attr.inode)
            && names.len() <= NAMES_MAX as usize
        {
            near.told_names(now, id, answer.as_of, after.attr.inode, names);
        }
        if let Op::Lookup { parent, name } = op
            && self.compounds
        {
            let until = sent + Span(answer.ttl_us);
            match directory_found(reply) {
                Some(inode) => {
                    let step = Step {
                        parent: *parent,
                        name: name.clone(),
                        inode,
                    };
                    near.told_step(id, asked, step, until);
                    if !self.is_hint(id, op) {
                        near.takes(now, id, *parent, name);
                    }
                }
                None => near.leads_nowhere(id, *parent, name),
            }
        }
        if answer.with_content
            && let Some(word) = words.last()
        {
            near.told_content(now, id, (asked, answer.as_of), *word, content);
        }
    }

    /// A session is about to ask another host for something that may make names.
    pub(crate) fn asks_names(&self, id: SessionId, op: &Op) {
        if self.compounds && makes_names(op) {
            self.near.lock().asks_names(id, op);
        }
    }

    /// What became of it is known.
    pub(crate) fn names_settled(&self, id: SessionId, op: &Op) {
        if self.compounds && makes_names(op) {
            self.near.lock().names_settled(id, op);
        }
    }

    /// With how many names an operation is to be answered, at most.
    pub(crate) fn names_wanted(&self, id: SessionId, op: &Op, now: Tick) -> u32 {
        let wanted = self.compounds && makes_names(op) && self.near.lock().wants_names(now, id, op);
        if wanted { NAMES_MAX } else { 0 }
    }

    /// For how long a session may keep that a directory has no such name, where its host knows that.
    pub(crate) fn absent(
        &self,
        id: SessionId,
        directory: InodeId,
        name: &[u8],
        now: Tick,
    ) -> Option<Span> {
        match self.compounds {
            true => self.near.lock().absent(now, id, directory, name),
            false => None,
        }
    }

    /// Where a name leads that a program looks up, if it was the last that was gone on to from its directory, as long as the
    /// session may keep that.
    pub(crate) fn leads(
        &self,
        id: SessionId,
        parent: InodeId,
        name: &[u8],
        now: Tick,
    ) -> Option<(InodeId, Span)> {
        let mut near = self.near.lock();
        near.takes(now, id, parent, name);
        near.leads(now, id, parent, name)
    }

    /// A name has turned out to lead elsewhere.
    pub(crate) fn leads_elsewhere(&self, id: SessionId, parent: InodeId) {
        self.near.lock().leads_elsewhere(id, parent);
    }

    /// What a session is likely to ask for after an operation, which concerns a directory: what it asked for last, and keeps
    /// nothing of now, and has not asked for beforehand already. [`Sessions::asked_beforehand`] follows for each.
    pub(crate) fn asks_next(&self, id: SessionId, op: &Op, now: Tick) -> Vec<Op> {
        let (from, first) = match op {
            Op::GetAttr { inode } => (*inode, None),
            Op::Lookup { parent, name } => (*parent, Some(name)),
            _ => return Vec::new(),
        };
        if !self.compounds {
            return Vec::new();
        }
        let near = self.near.lock();
        let way = near.way(now, id, from);
        if first.is_some_and(|name| way.first().is_none_or(|step| step.name != *name)) {
            return Vec::new();
        }
        let mut ops = Vec::new();
        for (at, step) in way.into_iter().enumerate() {
            let Step {
                parent,
                name,
                inode,
            } = step;
            let asked = at == 0 && first.is_some();
            let name_kept = asked || near.leads(now, id, parent, &name).is_some();
            // The answer to a look-up has the attributes of what is in the same container.
            let comes = inode.container() == parent.container() && (asked || !name_kept);
            if !name_kept {
                ops.push(Op::Lookup { parent, name });
            }
            if !comes && near.attr(now, id, inode).is_none() {
                ops.push(Op::GetAttr { inode });
            }
        }
        let mut hints = self.hints.lock();
        let mut free = |hint| hints.len() < HINTS_MAX && hints.insert(hint);
        ops.retain(|op| Hint::of(id, op).is_some_and(&mut free));
        ops
    }

    fn is_hint(&self, id: SessionId, op: &Op) -> bool {
        Hint::of(id, op).is_some_and(|hint| self.hints.lock().contains(&hint))
    }

    /// What was asked for beforehand is answered.
    pub(crate) fn asked_beforehand(&self, id: SessionId, op: &Op) {
        if let Some(hint) = Hint::of(id, op) {
            self.hints.lock().remove(&hint);
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
        for session in &open {
            near.changed(*session, inode);
        }
        // A member may carry it out after it is answered.
        let lags = |copy: &CopyAt| *copy != CopyAt::Own;
        self.reads.write().own_change(inode, open, lags);
    }

    /// It has not, or refused: what became of an operation may not be known.
    pub(crate) fn told_nothing(&self, id: SessionId, op: &Op) {
        self.near.lock().unknown(id, op);
    }

    /// What a session keeps of an inode that another host owns, and for how long it may.
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

    /// A session is about to ask for a lease to read a copy of a file: for [`Self::lease_reads`].
    pub(crate) fn asked_to_read(&self, inode: InodeId) -> AskedToRead {
        self.reads.read().asks(inode)
    }

    /// The owner lets a session read a copy until a moment. It counts if nothing was called back since it was asked for, and
    /// this host has changed nothing of the file.
    pub(crate) fn lease_reads(
        &self,
        (id, inode, copy): (SessionId, InodeId, CopyAt),
        (now, until): (Tick, Tick),
        asked: AskedToRead,
    ) {
        if let CopyAt::Member { node, .. } = copy
            && self.is_shunned(node, now)
        {
            return;
        }
        let mut reads = self.reads.write();
        reads.given((id, inode, copy), (now, until), asked);
    }

    /// Whether a session may read this node's own copy now.
    pub(crate) fn may_read(&self, id: SessionId, inode: InodeId, now: Tick) -> bool {
        let lease = self.read_lease(id, inode);
        lease.is_some_and(|lease| lease.copy == CopyAt::Own && now < lease.until)
    }

    /// What copy a session may read, or might until the lease ended.
    pub(crate) fn read_lease(&self, id: SessionId, inode: InodeId) -> Option<ReadLease> {
        self.reads.read().lease(id, inode)
    }

    /// The same after the owner was asked to renew it; where it did not, the lease is forgotten.
    pub(crate) fn renewed(&self, id: SessionId, inode: InodeId, now: Tick) -> Option<ReadLease> {
        self.reads.write().renewed(id, inode, now)
    }

    /// Whether the caller is to ask for a lease anew: nobody else does so already.
    pub(crate) fn renews(&self, id: SessionId, inode: InodeId, copy: CopyAt) -> bool {
        self.reads.write().renews(id, inode, copy)
    }

    /// A copy was not as the lease had said.
    pub(crate) fn forget_lease(&self, id: SessionId, inode: InodeId) {
        self.reads.write().forget(id, inode);
    }

    /// Whether a lease has stood without a break since it was looked at.
    pub(crate) fn stands(
        &self,
        id: SessionId,
        inode: InodeId,
        lease: ReadLease,
        now: Tick,
    ) -> bool {
        self.reads.read().stands(id, inode, lease, now)
    }

    /// A member's copy is not read until a moment.
    pub(crate) fn shun(&self, node: NodeId, until: Tick) {
        self.shunned.lock().insert(node, until);
        let of_it = |copy: &CopyAt| matches!(copy, CopyAt::Member { node: at, .. } if *at == node);
        self.reads.write().forget_copies(of_it);
    }

    /// No lease to read was given, or it was of no use.
    pub(crate) fn note_refused(&self, id: SessionId, inode: InodeId, until: Tick) {
        let mut refused = self.refused.lock();
        if refused.len() >= REFUSED_MAX {
            refused.clear();
        }
        refused.insert((id, inode), until);
    }

    /// Whether that was so a moment ago.
    pub(crate) fn was_refused(&self, id: SessionId, inode: InodeId, now: Tick) -> bool {
        let refused = self.refused.lock();
        refused.get(&(id, inode)).is_some_and(|until| now < *until)
    }

    pub(crate) fn is_shunned(&self, node: NodeId, now: Tick) -> bool {
        let mut shunned = self.shunned.lock();
        shunned.retain(|_, until| now < *until);
        shunned.contains_key(&node)
    }

    /// A session itself has changed a file's content at its owner, in a way that this node's copy may not have heard of:
    /// it asks the owner again, who knows which copies have it.
    pub(crate) fn ask_again(&self, id: SessionId, inode: InodeId) {
        self.end_reads(id, &[Touched::Data(inode)]);
    }

    fn end_reads(&self, id: SessionId, touched: &[Touched]) {
        self.near.lock().revoked(id, touched);
        let read = touched.iter().filter_map(|change| match change {
            Touched::Data(inode) | Touched::Attr(inode) => Some(*inode),
            Touched::Listing(_) | Touched::Name { .. } => None,
        });
        self.reads.write().revoked(id, read);
    }

    /// Something has changed for mounts. What of that their kernels may keep, and are to be told of by
    /// [`Self::revoke_attributes`] and [`Self::revoke_pages`].
    pub(crate) fn changed_for(&self, whom: Whom, touched: &[Touched]) -> Vec<Touched> {
        self.note_revoked(whom, touched);
        let sessions = self.who(whom);
        let kept = sessions.iter().flat_map(|session| session.kept_of(touched));
        let kept: BTreeSet<Touched> = kept.collect();
        kept.into_iter().collect()
    }

    fn note_revoked(&self, whom: Whom, touched: &[Touched]) {
        match whom {
            Whom::One(id) => self.end_reads(id, touched),
            Whom::AllBut(_) => {
                let sessions = self.who(whom);
                let mut near = self.near.lock();
                for session in sessions {
                    near.revoked(session.id(), touched);
                }
            }
        }
    }

    /// Makes mounts ask again for attributes and names. May take some time, and waits for nobody.
    pub(crate) fn revoke_attributes(&self, whom: Whom, touched: &[Touched]) {
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
        self.note_revoked(all, touched);
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
        self.reads.write().owner_changed(container);
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

#[cfg(test)]
mod tests {
    use super::*;
    use perigee_types::{Epoch, InodeIndex};

    const ME: NodeId = NodeId(4);
    const NEAR: NodeId = NodeId(3);

    fn of(epoch: u64) -> CopyAt {
        let epoch = Epoch(epoch);
        CopyAt::Member { node: NEAR, epoch }
    }

    fn reader() -> (Sessions, SessionId, InodeId) {
        let inode = InodeId::new(ContainerId(5), InodeIndex(7));
        (Sessions::new(ME, true), SessionId::new(ME, 9), inode)
    }

    #[test]
    fn a_member_that_did_not_answer_is_not_asked_for_a_while() {
        let (sessions, id, inode) = reader();
        let near = of(2);
        let lease = |now: u64| {
            let asked = sessions.asked_to_read(inode);
            sessions.lease_reads((id, inode, near), (Tick(now), Tick(now + 100)), asked);
            sessions.read_lease(id, inode).is_some()
        };
        assert!(lease(10));
        sessions.shun(NEAR, Tick(500));
        assert_eq!(sessions.read_lease(id, inode), None);
        assert!(!lease(20));
        assert!(lease(500));
    }
}
