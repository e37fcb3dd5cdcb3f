//! Directories, listed.

use super::{Call, file_type, node_attr};
use crate::fuse::crossing::{Asked, AskedNames};
use crate::fuse::device::Delivery;
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
            asked_names: self.session.kernel.asked_names(),
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
            asked_names: self.session.kernel.asked_names(),
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
    /// those that find no room are forgotten at once.
    fn give_listing(&self, reply: Reply, part: &Part, entries: &[DirEntry]) {
        let mut listing = Listing::new(part.len);
        let mut given = 0;
        let most = match part.plus {
            true => self.kernel.listing_ttl_max(part.asked_names),
            false => Duration::ZERO,
        };
        if push_dots(&mut listing, part) {
            given = entries
                .iter()
                .take_while(|entry| self.push(&mut listing, entry, part, most))
                .count();
        }
        let (given, left) = entries.split_at(given);
        if reply.body(&listing.finish()) == Delivery::Gone {
            inodes(given)
                .filter(|_| part.plus)
                .for_each(|inode| self.forget(inode, 1));
        }
        inodes(left).for_each(|inode| self.fs.forget(inode, 1));
    }

    /// `most`: how long the kernel may keep the name at most.
    fn push(&self, listing: &mut Listing, entry: &DirEntry, part: &Part, most: Duration) -> bool {
        debug_assert!(
            entry.cookie > AFTER_DOTS,
            "cookie {} is the gateway's",
            entry.cookie
        );
        let (ino, kind) = (entry.inode.0, file_type(entry.kind) >> 12);
        let named = (ino, kind, &entry.name[..], entry.cookie);
        match &entry.entry {
            Some(found) if part.plus => {
                let inode = found.attr.inode;
                let name_ttl = self.kernel.name_ttl(found.ttl.min(most));
                let ttl = self.kernel.attr_ttl(inode, part.asked, found.ttl);
                let attr = node_attr(&found.attr);
                let fits = listing.push_plus((node_of(inode), name_ttl, ttl, &attr), named);
                if fits {
                    self.kernel.lists_len(&found.attr, part.asked);
                } else {
                    self.kernel.forgets(inode, 1);
                }
                fits
            }
            None if part.plus => listing.push_plain(ino, kind, &entry.name, entry.cookie),
            Some(_) | None => listing.push(ino, kind, &entry.name, entry.cookie),
        }
    }
}

/// Those that come with their attributes.
fn inodes(entries: &[DirEntry]) -> impl Iterator<Item = InodeId> {
    let found = entries.iter().filter_map(|entry| entry.entry.as_ref());
    found.map(|entry| entry.attr.inode)
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
