//! Chunks that the owner gives to who writes to them, and when.

use super::super::dirty::Effect;
use super::super::execute::Owed;
use super::super::write::WriteRequest;
use super::super::{Container, Elsewhere, Failed, State};
use super::row;
use super::silent::Silent;
use perigee_meta::stripe::Layout;
use perigee_meta::{Kind, Touched};
use perigee_replica::chunk::{Habit, Holds, Manner};
use perigee_replica::{Chunk, Hold};
use perigee_types::limits::{CHUNK_LEN, FILE_LEN_MAX};
use perigee_types::{Batch, ByteRange, Errno, InodeId, Migration, Seq, SessionId, Tick, Version};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;
use tracing::{debug, error, info};

/// Chunks whose writers are counted; with one more all are forgotten, and count from the beginning.
const HABITS_MAX: usize = 4_096;

/// A stream of writes that comes so near to a chunk's end finds the next one its own when it gets there: its programs are ahead of
/// what has arrived by half a chunk.
const AHEAD: u64 = CHUNK_LEN / 4 * 3;

/// What an owner knows of the chunks that it has given away, and of those that it may give away.
#[derive(Default)]
pub(in super::super) struct Away {
    pub(in super::super) holds: Holds,
    pub(super) habits: BTreeMap<Chunk, Habit>,
    /// How many writes holders have told of since they hold.
    pub(super) stays: BTreeMap<Chunk, u64>,
    /// About to be given away.
    pub(super) giving: BTreeSet<Chunk>,
    /// None is given away before: a snapshot waits until all are here.
    pub(in super::super) none_before: Tick,
    /// Taken back from a silent holder, by these records: who was shown what was before the holder's last writes is shown it when
    /// they are committed, lest the next owner take these.
    pub(in super::super) removing: BTreeMap<Chunk, Version>,
    /// Holders that do not answer.
    pub(super) silent: Silent,
    /// Since when holders say that they are at it, though their rights to these chunks are over.
    pub(super) working: BTreeMap<Chunk, Tick>,
    /// Chunks that nobody uses any more are being taken back.
    pub(super) tidying: bool,
    /// The last of them that was looked at.
    pub(super) tidied: Option<Chunk>,
}

/// Why a chunk is given away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Why {
    /// A session has written there alone, or its stream comes there.
    Written,
    /// A host that keeps no copy has asked for it.
    Wanted,
}

/// A write is answered after so long, whether its host has heard that its chunk moves there or not.
const TELL_WAIT: Duration = Duration::from_millis(100);

/// A chunk that is about to be given away, until that has come to its end, whatever that is.
struct Giving {
    container: Arc<Container>,
    chunk: Chunk,
}

impl Drop for Giving {
    fn drop(&mut self) {
        self.container.state.lock().away.giving.remove(&self.chunk);
        self.container.progress.notify_waiters();
    }
}

/// Whether the move of a chunk that was written to a handful of times costs less than it saves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pays {
    Yes,
    NotYet,
}

impl Away {
    /// The chunk of a range that is being taken back from a silent holder.
    pub(in super::super) fn goes(&self, inode: InodeId, range: ByteRange) -> Option<Chunk> {
        let mut chunks = self.removing.range(Chunk::all_of(inode));
        let chunk = chunks.find(|(chunk, _)| chunk.range().overlaps(range));
        chunk.map(|(chunk, _)| *chunk)
    }

    /// Whether a session writes a chunk behind, and its own writes without a row may be carried out beside that: it sends these
    /// when all others have arrived.
    pub(super) fn is_written_behind_by(&self, chunk: Chunk, session: SessionId) -> bool {
        let hold = self.holds.holder(chunk);
        let its =
            hold.is_some_and(|hold| hold.holder == session && hold.manner == Manner::WriteBehind);
        its && !self.removing.contains_key(&chunk)
    }

    /// A write of another host's session has replaced a part of a file. Says which chunk of it should belong to that where
    /// it always shall, and whether it pays.
    fn on_write(
        &mut self,
        by: SessionId,
        inode: InodeId,
        range: ByteRange,
    ) -> Option<(Chunk, Pays)> {
        let chunk = Chunk::around(inode, range)?;
        if self.habits.len() >= HABITS_MAX && !self.habits.contains_key(&chunk) {
            self.habits.clear();
        }
        let habit = self.habits.entry(chunk).or_default();
        let pays = match habit.on_write(by) {
            true => Pays::Yes,
            false if habit.has_handful() => Pays::NotYet,
            false => return None,
        };
        let free = self.holds.holder(chunk).is_none() && !self.giving.contains(&chunk);
        free.then_some((chunk, pays))
    }

    /// A write that came with its chunk's row is in place. Says which chunk should belong to its session next, so that a
    /// stream goes on there without a stop.
    fn on_stream(&mut self, by: SessionId, inode: InodeId, range: ByteRange) -> Option<Chunk> {
        let chunk = Chunk::around(inode, range)?;
        if range.end.saturating_add(AHEAD) < chunk.range().end {
            return None;
        }
        let next = chunk.next();
        self.goes_to(by, next).then_some(next)
    }

    /// Whether a chunk is free for a session whose stream of writes comes there.
    fn goes_to(&mut self, by: SessionId, chunk: Chunk) -> bool {
        let free = self.holds.holder(chunk).is_none() && !self.giving.contains(&chunk);
        let room = self.habits.len() < HABITS_MAX || self.habits.contains_key(&chunk);
        free && room && self.habits.entry(chunk).or_default().on_stream(by)
    }

    /// A session of another host reads a part of a file: one that writes there goes on as before.
    pub(in super::super) fn on_read(&mut self, by: SessionId, inode: InodeId, range: ByteRange) {
        let reads_its_own = |habit: &Habit| habit.writer() == Some(by);
        let chunk = Chunk::around(inode, range);
        let habit = chunk.and_then(|chunk| self.habits.get(&chunk));
        if !habit.is_some_and(reads_its_own) {
            self.on_other(inode, range);
        }
    }

    /// Somebody else has read a part of a file, or changed it.
    pub(in super::super) fn on_other(&mut self, inode: InodeId, range: ByteRange) {
        if self.habits.is_empty() || range.is_empty() {
            return;
        }
        for chunk in Chunk::touched(inode, range) {
            if let Some(habit) = self.habits.get_mut(&chunk) {
                habit.on_other();
            }
        }
    }
}

impl Container {
    /// A session's write is in place, and has its record or waits for one: counts it, and has the chunk moved when that
    /// pays.
    pub(in super::super) fn note_habit(
        self: &Arc<Self>,
        st: &mut State,
        request: &WriteRequest,
        range: ByteRange,
        effect: Effect,
    ) {
        let (by, inode) = (request.session, request.inode);
        let member = st.chain.view().is_some_and(|view| view.lists(by.node()));
        if by.node() == self.env.me || (effect == Effect::Grew && member) {
            return st.away.on_other(inode, range);
        }
        if request.behind.is_some() {
            // To a member that wrote so before it was one chunks move as its policy says.
            if !member && let Some(next) = st.away.on_stream(by, inode, range) {
                self.give_later(st, next, by, Why::Written);
            }
            return;
        }
        let Some((chunk, pays)) = st.away.on_write(by, inode, range) else {
            return;
        };
        let moves = match self.env.migrations.of(&self.env, inode) {
            // Nothing moves to a host without a copy: only its programs do not wait.
            _ if !member => pays == Pays::Yes,
            // It is being asked.
            None | Some(Migration::Off) => false,
            Some(Migration::Always) => true,
            Some(Migration::Adaptive) => pays == Pays::Yes,
        };
        if moves {
            self.give_later(st, chunk, by, Why::Written);
        }
    }

    fn give_later(
        self: &Arc<Self>,
        st: &mut State,
        chunk: Chunk,
        by: SessionId,
        why: Why,
    ) -> JoinHandle<()> {
        st.away.giving.insert(chunk);
        let me = self.clone();
        self.env
            .runtime
            .spawn(async move { me.give(chunk, by, why).await })
    }

    /// A session of a host without a copy is about to write much to a chunk: it becomes its own where nothing speaks against that.
    /// Gives the row once it is committed, with the right to write from when it was asked for.
    pub(crate) async fn give_wanted(
        self: &Arc<Self>,
        chunk: Chunk,
        by: SessionId,
    ) -> Result<Option<Hold>, Failed> {
        if chunk.range().start >= FILE_LEN_MAX {
            return Err(Errno::EFBIG.into());
        }
        let begins = {
            let mut st = self.state.lock();
            Self::reign(&st, self.env.clock.now())?;
            st.note_heard(by, self.env.clock.now());
            let abroad = st.chain.view().is_some_and(|view| !view.lists(by.node()));
            let begins = abroad && st.away.goes_to(by, chunk);
            begins.then(|| self.give_later(&mut st, chunk, by, Why::Wanted))
        };
        if let Some(given) = begins {
            // In a task of its own, since who asked may not wait for the end.
            given.await.map_err(|_| Errno::EIO)?;
        }
        // It may be on its way since an earlier question, or since what was written before.
        self.pass_giving(chunk).await;
        let hold = {
            let st = self.state.lock();
            let holder = st.away.holds.holder(chunk);
            holder.filter(|hold| hold.holder == by && hold.manner == Manner::WriteBehind)
        };
        let Some(hold) = hold else {
            return Ok(None);
        };
        // Its record left before this may have become another owner.
        self.committed(hold.token).await?;
        Ok(self.grant_right(chunk, hold, 0)?.ok().map(|()| hold))
    }

    /// Waits for the end of a move that has begun.
    async fn pass_giving(&self, chunk: Chunk) {
        loop {
            let progress = self.progress.notified();
            tokio::pin!(progress);
            progress.as_mut().enable();
            let going = self.state.lock().away.giving.contains(&chunk);
            if !going {
                return;
            }
            progress.await;
        }
    }

    /// A write of a session, whose record is `written`, is about to be answered. If it was the one with which its chunk moves to
    /// its host, that is to hear of its row first: its program's next write would take the chunk back.
    pub(in super::super) async fn tell_of_row(
        self: &Arc<Self>,
        by: SessionId,
        inode: InodeId,
        range: ByteRange,
        written: Seq,
    ) {
        let Some(chunk) = Chunk::around(inode, range) else {
            return;
        };
        let given = |st: &State| {
            let hold = st.away.holds.holder(chunk)?;
            let in_place = hold.manner == Manner::InPlace;
            let new = hold.token.seq > written;
            (hold.holder == by && in_place && new).then_some(hold)
        };
        let moves = {
            let st = self.state.lock();
            st.away.giving.contains(&chunk) || given(&st).is_some()
        };
        if !moves {
            return;
        }
        let told = async {
            self.pass_giving(chunk).await;
            let hold = given(&self.state.lock());
            if let Some(hold) = hold
                && self.committed(hold.token).await.is_ok()
            {
                self.announce();
            }
        };
        // It has been written all the same.
        _ = tokio::time::timeout(TELL_WAIT, told).await;
    }

    /// Gives a chunk to who writes to it, if nobody else keeps something of the file: each of its writes has taken that back
    /// so far.
    async fn give(self: &Arc<Self>, chunk: Chunk, by: SessionId, why: Why) {
        let container = self.clone();
        let _giving = Giving { container, chunk };
        self.give_in_turn(chunk, by, why).await;
    }

    async fn give_in_turn(self: &Arc<Self>, chunk: Chunk, by: SessionId, why: Why) {
        let inode = chunk.inode;
        let me = self.clone();
        let given = self
            .env
            .runtime
            .spawn_blocking(move || me.give_now(chunk, by, why));
        let given = match given.await {
            Ok(Ok(given)) => given,
            Ok(Err(failed)) => {
                debug!(container = %self.id, %inode, ?failed, "chunk not given away");
                false
            }
            Err(error) => {
                error!(container = %self.id, %inode, %error, "chunk not given away");
                false
            }
        };
        let mut owed = Owed::default();
        {
            let mut st = self.state.lock();
            if !given {
                if why == Why::Written {
                    // As one that came back at once.
                    st.away.habits.entry(chunk).or_default().on_return(0);
                }
                return;
            }
            // Programs of this host may have read it since the last write.
            let now = self.env.clock.now();
            let touched = vec![Touched::Attr(inode), Touched::Data(inode)];
            self.owe_leases(&mut st, now, by, touched, &mut owed);
        }
        // Until then its holder has no right: others might have read on what they keep.
        let paid = self.pay(owed).await;
        if let Err(elsewhere) = paid {
            debug!(container = %self.id, %inode, %elsewhere, "the reign ended with the move of a chunk");
        }
    }

    fn give_now(self: &Arc<Self>, chunk: Chunk, by: SessionId, why: Why) -> Result<bool, Failed> {
        let inode = chunk.inode;
        let file = self
            .file(inode)
            .map_err(|error| self.store_refused(&error))?;
        let _alone = file.still.write();
        let mut st = self.state.lock();
        let now = self.env.clock.now();
        let (epoch, _) = Self::reign(&st, now)?;
        let member = st.chain.view().is_some_and(|view| view.lists(by.node()));
        let alone = st.leases.holders(now, inode).all(|session| session == by);
        // A kernel of this host may read an open file by itself, and maps outlive descriptors.
        let open = !self.env.sessions.open_among(&[inode]).is_empty() || self.unseen.has(inode);
        let busy = st.transactions.holds_inode(inode) || st.leases.has_changes(inode);
        let free = st.away.holds.holder(chunk).is_none();
        // A cut of a striped file, and what comes after it, is for its owner to order.
        let attr = self.attr(&st, inode)?;
        let whole = attr.layout == Layout::Whole && attr.kind == Kind::File;
        if !whole || (member && why == Why::Wanted) {
            return Ok(false);
        }
        let manner = match member {
            true => Manner::InPlace,
            false => Manner::WriteBehind,
        };
        // Who writes in place keeps nothing for checkpoints.
        if member
            && (!self.has_kept(&mut st, inode, chunk.range())? || st.kept_beside(inode).is_some())
        {
            debug!(container = %self.id, %inode, "chunk stays: a checkpoint has content of it");
            return Ok(false);
        }
        // What comes from a holder is taken at once.
        if !self.kept_is_here(&mut st, inode, chunk.range()) {
            debug!(container = %self.id, %inode, "chunk stays: what is kept of it is not here");
            return Ok(false);
        }
        let habit = st.away.habits.get(&chunk);
        let still = habit.is_some_and(|habit| habit.writer() == Some(by));
        let early = now < st.changes_from || now < st.away.none_before;
        if !alone || open || busy || !free || !still || early {
            debug!(container = %self.id, %inode, member, alone, open, busy, free, "chunk stays");
            return Ok(false);
        }
        self.record_writes(&mut st, now, inode);
        if st.dirty.get(inode).is_some() || st.keeping.is_due(inode).is_some() {
            return Err(Elsewhere::NotReady.into());
        }
        let token = Version {
            epoch,
            seq: st.chain.last().seq.next(),
        };
        let hold = Hold {
            holder: by,
            token,
            manner,
        };
        let batch = Batch {
            mutations: vec![row(chunk, Some(hold))],
            ..Batch::default()
        };
        let seq = self.order(&mut st, now, batch, true)?;
        debug_assert_eq!(seq, token.seq, "nothing is ordered under the same lock");
        st.away.holds.given(now, chunk, hold);
        st.leases.note_reader(inode, by);
        info!(container = %self.id, %inode, chunk = chunk.index, to = %by, ?manner, "chunk moves");
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

    use super::*;
    use perigee_replica::Timing;
    use perigee_replica::chunk::Terms;
    use perigee_types::{ContainerId, InodeIndex, NodeId};

    #[test]
    fn a_chunk_moves_after_some_writes_of_one_session_alone() {
        let inode = InodeId::new(ContainerId::ROOT, InodeIndex(7));
        let session = |node| SessionId::new(NodeId(node), 1);
        let mut away = Away::default();
        let block = ByteRange::new(0, 4_096);
        let write = |away: &mut Away, node| away.on_write(session(node), inode, block);
        for _ in 0..3 {
            assert_eq!(write(&mut away, 2), None);
        }
        away.on_read(session(2), inode, block);
        away.on_read(session(3), inode, block);
        for _ in 0..3 {
            assert_eq!(write(&mut away, 2), None);
        }
        let (chunk, pays) = write(&mut away, 2).unwrap();
        assert_eq!((chunk.inode, chunk.index), (inode, 0));
        assert_eq!(pays, Pays::Yes);
        away.giving.insert(chunk);
        assert_eq!(write(&mut away, 2), None, "it is on its way");
        let now = perigee_types::Tick(0);
        let hold = Hold {
            holder: session(2),
            token: Version::default(),
            manner: Manner::InPlace,
        };
        away.giving.clear();
        // As one that came back at once: where it always shall move it does, and else it waits.
        away.habits.entry(chunk).or_default().on_return(0);
        for _ in 0..3 {
            assert_eq!(write(&mut away, 2), None);
        }
        assert_eq!(write(&mut away, 2), Some((chunk, Pays::NotYet)));
        away.holds = Holds::new([(chunk, hold)], now, Terms::from(&Timing::default()));
        assert_eq!(write(&mut away, 2), None, "it has it");
    }
}
