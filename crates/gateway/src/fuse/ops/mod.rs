//! One kernel request, one call of the file system: each function translates, calls, and leaves the
//! answer to a closure that owns the [`Reply`].

mod attributes;
mod content;
mod ioctl;
mod listing;
mod locks;
mod names;

use super::crossing::{Asked, Word};
use super::device::{Delivery, Device};
use super::notify::{About, inode_of, node_of};
use super::reply::Reply;
use super::session::Session;
use super::wire::{Body, Header, NodeAttr, Request};
use perigee_client::fs::{Attr, Caller, Done, Entry, Kind};
use perigee_types::InodeId;
use std::sync::Arc;
use std::time::Duration;

/// A request with what it needs to be answered.
struct Call<'s> {
    session: &'s Arc<Session>,
    inode: InodeId,
    caller: Caller,
    unique: u64,
    asked: Asked,
    reply: Reply,
}

/// Hands a request to the file system. Returns when it is taken, not when it is answered.
pub(crate) fn dispatch(
    session: &Arc<Session>,
    device: &Arc<Device>,
    header: &Header,
    request: Request<'_>,
) {
    // These have no answer.
    match &request {
        Request::Forget { count } => return session.forget(inode_of(header.node), *count),
        Request::BatchForget { nodes } => return names::batch_forget(session, nodes),
        Request::Interrupt { unique } => return locks::interrupt(session, *unique),
        _ => {}
    }
    session.kernel.asks(inode_of(header.node), header.pid);
    let call = Call {
        session,
        inode: inode_of(header.node),
        caller: Caller {
            uid: header.uid,
            gid: header.gid,
            pid: header.pid,
        },
        unique: header.unique,
        asked: session.kernel.asked(),
        reply: Reply::new(device, header.unique),
    };
    call.run(request);
}

impl Call<'_> {
    fn run(self, request: Request<'_>) {
        match request {
            Request::Lookup { name } => self.lookup(name),
            Request::Getattr => self.getattr(),
            Request::Statx => self.statx(),
            Request::Setattr(set) => self.setattr(&set),
            Request::Readlink => self.readlink(),
            Request::Symlink { name, target } => self.symlink(name, target),
            Request::Mknod {
                name,
                mode,
                rdev,
                umask,
            } => self.mknod(name, mode, rdev, umask),
            Request::Mkdir { name, mode, umask } => self.mkdir(name, mode, umask),
            Request::Unlink { name } => self.unlink(name),
            Request::Rmdir { name } => self.rmdir(name),
            Request::Rename {
                name,
                new_parent,
                new_name,
                flags,
            } => {
                self.rename(name, inode_of(new_parent), new_name, flags);
            }
            Request::Link { node, new_name } => self.link(inode_of(node), new_name),
            Request::Statfs => self.statfs(),
            Request::Setxattr { name, value, flags } => self.setxattr(name, value, flags),
            Request::Getxattr { name, len } => self.getxattr(name, len),
            Request::Listxattr { len } => self.listxattr(len),
            Request::Removexattr { name } => self.removexattr(name),
            on_open_file => self.run_on_open_file(on_open_file),
        }
    }

    fn run_on_open_file(self, request: Request<'_>) {
        match request {
            Request::Open { flags } => self.open(flags),
            Request::Create {
                name,
                flags,
                mode,
                umask,
            } => self.create(name, flags, mode, umask),
            Request::Read {
                handle,
                offset,
                len,
            } => self.read(handle, offset, len),
            Request::Write {
                handle,
                offset,
                flags,
                open_flags,
                data,
            } => {
                let how = content::How { flags, open_flags };
                self.write(handle, offset, how, data);
            }
            Request::Flush { handle, owner } => self.flush(handle, owner),
            Request::Release { handle } => self.release(handle),
            Request::Fsync { handle, flags } => self.fsync(handle, flags),
            Request::Opendir => self.opendir(),
            Request::Readdir {
                handle,
                cookie,
                len,
            } => self.readdir(handle, cookie, len),
            Request::ReaddirPlus {
                handle,
                cookie,
                len,
            } => self.readdir_plus(handle, cookie, len),
            Request::Releasedir { handle } => self.releasedir(handle),
            Request::Fsyncdir { handle } => self.fsyncdir(handle),
            Request::Getlk(lock) => self.getlk(&lock),
            Request::Setlk { lock, wait } => self.setlk(&lock, wait),
            Request::Ioctl(request) => self.ioctl(&request),
            Request::Fallocate {
                handle,
                offset,
                len,
                mode,
            } => {
                self.fallocate(handle, offset, len, mode);
            }
            Request::Lseek {
                handle,
                offset,
                whence,
            } => self.lseek(handle, offset, whence),
            Request::CopyRange {
                handle,
                offset,
                to_node,
                to_handle,
                to_offset,
                len,
                wide,
            } => {
                let source = (self.inode, handle, offset);
                self.copy_range(source, (inode_of(to_node), to_handle, to_offset), len, wide);
            }
            // Unknown, and what `dispatch` and the session have taken care of.
            _ => self.reply.switch_off(),
        }
    }

    /// Answers an operation that says nothing but how it went.
    fn when_done(self) -> Done<()> {
        Box::new(move |result| self.reply.done(result))
    }
}

// `Call` borrows the session, so closures that outlive the request take what they need out of it.
impl Call<'_> {
    /// What the kernel is going to be told of the inode.
    const fn about(&self) -> About {
        About {
            inode: self.inode,
            thread: self.caller.pid,
            asked: self.asked,
            len: None,
        }
    }

    /// Answers with the name's inode, which the kernel then holds once more.
    fn when_entry(self) -> Done<Entry> {
        let session = Arc::clone(self.session);
        let (about, reply) = (self.about(), self.reply);
        Box::new(move |result| match result {
            Ok(entry) => session.give(reply, about, entry),
            Err(error) => reply.error(error),
        })
    }
}

impl Session {
    /// Gives the kernel a name, and a reference to its inode.
    fn give(self: &Arc<Self>, reply: Reply, about: About, entry: Entry) {
        let inode = entry.attr.inode;
        let ttl = self.kernel.attr_ttl(&entry.attr, about.asked, entry.ttl);
        let about = self.told_about(About { inode, ..about }, &entry.attr);
        let me = Arc::clone(self);
        self.tell_attr(about, move || {
            let name_ttl = me.kernel.name_ttl(entry.ttl);
            let ttl = me.kernel.uncrossed_ttl(&entry.attr, about.asked, ttl);
            let attr = node_attr(&entry.attr);
            let body = Body::entry(node_of(inode), name_ttl, ttl, &attr);
            if reply.body(&body) == Delivery::Gone {
                me.forget(inode, 1);
            }
        });
    }

    /// With the length that the kernel is about to be told, if it takes the answer. Of an inode that is named with it, after that.
    fn told_about(&self, about: About, attr: &Attr) -> About {
        let len = (attr.kind == Kind::File).then_some(attr.size);
        if let Some(len) = len {
            self.kernel.answers_len(about.inode, about.asked, len);
        }
        About { len, ..about }
    }

    /// Attributes as the kernel takes them, which it is about to be told, and takes whatever has crossed them. Of an inode that
    /// is named with them, after that.
    fn told(&self, attr: &Attr, word: Word) -> NodeAttr {
        if attr.kind == Kind::File {
            self.kernel.tells_len(attr.inode, attr.size, word);
        }
        node_attr(attr)
    }

    /// The kernel has given so many references to an inode back, or did not take them.
    fn forget(&self, inode: InodeId, references: u64) {
        self.kernel.forgets(inode, references);
        self.fs.forget(inode, references);
    }

    /// Tells the kernel that a name does not exist.
    fn give_absence(&self, reply: Reply, ttl: Duration) {
        reply.body(&Body::absent(self.kernel.name_ttl(ttl)));
    }
}

/// Attributes as the kernel takes them.
fn node_attr(attr: &Attr) -> NodeAttr {
    NodeAttr {
        ino: attr.inode.0,
        size: attr.size,
        blocks: attr.blocks,
        atime: attr.atime,
        mtime: attr.mtime,
        ctime: attr.ctime,
        btime: attr.btime,
        mode: file_type(attr.kind) | attr.mode,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
    }
}

/// The file type bits of `st_mode`.
const fn file_type(kind: Kind) -> u32 {
    match kind {
        Kind::File => libc::S_IFREG,
        Kind::Directory => libc::S_IFDIR,
        Kind::Symlink => libc::S_IFLNK,
        Kind::Fifo => libc::S_IFIFO,
        Kind::Socket => libc::S_IFSOCK,
        Kind::CharDevice => libc::S_IFCHR,
        Kind::BlockDevice => libc::S_IFBLK,
    }
}
