//! What is below `.snapshots`.

use super::table::{Place, Table};
use crate::fs::{DirEntry, Done, Entry, FileSystem, Seek};
use crate::session::{Session, unexpected};
use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use perigee_meta::stripe::job::Known;
use perigee_meta::stripe::{Layout, Piece, UNIT, pieces};
use perigee_meta::{Attr, Kind, Op, Reply, Snapshot};
use perigee_types::limits::IO_LEN_MAX;
use perigee_types::{ByteRange, Errno, InodeId};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// For how long a kernel may keep what was: it does not change, but a snapshot can be deleted.
const KEEP: Duration = Duration::from_secs(5);
/// The same of which snapshots there are.
const KEEP_LIST: Duration = Duration::from_secs(1);
/// Cookies of listings begin after those of `.` and `..`.
const FIRST_COOKIE: u64 = 3;

/// A mount's view of snapshots.
pub(super) struct Past {
    session: Arc<Session>,
    table: Table,
    /// The file that was last read past its first chunk, by the number that the kernel knows, and its columns if it is
    /// striped. None of that changes.
    spread: Mutex<Option<(InodeId, Option<Known>)>>,
}

/// A read of a striped file, a column after the other.
struct Parts {
    past: Arc<Past>,
    snapshot: Arc<Snapshot>,
    known: Known,
    left: VecDeque<Piece>,
    read: BytesMut,
}

impl Parts {
    fn step(mut self, done: Done<Bytes>) {
        let Some(piece) = self.left.pop_front() else {
            return done(Ok(self.read.freeze()));
        };
        let len = piece.range.len() as usize;
        let Some(inode) = self.known.column(piece.column) else {
            // There were no columns yet.
            self.read.resize(self.read.len() + len, 0);
            return self.step(done);
        };
        let (past, snapshot) = (self.past.clone(), self.snapshot.clone());
        let told = move |result: Result<Bytes, Errno>| match result {
            Ok(bytes) => {
                let end = self.read.len() + len;
                self.read.extend_from_slice(&bytes);
                // A column ends before the file.
                self.read.resize(end, 0);
                self.step(done);
            }
            Err(errno) => done(Err(errno)),
        };
        past.read_part(&snapshot, inode, piece.range, Box::new(told));
    }
}

impl Past {
    pub(super) fn new(session: Arc<Session>) -> Self {
        Self {
            session,
            table: Table::default(),
            spread: Mutex::default(),
        }
    }

    pub(super) fn forget(&self, inode: InodeId, count: u64) {
        self.table.forget(inode, count);
    }

    fn place(&self, inode: InodeId) -> Result<Place, Errno> {
        self.table.place(inode).ok_or(Errno::ESTALE)
    }

    /// An inode of a snapshot; EINVAL for the list itself.
    fn inode(&self, inode: InodeId) -> Result<(Arc<Snapshot>, InodeId), Errno> {
        match self.place(inode)? {
            Place::Past(snapshot, inode) => Ok((snapshot, inode)),
            Place::List(_) => Err(Errno::EINVAL),
        }
    }

    /// The snapshots of a directory, the oldest first.
    fn list(&self, directory: InodeId, done: Done<Vec<Arc<Snapshot>>>) {
        let told = move |result: Result<(Reply, Duration), Errno>| {
            done(match result {
                Ok((Reply::Snapshots(all), _)) => {
                    let mut own: Vec<Arc<Snapshot>> = all
                        .into_iter()
                        .filter(|snapshot| snapshot.directory == directory)
                        .map(Arc::new)
                        .collect();
                    own.sort_by_key(|snapshot| snapshot.id);
                    Ok(own)
                }
                Ok(_) => unexpected(),
                Err(errno) => Err(errno),
            });
        };
        self.session.execute(Op::Snapshots, Box::new(told));
    }

    /// Asks about an inode of a snapshot.
    fn ask(&self, snapshot: &Snapshot, inode: InodeId, op: Op, done: Done<Reply>) {
        let container = inode.container();
        // A container that was made later has nothing of the tree.
        let Some(checkpoint) = snapshot.part(container) else {
            return done(Err(Errno::ESTALE));
        };
        let backend = &self.session.backend;
        backend.query_past(container, checkpoint, op, done);
    }

    /// The list of a directory's snapshots as a directory.
    fn list_attr(&self, inode: InodeId) -> Attr {
        let now = self.session.now();
        Attr {
            inode,
            kind: Kind::Directory,
            mode: 0o555,
            uid: 0,
            gid: 0,
            nlink: 2,
            size: 0,
            rdev: 0,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
            blocks: 0,
            layout: Layout::Whole,
        }
    }

    /// What the kernel is told of an inode of a snapshot, to which it refers once more.
    fn entry(&self, snapshot: &Arc<Snapshot>, attr: Attr) -> Entry {
        let place = Place::Past(snapshot.clone(), attr.inode);
        let inode = self.table.refer(place);
        Entry {
            attr: Attr { inode, ..attr },
            ttl: KEEP,
        }
    }

    /// `.snapshots` of a directory: there where the directory has any.
    pub(super) fn find_list(
        self: Arc<Self>,
        directory: InodeId,
        done: Done<Result<Entry, Duration>>,
    ) {
        let me = self.clone();
        let told = move |result: Result<Vec<Arc<Snapshot>>, Errno>| {
            done(result.map(|own| {
                // What is missing now may be there at once.
                if own.is_empty() {
                    return Err(Duration::ZERO);
                }
                let inode = me.table.refer(Place::List(directory));
                Ok(Entry {
                    attr: me.list_attr(inode),
                    ttl: KEEP_LIST,
                })
            }));
        };
        self.list(directory, Box::new(told));
    }

    pub(super) fn lookup(
        self: Arc<Self>,
        parent: InodeId,
        name: &[u8],
        done: Done<Result<Entry, Duration>>,
    ) {
        let me = self.clone();
        match self.place(parent) {
            Err(errno) => done(Err(errno)),
            Ok(Place::List(directory)) => {
                let name = name.to_vec();
                let told = move |result: Result<Vec<Arc<Snapshot>>, Errno>| match result {
                    Err(errno) => done(Err(errno)),
                    Ok(own) => {
                        let named = |snapshot: &Arc<Snapshot>| snapshot.name.as_bytes() == name;
                        match own.into_iter().find(named) {
                            None => done(Ok(Err(Duration::ZERO))),
                            Some(snapshot) => me.show(snapshot, directory, done),
                        }
                    }
                };
                self.list(directory, Box::new(told));
            }
            Ok(Place::Past(snapshot, directory)) => {
                let op = Op::Lookup {
                    parent: directory,
                    name: name.to_vec(),
                };
                let (found_in, asked) = (snapshot.clone(), me.clone());
                let told = move |result: Result<Reply, Errno>| match result {
                    Ok(Reply::Entry(attr)) => done(Ok(Ok(me.entry(&found_in, attr)))),
                    Ok(Reply::Leads(inode)) => me.show(found_in, inode, done),
                    Ok(Reply::Absent) => done(Ok(Err(KEEP))),
                    Ok(_) => done(unexpected()),
                    Err(errno) => done(Err(errno)),
                };
                asked.ask(&snapshot, directory, op, Box::new(told));
            }
        }
    }

    /// Finds an inode of a snapshot by its number.
    fn show(
        self: Arc<Self>,
        snapshot: Arc<Snapshot>,
        inode: InodeId,
        done: Done<Result<Entry, Duration>>,
    ) {
        let me = self.clone();
        let shown_in = snapshot.clone();
        let told = move |result: Result<Reply, Errno>| {
            done(match result {
                Ok(Reply::Attr(attr)) => Ok(Ok(me.entry(&shown_in, attr))),
                Ok(_) => unexpected(),
                Err(errno) => Err(errno),
            });
        };
        self.ask(&snapshot, inode, Op::GetAttr { inode }, Box::new(told));
    }

    pub(super) fn getattr(self: Arc<Self>, shown: InodeId, done: Done<Entry>) {
        let (snapshot, inode) = match self.place(shown) {
            Err(errno) => return done(Err(errno)),
            Ok(Place::List(_)) => {
                return done(Ok(Entry {
                    attr: self.list_attr(shown),
                    ttl: KEEP_LIST,
                }));
            }
            Ok(Place::Past(snapshot, inode)) => (snapshot, inode),
        };
        let told = move |result: Result<Reply, Errno>| {
            done(match result {
                Ok(Reply::Attr(attr)) => Ok(Entry {
                    attr: Attr {
                        inode: shown,
                        ..attr
                    },
                    ttl: KEEP,
                }),
                Ok(_) => unexpected(),
                Err(errno) => Err(errno),
            });
        };
        self.ask(&snapshot, inode, Op::GetAttr { inode }, Box::new(told));
    }

    /// Asks for bytes that are with an inode.
    fn ask_bytes(
        &self,
        shown: InodeId,
        op: impl FnOnce(InodeId) -> Op,
        none: Errno,
        done: Done<Bytes>,
    ) {
        let (snapshot, inode) = match self.place(shown) {
            Err(errno) => return done(Err(errno)),
            Ok(Place::List(_)) => return done(Err(none)),
            Ok(Place::Past(snapshot, inode)) => (snapshot, inode),
        };
        let told = move |result: Result<Reply, Errno>| {
            done(match result {
                Ok(Reply::Bytes(bytes)) => Ok(bytes.into()),
                Ok(_) => unexpected(),
                Err(errno) => Err(errno),
            });
        };
        self.ask(&snapshot, inode, op(inode), Box::new(told));
    }

    pub(super) fn readlink(self: Arc<Self>, shown: InodeId, done: Done<Bytes>) {
        let op = |inode| Op::ReadLink { inode };
        self.ask_bytes(shown, op, Errno::EINVAL, done);
    }

    pub(super) fn getxattr(self: Arc<Self>, shown: InodeId, name: &[u8], done: Done<Bytes>) {
        let name = name.to_vec();
        let op = |inode| Op::GetXattr { inode, name };
        self.ask_bytes(shown, op, Errno::ENODATA, done);
    }

    pub(super) fn listxattr(self: Arc<Self>, shown: InodeId, done: Done<Vec<Bytes>>) {
        let (snapshot, inode) = match self.place(shown) {
            Err(errno) => return done(Err(errno)),
            Ok(Place::List(_)) => return done(Ok(Vec::new())),
            Ok(Place::Past(snapshot, inode)) => (snapshot, inode),
        };
        let told = move |result: Result<Reply, Errno>| {
            done(match result {
                Ok(Reply::Names(names)) => Ok(names.into_iter().map(Bytes::from).collect()),
                Ok(_) => unexpected(),
                Err(errno) => Err(errno),
            });
        };
        self.ask(&snapshot, inode, Op::ListXattr { inode }, Box::new(told));
    }

    pub(super) fn read(self: Arc<Self>, shown: InodeId, offset: u64, len: u32, done: Done<Bytes>) {
        let (snapshot, inode) = match self.inode(shown) {
            Err(errno) => return done(Err(errno)),
            Ok(found) => found,
        };
        let len = len.min(IO_LEN_MAX as u32);
        let range = ByteRange::with_len(offset, u64::from(len));
        if range.end > UNIT {
            return self.read_far(shown, (snapshot, inode), range, done);
        }
        self.read_part(&snapshot, inode, range, done);
    }

    fn read_part(&self, snapshot: &Snapshot, inode: InodeId, range: ByteRange, done: Done<Bytes>) {
        let Some(checkpoint) = snapshot.part(inode.container()) else {
            return done(Err(Errno::ESTALE));
        };
        let backend = &self.session.backend;
        backend.read_past(inode, checkpoint, range.start, range.len() as u32, done);
    }

    /// Reads what is past the first chunk of a file, which may be striped.
    fn read_far(
        self: Arc<Self>,
        shown: InodeId,
        (snapshot, inode): (Arc<Snapshot>, InodeId),
        range: ByteRange,
        done: Done<Bytes>,
    ) {
        let last = self.spread.lock().clone();
        if let Some((_, known)) = last.filter(|(of, _)| *of == shown) {
            return self.read_known((snapshot, inode), known, range, done);
        }
        let (me, shown_in) = (self.clone(), snapshot.clone());
        let told = move |result: Result<Reply, Errno>| {
            let known = match result {
                Ok(Reply::Columns { attr, columns }) => Known::of(&attr, columns),
                // It is not striped.
                Err(Errno::EINVAL) => None,
                Ok(_) => return done(unexpected()),
                Err(errno) => return done(Err(errno)),
            };
            *me.spread.lock() = Some((shown, known.clone()));
            me.read_known((shown_in, inode), known, range, done);
        };
        self.ask(&snapshot, inode, Op::Columns { inode }, Box::new(told));
    }

    fn read_known(
        self: Arc<Self>,
        (snapshot, inode): (Arc<Snapshot>, InodeId),
        known: Option<Known>,
        range: ByteRange,
        done: Done<Bytes>,
    ) {
        let Some(known) = known else {
            return self.read_part(&snapshot, inode, range, done);
        };
        // What was being cut then may be gone from some of its columns.
        let cut = known.striping.cutting.unwrap_or(known.size);
        let size = known.size.min(cut);
        let end = range.end.min(size);
        let range = ByteRange::new(range.start.min(end), end);
        let left = pieces(known.striping.width, range).collect();
        let parts = Parts {
            past: self,
            snapshot,
            known,
            left,
            read: BytesMut::new(),
        };
        parts.step(done);
    }

    /// All of a file is data, up to its end.
    pub(super) fn seek(self: Arc<Self>, shown: InodeId, offset: u64, what: Seek, done: Done<u64>) {
        let told = move |result: Result<Entry, Errno>| {
            done(result.and_then(|entry| match what {
                _ if offset >= entry.attr.size => Err(Errno::ENXIO),
                Seek::Data => Ok(offset),
                Seek::Hole => Ok(entry.attr.size),
            }));
        };
        self.getattr(shown, Box::new(told));
    }

    /// One piece; the program asks again for the rest.
    pub(super) fn copy_range(
        self: Arc<Self>,
        source: (InodeId, u64, u64),
        (target, handle, at): (InodeId, u64, u64),
        len: u64,
        done: Done<u64>,
    ) {
        let session = self.session.clone();
        let len = len.min(IO_LEN_MAX as u64) as u32;
        let told = move |result: Result<Bytes, Errno>| match result {
            Ok(bytes) if bytes.is_empty() => done(Ok(0)),
            Ok(bytes) => {
                let wrote = move |result: Result<u32, Errno>| done(result.map(u64::from));
                session.write(target, handle, at, &bytes, false, Box::new(wrote));
            }
            Err(errno) => done(Err(errno)),
        };
        self.read(source.0, source.2, len, Box::new(told));
    }

    pub(super) fn readdir(
        self: Arc<Self>,
        shown: InodeId,
        cookie: u64,
        limit: usize,
        plus: bool,
        done: Done<Vec<DirEntry>>,
    ) {
        let me = self.clone();
        let (snapshot, inode) = match self.place(shown) {
            Err(errno) => return done(Err(errno)),
            Ok(Place::List(directory)) => {
                let told = move |result: Result<Vec<Arc<Snapshot>>, Errno>| {
                    done(result.map(|own| me.names(directory, own, cookie, limit)));
                };
                return self.list(directory, Box::new(told));
            }
            Ok(Place::Past(snapshot, inode)) => (snapshot, inode),
        };
        let op = Op::ReadDir {
            inode,
            cookie,
            limit,
        };
        let shown_in = snapshot.clone();
        let told = move |result: Result<Reply, Errno>| {
            let rows = match result {
                Ok(Reply::Listing(rows)) => rows,
                Ok(_) => return done(unexpected()),
                Err(errno) => return done(Err(errno)),
            };
            let rows = rows.into_iter().map(|row| {
                let entry = row.attr.filter(|_| plus);
                let entry = entry.map(|attr| me.entry(&shown_in, attr));
                let place = Place::Past(shown_in.clone(), row.inode);
                DirEntry {
                    name: row.name.into(),
                    inode: match &entry {
                        Some(entry) => entry.attr.inode,
                        None => me.table.hint(&place),
                    },
                    kind: row.kind,
                    cookie: row.cookie,
                    entry,
                }
            });
            done(Ok(rows.collect()));
        };
        self.ask(&snapshot, inode, op, Box::new(told));
    }

    /// The entries of the list after a cookie.
    fn names(
        &self,
        directory: InodeId,
        own: Vec<Arc<Snapshot>>,
        cookie: u64,
        limit: usize,
    ) -> Vec<DirEntry> {
        let all = own.into_iter().zip(FIRST_COOKIE..);
        all.filter(|(_, at)| *at > cookie)
            .take(limit)
            .map(|(snapshot, cookie)| DirEntry {
                name: snapshot.name.clone().into_bytes().into(),
                inode: self.table.hint(&Place::Past(snapshot, directory)),
                kind: Kind::Directory,
                cookie,
                entry: None,
            })
            .collect()
    }
}
