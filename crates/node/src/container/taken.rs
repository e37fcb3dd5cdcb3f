//! Files of this machine that become files of the container as they are: their bytes stay where they lie on the disk.
//!
//! The object takes the file first ([`Object::take_file`](perigee_store::Object::take_file)); nobody is shown any of it then, since
//! the file of the container has length 0. That its bytes are there is a write whose bytes are in place already: it has a record,
//! and members fetch what that covers, as with every other write.

use super::write::{Kept, WriteRequest};
use super::{Container, Elsewhere, Failed};
use perigee_meta::stripe::Layout;
use perigee_meta::{Attr, Comes, Kind};
use perigee_proto::admin::AdoptSource;
use perigee_proto::message::file::At;
use perigee_store::disk::FileNumber;
use perigee_store::{AsTaken, Local, LocalFile, StoreError};
use perigee_types::{Errno, InodeId, OpId};
use std::sync::Arc;

/// Whose bytes a file has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Taken {
    /// Those of the file that it was taken from, which has another name still.
    Same,
    /// Its own.
    Own,
}

/// Why a file was not taken, or is not as it was.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotTaken {
    #[error("somebody writes to it")]
    InUse,
    #[error("it has changed meanwhile")]
    Changed,
    #[error("it is no regular file that is empty and has no stripes")]
    NotEmpty,
    #[error("this node does not own it: other nodes work there, or it keeps no files")]
    NotOwned,
    #[error("its container cannot take it now: it moves, or its other copies have no room")]
    NotReady,
    #[error(
        "it is on another file system than the node's data, so its bytes would have to be copied"
    )]
    OtherFileSystem,
    #[error("{0}")]
    Store(StoreError),
    #[error("{0}")]
    Refused(Errno),
}

impl From<Failed> for NotTaken {
    fn from(failed: Failed) -> Self {
        match failed {
            Failed::Elsewhere(Elsewhere::NotReady) => Self::NotReady,
            Failed::Elsewhere(_) => Self::NotOwned,
            Failed::Errno(errno) => Self::Refused(errno),
        }
    }
}

impl From<Errno> for NotTaken {
    fn from(errno: Errno) -> Self {
        Self::Refused(errno)
    }
}

impl From<StoreError> for NotTaken {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Mismatch { .. } => Self::Changed,
            StoreError::Io { code, .. } if code == Errno::EXDEV.code() => Self::OtherFileSystem,
            error => Self::Store(error),
        }
    }
}

impl Container {
    fn attr_here(&self, inode: InodeId) -> Result<Attr, NotTaken> {
        let st = self.state.lock();
        Self::reign(&st, self.env.clock.now()).map_err(Failed::from)?;
        Ok(self.attr(&st, inode)?)
    }

    /// The file of this machine, to which nobody writes.
    fn local_file(&self, source: &AdoptSource) -> Result<LocalFile, NotTaken> {
        let number = FileNumber {
            device: source.device,
            inode: source.inode,
        };
        match self.env.store.local_file(source.path.as_path(), number)? {
            Local::File(local) => Ok(local),
            Local::Written => Err(NotTaken::InUse),
            Local::Other => Err(NotTaken::Changed),
        }
    }

    /// Makes a file of this machine the content of a file that has none. This node must own it. What another host has of it is an
    /// empty file, until this returns.
    pub(crate) async fn take_file(
        self: &Arc<Self>,
        inode: InodeId,
        source: AdoptSource,
    ) -> Result<(), NotTaken> {
        let attr = self.attr_here(inode)?;
        if attr.kind != Kind::File || attr.size > 0 || attr.layout != Layout::Whole {
            return Err(NotTaken::NotEmpty);
        }
        let me = self.clone();
        let taking = self.env.runtime.spawn_blocking(move || {
            let local = me.local_file(&source)?;
            let file = me.file(inode)?;
            file.object.take_file(&local)?;
            Ok::<_, NotTaken>(local.len())
        });
        let len = taking.await.map_err(|_| Errno::EIO)??;
        let request = WriteRequest {
            session: self.env.sessions.own(),
            op: None,
            answered_through: OpId::default(),
            inode,
            at: At::Offset(0),
            kill_privileges: false,
            cuts: None,
            behind: None,
            comes: Comes::Home,
        };
        self.write_in_turn(request, Kept::Taken(len)).await?;
        Ok(())
    }

    /// Whether a file of this machine is as it was when a file got its length and its time; and whether it got its bytes by
    /// [taking them](Self::take_file), so that they are the same, or by a copy.
    pub(crate) async fn is_as_taken(
        self: &Arc<Self>,
        inode: InodeId,
        source: AdoptSource,
    ) -> Result<Taken, NotTaken> {
        let attr = self.attr_here(inode)?;
        let me = self.clone();
        let look = self.env.runtime.spawn_blocking(move || {
            let local = me.local_file(&source)?;
            if (local.len(), local.modified()) != (attr.size, attr.mtime) {
                return Err(NotTaken::Changed);
            }
            let object = &me.file(inode)?.object;
            let times = (attr.mtime, attr.ctime);
            match object.is_as_taken(local.number(), source.names, times)? {
                AsTaken::Same => Ok(Taken::Same),
                AsTaken::Own => Ok(Taken::Own),
                AsTaken::Changed => Err(NotTaken::Changed),
                AsTaken::Written => Err(NotTaken::InUse),
            }
        });
        look.await.map_err(|_| Errno::EIO)?
    }

    /// The file that a file was [taken](Self::take_file) from has lost its names.
    pub(crate) async fn settle_taken(self: &Arc<Self>, inode: InodeId) -> Result<Taken, NotTaken> {
        let me = self.clone();
        let settling = self.env.runtime.spawn_blocking(move || {
            me.file(inode)?.object.settle_taken()?;
            Ok(Taken::Own)
        });
        settling.await.map_err(|_| Errno::EIO)?
    }
}
