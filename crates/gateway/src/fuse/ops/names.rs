//! Names: found, made, moved, removed, forgotten.

use super::Call;
use crate::fuse::notify::inode_of;
use crate::fuse::session::Session;
use perigee_client::fs::{Moved, NewNode, RenameMode};
use perigee_types::{Errno, InodeId};
use std::sync::Arc;

/// Permission, set-id and sticky bits of a mode.
const MODE_BITS: u32 = 0o7777;

pub(super) fn batch_forget(session: &Session, nodes: &[u8]) {
    let (pairs, _) = nodes.as_chunks::<16>();
    for pair in pairs {
        let (node, count) = pair.split_at(8);
        let number = |field: &[u8]| field.try_into().map_or(0, u64::from_ne_bytes);
        session.forget(inode_of(number(node)), number(count));
    }
}

impl Call<'_> {
    pub(super) fn lookup(self, name: &[u8]) {
        let session = Arc::clone(self.session);
        let (fs, inode, about) = (&self.session.fs, self.inode, self.about());
        let reply = self.reply;
        session.kernel.names_in(inode);
        fs.lookup(
            inode,
            name,
            Box::new(move |result| match result {
                Ok(Ok(entry)) => session.give(reply, about, entry),
                Ok(Err(ttl)) if ttl.is_zero() => reply.error(Errno::ENOENT),
                Ok(Err(ttl)) => session.give_absence(reply, ttl),
                Err(error) => reply.error(error),
            }),
        );
    }

    pub(super) fn symlink(self, name: &[u8], target: &[u8]) {
        self.make(name, NewNode::Symlink(target.to_vec()), 0o777, 0);
    }

    pub(super) fn mkdir(self, name: &[u8], mode: u32, umask: u32) {
        self.make(name, NewNode::Directory, mode & MODE_BITS, umask);
    }

    pub(super) fn mknod(self, name: &[u8], mode: u32, rdev: u32, umask: u32) {
        let node = match mode & libc::S_IFMT {
            libc::S_IFREG | 0 => NewNode::File,
            libc::S_IFIFO => NewNode::Fifo,
            libc::S_IFSOCK => NewNode::Socket,
            libc::S_IFCHR => NewNode::CharDevice(rdev),
            libc::S_IFBLK => NewNode::BlockDevice(rdev),
            _ => return self.reply.error(Errno::EINVAL),
        };
        self.make(name, node, mode & MODE_BITS, umask);
    }

    fn make(self, name: &[u8], node: NewNode, mode: u32, umask: u32) {
        let (fs, caller, parent) = (&self.session.fs, self.caller, self.inode);
        self.session.kernel.names_in(parent);
        fs.make(caller, parent, name, node, mode, umask, self.when_entry());
    }

    pub(super) fn unlink(self, name: &[u8]) {
        let (fs, caller, parent) = (&self.session.fs, self.caller, self.inode);
        fs.unlink(caller, parent, name, self.when_done());
    }

    pub(super) fn rmdir(self, name: &[u8]) {
        let (fs, caller, parent) = (&self.session.fs, self.caller, self.inode);
        fs.rmdir(caller, parent, name, self.when_done());
    }

    pub(super) fn rename(self, name: &[u8], new_parent: InodeId, new_name: &[u8], flags: u32) {
        let mode = match flags {
            0 => RenameMode::Replace,
            libc::RENAME_NOREPLACE => RenameMode::NoReplace,
            libc::RENAME_EXCHANGE => RenameMode::Exchange,
            // Among them RENAME_WHITEOUT: Perigee is no upper layer of overlayfs.
            _ => return self.reply.error(Errno::EINVAL),
        };
        let (fs, caller, parent) = (&self.session.fs, self.caller, self.inode);
        let session = Arc::clone(self.session);
        let done = self.when_done();
        let told = move |result: Result<Moved, Errno>| {
            if result == Ok(Moved::Ask) {
                session.kernel.forget_moved();
            }
            done(result.map(|_| ()));
        };
        fs.rename(
            caller,
            parent,
            name,
            new_parent,
            new_name,
            mode,
            Box::new(told),
        );
    }

    /// The request's node is the directory that gets the name.
    pub(super) fn link(self, inode: InodeId, new_name: &[u8]) {
        let (fs, caller, new_parent) = (&self.session.fs, self.caller, self.inode);
        self.session.kernel.names_in(new_parent);
        fs.link(caller, inode, new_parent, new_name, self.when_entry());
    }
}
