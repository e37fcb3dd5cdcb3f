//! Directories, listed.

use super::{Call, file_type, node_attr};
use crate::fuse::crossing::{Asked, AskedNames};
use crate::fuse::device::Delivery;
use crate::fuse::notify::ListedNames;
use crate::fuse::notify::node_of;
use crate::fuse::open_files::directory_flags;
use crate::fuse::reply::Reply;
use crate::fuse::session::Session;
use crate::fuse::wire::{Body, Listing, OpenReply};
use perigee_client::fs::{DirEntry, Kind};
use perigee_types::InodeId;
use std::sync::Arc;
use std::time::Duration;

/// Continues a listing after `.`.
const AFTER_DOT: u64 = 1;
/// Continues a listing after `..`; the file system's own cookies are greater.
const AFTER_DOTS: u64 = 2;
/// Inode number of `..` in a listing where it is not known (as libfuse has it). Nobody can ask
/// for it by that: the kernel knows the parent itself.
const UNKNOWN_INO: u64 = 0xffff_ffff;

/// One request for a part of a listing.
struct Part {
    inode: InodeId,
    cookie: u64,
    len: u32,
    plus: bool,
    asked: Asked,
    asked_names: AskedNames,
}

impl Call<'_> {
    pub(super) fn opendir(self) {
        let session = Arc::clone(self.session);
        let (inode, reply) = (self.inode, self.reply);
        self.session.fs.opendir(
            inode,
            Box::new(move |result| match result {
                Ok(opened) => {
                    let flags = directory_flags(&opened.mode);
                    let body = Body::open(OpenReply {
                        handle: opened.handle,
                        flags,
                        backing: 0,
                    });
                    if reply.body(&body) == Delivery::Gone {
                        session.fs.releasedir(inode, opened.handle);
                    }
                }
                Err(error) => reply.error(error),
            }),
        );
    }

    pub(super) fn readdir(self, handle: u64, cookie: u64, len: u32) {
        let part = Part {
            inode: self.inode,
            cookie,
            len,
            plus: false,
            asked: self.asked,
            asked_names: self.session.kernel.asked_names(self.inode),
        };
        self.list(handle, part);
    }

    pub(super) fn readdir_plus(self, handle: u64, cookie: u64, len: u32) {
        let part = Part {
            inode: self.inode,
            cookie,
            len,
            plus: true,
            asked: self.asked,
            asked_names: self.session.kernel.asked_names(self.inode),
        };
        self.list(handle, part);
    }

    fn list(self, handle: u64, part: Part) {
        let session = Arc::clone(self.session);
        let reply = self.reply;
        let from = if part.cookie <= AFTER_DOTS {
            0
        } else {
            part.cookie
        };
        let limit = Listing::capacity(part.len, part.plus);
        self.session.fs.readdir(
            part.inode,
            handle,
            from,
            limit,
            part.plus,
            Box::new(move |result| match result {
                Ok(entries) => session.give_listing(reply, &part, &entries),
                Err(error) => reply.error(error),
            }),
        );
    }

    pub(super) fn releasedir(self, handle: u64) {
        self.session.fs.releasedir(self.inode, handle);
        self.reply.ok();
    }

    pub(super) fn fsyncdir(self, handle: u64) {
        let (fs, inode) = (&self.session.fs, self.inode);
        fs.fsyncdir(inode, handle, self.when_done());
    }
}

impl Session {
    /// Each entry that is given with its attributes is one more reference that the kernel holds;
    /// all others are forgotten at once.
    fn give_listing(&self, reply: Reply, part: &Part, entries: &[DirEntry]) {
        let mut listing = Listing::new(part.len);
        let (mut given, mut named) = (0, Vec::new());
        let names = match part.plus {
            true => ListedNames::WithEntries,
            false => ListedNames::Plain,
        };
        let asked = part.asked_names;
        let most = self.kernel.gives_listing(part.inode, asked, names);
        if push_dots(&mut listing, part) {
            for entry in entries {
                match self.push(&mut listing, entry, part, most) {
                    Pushed::Named(inode) => named.push(inode),
                    Pushed::Plain => inodes(entry).for_each(|inode| self.fs.forget(inode, 1)),
                    Pushed::NoRoom => break,
                }
                given += 1;
            }
        }
        if reply.body(&listing.finish()) == Delivery::Gone {
            named.into_iter().for_each(|inode| self.forget(inode, 1));
        }
        let left = entries[given..].iter().flat_map(inodes);
        left.for_each(|inode| self.fs.forget(inode, 1));
    }

    /// `most`: how long the kernel may keep the name at most.
    fn push(&self, listing: &mut Listing, entry: &DirEntry, part: &Part, most: Duration) -> Pushed {
        debug_assert!(
            entry.cookie > AFTER_DOTS,
            "cookie {} is the gateway's",
            entry.cookie
        );
        let (ino, kind) = (entry.inode.0, file_type(entry.kind) >> 12);
        let named = (ino, kind, &entry.name[..], entry.cookie);
        let found = entry.entry.as_ref();
        if !part.plus {
            return Pushed::plain(listing.push(ino, kind, &entry.name, entry.cookie));
        }
        // Of others the kernel asks for attributes by themselves, and that answer can wait.
        let Some(found) = found.filter(|found| self.kernel.may_list(&found.attr, part.asked))
        else {
            return Pushed::plain(listing.push_plain(ino, kind, &entry.name, entry.cookie));
        };
        let inode = found.attr.inode;
        let name_ttl = self.kernel.name_ttl(found.ttl.min(most));
        let ttl = self.kernel.attr_ttl(&found.attr, part.asked, found.ttl);
        let attr = node_attr(&found.attr);
        if !listing.push_plus((node_of(inode), name_ttl, ttl, &attr), named) {
            self.kernel.forgets(inode, 1);
            return Pushed::NoRoom;
        }
        self.kernel.lists_len(&found.attr, part.asked);
        Pushed::Named(inode)
    }
}

/// What became of an entry of a listing.
enum Pushed {
    /// With its attributes, and so with a reference.
    Named(InodeId),
    /// Without.
    Plain,
    NoRoom,
}

impl Pushed {
    const fn plain(fits: bool) -> Self {
        match fits {
            true => Self::Plain,
            false => Self::NoRoom,
        }
    }
}

/// The one that an entry comes with the attributes of.
fn inodes(entry: &DirEntry) -> impl Iterator<Item = InodeId> {
    entry.entry.iter().map(|found| found.attr.inode)
}

/// Adds `.` and `..` where they belong. False: there was no room, and the rest must wait.
fn push_dots(listing: &mut Listing, part: &Part) -> bool {
    let kind = file_type(Kind::Directory) >> 12;
    let parent = if part.inode == InodeId::ROOT {
        part.inode.0
    } else {
        UNKNOWN_INO
    };
    let dots: [(&[u8], u64, u64); 2] =
        [(b".", part.inode.0, AFTER_DOT), (b"..", parent, AFTER_DOTS)];
    dots.into_iter()
        .filter(|(_, _, cookie)| *cookie > part.cookie)
        .all(|(name, ino, cookie)| match part.plus {
            true => listing.push_plain(ino, kind, name, cookie),
            false => listing.push(ino, kind, name, cookie),
        })
}
