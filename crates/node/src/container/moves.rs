//! Ownership that moves to the member whose host works in the container.
//!
//! [`Work`](perigee_replica::Work) says to whom and when, the policy of what was worked on whether. Then this owner takes
//! no changes, takes back what sessions may keep, sees to it that nobody lacks anything, and cedes. What of that cannot be
//! done in a moment ends the attempt, and the owner goes on.

use super::{After, Container, Elsewhere, State};
use crate::sessions::Whom;
use perigee_cluster::nearness::{makes_room, nearer_than_owner};
use perigee_cluster::transition::begin_move;
use perigee_cluster::{Directory, PlanError, change};
use perigee_meta::Touched;
use perigee_meta::key::Lane;
use perigee_meta::lease::Holder;
use perigee_meta::stripe::Layout;
use perigee_proto::message::session::Revoke;
use perigee_replica::work::{Done, Visitor};
use perigee_replica::{Input, Role, Standing};
use perigee_types::{InodeId, Migration, NodeId, Seq, SessionId, Span, Tick};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tracing::{debug, info};

/// The longest that changes wait for a move that comes to nothing.
const STOP: Span = Span::from_millis(300);
/// For how long an owner waits, and works on, until there is so little left to be put on the members' disks that it fits
/// into a moment.
const PREPARE: Span = Span::from_millis(3_000);
/// So many files may still lack bytes on a member's disk when it stops.
const LEFT_MAX: usize = 32;
/// So many bytes may have no record then.
const DIRTY_MAX: u64 = 8 << 20;
/// How often an owner that prepares looks whether it may stop.
const LOOK: Duration = Duration::from_millis(50);
/// The same of one that has stopped.
const PAUSE: Duration = Duration::from_millis(1);
/// How long the control store may take to show that it is there.
const CONTROL_CHECK: Duration = Duration::from_millis(200);
/// Fewer bytes than this of a file are not handed to the kernel.
const HANDED_OUT_MIN: u64 = super::unseen::PASSTHROUGH_LEN_MIN;

/// Why an owner does not cede.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
enum Stays {
    #[error("another node owns the container")]
    NotOwner,
    #[error("the chain is about to change, or one of the two leaves")]
    Unsettled,
    #[error("too much is not on every disk")]
    Behind,
    #[error("a program here has a large file open, which its kernel reads by itself")]
    HandedOut,
    #[error("the control store does not answer")]
    NoControl,
    #[error("a session does not say that it has forgotten")]
    Kept,
    #[error("it took too long")]
    Late,
}

impl From<Elsewhere> for Stays {
    fn from(_: Elsewhere) -> Self {
        Self::NotOwner
    }
}

impl Container {
    /// Whether an inode is a column of a striped file: what is spread over several owners on purpose moves to none that uses it.
    fn is_column(&self, st: &State, inode: InodeId) -> bool {
        // They are all made by transactions of other containers.
        let may_be = Lane::of(inode.index()) == Lane::Away;
        may_be && self.env.directory.read().stripes_files() && {
            let attr = self.attr(st, inode);
            attr.is_ok_and(|attr| matches!(attr.layout, Layout::Column { .. }))
        }
    }

    /// The owner has done something for a session: its host may be the better owner.
    pub(super) fn note_work(
        self: &Arc<Self>,
        st: &mut State,
        now: Tick,
        by: SessionId,
        (done, at): (Done, InodeId),
    ) {
        if self.is_column(st, at) {
            return;
        }
        let view = st.chain.view();
        let by = match view.is_some_and(|view| view.lists(by.node())) {
            true => by.node(),
            false => match self.note_visit(st, now, by.node(), (done, at)) {
                Some(near) => near,
                None => return,
            },
        };
        let heir = st.work.on_done(now, (self.env.me, by), done);
        let may = |_: &NodeId| !st.moving && now >= st.changes_from;
        let Some(heir) = heir.filter(may) else {
            return;
        };
        match self.env.migrations.of(&self.env, at) {
            None => return,
            Some(Migration::Off) => return st.work.forget(heir),
            Some(Migration::Always) => {}
            Some(Migration::Adaptive) if st.work.pays(now, heir) => {}
            Some(Migration::Adaptive) => return,
        }
        st.moving = true;
        let me = self.clone();
        self.env
            .runtime
            .spawn(async move { me.try_to_cede(heir).await });
    }

    /// The same for a session of a host that has no copy: the member that is near to it may be the better owner, which this
    /// gives, and after long work a copy is better there.
    fn note_visit(
        self: &Arc<Self>,
        st: &mut State,
        now: Tick,
        by: NodeId,
        (done, at): (Done, InodeId),
    ) -> Option<NodeId> {
        if let Some(visitor) = st.work.on_visit(now, by, done) {
            let me = self.clone();
            let runtime = &self.env.runtime;
            runtime.spawn(async move { me.bring_copy_to(visitor, at).await });
        }
        let directory = self.env.directory.read();
        let chain = st.chain.view().map_or(&[][..], |view| &view.chain);
        nearer_than_owner(&directory, chain, by)
    }

    /// Has a copy move to the host of a visitor, where it pays, and another member can do without.
    async fn bring_copy_to(self: Arc<Self>, visitor: Visitor, worked_on: InodeId) {
        // What the disk has of it, as of some seconds ago.
        _ = self.env.usage.bytes().await;
        let bytes = self.env.usage.containers().get(&self.id).copied();
        let bytes = bytes.unwrap_or(0);
        if !visitor.pays(bytes) {
            return;
        }
        match self.env.migrations.ask(&self.env, worked_on).await {
            // To be asked again.
            None => return,
            Some(Migration::Off) => return self.state.lock().work.forget(visitor.node),
            Some(Migration::Always | Migration::Adaptive) => {}
        }
        let (id, to) = (self.id, visitor.node);
        let plan = |directory: &Directory| {
            let chain = directory
                .container(id)
                .map_or(&[][..], |known| &known.chain);
            let works = |member: NodeId| {
                let now = self.env.clock.now();
                self.state.lock().work.works(now, member)
            };
            let from = makes_room(directory, (id, chain), to, bytes, &works);
            let from = from.ok_or(PlanError::NoStorage { node: to })?;
            begin_move(directory, id, from, to)
        };
        match change(self.env.control.as_ref(), plan).await {
            Ok(made) => {
                info!(container = %id, from = %made.from, %to, bytes, "a copy moves to its work")
            }
            Err(error) => debug!(container = %id, %to, %error, "no copy moves to its work"),
        }
        self.state.lock().work.forget(to);
    }

    /// Cedes to a member, where that can be done; `moving` is set.
    pub(super) async fn try_to_cede(self: Arc<Self>, heir: NodeId) {
        let ceded = match self.prepare_to_cede(heir).await {
            Ok(()) => self.stop_and_cede(heir).await,
            Err(stays) => Err(stays),
        };
        let mut st = self.state.lock();
        let now = self.env.clock.now();
        st.moving = false;
        match ceded {
            Ok(stopped) => {
                let took_ms = now.since(stopped).as_micros() / 1_000;
                info!(container = %self.id, %heir, took_ms, "ceded");
            }
            Err(stays) => {
                debug!(container = %self.id, %heir, %stays, "not ceded");
                st.work.on_failed(now);
            }
        }
    }

    /// Whether this owner may cede to a member as things are.
    fn may_cede(&self, st: &State, now: Tick, heir: NodeId) -> Result<(), Stays> {
        Self::reign(st, now)?;
        let directory = self.env.directory.read();
        let stays = |node: NodeId| {
            let takes = perigee_cluster::Node::takes_containers;
            directory.node(node).is_some_and(takes) && directory.live.contains_key(&node)
        };
        let progress = st.chain.member_progress();
        let members = progress.iter().all(|m| m.standing == Standing::Member);
        let known = progress.iter().any(|m| m.node == heir);
        let working = !self.failing.load(Ordering::Relaxed)
            && !self.env.stopping.load(Ordering::Relaxed)
            && !st.receiving;
        let chain = st.chain.view().map_or(&[][..], |view| &view.chain);
        let moving = directory.move_of(self.id, chain);
        let gives_up = moving.is_some_and(|moving| moving.from == heir);
        if !members || !known || !working || gives_up || !stays(heir) || !stays(self.env.me) {
            return Err(Stays::Unsettled);
        }
        Ok(())
    }

    /// Whether a kernel here may read or write files of the container without asking.
    fn is_handed_out(&self) -> bool {
        if self.unseen.has_any() {
            return true;
        }
        let open = self.env.sessions.open_in(self.id);
        let st = self.state.lock();
        let large = |inode: &InodeId| {
            let attr = self.attr(&st, *inode);
            attr.is_ok_and(|attr| attr.size >= HANDED_OUT_MIN)
        };
        open.iter().any(large)
    }

    /// Waits, while changes go on, until little is left to be done.
    async fn prepare_to_cede(self: &Arc<Self>, heir: NodeId) -> Result<(), Stays> {
        let until = self.env.clock.now() + PREPARE;
        loop {
            let now = self.env.clock.now();
            let little = {
                let st = self.state.lock();
                self.may_cede(&st, now, heir)?;
                let known = st.data.before().is_none() && st.data.len() <= LEFT_MAX;
                known && st.dirty.bytes() <= DIRTY_MAX
            };
            if little {
                break;
            }
            if now >= until {
                return Err(Stays::Behind);
            }
            tokio::time::sleep(LOOK).await;
        }
        if self.is_handed_out() {
            return Err(Stays::HandedOut);
        }
        // Without it, nobody could own next.
        let view = tokio::time::timeout(CONTROL_CHECK, self.current()).await;
        let epoch = view.ok().flatten().map(|view| view.epoch);
        if epoch != Some(self.epoch()) {
            return Err(Stays::NoControl);
        }
        // Most of what must be done is done before changes wait for it.
        self.call_back_readers(heir, until).await
    }

    /// Takes no changes until it has ceded, or cannot. Says when it stopped.
    async fn stop_and_cede(self: &Arc<Self>, heir: NodeId) -> Result<Tick, Stays> {
        let (began, kept) = {
            let mut st = self.state.lock();
            let now = self.env.clock.now();
            self.may_cede(&st, now, heir)?;
            if now < st.changes_from {
                return Err(Stays::Unsettled);
            }
            st.changes_from = now + STOP;
            st.leases.close();
            (now, st.leases.recall_all(now))
        };
        let until = began + STOP;
        let ceded = match self.is_handed_out() {
            true => {
                let mut st = self.state.lock();
                kept.iter().for_each(|kept| st.leases.withdraw(kept));
                Err(Stays::HandedOut)
            }
            false => self.cede_within(heir, kept, until).await,
        };
        let mut st = self.state.lock();
        st.leases.open();
        if st.changes_from == until {
            st.changes_from = began;
        }
        ceded.map(|()| began)
    }

    async fn cede_within(
        self: &Arc<Self>,
        heir: NodeId,
        kept: Vec<Holder>,
        until: Tick,
    ) -> Result<(), Stays> {
        let taking = kept.into_iter().map(|kept| self.take_back_all(kept, until));
        let here = self.forget_at_this_host(until);
        let (taken, forgotten) = tokio::join!(futures_util::future::join_all(taking), here);
        forgotten?;
        if taken.contains(&false) {
            return Err(Stays::Kept);
        }
        loop {
            let left = until.since(self.env.clock.now()).as_duration();
            if left.is_zero() {
                return Err(Stays::Late);
            }
            match tokio::time::timeout(left, self.all_everywhere()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return Err(Stays::Behind),
                Err(_) => return Err(Stays::Late),
            }
            self.call_back_readers(heir, until).await?;
            if self.cede_now(heir)? {
                return Ok(());
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Cedes, if nothing has come in between; says whether it has.
    fn cede_now(self: &Arc<Self>, heir: NodeId) -> Result<bool, Stays> {
        let mut after = After::default();
        let ceded = {
            let mut st = self.state.lock();
            let now = self.env.clock.now();
            self.may_cede(&st, now, heir)?;
            let recorded = st.dirty.inodes().is_empty() && st.data.is_empty();
            let idle = st.leases.is_free(now) && st.transactions.is_idle();
            if recorded && idle {
                // All bytes are on every disk.
                let data = Seq::ZERO;
                self.step_locked(&mut st, Input::Cede { heir, data }, &mut after);
            }
            let ceded = matches!(st.role, Role::Suspended { .. });
            if ceded {
                st.work.on_left(now);
            }
            ceded
        };
        after.run();
        Ok(ceded)
    }

    /// Ends all leases of one session, if it says so in time.
    async fn take_back_all(self: &Arc<Self>, kept: Holder, until: Tick) -> bool {
        let mut touched: Vec<Touched> = kept.inodes().map(Touched::Attr).collect();
        touched.extend(kept.inodes().next().map(Touched::names));
        let told = self.call_back(kept.session, touched, until).await;
        let now = self.env.clock.now();
        let mut st = self.state.lock();
        match told {
            true => st.leases.revoked(now, &kept),
            // Ownership stays here.
            false => st.leases.withdraw(&kept),
        }
        told
    }

    /// Has those drop their pages that may hold some without a lease. The heir's host is told by itself of what changes.
    async fn call_back_readers(self: &Arc<Self>, heir: NodeId, until: Tick) -> Result<(), Stays> {
        let readers = self.state.lock().leases.take_all_readers();
        let others = |(session, _): &(SessionId, Vec<InodeId>)| session.node() != heir;
        let (others, of_heir): (BTreeMap<_, _>, BTreeMap<_, _>) =
            readers.into_iter().partition(others);
        let calls = others.iter().map(|(session, inodes)| {
            let touched = inodes.iter().copied().map(Touched::Data).collect();
            self.call_back(*session, touched, until)
        });
        let told = futures_util::future::join_all(calls).await;
        let failed = told.contains(&false);
        let again = others.into_iter().filter(|_| failed).chain(of_heir);
        let mut st = self.state.lock();
        for (session, inodes) in again {
            for inode in inodes {
                st.leases.note_reader(inode, session);
            }
        }
        match failed {
            true => Err(Stays::Kept),
            false => Ok(()),
        }
    }

    /// Makes a session forget; says whether it has, in time.
    async fn call_back(&self, session: SessionId, touched: Vec<Touched>, until: Tick) -> bool {
        let left = until.since(self.env.clock.now()).as_duration();
        let told = async {
            if session.node() == self.env.me {
                let whom = Whom::One(session);
                let revoked = crate::revoke::revoke(&self.env, whom, touched);
                return revoked.await.is_ok();
            }
            let revoke = Revoke { session, touched };
            let none = bytes::Bytes::new();
            let asked = self.env.ask(session.node(), &revoke, none, left);
            asked.await.is_ok()
        };
        tokio::time::timeout(left, told).await.unwrap_or(false)
    }

    /// The mounts of this host hold content without a lease while it owns. Their kernel waits for reads that are under way,
    /// and these may wait for changes that are not taken now: so it is not waited for beyond `until`, and not asked twice.
    async fn forget_at_this_host(self: &Arc<Self>, until: Tick) -> Result<(), Stays> {
        if self.forgetting.swap(true, Ordering::AcqRel) {
            return Err(Stays::Kept);
        }
        let me = self.clone();
        let forgets = self.env.runtime.spawn_blocking(move || {
            crate::revoke::forget_content(&me.env, me.id);
            me.forgetting.store(false, Ordering::Release);
        });
        let left = until.since(self.env.clock.now()).as_duration();
        match tokio::time::timeout(left, forgets).await {
            // It panics where the runtime stops.
            Ok(_) => Ok(()),
            Err(_) => Err(Stays::Late),
        }
    }
}
