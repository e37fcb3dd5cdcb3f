//! What the kernel may keep of directories. Of what it does not keep it need not be told that it has changed.
//!
//! Each name that any host makes changes a directory, and a kernel that was told of one change, and has asked for nothing since,
//! has nothing to drop at the next. Files are not looked at: a notice about one also says which answers the kernel is to
//! pass over, and how long it is.
//!
//! Whoever gives the kernel attributes notes that here, and then looks whether a notice has crossed the answer; a notice looks
//! here once it was noted. So one of them sees the other. Names are as old to the kernel as its question, and are noted when
//! they are asked for; those of a listing are as young as the moment in which it takes them in (see [`super::crossing`]), and
//! are noted once more when they are given.

use super::crossing::mixed;
use parking_lot::Mutex;
use perigee_types::InodeId;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

const SHARDS: usize = 16;

/// All that the kernel knows.
#[derive(Debug)]
pub(super) struct Directories {
    shards: [Mutex<HashMap<InodeId, Directory>>; SHARDS],
    /// How often the kernel was told to ask for all names, or is about to be.
    begun: AtomicU64,
    /// It has forgotten all names that were noted before it was told for the time of this number.
    done: AtomicU64,
}

/// One of them.
#[derive(Debug, Default)]
struct Directory {
    attr: Given,
    listing: Given,
    /// [`Directories::begun`] when a name in it was noted last.
    names: Option<u64>,
}

/// How often something was given that the kernel may keep, and how often when it has last dropped that.
#[derive(Debug, Default, Clone, Copy)]
struct Given {
    times: u64,
    dropped: u64,
}

impl Given {
    const fn is_kept(self) -> bool {
        self.times != self.dropped
    }
}

/// What the kernel may have had of an inode when a notice was about to be given.
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

/// The number of a time when the kernel is told to ask for all names.
#[derive(Debug, Clone, Copy)]
pub(super) struct Epoch(u64);

impl Default for Directories {
    fn default() -> Self {
        let all = Self {
            shards: Default::default(),
            begun: AtomicU64::new(0),
            done: AtomicU64::new(0),
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

    /// The kernel is about to be given attributes that it may keep.
    pub(super) fn gives_attr(&self, inode: InodeId) {
        self.with(inode, |known| known.attr.times += 1);
    }

    /// It asks for a part of a listing, or is about to be given that.
    pub(super) fn lists(&self, inode: InodeId) {
        self.with(inode, |known| known.listing.times += 1);
    }

    /// It asks for names in a directory, or is about to be given a listing with names.
    pub(super) fn names(&self, inode: InodeId) {
        self.with(inode, |known| {
            known.names = Some(self.begun.load(Ordering::SeqCst));
        });
    }

    /// Whether the kernel may keep attributes of an inode that it knows.
    pub(super) fn keeps_attr(&self, inode: InodeId) -> bool {
        // Of what is no directory nothing is known.
        self.with(inode, |known| known.attr.is_kept())
            .unwrap_or(true)
    }

    /// The same of its pages, or its attributes.
    pub(super) fn keeps_content(&self, inode: InodeId) -> bool {
        let kept = |known: &mut Directory| known.attr.is_kept() || known.listing.is_kept();
        self.with(inode, kept).unwrap_or(true)
    }

    /// Whether it may keep names in a directory, or that it has none.
    pub(super) fn keeps_names(&self, inode: InodeId) -> bool {
        let noted = self.with(inode, |known| known.names);
        noted.is_none_or(|names| names.is_some_and(|at| at >= self.done.load(Ordering::SeqCst)))
    }

    /// What the kernel may have: a notice is about to be given.
    pub(super) fn had(&self, inode: InodeId) -> Option<Had> {
        self.with(inode, |known| Had {
            attr: known.attr.times,
            listing: known.listing.times,
        })
    }

    /// It has taken the notice.
    pub(super) fn dropped(&self, inode: InodeId, had: Had, what: Drops) {
        self.with(inode, |known| {
            known.attr.dropped = had.attr;
            if what == Drops::Content {
                known.listing.dropped = had.listing;
            }
        });
    }

    /// The kernel is about to be told to ask for all names.
    pub(super) fn begin_epoch(&self) -> Epoch {
        Epoch(self.begun.fetch_add(1, Ordering::SeqCst) + 1)
    }

    /// All names that were noted before that began are forgotten.
    pub(super) fn end_epoch(&self, epoch: Epoch) {
        self.done.fetch_max(epoch.0, Ordering::SeqCst);
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
        // An older notice comes late.
        all.dropped(DIR, had, Drops::Attributes);
        assert!(all.keeps_attr(DIR));
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
        all.gives_attr(DIR);
        assert!(all.keeps_content(DIR), "such a notice drops these, too");
    }

    #[test]
    fn names_are_kept_until_all_that_were_noted_before_are_forgotten() {
        let all = known();
        assert!(!all.keeps_names(DIR));
        all.names(DIR);
        assert!(all.keeps_names(DIR));
        let first = all.begin_epoch();
        assert!(all.keeps_names(DIR), "the kernel was not told yet");
        let second = all.begin_epoch();
        all.names(DIR);
        all.end_epoch(first);
        assert!(all.keeps_names(DIR));
        all.end_epoch(second);
        assert!(all.keeps_names(DIR), "noted once it had begun");
        all.end_epoch(all.begin_epoch());
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
