//! Attributes, extended attributes and the space of the file system.

use super::{Call, node_attr};
use crate::fuse::crossing::Word;
use crate::fuse::wire::{Body, NodeAttr, SetattrRequest, StatfsReply};
use perigee_client::fs::{Entry, SetAttr};
use perigee_meta::SetTime;
use perigee_types::limits::NAME_LEN_MAX;
use perigee_types::{Errno, WallTime};
use std::sync::Arc;
use std::time::Duration;

/// Bits of `SETATTR` that say what is set.
mod valid {
    pub(super) const MODE: u32 = 1 << 0;
    pub(super) const UID: u32 = 1 << 1;
    pub(super) const GID: u32 = 1 << 2;
    pub(super) const SIZE: u32 = 1 << 3;
    pub(super) const ATIME: u32 = 1 << 4;
    pub(super) const MTIME: u32 = 1 << 5;
    pub(super) const HANDLE: u32 = 1 << 6;
    pub(super) const ATIME_NOW: u32 = 1 << 7;
    pub(super) const MTIME_NOW: u32 = 1 << 8;
    pub(super) const KILL_PRIVILEGES: u32 = 1 << 11;
}

/// What the names of ACLs begin with, as extended attributes.
const ACLS: &[u8] = b"system.posix_acl_";

impl Call<'_> {
    pub(super) fn getattr(self) {
        self.attributes(Body::attr);
    }

    pub(super) fn statx(self) {
        self.attributes(Body::statx);
    }

    fn attributes(self, body: fn(Duration, &NodeAttr) -> Body) {
        let (inode, about) = (self.inode, self.about());
        let (reply, session) = (self.reply, Arc::clone(self.session));
        let answer = move |result: Result<Entry, Errno>| match result {
            Ok(entry) => {
                let about = session.told_about(about, &entry.attr);
                let kernel = Arc::clone(&session.kernel);
                session.tell_attr(about, move || {
                    let ttl = kernel.uncrossed_ttl(&entry.attr, about.asked, entry.ttl);
                    _ = reply.body(&body(ttl, &node_attr(&entry.attr)));
                });
            }
            Err(error) => reply.error(error),
        };
        self.session.fs.getattr(inode, Box::new(answer));
    }

    pub(super) fn setattr(self, request: &SetattrRequest) {
        let (fs, caller, inode) = (&self.session.fs, self.caller, self.inode);
        let handle = (request.valid & valid::HANDLE != 0).then_some(request.handle);
        let word = match request.valid & valid::SIZE {
            0 => Word::OfOthers,
            _ => Word::OfLength,
        };
        let (reply, session) = (self.reply, Arc::clone(self.session));
        // The kernel takes these whatever it was told to forget since it asked.
        let answer =
            move |entry: Entry| Body::attr(Duration::ZERO, &session.told(&entry.attr, word));
        let done = Box::new(move |result: Result<Entry, Errno>| {
            reply.body_or_error(result.map(answer));
        });
        fs.setattr(caller, inode, set_attr(request), handle, done);
    }

    pub(super) fn readlink(self) {
        let reply = self.reply;
        self.session.fs.readlink(
            self.inode,
            Box::new(move |result| match result {
                Ok(target) => reply.data(&target),
                Err(error) => reply.error(error),
            }),
        );
    }

    pub(super) fn statfs(self) {
        let reply = self.reply;
        self.session.fs.statfs(Box::new(move |result| {
            reply.body_or_error(result.map(|space| {
                Body::statfs(StatfsReply {
                    blocks: space.blocks,
                    free: space.free,
                    available: space.available,
                    files: space.inodes,
                    files_free: space.inodes_free,
                    block_len: space.block_len,
                    name_len: NAME_LEN_MAX as u32,
                })
            }));
        }));
    }

    pub(super) fn setxattr(self, name: &[u8], value: &[u8], flags: u32) {
        let (fs, caller, inode) = (&self.session.fs, self.caller, self.inode);
        fs.setxattr(caller, inode, name, value, flags, self.when_done());
    }

    pub(super) fn removexattr(self, name: &[u8]) {
        let (fs, caller, inode) = (&self.session.fs, self.caller, self.inode);
        fs.removexattr(caller, inode, name, self.when_done());
    }

    pub(super) fn getxattr(self, name: &[u8], len: u32) {
        let reply = self.reply;
        if name.starts_with(ACLS) {
            self.session.kernel.asks_acl(self.inode);
        }
        self.session.fs.getxattr(
            self.inode,
            name,
            Box::new(move |result| match result {
                Ok(value) => fit(reply, &value, len),
                Err(error) => reply.error(error),
            }),
        );
    }

    pub(super) fn listxattr(self, len: u32) {
        let reply = self.reply;
        self.session.fs.listxattr(
            self.inode,
            Box::new(move |result| match result {
                Ok(names) => {
                    let ended = names.iter().flat_map(|name| [&name[..], b"\0"]);
                    fit(reply, &ended.collect::<Vec<_>>().concat(), len);
                }
                Err(error) => reply.error(error),
            }),
        );
    }
}

/// Answers with a value, or with its length to a program that only asks for that (`len` 0).
fn fit(reply: crate::fuse::reply::Reply, value: &[u8], len: u32) {
    match (u32::try_from(value.len()), len) {
        (Ok(needed), 0) => drop(reply.body(&Body::count(needed))),
        (Ok(needed), _) if needed <= len => reply.data(value),
        (Ok(_), _) => reply.error(Errno::ERANGE),
        (Err(_), _) => reply.error(Errno::EOVERFLOW),
    }
}

fn set_attr(request: &SetattrRequest) -> SetAttr {
    let has = |bit| request.valid & bit != 0;
    let time = |set, now, (secs, nanos)| match (has(set), has(now)) {
        (_, true) => Some(SetTime::Now),
        (true, false) => Some(SetTime::At(WallTime { secs, nanos })),
        (false, false) => None,
    };
    SetAttr {
        mode: has(valid::MODE).then_some(request.mode & 0o7777),
        uid: has(valid::UID).then_some(request.uid),
        gid: has(valid::GID).then_some(request.gid),
        size: has(valid::SIZE).then_some(request.size),
        atime: time(valid::ATIME, valid::ATIME_NOW, request.atime),
        mtime: time(valid::MTIME, valid::MTIME_NOW, request.mtime),
        kill_privileges: has(valid::KILL_PRIVILEGES),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: SetattrRequest = SetattrRequest {
        valid: 0,
        handle: 7,
        size: 9,
        atime: (-1, 500),
        mtime: (2, 1),
        mode: 0o100_644,
        uid: 1,
        gid: 2,
    };

    #[test]
    fn only_what_the_mask_names_is_set() {
        assert_eq!(set_attr(&NOTHING), SetAttr::default());
        let all = SetattrRequest {
            valid: 0x3f,
            ..NOTHING
        };
        assert_eq!(
            set_attr(&all),
            SetAttr {
                mode: Some(0o644),
                uid: Some(1),
                gid: Some(2),
                size: Some(9),
                atime: Some(SetTime::At(WallTime {
                    secs: -1,
                    nanos: 500
                })),
                mtime: Some(SetTime::At(WallTime { secs: 2, nanos: 1 })),
                kill_privileges: false,
            }
        );
    }

    #[test]
    fn now_beats_a_given_time() {
        let now = SetattrRequest {
            valid: valid::ATIME | valid::ATIME_NOW,
            ..NOTHING
        };
        assert_eq!(set_attr(&now).atime, Some(SetTime::Now));
        assert_eq!(set_attr(&now).mtime, None);
    }
}
