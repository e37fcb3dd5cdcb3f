//! The operations of the namespace: what is asked, what is answered, and what follows from it.
//!
//! [`execute`] is the one way in. One file per family holds checks, effects and tests together.

mod content;
mod link;
mod lock;
mod lookup;
mod make;
mod policy;
mod readdir;
mod rehome;
mod remove;
mod rename;
mod setattr;
mod snapshot;
mod stripe;
mod trash;
mod write;
mod xattr;

pub use lock::{LockSessions, held_locks, lock_sessions};
pub use policy::settings_named;
pub use remove::remove_with_name;
pub use snapshot::{
    Origin, SNAPSHOT_NAME_MAX, SNAPSHOTS_MAX, Snapshot, SnapshotPart, is_snapshot_name,
};
pub use trash::{Nearest, TrashId, Trashed, nearest_setting};

use crate::attr::{Attr, Kind, SetAttr};
use crate::draft::Draft;
use crate::error::Refusal;
use crate::lock::{FileLock, Holder, LockKind, Patience, Token, WaitId};
use crate::stripe::Cuts;
use crate::view::View;
use perigee_types::{
    Batch, ByteRange, ContainerId, InodeId, InodeIndex, SessionId, SnapshotId, StripeWidth,
    WallTime,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// On whose behalf an operation runs. Permission by mode and ACL has been checked by the kernel;
/// the ids serve the ownership of new inodes and the rules of set-id bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Credential {
    /// Effective user.
    pub uid: u32,
    /// Effective group.
    pub gid: u32,
}

/// What the driver decides about an operation. Ordered and replayed nowhere: effects are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Context {
    /// The time for `mtime`, `ctime` and so on.
    pub now: WallTime,
    /// The container in which a new directory's inode is made; `None`: the parent's.
    pub new_directory_in: Option<ContainerId>,
    /// Names the lock that is granted, if one is: above every earlier grant of the container.
    pub grant: Token,
    /// Until when what loses its last name is kept; `None`: it is not. It is the policy of the directory of that name.
    pub keep_until: Option<WallTime>,
    /// Over how many containers a new file is spread: the policy of the directory of its name.
    pub width: StripeWidth,
    /// A deliberate fault.
    #[cfg(feature = "plant")]
    #[serde(skip)]
    pub plant: Option<crate::plant::Plant>,
}

impl Context {
    /// At this moment; nothing that is removed is kept.
    #[must_use]
    pub fn new(now: WallTime, new_directory_in: Option<ContainerId>) -> Self {
        Self {
            now,
            new_directory_in,
            ..Self::default()
        }
    }

    /// The same, with what is removed kept until then.
    #[must_use]
    pub fn keeping(self, keep_until: Option<WallTime>) -> Self {
        Self { keep_until, ..self }
    }

    /// The same, with a new file spread over so many containers.
    #[must_use]
    pub fn striping(self, width: StripeWidth) -> Self {
        Self { width, ..self }
    }
}

/// What to make.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum NewNode {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link to these bytes.
    Symlink(Vec<u8>),
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A character device of this number.
    CharDevice(u32),
    /// A block device of this number.
    BlockDevice(u32),
}

/// `renameat2(2)` flags.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum RenameMode {
    /// Replaces the target.
    #[default]
    Replace,
    /// `RENAME_NOREPLACE`: an existing target is EEXIST.
    NoReplace,
    /// `RENAME_EXCHANGE`: both must exist, and change places.
    Exchange,
}

/// `fallocate(2)` modes that Perigee has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Allocate {
    /// Make room; the file grows to the end of the range.
    Extend,
    /// Make room; the file keeps its length.
    KeepSize,
    /// Free the range; it reads as zeros; the file keeps its length.
    PunchHole,
    /// Make the range zeros; the file grows when needed.
    ZeroRange,
    /// Make the range zeros; the file keeps its length.
    ZeroRangeKeepSize,
}

/// Where a write goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum WriteAt {
    /// From this byte on.
    Offset(u64),
    /// At the end, wherever that is when the owner orders the write.
    End,
}

/// What a session that is over may have left under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Leftovers {
    /// Its own node says that all of it is done.
    None,
    /// Writes to striped files, perhaps.
    Perhaps,
}

/// An operation. Unless stated otherwise, an inode that does not exist (any more) is ESTALE, and a
/// name is refused with ENAMETOOLONG or EINVAL when no directory could hold it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[allow(
    missing_docs,
    reason = "fields are named as the system calls name them"
)]
pub enum Op {
    /// Finds a name, `.` and `..` included: [`Reply::Entry`], [`Reply::Leads`] or [`Reply::Absent`].
    Lookup { parent: InodeId, name: Vec<u8> },
    /// [`Reply::Attr`].
    GetAttr { inode: InodeId },
    /// Changes attributes: [`Reply::Attr`]. A striped file with columns gets shorter only when these have been cut and
    /// [`Op::EndCut`] says so; EAGAIN for another length before that.
    SetAttr {
        inode: InodeId,
        set: SetAttr,
        cred: Credential,
    },
    /// The target of a symbolic link: [`Reply::Bytes`]; EINVAL for anything else.
    ReadLink { inode: InodeId },
    /// Makes an inode with a first name: [`Reply::Created`]. With `open_existing`, a regular file
    /// that has the name already is not an error but the answer.
    Make {
        parent: InodeId,
        name: Vec<u8>,
        node: NewNode,
        mode: u32,
        umask: u32,
        cred: Credential,
        open_existing: bool,
    },
    /// Removes a name that is not a directory's: [`Reply::Removed`].
    Unlink {
        parent: InodeId,
        name: Vec<u8>,
        cred: Credential,
    },
    /// Removes an empty directory: [`Reply::Removed`].
    Rmdir {
        parent: InodeId,
        name: Vec<u8>,
        cred: Credential,
    },
    /// Moves a name: [`Reply::Renamed`].
    Rename {
        parent: InodeId,
        name: Vec<u8>,
        new_parent: InodeId,
        new_name: Vec<u8>,
        mode: RenameMode,
        cred: Credential,
    },
    /// Gives an inode one more name: [`Reply::Entry`].
    Link {
        inode: InodeId,
        new_parent: InodeId,
        new_name: Vec<u8>,
        cred: Credential,
    },
    /// Lists a directory from after `cookie` (0: from the start): [`Reply::Listing`], empty at the
    /// end. `.` and `..` are not among the entries. An entry that exists all the time of a walk is
    /// listed exactly once, whatever else comes and goes.
    ReadDir {
        inode: InodeId,
        cookie: u64,
        limit: usize,
    },
    /// [`Reply::Bytes`], or ENODATA.
    GetXattr { inode: InodeId, name: Vec<u8> },
    /// [`Reply::Names`].
    ListXattr { inode: InodeId },
    /// Sets an extended attribute. `flags`: [`XATTR_CREATE`](crate::xattr::XATTR_CREATE) and its like.
    SetXattr {
        inode: InodeId,
        name: Vec<u8>,
        value: Vec<u8>,
        flags: u32,
        cred: Credential,
    },
    /// Removes an extended attribute; ENODATA when there is none.
    RemoveXattr {
        inode: InodeId,
        name: Vec<u8>,
        cred: Credential,
    },
    /// Bytes were written: the owner's buffered writes become a record. The size becomes at least
    /// `size_at_least` and the end of every range; `ctime` at least `mtime`. [`Reply::Attr`].
    Wrote {
        inode: InodeId,
        ranges: Vec<ByteRange>,
        size_at_least: Option<u64>,
        mtime: WallTime,
        kill_privileges: bool,
    },
    /// `fallocate(2)`: [`Reply::Attr`].
    Allocate {
        inode: InodeId,
        range: ByteRange,
        how: Allocate,
    },
    /// The first lock that would stand in the way: [`Reply::Lock`].
    GetLock {
        inode: InodeId,
        session: SessionId,
        lock: FileLock,
    },
    /// Takes a lock: [`Reply::Granted`] or [`Reply::Blocked`]. Or drops it (`mode: None`): [`Reply::Done`].
    /// `EAGAIN`: a cut of the file has to come to its end first ([`crate::stripe`]); of a cover also where
    /// the session has lost locks.
    /// Whoever waits is the affair of the driver, which keeps a [`crate::queue::LockQueue`].
    SetLock {
        inode: InodeId,
        session: SessionId,
        lock: FileLock,
        patience: Patience,
    },
    /// A wait is over without a lock: its place is given up. [`Reply::Done`].
    WithdrawLock {
        inode: InodeId,
        session: SessionId,
        wait: WaitId,
    },
    /// Drops all locks of a session on an inode, or those of one owner or kind. An inode that is
    /// gone has none: [`Reply::Done`].
    ReleaseLocks {
        inode: InodeId,
        session: SessionId,
        owner: Option<u64>,
        kind: Option<LockKind>,
    },
    /// Drops all locks of a dead session in this container: [`Reply::Inodes`] that had any.
    ReleaseSession {
        container: ContainerId,
        session: SessionId,
        leftovers: Leftovers,
    },
    /// Inodes of the container without a name, which wait for their last close:
    /// [`Reply::Inodes`].
    Orphans {
        container: ContainerId,
        /// Those behind it; `None`: from the first.
        after: Option<InodeIndex>,
        limit: usize,
    },
    /// Removes an inode for good when it has no name; does nothing when it has one or is gone.
    Reap { inode: InodeId },
    /// Replaces the policy of a directory; an empty one is removed.
    SetPolicy {
        inode: InodeId,
        policy: Vec<(String, String)>,
    },
    /// The policies in force in a directory, or for a file in the one where it got its last name: [`Reply::Policy`].
    GetPolicy { inode: InodeId },
    /// Gives an empty directory an inode in another container, where what is made in it will be,
    /// and a policy: [`Reply::Renamed`]. Owner, mode and extended attributes stay; the inode
    /// number does not. EINVAL when it is there already.
    Rehome {
        parent: InodeId,
        name: Vec<u8>,
        container: ContainerId,
        policy: Vec<(String, String)>,
    },
    /// All snapshots: [`Reply::Snapshots`].
    Snapshots,
    /// Adds a snapshot to the list, whose checkpoints are there.
    KeepSnapshot { snapshot: Snapshot },
    /// Takes a snapshot off the list; owners remove the checkpoints that none of the list has.
    ForgetSnapshot { id: SnapshotId },
    /// What was removed in a container and is kept, by the end of its time, from after this one on:
    /// [`Reply::Trash`], empty at the end.
    Trash {
        container: ContainerId,
        after: Option<TrashId>,
        limit: usize,
    },
    /// Gives what is kept a name again: [`Reply::Entry`]. ENOENT when it is not kept (any more), EEXIST when the name is
    /// there, EISDIR for a directory, of which no more is kept than what it was like. EPERM for who is neither root
    /// nor the owner of the file, EACCES for who may not make names in the directory.
    Undelete {
        id: TrashId,
        new_parent: InodeId,
        new_name: Vec<u8>,
        cred: Credential,
    },
    /// Keeps no more what is kept: [`Reply::Inodes`], those that wait for their last close now. What is not kept (any more) is
    /// passed over, and so is what is another user's, for anybody but root.
    Purge {
        container: ContainerId,
        entries: Vec<TrashId>,
        cred: Credential,
    },
    /// Ends all locks of a session in this container that does not know it, and remembers that: [`Reply::Inodes`] on
    /// which it had any.
    ExpireSession {
        container: ContainerId,
        session: SessionId,
    },
    /// Where the bytes of a striped file are: [`Reply::Columns`]. EINVAL for any other inode.
    Columns { inode: InodeId },
    /// Makes the columns of a striped file that has none yet, one in each of these containers, fewer than its width: with
    /// fewer containers it gets narrower. [`Reply::Columns`].
    MakeColumns {
        inode: InodeId,
        within: Vec<ContainerId>,
    },
    /// Bytes are about to be written to columns of a striped file: it is as long as that from now on, and has the present time.
    /// [`Reply::Claimed`]. EAGAIN for what goes beyond the end of a cut before that is done.
    Claim {
        inode: InodeId,
        at: WriteAt,
        len: u64,
        kill_privileges: bool,
    },
    /// Cuts a column, where it does not know of that cut yet: [`Reply::Attr`].
    CutColumn {
        inode: InodeId,
        cuts: Cuts,
        size: u64,
    },
    /// Frees a part of a column: [`Reply::Attr`]. ESTALE where there were more cuts.
    PunchColumn {
        inode: InodeId,
        cuts: Cuts,
        range: ByteRange,
    },
    /// Takes its columns from a striped file that waits for its last close, so that it can be removed: [`Reply::Attr`]. Nothing
    /// happens to any other.
    DropColumns { inode: InodeId },
    /// All columns of a striped file have been cut: so is the file, if that is yet to be done. [`Reply::Attr`].
    EndCut {
        inode: InodeId,
        cuts: Cuts,
        size: u64,
    },
    /// Gives a [`LockKind::Cover`] back: the programs of its session have these `fcntl` locks on the inode from now on, and no
    /// others. In one step, so that nobody comes between. Harmless to repeat, also when the inode is gone: [`Reply::Done`].
    /// EINVAL when they are not under the cover.
    EndCover {
        inode: InodeId,
        session: SessionId,
        cover: u64,
        locks: Vec<FileLock>,
    },
}

/// One entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListEntry {
    /// Its name.
    pub name: Vec<u8>,
    /// The inode that it names.
    pub inode: InodeId,
    /// Type of that inode.
    pub kind: Kind,
    /// Continues the listing after this entry. Above 2, below 2^63.
    pub cookie: u64,
    /// Attributes, when the view has the inode's container.
    pub attr: Option<Attr>,
}

/// A policy in force somewhere.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setting {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: String,
    /// The directory that has it.
    pub from: InodeId,
}

/// The answer to an operation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// It is so; there is nothing to tell.
    Done,
    /// Attributes of the inode, after the operation.
    Attr(Attr),
    /// The name leads here.
    Entry(Attr),
    /// The new inode, or with `existed` the one that had the name.
    Created {
        /// Its attributes.
        attr: Attr,
        /// Nothing was made.
        existed: bool,
    },
    /// A lookup found no such name.
    Absent,
    /// A link target or the value of an extended attribute.
    Bytes(Vec<u8>),
    /// Names of extended attributes.
    Names(Vec<Vec<u8>>),
    /// Entries of a directory.
    Listing(Vec<ListEntry>),
    /// A lock that stands in the way, if any does.
    Lock(Option<FileLock>),
    /// The lock was not taken: this one has to go first.
    Blocked(FileLock),
    /// Inodes that were asked for.
    Inodes(Vec<InodeId>),
    /// A name is gone.
    Removed {
        /// What it named.
        inode: InodeId,
        /// The links that are left; at 0 the inode is an orphan.
        nlink: u32,
        /// What it is.
        kind: Kind,
    },
    /// A name has moved.
    Renamed {
        /// The inode that has the new name.
        moved: InodeId,
        /// The inode that lost it; an orphan when that was its last.
        replaced: Option<InodeId>,
    },
    /// The policies in force; what no directory above has is not among them.
    Policy(Vec<Setting>),
    /// The name leads into another container, to this inode.
    Leads(InodeId),
    /// The list of snapshots.
    Snapshots(Vec<Snapshot>),
    /// What is kept of what was removed.
    Trash(Vec<Trashed>),
    /// The lock is held from now on, by this token.
    Granted(Token),
    /// A striped file, and its columns but the first; none while they are not made.
    Columns {
        /// Its attributes.
        attr: Attr,
        /// The columns from number 1 on.
        columns: Vec<InodeId>,
    },
    /// A write of these bytes may go on, or has happened.
    Claimed {
        /// Where it goes.
        range: ByteRange,
        /// The file's attributes after it.
        attr: Attr,
    },
}

/// What other sessions' caches must drop before an operation is acknowledged.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Touched {
    /// Attributes, ACLs and extended attributes of an inode.
    Attr(InodeId),
    /// Content of a file.
    Data(InodeId),
    /// What a name leads to, or that it leads nowhere.
    Name {
        /// The directory.
        dir: InodeId,
        /// The name in it; empty: every name, and a mount forgets those of all directories.
        name: Vec<u8>,
    },
    /// The list of entries of a directory.
    Listing(InodeId),
}

impl Touched {
    /// All names, those in a directory among them. They have one lease with its attributes: who forgets these has no lease on the names.
    #[must_use]
    pub const fn names(dir: InodeId) -> Self {
        let name = Vec::new();
        Self::Name { dir, name }
    }
}

/// What an operation comes to. Nothing has happened until the batches are in their logs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// The answer to the program.
    pub reply: Reply,
    /// The effects by container; containers without effects are not among them. More than one
    /// takes a transaction (see [`crate::tx`]).
    pub batches: BTreeMap<ContainerId, Batch>,
    /// What other sessions must forget first.
    pub touched: Vec<Touched>,
}

/// Runs one operation on what the view shows.
///
/// Errors: [`Refusal::Errno`] is the program's answer; [`Refusal::Missing`] asks for another run.
pub fn execute(op: &Op, context: &Context, view: &mut dyn View) -> Result<Outcome, Refusal> {
    let mut draft = Draft::new(context, view);
    let reply = dispatch(op, &mut draft)?;
    Ok(draft.finish(reply))
}

/// The table of operations: long, and nothing else.
fn dispatch(op: &Op, draft: &mut Draft<'_>) -> Result<Reply, Refusal> {
    match op {
        Op::Lookup { parent, name } => lookup::lookup(draft, *parent, name),
        Op::GetAttr { inode } => lookup::getattr(draft, *inode),
        Op::ReadLink { inode } => lookup::readlink(draft, *inode),
        Op::SetAttr { inode, set, cred } => setattr::setattr(draft, *inode, set, *cred),
        Op::Make {
            parent,
            name,
            node,
            mode,
            umask,
            cred,
            open_existing,
        } => {
            let new = make::Make {
                node,
                mode: *mode,
                umask: *umask,
                cred: *cred,
                open_existing: *open_existing,
            };
            make::make(draft, *parent, name, &new)
        }
        Op::Unlink { parent, name, cred } => remove::unlink(draft, *parent, name, cred.uid),
        Op::Rmdir { parent, name, cred } => remove::rmdir(draft, *parent, name, cred.uid),
        Op::Rename {
            parent,
            name,
            new_parent,
            new_name,
            mode,
            cred,
        } => {
            let from = rename::Place { dir: *parent, name };
            let to = rename::Place {
                dir: *new_parent,
                name: new_name,
            };
            rename::rename(draft, from, to, *mode, cred.uid)
        }
        Op::Link {
            inode,
            new_parent,
            new_name,
            cred: _,
        } => link::link(draft, *inode, *new_parent, new_name),
        Op::ReadDir {
            inode,
            cookie,
            limit,
        } => readdir::readdir(draft, *inode, *cookie, *limit),
        Op::GetXattr { inode, name } => xattr::get(draft, *inode, name),
        Op::ListXattr { inode } => xattr::list(draft, *inode),
        Op::SetXattr {
            inode,
            name,
            value,
            flags,
            cred: _,
        } => xattr::set(draft, *inode, name, value, *flags),
        Op::RemoveXattr {
            inode,
            name,
            cred: _,
        } => xattr::remove(draft, *inode, name),
        Op::Wrote {
            inode,
            ranges,
            size_at_least,
            mtime,
            kill_privileges,
        } => {
            let wrote = write::Wrote {
                ranges,
                size_at_least: *size_at_least,
                mtime: *mtime,
                kill_privileges: *kill_privileges,
            };
            write::wrote(draft, *inode, &wrote)
        }
        Op::Allocate { inode, range, how } => write::allocate(draft, *inode, *range, *how),
        Op::GetLock {
            inode,
            session,
            lock,
        } => lock::get(draft, *inode, *session, lock),
        Op::SetLock {
            inode,
            session,
            lock,
            patience: _,
        } => lock::set(draft, *inode, *session, lock),
        Op::WithdrawLock { .. } => Ok(Reply::Done),
        Op::ReleaseLocks {
            inode,
            session,
            owner,
            kind,
        } => {
            let holder = Holder {
                session: *session,
                owner: *owner,
            };
            lock::release(draft, *inode, holder, *kind)
        }
        Op::ReleaseSession {
            container,
            session,
            leftovers,
        } => lock::end_session(draft, *container, *session, lock::End::Over(*leftovers)),
        Op::ExpireSession { container, session } => {
            lock::end_session(draft, *container, *session, lock::End::WithoutItsWord)
        }
        Op::EndCover {
            inode,
            session,
            cover,
            locks,
        } => lock::end_cover(draft, *inode, *session, *cover, locks),
        Op::Orphans {
            container,
            after,
            limit,
        } => remove::orphans(draft, *container, *after, *limit),
        Op::Reap { inode } => remove::reap(draft, *inode),
        Op::SetPolicy { inode, policy } => policy::set(draft, *inode, policy),
        Op::GetPolicy { inode } => policy::get(draft, *inode),
        Op::Rehome {
            parent,
            name,
            container,
            policy,
        } => rehome::rehome(draft, *parent, name, *container, policy),
        Op::Snapshots => snapshot::list(draft),
        Op::KeepSnapshot { snapshot } => snapshot::keep(draft, snapshot),
        Op::ForgetSnapshot { id } => snapshot::forget(draft, *id),
        Op::Trash {
            container,
            after,
            limit,
        } => trash::list(draft, *container, *after, *limit),
        Op::Undelete {
            id,
            new_parent,
            new_name,
            cred,
        } => {
            let place = rename::Place {
                dir: *new_parent,
                name: new_name,
            };
            trash::undelete(draft, *id, place, *cred)
        }
        Op::Purge {
            container,
            entries,
            cred,
        } => trash::purge(draft, *container, entries, *cred),
        Op::Columns { inode } => stripe::columns(draft, *inode),
        Op::MakeColumns { inode, within } => stripe::make_columns(draft, *inode, within),
        Op::Claim {
            inode,
            at,
            len,
            kill_privileges,
        } => {
            let claim = stripe::Claim {
                at: *at,
                len: *len,
                kill_privileges: *kill_privileges,
            };
            stripe::claim(draft, *inode, &claim)
        }
        Op::CutColumn { inode, cuts, size } => stripe::cut_column(draft, *inode, *cuts, *size),
        Op::PunchColumn { inode, cuts, range } => {
            stripe::punch_column(draft, *inode, *cuts, *range)
        }
        Op::DropColumns { inode } => stripe::drop_columns(draft, *inode),
        Op::EndCut { inode, cuts, size } => stripe::end_cut(draft, *inode, *cuts, *size),
    }
}
