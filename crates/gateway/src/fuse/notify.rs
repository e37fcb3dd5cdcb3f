//! What the kernel's caches of this mount must drop.

use super::crossing::{Asked, AskedNames, Crossing, Took, Word};
use super::device::{Delivery, Device};
use super::directories::Drops;
use super::pages::{Pages, Request, Way};
use super::session::Session;
use super::short_reads::Awaited;
use super::threads::{Doing, doing, this_thread};
use super::wire::{self, Body, notice};
use parking_lot::Mutex;
use perigee_client::fs::{Attr, KernelCache, Kind, Stale};
use perigee_types::{ByteRange, InodeId};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};
use tracing::warn;

/// The caches of a mounted kernel.
#[derive(Debug)]
pub(crate) struct Kernel {
    device: Arc<Device>,
    /// Whether it takes `INC_EPOCH`.
    has_epochs: bool,
    /// Set once names had to be forgotten by a kernel that cannot: no name is given for keeps since.
    names_are_asked: AtomicBool,
    crossing: Arc<Crossing>,
    pages: Mutex<Pages>,
}

/// An unanswered write of this mount, until it is dropped.
pub(super) struct Writing {
    session: Arc<Session>,
    inode: InodeId,
    unique: u64,
}

impl Writing {
    /// The kernel has asked for a write.
    pub(super) fn begin(session: &Arc<Session>, write: Request, way: Way) -> Self {
        session.kernel.pages.lock().write(write, way);
        Self {
            session: Arc::clone(session),
            inode: write.inode,
            unique: write.unique,
        }
    }

    /// The write is done: `answer` tells the kernel, once it has no page that was read beside the write. It is not waited
    /// for long: who reads past the kernel's cache may have read what the write has locked.
    pub(super) fn end(self, answer: impl FnOnce() + Send + 'static) {
        let shown = self
            .session
            .kernel
            .pages
            .lock()
            .shown(self.inode, self.unique);
        if shown.is_empty() {
            answer();
            return drop(self);
        }
        let (session, inode, unique) = (Arc::clone(&self.session), self.inode, self.unique);
        let owed = Arc::new(Mutex::new(Some((answer, self))));
        let later = Arc::clone(&owed);
        // The kernel waits for reads of the pages, and this thread may be the one that answers them. Where no other can be
        // made the write is answered with EIO: its program must not rely on what it would read.
        beside(move || {
            std::thread::sleep(WAIT);
            give(&later);
        });
        beside(move || {
            for pages in shown {
                session.kernel.forget_pages(inode, pages, Some(unique));
            }
            give(&owed);
        });
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        let (session, inode) = (Arc::clone(&self.session), self.inode);
        let ended = session.kernel.pages.lock().answered(inode, self.unique);
        if let Some(pages) = ended {
            // Another write may have locked them meanwhile, and this thread may be the one that answers it.
            beside(move || session.kernel.forget_data(inode, pages));
        }
    }
}

impl Session {
    /// The kernel is about to have an `answer` about the attributes of an inode. It passes over one that a notice has crossed,
    /// and goes on to read with what it has: no page may be older than the answer then, and no end before it. It finds an end that
    /// is too far when it reads there.
    pub(super) fn tell_attr(
        self: &Arc<Self>,
        about: About,
        answer: impl FnOnce() + Send + 'static,
    ) {
        let About { inode, asked, .. } = about;
        let kernel = &self.kernel;
        let least = kernel.crossing.least_len(inode);
        let grows = kernel.grows_by(&about);
        let waits = grows && (kernel.waits_for_reads(&about) || kernel.crossing.short(inode) > 0);
        let lately = grows && kernel.crossing.noticed_lately(inode, Instant::now());
        // A notice looks for what was given last after it was noted, and this the other way round.
        if !waits && !lately && kernel.gave_unless_passed_over(&about) {
            return answer();
        }
        let session = Arc::clone(self);
        beside(move || {
            let kernel = &session.kernel;
            kernel.wait_to_grow(&about);
            if kernel.crossing.has_crossed(inode, asked) {
                kernel.drop_pages(inode, 0);
            } else if grows && kernel.crossing.short(inode) > 0 {
                kernel.drop_pages(inode, least);
            }
            match about.len {
                // A newer answer has cut it.
                Some(len) if kernel.told_len(inode) < len => {}
                Some(len) if lately || !kernel.gave_unless_passed_over(&about) => {
                    // It may be cut before that is told.
                    let there = move |crossing: &Crossing| crossing.told_len(inode) >= len;
                    kernel.grow(inode, move |crossing| there(crossing).then_some(len));
                    kernel.gave(&about, Took::AtLeast);
                }
                Some(_) | None => {}
            }
            answer();
        });
    }

    /// The kernel is about to have an `answer` to a write of its own that makes the file longer for it, and has no page for that.
    pub(super) fn tell_growth(
        self: &Arc<Self>,
        about: About,
        answer: impl FnOnce() + Send + 'static,
    ) {
        let grows = self.kernel.waits_to_grow(&about) || self.kernel.keeps_less(&about);
        if !grows {
            self.kernel.gave(&about, Took::AtLeast);
            return answer();
        }
        let session = Arc::clone(self);
        beside(move || {
            let kernel = &session.kernel;
            kernel.wait_to_grow(&about);
            let least = kernel.crossing.least_len(about.inode);
            kernel.drop_pages(about.inode, least);
            kernel.gave(&about, Took::AtLeast);
            answer();
        });
    }
}

/// What a listing has of each name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ListedNames {
    /// Only its inode's number.
    Plain,
    /// Attributes, and so an entry that the kernel may keep.
    WithEntries,
}

/// Whether the kernel is to have a length again that it was given lately, before a notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Growth {
    Kept,
    Known,
}

/// A read that has fewer bytes than were asked for, until it is answered.
pub(super) struct ReadingShort {
    kernel: Arc<Kernel>,
    inode: InodeId,
    thread: u32,
}

impl Drop for ReadingShort {
    fn drop(&mut self) {
        self.kernel.read_short(self.inode, self.thread);
    }
}

/// What the kernel is about to be told of an inode.
#[derive(Debug, Clone, Copy)]
pub(super) struct About {
    pub(super) inode: InodeId,
    /// The thread that waits for the answer.
    pub(super) thread: u32,
    pub(super) asked: Asked,
    /// How long it is, of a file.
    pub(super) len: Option<u64>,
}

/// Answers a write, if that was not done.
fn give<Answer: FnOnce()>(owed: &Mutex<Option<(Answer, Writing)>>) {
    let taken = owed.lock().take();
    if let Some((answer, _under_way)) = taken {
        answer();
    }
}

/// How long the answer to a write waits for pages to be dropped.
const WAIT: Duration = Duration::from_millis(10);

/// Makes a file at least `len` bytes long for the kernel, which takes its length from bytes that it is given before it looks at
/// them: these are none. The empty page that this leaves goes: a program that had the kernel read it would keep hold of it, also
/// when another notice drops it before that program runs, and would take what it lacks of a still later end for zeros. Of a page that is
/// not there the kernel reads ahead, and looks for it anew when it has come. Waits while the last page is read or written.
fn grow(device: &Device, crossing: &Crossing, inode: InodeId, len: u64) {
    let Some(last) = len.checked_sub(1) else {
        return;
    };
    let byte = Body::store(node_of(inode), last, 1);
    // The thread may have begun late.
    crossing.overtakes(inode);
    let told = device.notify_without_its_byte(notice::STORE, byte.bytes());
    let page = inval(inode, ByteRange::new(last, len));
    let told = told.and_then(|_| {
        // It may have waited for the page for long.
        crossing.overtakes(inode);
        device.notify(notice::INVAL_INODE, page.bytes())
    });
    if let Err(error) = told {
        warn!(%error, "kernel refused a notice about a file's length");
    }
}

/// Gives a notice that may have to wait for a page, and does not wait for long: that may be locked for a write that waits for
/// another kernel. `None`: it waits for that, and is given when it can be; or it could not be given, for want of a thread.
fn soon<T: Send + 'static>(notice: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (begin, begun) = channel();
    let (done, given) = channel();
    beside(move || {
        _ = begin.send(this_thread());
        _ = done.send(notice());
    });
    // On a busy machine a thread may run late, and what matters here is how long it waits for the page.
    let thread = begun.recv().ok()?;
    let since = Instant::now();
    loop {
        match given.recv_timeout(SOON) {
            Ok(told) => return Some(told),
            Err(RecvTimeoutError::Timeout)
                if matches!(doing(thread), Doing::Runs(_))
                    && since.elapsed() < WAIT_TO_GROW_MAX => {}
            Err(_) => return None,
        }
    }
}

fn beside(work: impl FnOnce() + Send + 'static) {
    if let Err(error) = std::thread::Builder::new().spawn(work) {
        warn!(%error, "no thread to give a notice beside a request");
    }
}

/// How long it is waited for a notice that waits for a page.
const SOON: Duration = Duration::from_millis(2);

/// How long it is waited until reads that were answered have been taken in, at most, and how long between two looks.
const WAIT_TO_GROW_MAX: Duration = Duration::from_millis(250);
const LOOK_AGAIN: Duration = Duration::from_micros(500);

/// The first pause before a notice is given again, and the longest.
const AGAIN: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(16));

impl Kernel {
    pub(crate) fn new(device: Arc<Device>, has_epochs: bool) -> Self {
        Self {
            device,
            has_epochs,
            names_are_asked: AtomicBool::new(false),
            crossing: Arc::default(),
            pages: Mutex::default(),
        }
    }

    /// The kernel asks for something now.
    pub(super) fn asked(&self) -> Asked {
        self.crossing.asked()
    }

    /// How long the kernel may keep attributes that the file system would give for `ttl`, in an answer to what it
    /// `asked` that names the inode. The answer is the next thing that it is given; when it is not taken,
    /// [`Self::forgets`].
    pub(super) fn attr_ttl(&self, attr: &Attr, asked: Asked, ttl: Duration) -> Duration {
        self.crossing.names(attr.inode, attr.kind, Instant::now());
        self.uncrossed_ttl(attr, asked, ttl)
    }

    /// The same of an inode that was named before.
    pub(super) fn uncrossed_ttl(&self, attr: &Attr, asked: Asked, ttl: Duration) -> Duration {
        if attr.kind == Kind::Directory && !ttl.is_zero() {
            self.crossing.directories.gives_attr(attr.inode);
        }
        match self.crossing.has_crossed(attr.inode, asked) {
            true => Duration::ZERO,
            false => ttl,
        }
    }

    /// The kernel has given so many references to an inode back, or did not take them.
    pub(super) fn forgets(&self, inode: InodeId, references: u64) {
        self.crossing.forgets(inode, references);
    }

    /// The kernel is about to be told that a file is `len` long.
    pub(super) fn tells_len(&self, inode: InodeId, len: u64, word: Word) {
        self.crossing.tells_len(inode, len, word);
    }

    /// The kernel is about to have an answer to what it `asked`, by which a file is `len` long.
    pub(super) fn answers_len(&self, inode: InodeId, asked: Asked, len: u64) {
        self.crossing.answers_len(inode, asked, len);
    }

    /// Whether the kernel may have a file's length with a listing that it `asked` for: nothing that ends earlier is on its way to
    /// a program, or lies in its pages. If it has that, [`Self::lists_len`].
    pub(super) fn may_list(&self, attr: &Attr, asked: Asked) -> bool {
        if attr.kind != Kind::File {
            return true;
        }
        self.crossing.answers_len(attr.inode, asked, attr.size);
        let about = About {
            inode: attr.inode,
            thread: 0,
            asked,
            len: Some(attr.size),
        };
        !self.waits_to_grow(&about) && !self.keeps_less(&about)
    }

    /// The kernel is about to have a listing that it `asked` for, with a file.
    pub(super) fn lists_len(&self, attr: &Attr, asked: Asked) {
        if attr.kind == Kind::File {
            // Once more: by then it may not have been named.
            self.crossing.answers_len(attr.inode, asked, attr.size);
            let perhaps = Took::Perhaps;
            self.crossing.gave_len(attr.inode, attr.size, perhaps);
        }
    }

    /// The kernel is about to be told that a write ended at `end`: the file is as long for it.
    pub(super) fn grows(&self, inode: InodeId, end: u64) {
        self.crossing.grows(inode, end);
    }

    /// It has the page of that end.
    pub(super) fn has_page(&self, inode: InodeId, end: u64) {
        self.crossing.has_page(inode, end);
    }

    /// How long the kernel was told that a file is; zero of one that it does not know.
    pub(super) fn told_len(&self, inode: InodeId) -> u64 {
        self.crossing.told_len(inode)
    }

    /// How long the kernel may keep a name that the file system would give for `ttl`.
    pub(crate) fn name_ttl(&self, ttl: Duration) -> Duration {
        if self.names_are_asked.load(Ordering::Relaxed) {
            Duration::ZERO
        } else {
            ttl
        }
    }

    /// The kernel asks for a listing now.
    pub(super) fn asked_names(&self, directory: InodeId) -> AskedNames {
        self.crossing.directories.lists(directory);
        self.names_in(directory);
        self.crossing.asked_names()
    }

    /// The kernel asks for a name in a directory, or to make one. What it moves there it has asked for before.
    pub(super) fn names_in(&self, directory: InodeId) {
        self.crossing.directories.names(directory);
    }

    /// The kernel asks for an ACL, which it keeps as long as the attributes.
    pub(super) fn asks_acl(&self, inode: InodeId) {
        self.crossing.directories.gives_attr(inode);
    }

    /// The kernel is about to be given a part of a listing that it `asked` for: how long it may keep the names of that at most.
    pub(super) fn gives_listing(
        &self,
        directory: InodeId,
        asked: AskedNames,
        names: ListedNames,
    ) -> Duration {
        self.crossing.directories.lists(directory);
        if names == ListedNames::Plain {
            return Duration::ZERO;
        }
        let now = Instant::now();
        // First: who has forgotten names before that has been counted, below.
        self.crossing.directories.lists_names(directory, now);
        match self.crossing.lists(asked, now) {
            true => Duration::MAX,
            false => Duration::ZERO,
        }
    }

    /// The kernel asks for a read.
    pub(super) fn reads(&self, read: Request) {
        self.pages.lock().read(read);
    }

    /// Drops a file's pages from the one with this byte on, but for those that are locked for writes.
    fn drop_pages(&self, inode: InodeId, from: u64) {
        let range = ByteRange::new(from, u64::MAX);
        let short = self.crossing.short(inode);
        self.crossing.overtakes(inode);
        self.keep_growth(inode);
        let parts = self.pages.lock().drop_now(inode, range, None);
        for part in parts {
            if let Err(error) = self
                .device
                .notify(notice::INVAL_INODE, inval(inode, part).bytes())
            {
                warn!(%error, "kernel refused a notice about pages");
            }
        }
        self.crossing.delivered(inode);
        self.crossing.dropped_short(inode, short);
    }

    /// Whether a program may have read to the end of before, and not have looked at it: it looks at the end of now when it runs,
    /// and takes what its page lacks for zeros. Whatever is read since the kernel was told has bytes up to there
    /// ([`Kernel::told_len`]).
    fn waits_to_grow(&self, about: &About) -> bool {
        self.grows_by(about) && self.waits_for_reads(about)
    }

    fn waits_for_reads(&self, about: &About) -> bool {
        self.is_to_be_taken_in(about, &mut Awaited::since(Instant::now()))
    }

    fn is_to_be_taken_in(&self, about: &About, awaited: &mut Awaited) -> bool {
        let (inode, thread, now) = (about.inode, about.thread, Instant::now());
        let reads = &self.crossing.short_reads;
        reads.are_awaited(inode, thread, now, awaited, doing)
    }

    fn grows_by(&self, about: &About) -> bool {
        let longer = |len| self.crossing.grows_to(about.inode, len);
        about.len.is_some_and(longer)
    }

    /// Notes the length of an answer that is about to be given. False: the kernel may pass over that.
    fn gave_unless_passed_over(&self, about: &About) -> bool {
        self.gave(about, Took::Perhaps);
        let passed_over = self.crossing.is_passed_over(about.inode, about.asked);
        if !passed_over {
            self.gave(about, Took::Yes);
        }
        !passed_over
    }

    fn gave(&self, about: &About, took: Took) {
        if let Some(len) = about.len {
            self.crossing.gave_len(about.inode, len, took);
        }
    }

    /// Not for reads that begin meanwhile: these have bytes up to the new end.
    fn wait_to_grow(&self, about: &About) {
        let begun = Instant::now();
        let mut awaited = Awaited::since(begun);
        while self.grows_by(about) && self.is_to_be_taken_in(about, &mut awaited) {
            if begun.elapsed() >= WAIT_TO_GROW_MAX {
                return;
            }
            std::thread::sleep(LOOK_AGAIN);
        }
    }

    /// Whether the kernel may keep a page that ends in zeros where the file goes on now.
    fn keeps_less(&self, about: &About) -> bool {
        self.grows_by(about) && self.crossing.short(about.inode) > 0
    }

    /// A read for a thread is about to be answered with fewer bytes than were asked for; it is, when what this gives is dropped.
    /// They end at `end`.
    pub(super) fn reads_short(
        self: &Arc<Self>,
        inode: InodeId,
        thread: u32,
        end: u64,
    ) -> ReadingShort {
        let now = Instant::now();
        self.crossing.reads_short(inode, thread, end, now);
        ReadingShort {
            kernel: Arc::clone(self),
            inode,
            thread,
        }
    }

    /// It was answered.
    fn read_short(&self, inode: InodeId, thread: u32) {
        let reads = &self.crossing.short_reads;
        reads.answered(inode, thread, Instant::now());
    }

    /// A thread asks for something of an inode.
    pub(super) fn asks(&self, inode: InodeId, thread: u32) {
        self.crossing.short_reads.asks(inode, thread, Instant::now);
    }

    /// A notice is about to be given. The kernel passes over an answer that it has not taken in: it is to have the length that
    /// it was given by that.
    fn keep_growth(&self, inode: InodeId) {
        let lately = move |crossing: &Crossing| crossing.grew_lately(inode, Instant::now());
        if lately(&self.crossing).is_some() {
            self.grow(inode, lately);
        }
    }

    /// Makes a file as long for the kernel as `len` says, which has that before it has the page of the end: it is not waited for long.
    fn grow(&self, inode: InodeId, len: impl FnOnce(&Crossing) -> Option<u64> + Send + 'static) {
        self.crossing.overtakes(inode);
        let (device, crossing) = (Arc::clone(&self.device), Arc::clone(&self.crossing));
        _ = soon(move || {
            if let Some(len) = len(&crossing) {
                grow(&device, &crossing, inode, len);
                crossing.delivered(inode);
            }
        });
    }

    /// The kernel is about to ask for attributes, and to go on to read: before it drops what has other times it may take what the
    /// last page lacks for zeros.
    fn forget_tail(&self, inode: InodeId) {
        let short = self.crossing.short(inode);
        if short == 0 || self.pages.lock().is_writing(inode) {
            return;
        }
        let from = self.crossing.least_len(inode);
        let tail = inval(inode, ByteRange::new(from, u64::MAX));
        let (device, crossing) = (Arc::clone(&self.device), Arc::clone(&self.crossing));
        self.crossing.overtakes(inode);
        let told = soon(move || {
            let told = device.notify(notice::INVAL_INODE, tail.bytes());
            crossing.delivered(inode);
            told
        });
        match told {
            Some(Ok(_)) => self.crossing.dropped_short(inode, short),
            Some(Err(error)) => warn!(%error, "kernel refused a notice about a page"),
            None => {}
        }
    }

    /// Drops pages, but for those that are locked for other writes than `answering`: these are dropped when the writes have
    /// their answers.
    fn forget_pages(&self, inode: InodeId, range: ByteRange, answering: Option<u64>) {
        // The write that is answered has locked the page of its end, and its length is told by its answer.
        let growth = match answering {
            Some(_) => Growth::Known,
            None => Growth::Kept,
        };
        let parts = self.pages.lock().drop_now(inode, range, answering);
        for part in parts {
            let drops = match part == ByteRange::ALL {
                true => Drops::Content,
                false => Drops::Part,
            };
            self.invalidate(inode, &inval(inode, part), drops, growth);
        }
    }

    /// A rename is about to be answered, whose name the kernel has to ask for: it moves its entry together with the time that
    /// this may be kept, which was given for the directory that it leaves. No listing of either directory is under way.
    pub(super) fn forget_moved(&self) {
        if self.has_epochs {
            // Where it fails, that is said, and names are given for no time.
            _ = self.next_epoch();
        }
    }

    fn next_epoch(&self) -> io::Result<()> {
        let told = self.device.notify(notice::INC_EPOCH, &[]);
        if let Err(error) = &told {
            self.names_are_asked.store(true, Ordering::Relaxed);
            report_epoch(error);
        }
        told.map(drop)
    }

    fn invalidate(&self, inode: InodeId, body: &Body, drops: Drops, growth: Growth) {
        self.crossing.notice(inode);
        let had = self.crossing.directories.had(inode);
        if growth == Growth::Kept {
            self.keep_growth(inode);
        }
        let mut pause = AGAIN.0;
        loop {
            match self.device.notify(notice::INVAL_INODE, body.bytes()) {
                Ok(Delivery::Taken) => {
                    self.crossing.delivered(inode);
                    if let Some(had) = had {
                        self.crossing.directories.dropped(inode, had, drops);
                    }
                    return;
                }
                Ok(Delivery::Gone) if self.crossing.is_on_its_way(inode, Instant::now()) => {
                    std::thread::sleep(pause);
                    pause = (pause * 2).min(AGAIN.1);
                }
                Ok(Delivery::Gone) => return,
                Err(error) => return warn!(%error, ?drops, "kernel refused a notice"),
            }
        }
    }
}

/// The notice to drop a part of a file.
fn inval(inode: InodeId, part: ByteRange) -> Body {
    let offset = i64::try_from(part.start).unwrap_or(i64::MAX);
    // Zero means "to the end of the file".
    let len = i64::try_from(part.len()).unwrap_or(0);
    Body::inval_inode(node_of(inode), offset, len)
}

/// The kernel's node id of an inode.
pub(crate) fn node_of(inode: InodeId) -> u64 {
    if inode == InodeId::ROOT {
        wire::ROOT_NODE
    } else {
        inode.0
    }
}

/// The inode of a node id of the kernel.
pub(crate) fn inode_of(node: u64) -> InodeId {
    if node == wire::ROOT_NODE {
        InodeId::ROOT
    } else {
        InodeId(node)
    }
}

impl KernelCache for Kernel {
    fn changed(&self, stale: Stale) -> bool {
        let crossing = &self.crossing;
        let directories = &crossing.directories;
        match stale {
            Stale::Attributes(inode) | Stale::Content(inode) => {
                if crossing.knows(inode) && !directories.has(inode) {
                    // The notice will say so.
                    return true;
                }
                crossing.changed(inode);
                let kept = match stale {
                    Stale::Content(_) => directories.keeps_content(inode),
                    _ => directories.keeps_attr(inode),
                };
                kept && crossing.knows(inode)
            }
            Stale::Names(inode) => {
                let asked = !self.has_epochs && self.names_are_asked.load(Ordering::Relaxed);
                !asked && crossing.knows(inode) && directories.keeps_names(inode)
            }
            Stale::AllNames => true,
        }
    }

    fn forget_attr(&self, inode: InodeId) {
        // A negative offset leaves the pages alone; the last one goes where the file grew lately.
        let body = Body::inval_inode(node_of(inode), -1, 0);
        self.invalidate(inode, &body, Drops::Attributes, Growth::Kept);
        self.forget_tail(inode);
    }

    fn forget_data(&self, inode: InodeId, range: ByteRange) {
        if range.is_empty() {
            return self.forget_attr(inode);
        }
        self.forget_pages(inode, range, None);
    }

    /// The kernel does not ask for a name again, but drops it when it is next used: what is mounted
    /// on it is unmounted, and `/proc/PID/fd` shows open files as deleted. Working directories stay.
    fn forget_names(&self) {
        if !self.has_epochs {
            self.names_are_asked.store(true, Ordering::Relaxed);
            return;
        }
        let now = Instant::now();
        let epoch = self.crossing.directories.begin_epoch(now);
        let once_more = self.crossing.forget_names(now);
        let mut told = self.next_epoch();
        if let Some(at) = once_more {
            std::thread::sleep(at.saturating_duration_since(Instant::now()));
            told = told.and(self.next_epoch());
        }
        if told.is_ok() {
            self.crossing.directories.end_epoch(epoch);
        }
    }

    fn is_writing(&self, inode: InodeId) -> bool {
        self.pages.lock().is_writing(inode)
    }
}

fn report_epoch(error: &io::Error) {
    warn!(%error, "kernel refused to forget names; it will ask for each from now on");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_root_changes_its_number() {
        assert_eq!(node_of(InodeId::ROOT), 1);
        assert_eq!(inode_of(1), InodeId::ROOT);
        let other = InodeId((1 << 40) | 2);
        assert_eq!(inode_of(node_of(other)), other);
    }
}
