//! One simulated host: its clock, its disk, and while it runs, the real chain and pull with what a daemon keeps
//! beside them.

pub mod carry;
pub mod copies;
pub mod data;
pub mod dirty;
pub mod driver;
pub mod hold;
pub mod life;
pub mod past;
pub mod service;
pub mod store;

use self::copies::{Asked, At, Recall, Under, Word};
use crate::clock::Clock;
use crate::disk::{Disk, DiskOp, ObjectMap};
use crate::law::explained::Witness;
use crate::model::{Blocks, FILES, Op, Outcome, Record, State, file_of, range_of};
use perigee_meta::lease::Leases;
use perigee_meta::past::Keeping;
use perigee_replica::chunk::{Call, Flush, FlushNumber, Habit, Holds, Report, Turn};
use perigee_replica::reads::Reads;
use perigee_replica::{
    Chain, ChainView, Chunk, FetchId, Hold, Holding, Message, Note, Notes, Pull, Unsettled,
};
use perigee_types::{ByteRange, Epoch, InodeId, Rng, Seq, SessionId, Tick, Version};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// What travels between hosts.
#[derive(Debug, Clone, PartialEq)]
pub enum Packet {
    /// The chain's.
    Chain(Message),
    /// Ask for bytes.
    Fetch {
        /// Names the request: number and the asking process.
        id: (u64, u32),
        /// The object.
        inode: InodeId,
        /// The bytes.
        range: ByteRange,
        /// No older ones.
        needed: Version,
        /// What is in place will do, if it is older content.
        older: bool,
    },
    /// The answer.
    Fetched {
        /// Names the request.
        id: (u64, u32),
        /// The bytes, or why not.
        answer: FetchAnswer,
    },
    /// Ask a member to have a file's bytes as of a version on disk.
    Sync {
        /// Names the request.
        id: (u64, u32),
        /// The file.
        inode: InodeId,
        /// As of.
        version: Version,
        /// The owner's epoch.
        epoch: Epoch,
    },
    /// They are.
    Synced {
        /// Names the request.
        id: (u64, u32),
        /// Which file is.
        inode: InodeId,
    },
    /// To itself: tell the members what is committed.
    Announce,
    /// Ask the owner for the state.
    State,
    /// The state.
    StateIs {
        /// As of.
        base: Version,
        /// The state.
        state: State,
    },
    /// An operation of a session on another host.
    Request {
        /// Names the request: its number.
        id: u64,
        /// What to do.
        op: Op,
        /// Who asks.
        session: SessionId,
        /// By which row, and after what, if it is the holder's own change.
        numbered: Option<(Hold, FlushNumber)>,
    },
    /// A chunk's holder and its owner.
    Hold(HoldPacket),
    /// How it ended.
    Reply {
        /// Names the request.
        id: u64,
        /// The end.
        outcome: Outcome,
        /// Of a read: that the session may read another copy next.
        word: Option<Word>,
    },
    /// Ask a member for its copy of a block, by the word of its owner.
    ReadCopy {
        /// Names the request.
        id: u64,
        /// Which block.
        block: u8,
        /// The epoch of that owner.
        epoch: Epoch,
    },
    /// The answer.
    CopyIs {
        /// Names the request.
        id: u64,
        /// What is there, if it may be read.
        value: Option<u64>,
    },
    /// The owner calls its word back.
    Revoke {
        /// Names the call.
        id: u64,
        /// Of which session.
        session: SessionId,
        /// About which files.
        inodes: Vec<InodeId>,
    },
    /// It is not relied on any more.
    Revoked {
        /// Names the call.
        id: u64,
    },
}

/// What a chunk's holder and its owner say to each other.
#[derive(Debug, Clone, PartialEq)]
pub enum HoldPacket {
    /// The holder asks for the right to write.
    Ask {
        /// By which row.
        hold: Hold,
        /// Of which chunk.
        chunk: Chunk,
        /// How often it has asked with this.
        asked: u64,
    },
    /// It has it, or not.
    Right {
        /// Of which chunk.
        chunk: Chunk,
        /// By which row.
        hold: Hold,
        /// Which question.
        asked: u64,
        /// Whether it may.
        granted: bool,
    },
    /// What it has written.
    Flush {
        /// Where.
        flush: Flush,
        /// Blocks and tokens.
        tokens: Vec<(usize, u64)>,
        /// For the owner of this epoch.
        epoch: Epoch,
    },
    /// That is on every member, or it does not count.
    Flushed {
        /// Of which chunk.
        chunk: Chunk,
        /// By which row.
        hold: Hold,
        /// Which.
        number: FlushNumber,
        /// With the record of this version, or an earlier one.
        taken: Option<Version>,
    },
    /// The owner calls.
    Call {
        /// What for.
        call: Call,
        /// Names it.
        id: u64,
    },
    /// The holder has sent what it had.
    Report {
        /// Of which chunk.
        chunk: Chunk,
        /// By which row.
        hold: Hold,
        /// Names the call.
        id: u64,
        /// What it says.
        report: Report,
    },
}

/// An answer to a fetch.
#[derive(Debug, Clone, PartialEq)]
pub enum FetchAnswer {
    /// Blocks and tokens.
    Bytes {
        /// No byte is of a later record.
        as_of: Version,
        /// The content.
        tokens: Vec<(usize, u64)>,
    },
    /// What is in place, which is older content.
    Older(Vec<(usize, u64)>),
    /// Not valid here, and will not be by itself.
    NotHere,
    /// It should be here, and is not what its checksum says.
    Unreadable,
    /// The owner's answer: nobody has this part of it.
    Lost {
        /// Which.
        part: ByteRange,
        /// As of this record.
        as_of: Version,
    },
    /// Ask again.
    NotYet,
}

/// Who waits for an operation at the owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waiting {
    /// The session of this host.
    Home,
    /// Another host's.
    Remote {
        /// The host.
        node: usize,
        /// Its request.
        id: u64,
    },
    /// A holder that has sent what it wrote.
    Holder {
        /// The host.
        node: usize,
        /// Of which chunk.
        chunk: Chunk,
        /// By which row.
        hold: Hold,
        /// Which.
        number: FlushNumber,
        /// Its record.
        version: Version,
    },
}

/// An operation that was executed, and is answered when what it depends on is safe.
#[derive(Debug, Clone)]
pub struct Waiter {
    pub(crate) id: u64,
    pub(crate) who: Waiting,
    pub(crate) op: Op,
    pub(crate) value: u64,
    pub(crate) version: Version,
    /// The files whose bytes must be on every member's disk.
    pub(crate) files: Vec<InodeId>,
    /// The member whose session changes a file, and that: its own copy has the change before it is answered.
    pub(crate) at_writer: Option<(usize, InodeId)>,
    /// What those bytes were.
    pub(crate) content: Vec<(usize, u64)>,
    pub(crate) synced: BTreeSet<(usize, InodeId)>,
    pub(crate) asked: BTreeSet<(usize, InodeId)>,
}

/// A request to have a file on disk.
#[derive(Debug, Clone, Copy)]
pub struct SyncWait {
    pub(crate) from: usize,
    pub(crate) id: (u64, u32),
    pub(crate) inode: InodeId,
    pub(crate) version: Version,
    pub(crate) epoch: Epoch,
}

/// Dirty blocks on their way to the disk.
#[derive(Debug, Clone)]
pub struct SyncJob {
    pub(crate) id: u64,
    pub(crate) blocks: Vec<(usize, u64)>,
    /// The checksums of all blocks then.
    pub(crate) sums: Blocks,
    /// What is known of the files then; none if that is not stored.
    pub(crate) objects: Option<ObjectMap>,
    /// What is known of the files as of then is stored up to here, once it is.
    pub(crate) through: Option<Seq>,
    pub(crate) complete: Seq,
    /// Whether nothing was truncated since it began.
    pub(crate) sound: bool,
    pub(crate) waits: Vec<SyncWait>,
}

/// Fetched blocks with their content.
#[derive(Debug, Clone)]
pub(crate) struct Arrived {
    pub(crate) as_of: Version,
    pub(crate) tokens: Vec<(usize, u64)>,
}

/// A running process.
pub struct Running {
    pub(crate) chain: Chain,
    pub(crate) pull: Pull,
    /// The committed state.
    pub(crate) state: State,
    /// The owner's, with what is not committed yet.
    pub(crate) newest: State,
    /// What each valid block must hold, by the committed history.
    pub(crate) expected: Blocks,
    /// Applied up to here.
    pub(crate) applied: Seq,
    /// The pull has seen the log up to here.
    pub(crate) fed: Seq,
    /// What records up to here do to the data may be done already: those of the log at the start.
    pub(crate) uncertain_through: Seq,
    /// Of these, it is: they are of a reign that is over.
    pub(crate) done: BTreeSet<Seq>,
    /// This owner's writes that are not committed.
    pub(crate) own: VecDeque<(Seq, Record)>,
    /// What it has written in place that has no record yet.
    pub(crate) unrecorded: BTreeMap<usize, u64>,
    /// Where there are notes, on the disk or on their way there.
    pub(crate) notes: Notes,
    /// Notes that go with the next write of the log.
    pub(crate) notes_ended: Vec<Note>,
    pub(crate) reign: Option<Epoch>,
    /// The data that may not be in place on every disk, as this owner knows.
    pub(crate) unsettled: Unsettled,
    /// The bytes of every record up to here are in place, and on this node's disk.
    pub(crate) synced: Seq,
    pub(crate) waiters: Vec<Waiter>,
    pub(crate) held: BTreeMap<FetchId, Arrived>,
    /// A new owner asks one member after the other.
    pub(crate) asking: BTreeMap<FetchId, Asking>,
    pub(crate) sync: Option<SyncJob>,
    pub(crate) sync_waits: Vec<SyncWait>,
    pub(crate) next_id: u64,
    pub(crate) cas: Option<u64>,
    pub(crate) reading: bool,
    pub(crate) installing: bool,
    pub(crate) invalid_next: Vec<(InodeId, ByteRange, Version)>,
    pub(crate) armed: u64,
    /// Whether anything about data has changed since the last look.
    pub(crate) stirred: bool,
    /// Whether the chain must hear again how much of the data is complete.
    pub(crate) data_unsaid: bool,
    /// What this owner has given away.
    pub(crate) holds: Holds,
    /// Whether each file should move.
    pub(crate) habits: [Habit; FILES],
    /// Operations that wait for a holder.
    pub(crate) gatherings: Vec<Gathering>,
    /// What is kept for the checkpoint, as this owner knows.
    pub(crate) keeping: Keeping,
    /// What holders have sent, of turns that have not ended: by block, its token.
    pub(crate) turns: BTreeMap<Chunk, BTreeMap<usize, u64>>,
    /// What this node holds.
    pub(crate) holding: Holding,
    /// What it has in place there, and no record that is applied here covers.
    pub(crate) alone: BTreeMap<usize, u64>,
    /// Calls that are not answered: from whom, the call, its name, and through which flush.
    pub(crate) calls: Vec<(usize, Call, u64, Turn)>,
    /// Files of which something that this host wrote as a holder is lost: the next fsync says so.
    pub(crate) lost_held: BTreeSet<InodeId>,
    /// Own operations that wait for the right, or until all is sent.
    pub(crate) held_up: Vec<(u64, Op, HeldUp)>,
    /// When each question was asked.
    pub(crate) asked_at: BTreeMap<(Chunk, u64), Tick>,
    /// This node is to leave the chain: until then it takes no changes and tries to hand over.
    pub(crate) leaves_until: u64,
    /// It takes none before this either: a process before may have let others read copies.
    pub(crate) changes_from: u64,
    /// Who may read copies by this owner's word.
    pub(crate) leases: Leases,
    /// What waits until some do not any more.
    pub(crate) recalls: Vec<Recall>,
    /// What the sessions of this host may read.
    pub(crate) reads: Reads<At>,
    /// This node ceded in this epoch, and does not know yet how that went.
    pub(crate) ceded_in: Option<Epoch>,
    /// Files of which blocks were lost: the next fsync says so.
    pub(crate) lost_unsynced: BTreeSet<InodeId>,
}

/// What an operation of this host's session waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeldUp {
    /// The right to write.
    Right,
    /// That the owner has what was written before.
    Flush,
}

/// An operation at the owner that waits for a holder.
#[derive(Debug, Clone)]
pub struct Gathering {
    pub(crate) who: Waiting,
    pub(crate) id: u64,
    pub(crate) op: Op,
    pub(crate) session: SessionId,
    pub(crate) began_at: u64,
    pub(crate) passed: Vec<Chunk>,
    /// The call, its name, and when it was made.
    pub(crate) call: (Call, u64, u64),
}

/// A range that a new owner looks for.
#[derive(Debug, Clone)]
pub struct Asking {
    pub(crate) inode: InodeId,
    pub(crate) range: ByteRange,
    pub(crate) needed: Version,
    /// Members that said no.
    pub(crate) refused: BTreeSet<usize>,
    /// One of them should have it, and cannot read it.
    pub(crate) unreadable: bool,
    /// None has it: what they have in place is asked for.
    pub(crate) older: bool,
}

/// A host.
pub struct Node {
    pub(crate) clock: Clock,
    pub(crate) disk: Disk,
    pub(crate) incarnation: u32,
    /// Connections to the process before the disk was lost are gone: what was sent earlier does not arrive.
    pub(crate) hears_since: u64,
    pub(crate) run: Option<Running>,
    pub(crate) paused_until: u64,
    pub(crate) slow_disk_us: u64,
    pub(crate) fail_next_write: bool,
    pub(crate) disk_free_at: u64,
    pub(crate) session: Session,
}

impl Node {
    /// Puts bytes without a record in place; the note of them is on the disk with whatever goes there next.
    pub(crate) fn put_noted(&mut self, block: usize, token: u64) -> Option<&mut Running> {
        let run = self.run.as_mut()?;
        let notes = run.notes.note(file_of(block), range_of(block));
        if !notes.is_empty() {
            self.disk.queue.push_back(DiskOp::Note(notes));
        }
        self.disk.write(block, token);
        Some(run)
    }
}

/// The session of a host: one operation at a time.
#[derive(Debug)]
pub struct Session {
    /// Its own: other hosts' draws do not change what it does.
    pub(crate) rng: Rng,
    /// How often it might have begun something.
    pub(crate) turns: u64,
    pub(crate) waiting_for: Option<u64>,
    pub(crate) began_at: u64,
    /// Whether it was executed on this host, and needs no other one's disk.
    pub(crate) at_home: bool,
    /// Whether that was because it holds the chunk.
    pub(crate) as_holder: bool,
    /// Whether it has waited for a holder, or for the right to be one.
    pub(crate) waited: bool,
    /// The reads that owners were asked for, by their requests.
    pub(crate) asked: BTreeMap<u64, Asked>,
    /// The read of a member's copy that is under way.
    pub(crate) under: Option<Under>,
    /// The file that the owner was asked to change.
    pub(crate) changes: Option<InodeId>,
    /// What the law of overlapping calls knows of it.
    pub(crate) witness: Witness,
}

impl Session {
    /// One that has done nothing, with its randomness.
    #[must_use]
    pub fn new(rng: Rng) -> Self {
        Self {
            rng,
            turns: 0,
            waiting_for: None,
            began_at: 0,
            at_home: false,
            as_holder: false,
            waited: false,
            asked: BTreeMap::new(),
            under: None,
            changes: None,
            witness: Witness::default(),
        }
    }
}

impl Running {
    /// The node that the chain follows, as an index.
    pub(crate) fn owner(&self) -> Option<usize> {
        let view: &ChainView = self.chain.view()?;
        Some(view.owner()?.0 as usize - 1)
    }

    pub(crate) fn fresh_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }
}
