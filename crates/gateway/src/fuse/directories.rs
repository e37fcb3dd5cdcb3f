//! What the kernel may keep of directories. Of what it does not keep it need not be told that it has changed.
//!
//! Each name that any host makes changes a directory, and a kernel that was told of one change, and has asked for nothing since,
//! has nothing to drop at the next. Files are not looked at: a notice about one also says which answers the kernel is to
//! pass over, and how long it is.
//!
//! Whoever gives the kernel attributes notes that here, and then looks whether a notice has crossed the answer; a notice looks
//! here once it was noted. So one of them sees the other. ACLs go with the attributes, and are noted when they are asked for.
//! Names are as old to the kernel as its question, and are noted then; those of a listing are as young as the moment in which it takes
//! them in (see [`super::crossing`]), and may be kept until it was told to forget names long after they were given.
//!
//! A listing that crosses a notice may have its first page kept by the kernel. That goes by the time of the last change when it looks
//! there again, which it has to ask for.

use super::crossing::{TAKEN_IN, mixed};
use parking_lot::Mutex;
use perigee_types::InodeId;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

const SHARDS: usize = 16;

/// All that the kernel knows.
#[derive(Debug)]
pub(super) struct Directories {
    shards: [Mutex<HashMap<InodeId, Directory>>; SHARDS],
    /// How often something was given.
    given: AtomicU64,
    /// How often the kernel was told to ask for all names, or is about to be.
    begun: AtomicU64,
    /// The latest of these times that is over.
    ended: Mutex<Option<Epoch>>,
}

/// One of them.
#[derive(Debug, Default)]
struct Directory {
    attr: Given,
    listing: Given,
    /// [`Directories::begun`] when a name in it was noted last.
    names: Option<u64>,
    /// When names were given with a listing last.
    listed: Option<Instant>,
}

/// The last thing of a kind that was given, and the last one that the kernel has dropped, by [`Directories::given`]: no other
/// has that number, also where the kernel has forgotten the directory meanwhile.
#[derive(Debug, Default, Clone, Copy)]
struct Given {
    last: u64,
    dropped: u64,
}

impl Given {
    fn give(&mut self, number: u64) {
        self.last = self.last.max(number);
    }

    fn drop_through(&mut self, number: u64) {
        self.dropped = self.dropped.max(number);
    }

    const fn is_kept(self) -> bool {
        self.last > self.dropped
    }
}

/// What the kernel may have of a directory when a notice is about to be given.
#[derive(Debug, Clone, Copy)]
pub(super) struct Had {
    attr: u64,
    listing: u64,
}

/// What a notice makes the kernel drop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Drops {
    /// Attributes alone.
    Attributes,
    /// These, and some pages.
    Part,
    /// These, and all pages.
    Content,
}

/// A time when the kernel is told to ask for all names: its number, and when it began.
#[derive(Debug, Clone, Copy)]
pub(super) struct Epoch {
    number: u64,
    began: Instant,
}

impl Default for Directories {
    fn default() -> Self {
        let all = Self {
            shards: Default::default(),
            given: AtomicU64::new(0),
            begun: AtomicU64::new(0),
            ended: Mutex::new(None),
        };
        // Mounting names it.
        all.named(InodeId::ROOT);
        all
    }
}

impl Directories {
    /// The kernel is about to know a directory.
    pub(super) fn named(&self, inode: InodeId) {
        self.shard(inode).lock().entry(inode).or_default();
    }

    /// It has forgotten an inode.
    pub(super) fn forgotten(&self, inode: InodeId) {
        self.shard(inode).lock().remove(&inode);
    }

    /// Whether this is known to be a directory.
    pub(super) fn has(&self, inode: InodeId) -> bool {
        self.shard(inode).lock().contains_key(&inode)
    }

    /// The kernel is about to be given attributes that it may keep, or asks for an ACL.
    pub(super) fn gives_attr(&self, inode: InodeId) {
        self.give(inode, |known, number| known.attr.give(number));
    }

    /// It asks for a part of a listing, or is about to be given that.
    pub(super) fn lists(&self, inode: InodeId) {
        self.give(inode, |known, number| known.listing.give(number));
    }

    fn give(&self, inode: InodeId, note: impl FnOnce(&mut Directory, u64)) {
        self.with(inode, |known| {
            note(known, self.given.fetch_add(1, Ordering::SeqCst) + 1);
        });
    }

    /// It asks for names in a directory.
    pub(super) fn names(&self, inode: InodeId) {
        self.with(inode, |known| {
            known.names = Some(self.begun.load(Ordering::SeqCst));
        });
    }

    /// It is about to be given names with a listing, at `now`.
    pub(super) fn lists_names(&self, inode: InodeId, now: Instant) {
        self.with(inode, |known| {
            known.names = Some(self.begun.load(Ordering::SeqCst));
            known.listed = Some(now);
        });
    }

    /// Whether the kernel may keep attributes of an inode that it knows.
    pub(super) fn keeps_attr(&self, inode: InodeId) -> bool {
        // Of what is no directory nothing is known.
        self.with(inode, |known| known.attr.is_kept())
            .unwrap_or(true)
    }

    /// The same of its pages.
    pub(super) fn keeps_content(&self, inode: InodeId) -> bool {
        self.with(inode, |known| known.listing.is_kept())
            .unwrap_or(true)
    }

    /// Whether it may keep names in a directory, or that it has none.
    pub(super) fn keeps_names(&self, inode: InodeId) -> bool {
        let ended = *self.ended.lock();
        let kept = |known: &mut Directory| match (known.names, ended) {
            (None, _) => false,
            (Some(_), None) => true,
            (Some(names), Some(ended)) => {
                let listed = known.listed.map(|at| at + TAKEN_IN);
                names >= ended.number || listed.is_some_and(|taken_in| ended.began < taken_in)
            }
        };
        self.with(inode, kept).unwrap_or(true)
    }

    /// What the kernel may have: a notice is about to be given.
    pub(super) fn had(&self, inode: InodeId) -> Option<Had> {
        self.with(inode, |known| Had {
            attr: known.attr.last,
            listing: known.listing.last,
        })
    }

    /// It has taken the notice.
    pub(super) fn dropped(&self, inode: InodeId, had: Had, what: Drops) {
        self.with(inode, |known| {
            known.attr.drop_through(had.attr);
            if what == Drops::Content {
                known.listing.drop_through(had.listing);
            }
        });
    }

    /// The kernel is about to be told to ask for all names, at `now`.
    pub(super) fn begin_epoch(&self, now: Instant) -> Epoch {
        Epoch {
            number: self.begun.fetch_add(1, Ordering::SeqCst) + 1,
            began: now,
        }
    }

    /// It has been told: all names that were noted before that began are forgotten.
    pub(super) fn end_epoch(&self, epoch: Epoch) {
        let mut ended = self.ended.lock();
        if ended.is_none_or(|latest| latest.number < epoch.number) {
            *ended = Some(epoch);
        }
    }

    fn with<T>(&self, inode: InodeId, look: impl FnOnce(&mut Directory) -> T) -> Option<T> {
        self.shard(inode).lock().get_mut(&inode).map(look)
    }

    fn shard(&self, inode: InodeId) -> &Mutex<HashMap<InodeId, Directory>> {
        &self.shards[mixed(inode) % SHARDS]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIR: InodeId = InodeId(7);

    fn known() -> Directories {
        let all = Directories::default();
        all.named(DIR);
        all
    }

    #[test]
    fn attributes_are_kept_until_a_notice_that_came_after_them() {
        let all = known();
        assert!(!all.keeps_attr(DIR));
        all.gives_attr(DIR);
        assert!(all.keeps_attr(DIR));
        let had = all.had(DIR).unwrap();
        assert!(all.keeps_attr(DIR), "the notice is not there yet");
        all.gives_attr(DIR);
        all.dropped(DIR, had, Drops::Attributes);
        assert!(all.keeps_attr(DIR), "given meanwhile");
        all.dropped(DIR, all.had(DIR).unwrap(), Drops::Attributes);
        assert!(!all.keeps_attr(DIR));
        all.dropped(DIR, had, Drops::Attributes);
        assert!(!all.keeps_attr(DIR), "an older notice says nothing new");
    }

    #[test]
    fn a_notice_takes_nothing_of_a_directory_that_was_named_anew_meanwhile() {
        let all = known();
        for _ in 0..3 {
            all.gives_attr(DIR);
            all.lists(DIR);
        }
        let had = all.had(DIR).unwrap();
        all.forgotten(DIR);
        all.named(DIR);
        for _ in 0..4 {
            all.gives_attr(DIR);
            all.lists(DIR);
            all.dropped(DIR, had, Drops::Content);
            assert!(all.keeps_attr(DIR) && all.keeps_content(DIR));
        }
    }

    #[test]
    fn a_listing_goes_with_all_pages_alone() {
        let all = known();
        all.lists(DIR);
        all.dropped(DIR, all.had(DIR).unwrap(), Drops::Attributes);
        all.dropped(DIR, all.had(DIR).unwrap(), Drops::Part);
        assert!(all.keeps_content(DIR));
        assert!(!all.keeps_attr(DIR));
        all.dropped(DIR, all.had(DIR).unwrap(), Drops::Content);
        assert!(!all.keeps_content(DIR));
    }

    #[test]
    fn names_are_kept_until_all_that_were_noted_before_are_forgotten() {
        let (all, now) = (known(), Instant::now());
        assert!(!all.keeps_names(DIR));
        all.names(DIR);
        assert!(all.keeps_names(DIR));
        let first = all.begin_epoch(now);
        assert!(all.keeps_names(DIR), "the kernel was not told yet");
        let second = all.begin_epoch(now);
        all.names(DIR);
        all.end_epoch(first);
        assert!(all.keeps_names(DIR));
        all.end_epoch(second);
        assert!(all.keeps_names(DIR), "noted once it had begun");
        all.end_epoch(all.begin_epoch(now));
        assert!(!all.keeps_names(DIR));
        all.end_epoch(second);
        assert!(!all.keeps_names(DIR), "it is the latest that counts");
    }

    #[test]
    fn names_of_a_listing_may_be_taken_in_late() {
        let (all, now) = (known(), Instant::now());
        all.lists_names(DIR, now);
        all.end_epoch(all.begin_epoch(now));
        assert!(all.keeps_names(DIR), "its program may not have run");
        all.end_epoch(all.begin_epoch(now + TAKEN_IN));
        assert!(!all.keeps_names(DIR));
    }

    #[test]
    fn of_what_is_no_directory_everything_may_be_kept() {
        let all = known();
        let file = InodeId(8);
        assert!(all.keeps_attr(file) && all.keeps_content(file) && all.keeps_names(file));
        all.gives_attr(DIR);
        all.forgotten(DIR);
        all.named(DIR);
        assert!(!all.keeps_attr(DIR), "it was forgotten meanwhile");
        all.names(InodeId::ROOT);
        assert!(all.keeps_names(InodeId::ROOT));
    }
}
