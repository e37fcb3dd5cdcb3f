//! What changes on this node when its part in the chain changes.

use super::drive::decode_batch;
use super::payload::Payload;
use super::uncertain::Uncertain;
use super::{After, Container, Elsewhere, State};
use crate::room::at_most;
use perigee_meta::{Key, Overlay, Touched};
use perigee_proto::message::data::{INVALID_MAX, Valid};
use perigee_replica::Role;
use perigee_types::{ByteRange, ContainerId, DataCommand, Epoch, InodeId, NodeId, Seq};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tracing::{error, info, warn};

/// How long a stop waits for the other members.
const QUIESCE: Duration = Duration::from_secs(5);

/// One container as `status` shows it.
#[derive(Debug, Clone)]
pub(crate) struct Standing {
    pub(crate) id: ContainerId,
    pub(crate) last: Seq,
    pub(crate) members: Vec<perigee_replica::MemberProgress>,
}

impl State {
    /// The key-value state on disk has everything up to `seq`.
    pub(super) fn applied_on_disk(&mut self, seq: Seq) {
        self.overlay.drop_through(seq);
        while self
            .unapplied
            .front()
            .is_some_and(|unapplied| unapplied.version.seq <= seq)
        {
            self.unapplied.pop_front();
        }
    }

    /// What is committed and not on disk, and nothing else.
    pub(super) fn committed_overlay(&self) -> Overlay {
        let on_disk = match self.unapplied.front() {
            Some(first) => Seq(first.version.seq.0 - 1),
            None => self.extracted,
        };
        let mut overlay = Overlay::default();
        overlay.clear(on_disk);
        for unapplied in &self.unapplied {
            overlay.apply(unapplied.version.seq, &unapplied.batch);
        }
        overlay
    }
}

impl Container {
    /// What this node knows of the container.
    pub(crate) fn standing(&self) -> Standing {
        let st = self.state.lock();
        Standing {
            id: self.id,
            last: st.chain.last().seq,
            members: st.chain.member_progress(),
        }
    }

    /// Bytes of file content that this node has yet to fetch.
    pub(crate) fn missing_bytes(&self) -> u64 {
        let st = self.state.lock();
        at_most(st.pull.missing_bytes(), st.content)
    }

    /// Bytes that were written to its files here, ever, and those that are yet to come.
    pub(crate) fn taken(&self) -> (u64, u64) {
        let st = self.state.lock();
        (st.written, st.pull.missing_bytes())
    }

    /// What its files take on the disk of its owner, in bytes.
    pub(crate) fn note_content(&self, bytes: u64) {
        self.state.lock().content = Some(bytes);
    }

    /// Whether this node has what a member must have: it may have lost its disk, or be on the way to become a member.
    pub(crate) fn is_complete(&self) -> bool {
        let st = self.state.lock();
        st.complete && !st.receiving
    }

    /// Who will have to take what is written here, and how many bytes of it have no record yet.
    pub(crate) fn owed_to(&self) -> (Vec<NodeId>, u64) {
        let st = self.state.lock();
        match st.role {
            Role::Owner { .. } => (self.others(&st), st.dirty.bytes()),
            _ => (Vec::new(), 0),
        }
    }

    /// How often this node has given it away to a member that worked in it.
    pub(crate) fn given_away(&self) -> u64 {
        self.state.lock().given_away
    }

    /// The newest epoch that this node knows of.
    pub(crate) fn epoch(&self) -> Epoch {
        self.state
            .lock()
            .chain
            .view()
            .map_or(Epoch(0), |view| view.epoch)
    }

    /// Which of a file's bytes are current here.
    pub(crate) fn valid(&self, inode: InodeId, size: u64) -> Valid {
        let whole = ByteRange::new(0, size);
        if !self.holds_copy() {
            return Valid {
                bytes: 0,
                invalid: vec![whole],
            };
        }
        let st = self.state.lock();
        let map = st.pull.invalid(inode);
        let parts = map.into_iter().flat_map(|map| map.overlapping(whole));
        let (mut bytes, mut invalid) = (size, Vec::<ByteRange>::new());
        for (part, _) in parts {
            bytes -= part.len();
            match invalid.last_mut() {
                Some(last) if last.end == part.start => last.end = part.end,
                _ => invalid.push(part),
            }
        }
        if let Some(rest) = invalid.split_off(invalid.len().min(INVALID_MAX)).last()
            && let Some(last) = invalid.last_mut()
        {
            last.end = rest.end;
        }
        Valid { bytes, invalid }
    }

    /// Before a stop: everything that was acknowledged here is sent and put on disk.
    pub(crate) async fn quiesce(self: &Arc<Self>) {
        self.take_in_all_unseen().await;
        if tokio::time::timeout(QUIESCE, self.send_everything())
            .await
            .is_err()
        {
            warn!(container = %self.id, "stopping before the owner has what was written here");
        }
        let inodes = {
            let st = self.state.lock();
            if Self::reign(&st, self.env.clock.now()).is_err() {
                return;
            }
            // They stay there as well: nothing counts as stored before one or the other has stored it.
            st.unsettled.clone()
        };
        let sent = tokio::time::timeout(QUIESCE, self.all_everywhere()).await;
        if !matches!(sent, Ok(Ok(()))) {
            warn!(container = %self.id, "stopping before all changes are on every member");
        }
        for inode in inodes {
            if let Err(error) = self.sync_here(inode).await {
                warn!(%inode, ?error, "not synced before the stop");
            }
        }
    }

    /// Rows that wait go to the disk with the store's last commit: the next start need not go through their records again.
    pub(crate) fn store_rows(self: &Arc<Self>) {
        self.apply_now(&mut self.state.lock());
    }

    /// How this node comes to own it: who gave it away is still a member.
    fn note_reign(&self, st: &mut State, next: Role) {
        let now = self.env.clock.now();
        match (st.role, next) {
            (Role::Suspended { .. }, Role::Owner { .. } | Role::Reconciling { .. }) => {
                st.work.on_kept(now);
            }
            // The chain changes, and the owner does not.
            (Role::Owner { .. } | Role::Reconciling { .. }, Role::Reconciling { .. }) => {}
            (Role::Replica { owner, .. }, Role::Reconciling { .. }) => {
                let given = st.chain.view().is_some_and(|view| view.lists(owner));
                match given {
                    true => st.work.on_given(now),
                    false => st.work.on_taken(now),
                }
            }
            (_, Role::Reconciling { .. }) => st.work.on_taken(now),
            _ => {}
        }
    }

    /// This node has another part in the chain from here on.
    pub(super) fn enter(self: &Arc<Self>, st: &mut State, role: Role, after: &mut After) {
        if st.role == role {
            return;
        }
        info!(container = %self.id, from = ?st.role, to = ?role, "role");
        self.note_reign(st, role);
        st.role = role;
        if !role.serves() {
            self.forget_at_home(st, after);
        }
        match role {
            Role::Owner { epoch } => {
                if !st.reigning {
                    self.begin_reign(st);
                }
                st.reigning = true;
                self.env.note_owner(self.id, epoch, self.env.me);
            }
            Role::Reconciling { .. } | Role::Suspended { .. } => {}
            Role::Replica { owner, epoch } => {
                st.given_away += u64::from(st.reigning && st.work.has_left());
                self.end_reign(st, after);
                self.hold_elsewhere(st);
                self.env.note_owner(self.id, epoch, owner);
            }
            Role::Returning => self.end_reign(st, after),
            Role::Joining { .. } | Role::Outside => {
                self.end_reign(st, after);
                self.lose_all_held(st);
            }
        }
        st.pull.on_source_changed();
        st.pull.look_again();
        // The next owner counts its own disk.
        st.content = None;
        self.sources_changed.notify_waiters();
        self.refill.notify_one();
    }

    /// This node does not speak for the container now: its own mounts keep nothing unasked.
    fn forget_at_home(&self, st: &State, after: &mut After) {
        let held = st.leases.held_by(self.env.me);
        if held.is_empty() {
            return;
        }
        let mut touched: Vec<Touched> = held.iter().copied().map(Touched::Attr).collect();
        touched.extend(held.first().copied().map(Touched::names));
        let env = self.env.clone();
        after.push(move || {
            let runtime = env.runtime.clone();
            let shown = env.stripes.shown(&touched);
            runtime.spawn_blocking(move || env.sessions.revoke_all(&shown));
        });
    }

    /// Takes over what the log holds as the state that operations see.
    fn begin_reign(self: &Arc<Self>, st: &mut State) {
        st.reigns_from = self.env.clock.now();
        st.losses_noted = false;
        st.data_elsewhere = Seq::ZERO;
        st.mark = None;
        st.overlay = st.committed_overlay();
        let base = st.chain.base().seq;
        st.data.begin(base);
        for entry in st.chain.entries(base.next(), st.chain.last().seq) {
            match Payload::decode(&entry.payload) {
                Ok(Payload { batch, carried }) => {
                    for command in &batch.data {
                        let carried = carried.by(command);
                        st.data.note(entry.version.seq, command, &carried);
                        if let DataCommand::Removed { inode } = command
                            && entry.version.seq > st.chain.committed()
                        {
                            st.removals.insert(*inode, entry.version.seq);
                        }
                    }
                    if entry.version.seq > st.extracted {
                        st.overlay.apply(entry.version.seq, &batch);
                    }
                }
                Err(error) => {
                    error!(container = %self.id, version = %entry.version, %error, "record unreadable");
                }
            }
        }
        st.leases.clear();
        st.visitors.forget();
        if st.chain.last().seq == Seq::ZERO {
            st.visitors.begin_empty();
        }
        self.restore_locks(st);
        self.restore_transactions(st);
        self.take_over_rows(st);
        self.load_checkpoints(st);
        let me = self.clone();
        self.env.runtime.spawn(async move { me.take_over().await });
    }

    /// What a new owner settles when it begins: transactions in doubt, and unlinked inodes.
    async fn take_over(self: Arc<Self>) {
        self.settle_transactions().await;
        self.find_orphans();
    }

    /// Another node has answered for the container. If this one does not know yet that its reign is over, programs must
    /// hear all the same what went with it.
    pub(crate) fn concede(&self) {
        let mut st = self.state.lock();
        if st.reigning {
            self.note_losses(&mut st);
        }
    }

    /// Programs of this node are to hear that what they did and nobody else has may be lost: writes without a record,
    /// records that are not committed, bytes that may not be on every other member. Once for each reign, or they would hear
    /// twice of the same.
    fn note_losses(&self, st: &mut State) {
        if std::mem::replace(&mut st.losses_noted, true) {
            return;
        }
        let mut inodes: BTreeSet<InodeId> = st.dirty.inodes().into_iter().collect();
        let here_alone = |(_, seq): &(_, Seq)| *seq > st.data_elsewhere;
        let unsynced = st.data.lacking_files().filter(here_alone);
        inodes.extend(unsynced.map(|(inode, _)| inode));
        let (from, to) = (st.chain.committed().next(), st.chain.last().seq);
        for entry in st.chain.entries(from, to) {
            match decode_batch(&entry.payload) {
                Ok(batch) => {
                    inodes.extend(batch.data.iter().map(DataCommand::inode));
                    let keys = batch.mutations.iter().map(|mutation| &*mutation.key);
                    let known = keys.filter_map(|key| Key::decode(key)?.inode());
                    inodes.extend(known.map(|index| InodeId::new(self.id, index)));
                }
                Err(error) => {
                    error!(container = %self.id, version = %entry.version, %error, "record unreadable");
                }
            }
        }
        if !inodes.is_empty() {
            warn!(container = %self.id, inodes = inodes.len(), "the last unsynced work of programs here may be lost");
        }
        self.env.losses.note(inodes);
    }

    /// Another node orders now: what only this one knew counts no more.
    fn end_reign(&self, st: &mut State, after: &mut After) {
        let waiters = std::mem::take(&mut st.commit_waiters);
        for waiter in waiters.into_values().flatten() {
            after.push(move || waiter(Err(Elsewhere::NotOwner)));
        }
        st.lost_unsynced.clear();
        if !st.reigning {
            return;
        }
        self.note_losses(st);
        st.reigning = false;
        st.overlay.clear(st.extracted);
        st.leases.clear();
        st.lock_queue.clear();
        st.visitors.forget();
        st.data.clear();
        st.removals.clear();
        st.orphans.clear();
        st.forget_past();
        st.gathering.clear();
        st.own.clear();
        let (from, last) = (st.chain.committed().next(), st.chain.last().seq);
        st.distrusted_through = last;
        st.uncertain = Uncertain::of(st.chain.entries(from, last));
        st.pull.on_stepped_down();
        for (inode, written) in st.dirty.take_all() {
            self.distrust_writes(st, inode, &written.ranges);
        }
        st.away = super::hold::Away::default();
        let State {
            intents,
            marks,
            unsent,
            ..
        } = st;
        intents.forget_all(|inode| unsent.keeps(inode), marks);
    }
}
