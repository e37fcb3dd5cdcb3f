//! This host's part in a union: its branches, its connections to the others, what it asks of them; [`serve`] what they ask of it.

mod serve;

use crate::branch::{Branch, PAGE_LEN_MAX};
use crate::cover::{self, Part};
use crate::files::Files;
use crate::path::RelPath;
use crate::roster::Roster;
use crate::ways::{self, Carrier, Way};
use crate::wire::{
    Above, Answers, Ask, BranchId, Done, FileId, FileOp, Found, Member, Members, Op, Outcome,
    Query, Request, Settings, decode, encode,
};
use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, join_all};
use parking_lot::{Mutex, RwLock};
use perigee_cluster::{Coordinate, Vivaldi};
use perigee_net::{
    Answer, Call, CallError, CallOptions, Identity, Limits, NetConfig, NetError, Network, PeerName,
};
use perigee_proto::{Priority, Retry};
use perigee_types::{Errno, NodeId, Rng};
use serve::{Served, in_file, on_branch};
use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::{Notify, Semaphore, watch};
use tracing::{debug, warn};

/// The number of the one procedure that members have.
const METHOD: u16 = 1;
/// So many threads may be held up by a disk before others are made for that.
const IN_PLACE_MAX: usize = 32;
/// A connection on which nothing comes for so long is lost. Members ping every second.
const IDLE: Duration = Duration::from_secs(3);
/// How long a member may be without any connection before those who wait for it are told that it is away.
const GRACE: Duration = Duration::from_millis(800);
/// How long an operation on names may take. That a member is gone is found out much earlier.
const DEADLINE: Duration = Duration::from_secs(60);
/// The same of content, which may wait behind much else on a slow link, or for a slow disk.
const CONTENT_DEADLINE: Duration = Duration::from_secs(3_600);
/// Entries of one directory on one branch.
const ENTRIES_MAX: usize = 4_000_000;
/// How long a search may take: who has to ask others has noticed by then who of them is away.
const SEARCH_DEADLINE: Duration = Duration::from_secs(6);
/// After so long a host is told of files that are not needed any more, if nothing else is asked of it: many leave together.
const CLOSES_AFTER: Duration = Duration::from_millis(2);
/// How often the others are asked how far away they are, and lost ones whether they are back.
const PULSE: Duration = Duration::from_secs(1);
/// Bytes of an answer to a search: below what a frame may carry.
const ANSWER_LEN_MAX: usize = 12 << 20;

/// What is searched for.
#[derive(Debug, Clone)]
pub struct Question {
    /// In this directory.
    pub directory: RelPath,
    /// For this.
    pub query: Query,
    /// On these branches; empty: on all.
    pub branches: Vec<BranchId>,
}

/// This host's part.
pub struct Union {
    /// This member.
    pub me: NodeId,
    /// What holds for all.
    pub settings: Settings,
    /// Directories of this host.
    pub branches: Vec<Arc<Branch>>,
    /// Files that are open here.
    pub files: Files,
    roster: RwLock<Arc<Roster>>,
    /// There are others to be connected to.
    joined: Arc<Notify>,
    network: OnceLock<Network>,
    carrier: OnceLock<Arc<dyn Carrier>>,
    peers: Mutex<HashMap<NodeId, Arc<Peer>>>,
    place: Mutex<(Vivaldi, Rng)>,
    began: Instant,
    /// Operations that threads which serve connections carry out themselves.
    in_place: Semaphore,
    /// Files that members have open for this one, and that it does not need any more: they are told with the next question.
    closing: Mutex<HashMap<NodeId, Vec<FileId>>>,
    /// For tasks of threads that are not of the runtime.
    pub runtime: Handle,
}

/// What is known of the way to another member.
struct Peer {
    way: tokio::sync::Mutex<Option<Way>>,
    /// Since when there is no connection.
    down: watch::Sender<Option<Instant>>,
    /// Ways that were tried: where those past SSH do not work, though they seemed to, the third is carried by it.
    tries: AtomicU32,
}

/// How many connections data goes over at once. Those that SSH carries share one anyway, with what tells that a member is there.
const fn streams(way: &Way) -> u8 {
    match way.carried {
        true => 1,
        false => 4,
    }
}

impl Union {
    /// Begins to serve the others.
    ///
    /// # Errors
    /// The identity is of no use, or the address is taken.
    pub async fn start(
        (me, settings): (NodeId, Settings),
        branches: Vec<Branch>,
        identity: Identity,
        listen: SocketAddr,
    ) -> Result<Arc<Self>, NetError> {
        // Programs that ask have applied their own.
        rustix::process::umask(rustix::fs::Mode::empty());
        let union = Arc::new(Self {
            me,
            settings,
            branches: branches.into_iter().map(Arc::new).collect(),
            files: Files::default(),
            roster: RwLock::new(Arc::new(Roster::new(me, Members::default()))),
            joined: Arc::default(),
            network: OnceLock::new(),
            carrier: OnceLock::new(),
            peers: Mutex::default(),
            place: Mutex::new((Vivaldi::default(), Rng::new(u64::from(me.0) + 1))),
            began: Instant::now(),
            in_place: Semaphore::new(IN_PLACE_MAX),
            closing: Mutex::default(),
            runtime: Handle::current(),
        });
        let mut config = NetConfig::new(identity, listen);
        config.limits = Limits {
            idle_timeout: IDLE,
            handshake_timeout: IDLE,
            ..config.limits
        };
        let served = Served(Arc::downgrade(&union));
        let network = Network::start(config, Arc::new(served)).await?;
        _ = union.network.set(network);
        tokio::spawn(pulse(Arc::downgrade(&union)));
        Ok(union)
    }

    /// The port on which it listens.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.network
            .get()
            .map_or(0, |network| network.local_addr().port())
    }

    /// Says who carries connections through SSH.
    pub fn set_carrier(&self, carrier: Arc<dyn Carrier>) {
        _ = self.carrier.set(carrier);
    }

    /// Takes what the starter tells of the members; what was overtaken by something later is left out.
    pub fn set_members(&self, told: Members) {
        let mut roster = self.roster.write();
        if told.version <= roster.version() {
            return;
        }
        for member in &told.members {
            let known = roster.member(member.id);
            if known.is_none_or(|known| known.born == member.born) {
                continue;
            }
            // Another process has its number now: it listens elsewhere, and has nothing open here.
            self.files.close_all(member.id);
            if let Some(peer) = self.peers.lock().get(&member.id) {
                peer.anew();
            }
        }
        let there = |member: &Member| (member.id, member.away, member.born);
        let others = !roster
            .members()
            .map(there)
            .eq(told.members.iter().map(there));
        *roster = Arc::new(Roster::new(self.me, told));
        if others {
            self.joined.notify_one();
        }
    }

    /// Who is in the union.
    #[must_use]
    pub fn roster(&self) -> Arc<Roster> {
        Arc::clone(&self.roster.read())
    }

    /// Where this member is in the network, if it has moved from what was told by so much that it matters.
    #[must_use]
    pub fn moved(&self, told: Option<Coordinate>) -> Option<Coordinate> {
        let place = self.place.lock();
        place.0.is_worth_telling(told).then(|| place.0.coordinate())
    }

    /// Whether a member is reached through SSH; `None`: nobody knows yet.
    #[must_use]
    pub fn is_carried(&self, id: NodeId) -> Option<bool> {
        let peer = self.peers.lock().get(&id).cloned()?;
        let way = peer.way.try_lock().ok()?;
        way.as_ref().map(|way| way.carried)
    }

    /// The branch of this host with a number.
    #[must_use]
    pub fn own(&self, branch: BranchId) -> Option<&Arc<Branch>> {
        self.branches.iter().find(|own| own.id == branch)
    }

    /// Ends all connections.
    pub async fn stop(&self) {
        if let Some(network) = self.network.get() {
            network.shutdown().await;
        }
    }

    fn peer(&self, id: NodeId) -> Arc<Peer> {
        let mut peers = self.peers.lock();
        let peer = peers.entry(id).or_insert_with(|| {
            Arc::new(Peer {
                way: tokio::sync::Mutex::new(None),
                down: watch::Sender::new(None),
                tries: AtomicU32::new(0),
            })
        });
        Arc::clone(peer)
    }

    /// Sees to it that the network knows where a member is.
    async fn find_way(&self, id: NodeId, peer: &Peer) -> Result<(), Errno> {
        let mut way = peer.way.lock().await;
        if way.is_some() {
            return Ok(());
        }
        let roster = self.roster();
        let (member, carrier) = (roster.member(id), self.carrier.get());
        let (Some(member), Some(carrier)) = (member, carrier) else {
            return Err(Errno::EIO);
        };
        let tries = peer.tries.fetch_add(1, Ordering::Relaxed);
        let direct = self.settings.direct && tries % 3 != 2;
        let found = ways::find(carrier, member, direct).await;
        let found = found.map_err(|error| {
            warn!(member = member.name, %error, "no way");
            Errno::EIO
        })?;
        if let Some(network) = self.network.get() {
            network.set_address(PeerName::Node(id), found.address);
            network.set_streams(PeerName::Node(id), streams(&found));
        }
        *way = Some(found);
        Ok(())
    }

    /// Goes past SSH again where the network lets it again.
    async fn improve_way(&self, id: NodeId, peer: &Peer) {
        let looks = peer
            .way
            .lock()
            .await
            .as_mut()
            .is_some_and(Way::is_to_be_looked_at);
        let roster = self.roster();
        let member = roster.member(id).filter(|_| looks && self.settings.direct);
        let better = match member {
            Some(member) => ways::past_ssh(member).await,
            None => None,
        };
        if let Some(better) = better
            && let Some(network) = self.network.get()
        {
            network.set_address(PeerName::Node(id), better.address);
            network.set_streams(PeerName::Node(id), streams(&better));
            *peer.way.lock().await = Some(better);
            network.disconnect(PeerName::Node(id));
        }
    }

    async fn call(
        &self,
        to: NodeId,
        ask: Option<Ask>,
        payload: Bytes,
        (priority, deadline): (Priority, Duration),
    ) -> Result<Answer, Errno> {
        let network = self.network.get().ok_or(Errno::EIO)?;
        let peer = self.peer(to);
        let away = self
            .roster
            .read()
            .member(to)
            .is_none_or(|member| member.away);
        if away {
            return Err(Errno::EIO);
        }
        let options = CallOptions {
            deadline,
            priority,
            retry: Retry::Same,
        };
        let closing = self.closing.lock().remove(&to).unwrap_or_default();
        let request = Request { closing, ask };
        let call = Call {
            method: METHOD,
            body: encode(&request).into(),
            payload,
        };
        let asked = async {
            self.find_way(to, &peer).await?;
            let answer = network.call(PeerName::Node(to), call, options).await;
            answer.map_err(|error| not_answered(to, &error))
        };
        let answer = tokio::select! {
            answer = asked => answer,
            () = peer.is_gone() => Err(Errno::EIO),
        };
        if answer.is_err() && !request.closing.is_empty() {
            // It may not have heard of it. What is closed twice is closed.
            let mut closing = self.closing.lock();
            closing.entry(to).or_default().extend(request.closing);
        }
        answer
    }

    /// A file on the host of a branch is not needed any more. Its host hears of it with what is asked next, or a moment later;
    /// where it does not answer, once it does.
    pub fn close(self: &Arc<Self>, branch: BranchId, file: FileId) {
        if self.own(branch).is_some() {
            return self.files.close(self.me, file);
        }
        // Nobody has it open any more where nobody has the branch.
        let Some(to) = self.roster().holder(branch) else {
            return;
        };
        let first = {
            let mut closing = self.closing.lock();
            let files = closing.entry(to).or_default();
            files.push(file);
            files.len() == 1
        };
        if first {
            let me = Arc::clone(self);
            self.runtime.spawn(async move {
                tokio::time::sleep(CLOSES_AFTER).await;
                me.close_told(to).await;
            });
        }
    }

    /// Tells a host of the files that are not needed, if there are any. A host that is away for long closes all of them.
    async fn close_told(&self, to: NodeId) {
        if !self.closing.lock().contains_key(&to) {
            return;
        }
        let how = (Priority::Meta, DEADLINE);
        if let Err(errno) = self.call(to, None, Bytes::new(), how).await {
            debug!(%to, %errno, "files that are not needed stay open for now");
        }
    }

    /// One operation on a branch, here or elsewhere; bytes go and come beside it.
    ///
    /// # Errors
    /// What the branch's host says; EIO where it does not answer.
    pub async fn on(
        &self,
        branch: BranchId,
        path: &RelPath,
        op: Op,
    ) -> Result<(Done, Bytes), Errno> {
        let (done, bytes, _) = self.change(branch, path, op).await?;
        Ok((done, bytes))
    }

    /// The same of an operation that changes names.
    ///
    /// # Errors
    /// Those of [`Union::on`].
    pub async fn change(
        &self,
        branch: BranchId,
        path: &RelPath,
        op: Op,
    ) -> Result<Performed, Errno> {
        if let Some(own) = self.own(branch).cloned() {
            let path = path.clone();
            return self
                .here(move |files, me| on_branch(files, me, &own, &path, &op))
                .await;
        }
        let to = self.roster().holder(branch).ok_or(Errno::EIO)?;
        let ask = Ask::On {
            branch,
            path: path.clone(),
            op,
        };
        let answer = self
            .call(to, Some(ask), Bytes::new(), (Priority::Meta, DEADLINE))
            .await?;
        outcome(answer)
    }

    /// One operation on a file that is open on the host of a branch.
    ///
    /// # Errors
    /// What that host says; EIO where it does not answer.
    pub async fn within(
        &self,
        branch: BranchId,
        file: FileId,
        op: FileOp,
        data: Bytes,
    ) -> Result<(Done, Bytes), Errno> {
        if self.own(branch).is_some() {
            let here = self.here(move |files, me| in_file(files, me, file, &op, &data));
            return here.await.map(|(done, bytes, _)| (done, bytes));
        }
        let to = self.roster().holder(branch).ok_or(Errno::EIO)?;
        let how = match op {
            FileOp::Read { .. } | FileOp::Write { .. } => (Priority::Data, CONTENT_DEADLINE),
            FileOp::Sync | FileOp::Allocate(..) => (Priority::Meta, CONTENT_DEADLINE),
            _ => (Priority::Meta, DEADLINE),
        };
        let answer = self.call(to, Some(Ask::In { file, op }), data, how).await?;
        match outcome(answer) {
            // Its host has another process now, or has taken this one for gone.
            Err(Errno::EBADF) => Err(Errno::EIO),
            outcome => outcome.map(|(done, bytes, _)| (done, bytes)),
        }
    }

    async fn here(
        &self,
        work: impl FnOnce(&Files, NodeId) -> Result<Performed, Errno>,
    ) -> Result<Performed, Errno> {
        // The disk of this host, as for any program of it.
        tokio::task::block_in_place(|| work(&self.files, self.me))
    }

    /// What the branches of this host have.
    #[must_use]
    pub fn look_here(&self, question: &Question) -> Vec<(BranchId, Found)> {
        let wanted = |branch: &&Arc<Branch>| {
            question.branches.is_empty() || question.branches.contains(&branch.id)
        };
        let look =
            |branch: &Arc<Branch>| (branch.id, branch.look(&question.directory, &question.query));
        self.branches.iter().filter(wanted).map(look).collect()
    }

    /// Asks `targets`, in parallel, by way of each other.
    pub fn search<'a>(
        &'a self,
        question: &'a Question,
        targets: &'a [NodeId],
    ) -> BoxFuture<'a, Answers> {
        async move {
            let roster = self.roster();
            let near = |from: NodeId, to: NodeId| roster.near(from, to);
            let parts = cover::plan(self.me, targets, &near);
            let asked = join_all(parts.iter().map(|part| self.ask_part(question, part))).await;
            let mut all = Answers::default();
            for answers in asked {
                all.found.extend(answers.found);
                all.away.extend(answers.away);
            }
            bounded(all)
        }
        .boxed()
    }

    async fn ask_part(&self, question: &Question, part: &Part) -> Answers {
        let ask = Ask::Search {
            directory: question.directory.clone(),
            query: question.query.clone(),
            branches: question.branches.clone(),
            cover: part.cover.clone(),
        };
        let how = (Priority::Meta, SEARCH_DEADLINE);
        let asked = self.call(part.child, Some(ask), Bytes::new(), how).await;
        let read =
            asked.and_then(|answer| decode::<Answers>(&answer.payload).map_err(|_| Errno::EPROTO));
        match read {
            Ok(answers) => answers,
            Err(_) => {
                // Whom it was to cover is asked from here.
                let mut answers = self.search(question, &part.cover).await;
                answers.away.push(part.child);
                answers
            }
        }
    }
}

/// Cuts pages, so that all of it fits a frame; the rest can be asked for.
fn bounded(mut answers: Answers) -> Answers {
    let mut left = ANSWER_LEN_MAX;
    for (_, found) in &mut answers.found {
        let Found::List { entries, more } = found else {
            continue;
        };
        let mut fit = 0;
        for (name, _) in entries.iter() {
            // A stat is some 60 bytes, never more than 120.
            let len = name.len() + 120;
            if left < len {
                break;
            }
            left -= len;
            fit += 1;
        }
        *more |= fit < entries.len();
        entries.truncate(fit);
    }
    answers
}

/// What an operation gave, bytes beside it, and what it has made of the directories around.
pub(crate) type Performed = (Done, Bytes, Above);

fn not_answered(to: NodeId, error: &CallError) -> Errno {
    debug!(%to, %error, "no answer");
    match error {
        CallError::Refused(refusal) => Errno::from_code(i32::from(refusal.code)),
        CallError::TooLarge { .. } => Errno::EINVAL,
        _ => Errno::EIO,
    }
}

fn outcome(answer: Answer) -> Result<Performed, Errno> {
    let outcome: Outcome = decode(&answer.body).map_err(|_| Errno::EPROTO)?;
    let (done, above) = outcome?;
    Ok((done, answer.payload, above))
}

impl Peer {
    /// Its process is another one.
    fn anew(&self) {
        self.down.send_replace(None);
        self.tries.store(0, Ordering::Relaxed);
        // Whoever looks for the way right now finds the old one, and the pulse the new one after it.
        if let Ok(mut way) = self.way.try_lock() {
            way.take();
        }
    }

    /// Returns once there has been no connection for [`GRACE`].
    async fn is_gone(&self) {
        let mut down = self.down.subscribe();
        loop {
            let since = *down.borrow_and_update();
            let Some(since) = since else {
                if down.changed().await.is_err() {
                    return std::future::pending().await;
                }
                continue;
            };
            tokio::select! {
                () = tokio::time::sleep_until((since + GRACE).into()) => return,
                _ = down.changed() => {}
            }
        }
    }
}

/// Keeps connections to the others, by which it is known who is there and how far away, and tells where this member is.
async fn pulse(union: Weak<Union>) {
    loop {
        let Some(union) = union.upgrade() else { return };
        let Some(network) = union.network.get() else {
            return;
        };
        let place = union.place.lock().0.coordinate();
        network.set_note(place.to_note().into());
        let roster = union.roster();
        for member in roster.members().filter(|m| m.id != union.me && !m.away) {
            let peer = union.peer(member.id);
            let lost = peer
                .down
                .borrow()
                .is_some_and(|since| since.elapsed() > GRACE);
            if lost {
                // Perhaps there is another way by now.
                peer.way.lock().await.take();
            }
            let (union, id) = (Arc::clone(&union), member.id);
            tokio::spawn(async move {
                union.improve_way(id, &peer).await;
                if union.find_way(id, &peer).await.is_ok()
                    && let Some(network) = union.network.get()
                {
                    network.reach(PeerName::Node(id));
                    // What was on its way when a connection was lost.
                    union.close_told(id).await;
                }
            });
        }
        let joined = Arc::clone(&union.joined);
        drop(union);
        tokio::select! {
            () = tokio::time::sleep(PULSE) => {}
            // Whoever asks first need not wait until there is a connection.
            () = joined.notified() => {}
        }
    }
}

/// Every branch's own part of a merged listing: all its pages.
pub async fn whole_listing(
    union: &Union,
    directory: &RelPath,
    branch: BranchId,
    first: Found,
) -> Found {
    let Found::List {
        mut entries,
        mut more,
    } = first
    else {
        return first;
    };
    while more {
        let question = Question {
            directory: directory.clone(),
            query: Query::List {
                after: entries.last().map(|(name, _)| name.clone()),
                limit: PAGE_LEN_MAX,
            },
            branches: vec![branch],
        };
        let found = match union.own(branch) {
            Some(_) => tokio::task::block_in_place(|| union.look_here(&question)),
            None => {
                let holder: Vec<NodeId> = union.roster().holder(branch).into_iter().collect();
                union.search(&question, &holder).await.found
            }
        };
        if entries.len() > ENTRIES_MAX {
            return Found::Failed(Errno::EOVERFLOW);
        }
        match found.into_iter().next() {
            Some((
                _,
                Found::List {
                    entries: next,
                    more: again,
                },
            )) if !next.is_empty() => {
                entries.extend(next);
                more = again;
            }
            Some((_, Found::List { .. } | Found::NoDirectory)) => more = false,
            Some((_, other)) => return other,
            None => return Found::Failed(Errno::EIO),
        }
    }
    Found::List { entries, more }
}

/// What all branches answered, by branch.
#[must_use]
pub fn by_branch(found: Vec<(BranchId, Found)>) -> BTreeMap<BranchId, Found> {
    found.into_iter().collect()
}
