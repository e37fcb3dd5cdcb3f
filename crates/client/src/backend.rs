//! What a session asks of its node.

use crate::fs::{Done, Seek, Space};
use bytes::Bytes;
pub use perigee_meta::WriteAt as At;
use perigee_meta::lock::kept::Life;
use perigee_meta::{Attr, Op, Reply};
use perigee_types::{
    ByteRange, CheckpointId, ContainerId, Epoch, Errno, InodeId, SessionId, WallTime,
};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

/// What an open found.
#[derive(Debug, Clone)]
pub struct Found {
    /// The file's attributes.
    pub attr: Attr,
    /// The epoch in which this node owns the file's container, if it does: while it stays the
    /// same, this node itself tells the session of every change, so cached pages stay good.
    pub home: Option<Epoch>,
    /// The whole file, valid, as a local file.
    pub local: Local,
}

/// What a file is opened for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Reading alone.
    Read,
    /// Writing; the daemon sees each write.
    Write,
    /// Writing, past the daemon if that may be.
    WriteAlone,
}

/// A file's bytes as a local file.
#[derive(Debug, Clone)]
pub enum Local {
    /// They are not all here, or others may write them.
    None,
    /// To be read from.
    Read(Arc<OwnedFd>),
    /// To be read from and written to, by programs of this session alone: [`MapWriter::Goes`] follows.
    Write(Arc<OwnedFd>),
    /// To be mapped, as earlier maps of it may still be stored to; read and written through the daemon.
    Maps(Arc<OwnedFd>),
}

/// How a program hears of work that was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hears {
    /// By a close, which many programs do not look at: somebody has yet to hear of it.
    ByClose,
    /// By an fsync.
    ByFsync,
}

/// Work of programs that was lost before anybody else had it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Loss {
    /// Of how many losses who hears of it knows then.
    pub count: u64,
    /// What its program is told.
    pub errno: Errno,
}

/// A program that has, or may make, a shared map of a file's backing file that it can write to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MapWriter {
    /// From now on the file may change unseen.
    Comes,
    /// Its descriptor is gone; maps may have outlived it.
    Goes,
}

/// Runs operations wherever their owner is, and hides its changes: a call is answered with a
/// result, or after a bounded time (30 s) with an error.
pub trait Backend: Send + Sync + 'static {
    /// Runs an operation of the name space; the duration is for how long the kernel may keep
    /// what the reply says.
    fn execute(&self, session: SessionId, op: Op, done: Done<(Reply, Duration)>);
    /// Finds a file that is being opened. [`Local::Write`] comes for [`Purpose::WriteAlone`] alone.
    fn open(&self, session: SessionId, inode: InodeId, purpose: Purpose, done: Done<Found>);
    /// Reads; fewer bytes than asked for only at the end of the file.
    fn read(&self, session: SessionId, inode: InodeId, offset: u64, len: u32, done: Done<Bytes>);
    /// Writes all of `data`; the answer says where it went.
    fn write(
        &self,
        session: SessionId,
        inode: InodeId,
        at: At,
        data: &[u8],
        kill_privileges: bool,
        done: Done<ByteRange>,
    );
    /// Waits until what was acknowledged of this inode is with its owner, or was lost: at a close. From then on it outlives this host
    /// or the owner, and both once it is on every replica.
    fn hand_over(&self, inode: InodeId, done: Done<()>);
    /// Makes what was acknowledged of this inode durable on every current replica.
    fn sync(&self, inode: InodeId, done: Done<()>);
    /// How often work of programs on this node was lost, before anybody else had it, with an ownership.
    fn losses(&self) -> u64;
    /// What a descriptor that knows of `since` losses must hear of work on `inode` that was lost. Right after
    /// [`Backend::sync`] or [`Backend::hand_over`] has answered, or what a close waits for after that.
    fn lost(&self, inode: InodeId, since: u64, hears: Hears) -> Option<Loss>;
    /// Notes that a program of this session may change a local file unseen, or no longer does. Each
    /// `Goes` follows a `Comes`; what changed is found and ordered at the latest then.
    fn map_writer(
        &self,
        session: SessionId,
        inode: InodeId,
        writer: MapWriter,
    ) -> Result<(), Errno>;
    /// `lseek(2)` over holes.
    fn seek(&self, inode: InodeId, offset: u64, what: Seek, done: Done<u64>);
    /// Runs an operation that changes nothing on a container as of a checkpoint.
    fn query_past(
        &self,
        container: ContainerId,
        checkpoint: CheckpointId,
        op: Op,
        done: Done<Reply>,
    );
    /// Reads a file as of a checkpoint; fewer bytes than asked for only at its end.
    fn read_past(
        &self,
        inode: InodeId,
        checkpoint: CheckpointId,
        offset: u64,
        len: u32,
        done: Done<Bytes>,
    );
    /// Whether this node's sign of life counts: locks that it keeps are its own then.
    fn life(&self) -> Life;
    /// Space of the whole file system.
    fn space(&self, done: Done<Space>);
    /// Runs `then` after `delay`, on another thread.
    fn after(&self, delay: Duration, then: Box<dyn FnOnce() + Send>);
    /// Wall-clock time.
    fn now(&self) -> WallTime;
}
