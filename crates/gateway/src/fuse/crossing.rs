//! Answers that name an inode, and notices about it that cross them on their way to the kernel.
//!
//! Of an inode that it knows, the kernel takes no answer that is older than a notice. A notice about one that it does
//! not know it drops, and then an older answer makes it known: the kernel would keep attributes that were taken back.
//! So an answer that was asked for before a notice is given for no time, and a notice that was dropped is given again
//! while an answer that names the inode may not have been taken in. Once the kernel has forgotten an inode as often as it
//! was named, none is on its way.
//!
//! The kernel notes how old its question is before this process has it, so a notice that was given lately may have crossed it,
//! too. That matters where nobody who changes something waits for the notice: what it crossed may be the only word of a longer
//! file. So an answer by which a file grows is then given for one that may be passed over. The same holds after answers to writes
//! and changes of the kernel's own, which it counts with the notices.
//!
//! What it is told of a file's length is the end up to where it fills up what a read lacks: with zeros. It takes no shorter
//! length from an answer that something newer has crossed. What the mount tells the kernel for the sake of one answer (a page is
//! dropped, a file grows) may make it pass over others, too; these need no more than their length, since nothing has changed.
//!
//! Names of a listing are as young to the kernel as the moment when it takes them in, whatever it was told to forget
//! since it asked (names that it looked up are as old as its question). They are treated alike: those that were asked
//! for before names were to be forgotten are given for no time, and names are to be forgotten once more when a listing
//! has been taken in.

use super::directories::Directories;
use super::short_reads::ShortReads;
use parking_lot::Mutex;
use perigee_client::fs::Kind;
use perigee_types::InodeId;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How soon after it was given an answer is taken in: the program that waits for it has to run.
pub(super) const TAKEN_IN: Duration = Duration::from_secs(1);
/// The same of a listing. Who changes a name that another host has just listed waits for so long.
const LISTING_TAKEN_IN: Duration = Duration::from_millis(20);
/// The same of an answer by which a file has grown.
const GROWTH_TAKEN_IN: Duration = Duration::from_secs(1);
/// How soon after the kernel has noted its question this process has it.
const ASKED_IN: Duration = Duration::from_secs(1);
/// Two inodes that share a place make answers be given for no time without need, and a file that grows be told of with its last
/// page dropped; nothing else.
const PLACES: usize = 4_096;
const SHARDS: usize = 16;

/// What has crossed at one mount.
#[derive(Debug)]
pub(super) struct Crossing {
    /// How many notices have begun.
    notices: AtomicU64,
    /// The last notice of a change.
    noticed: Places,
    /// The last one for the sake of an answer.
    overtaken: Places,
    /// When either was given last, or an answer to a write or a change, which may be crossed alike: in milliseconds since the
    /// mount, from 1.
    lately: Places,
    /// When the kernel was told a length last.
    told: Places,
    pub(super) short_reads: ShortReads,
    pub(super) directories: Directories,
    /// Inodes that the kernel was given and has not forgotten.
    named: [Mutex<HashMap<InodeId, Named>>; SHARDS],
    begun: Instant,
    /// How often names were to be forgotten, and when a listing was given last.
    listings: Mutex<Listings>,
}

/// What the kernel was given of an inode. There is one of these for each inode in its memory.
#[derive(Debug, Clone, Copy)]
struct Named {
    /// How many answers have named it since the kernel knew nothing of it.
    references: u32,
    /// When the last of them was given, in milliseconds since the mount, modulo 2^32.
    last: u32,
    /// The length that it was told last, or is about to be.
    len: u64,
    /// The length that it has been told, or [`UNKNOWN`]. It may have passed over the answer: then it has none less than `least`.
    given: u64,
    least: u64,
    /// When that may have been more than before, as `last`.
    grew: u32,
    /// How many answers there were that left it a page that was filled up with zeros behind the end, and may be there.
    short: u32,
}

/// A number for each inode; some share one.
#[derive(Debug)]
struct Places(Box<[AtomicU64]>);

impl Default for Places {
    fn default() -> Self {
        Self((0..PLACES).map(|_| AtomicU64::new(0)).collect())
    }
}

impl Places {
    fn raise(&self, inode: InodeId, number: u64) {
        self.0[mixed(inode) % PLACES].fetch_max(number, Ordering::SeqCst);
    }

    fn get(&self, inode: InodeId) -> u64 {
        self.0[mixed(inode) % PLACES].load(Ordering::SeqCst)
    }

    /// Whether it was raised since the kernel asked.
    fn since(&self, inode: InodeId, asked: Asked) -> bool {
        self.get(inode) > asked.0
    }
}

/// No answer has told the kernel how long a file is.
const UNKNOWN: u64 = u64::MAX;

/// Whether the kernel goes by a length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Took {
    Yes,
    /// Unless it knows a longer one.
    AtLeast,
    Perhaps,
}

/// What a change is of whose answer the kernel takes a length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Word {
    OfLength,
    /// The length with it may be older than one that was told since.
    OfOthers,
}

#[derive(Debug, Default)]
struct Listings {
    forgotten: u64,
    given: Option<Instant>,
}

/// When the kernel asked for something that says how an inode is: how many notices had begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Asked(u64);

/// When the kernel asked for a listing: how often it had been told to forget names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AskedNames(u64);

impl Default for Crossing {
    fn default() -> Self {
        Self {
            notices: AtomicU64::new(0),
            noticed: Places::default(),
            overtaken: Places::default(),
            lately: Places::default(),
            told: Places::default(),
            short_reads: ShortReads::default(),
            directories: Directories::default(),
            named: Default::default(),
            begun: Instant::now(),
            listings: Mutex::default(),
        }
    }
}

impl Crossing {
    /// The kernel asks for something now.
    pub(super) fn asked(&self) -> Asked {
        Asked(self.notices.load(Ordering::SeqCst))
    }

    /// An answer that names an inode, and so gives the kernel one more reference to it, is about to be given at `now`.
    pub(super) fn names(&self, inode: InodeId, kind: Kind, now: Instant) {
        let last = self.millis(now);
        let one = Named {
            references: 1,
            last,
            len: 0,
            given: UNKNOWN,
            least: UNKNOWN,
            grew: long_before(last),
            short: 0,
        };
        self.shard(inode)
            .lock()
            .entry(inode)
            .and_modify(|named| {
                named.references = named.references.saturating_add(1);
                named.last = last;
            })
            .or_insert(one);
        if kind == Kind::Directory {
            self.directories.named(inode);
        }
    }

    /// Whether the kernel may know an inode.
    pub(super) fn knows(&self, inode: InodeId) -> bool {
        inode == InodeId::ROOT || self.shard(inode).lock().contains_key(&inode)
    }

    /// Whether a notice of a change of an inode has begun since the kernel asked.
    pub(super) fn has_crossed(&self, inode: InodeId, asked: Asked) -> bool {
        self.noticed.since(inode, asked)
    }

    /// Whether the kernel may pass over an answer to what it asked.
    pub(super) fn is_passed_over(&self, inode: InodeId, asked: Asked) -> bool {
        self.has_crossed(inode, asked) || self.overtaken.since(inode, asked)
    }

    /// The kernel has given so many references to an inode back, or did not take them.
    pub(super) fn forgets(&self, inode: InodeId, references: u64) {
        let mut shard = self.shard(inode).lock();
        if let Some(named) = shard.get_mut(&inode) {
            let left = u64::from(named.references).saturating_sub(references);
            match u32::try_from(left) {
                Ok(0) => {
                    shard.remove(&inode);
                    // If it is named again before this, it counts as no directory: it is told of every change.
                    drop(shard);
                    self.directories.forgotten(inode);
                }
                Ok(left) => named.references = left,
                Err(_) => {}
            }
        }
    }

    /// Something of an inode is another from now on. A notice may follow.
    pub(super) fn changed(&self, inode: InodeId) {
        self.noticed.raise(inode, self.next());
    }

    /// A notice of a change of an inode is about to be given.
    pub(super) fn notice(&self, inode: InodeId) {
        self.changed(inode);
        self.delivered(inode);
    }

    /// The same for the sake of an answer: nothing has changed.
    pub(super) fn overtakes(&self, inode: InodeId) {
        self.overtaken.raise(inode, self.next());
        self.delivered(inode);
    }

    /// A notice was given now, or what the kernel takes as one.
    pub(super) fn delivered(&self, inode: InodeId) {
        let since = Instant::now().saturating_duration_since(self.begun);
        self.lately.raise(inode, since.as_millis() as u64 + 1);
    }

    /// Whether one was given so lately that it may have crossed a question that came to this process at `now`, after it.
    pub(super) fn noticed_lately(&self, inode: InodeId, now: Instant) -> bool {
        let last = self.lately.get(inode);
        let since = now.saturating_duration_since(self.begun);
        last > 0 && since.as_millis() as u64 + 1 < last + ASKED_IN.as_millis() as u64
    }

    fn next(&self) -> u64 {
        self.notices.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// The kernel is about to be told that a file is `len` long, and takes that.
    pub(super) fn tells_len(&self, inode: InodeId, len: u64, word: Word) {
        self.say_len(inode, |before| match word {
            Word::OfLength => len,
            Word::OfOthers => before.max(len),
        });
        self.gave_len(inode, len, Took::Yes);
        self.delivered(inode);
    }

    /// The kernel is given a length of a file.
    pub(super) fn gave_len(&self, inode: InodeId, len: u64, took: Took) {
        if let Some(named) = self.shard(inode).lock().get_mut(&inode) {
            let known = named.given != UNKNOWN;
            if known && named.least < len {
                named.grew = self.millis(Instant::now());
            }
            let (given, least) = (named.given, named.least);
            (named.given, named.least) = match took {
                Took::AtLeast if known => (given.max(len), least.max(len)),
                Took::Perhaps if known => (given.max(len), least.min(len)),
                Took::Yes | Took::AtLeast | Took::Perhaps => (len, len),
            };
            if named.len < named.given {
                // It was cut, by a newer answer: the kernel is not to have that length again.
                named.given = named.len;
                named.least = named.least.min(named.len);
                named.grew = long_before(self.millis(Instant::now()));
            }
        }
    }

    /// The least length that the kernel may have of a file by what it has been told; zero where it was told none.
    pub(super) fn least_len(&self, inode: InodeId) -> u64 {
        let named = self.shard(inode).lock().get(&inode).copied();
        let least = named.map(|named| named.least);
        least.filter(|least| *least != UNKNOWN).unwrap_or(0)
    }

    /// The length of a file that the kernel was given so lately, for the first time, that it may not have taken that in at `now`.
    pub(super) fn grew_lately(&self, inode: InodeId, now: Instant) -> Option<u64> {
        let named = self.shard(inode).lock().get(&inode).copied()?;
        let since = self.millis(now).wrapping_sub(named.grew);
        let lately = u128::from(since) < GROWTH_TAKEN_IN.as_millis();
        (lately && named.given != UNKNOWN).then_some(named.given)
    }

    /// Whether a file that the kernel knows may be longer for it with an answer by which it is `len` long.
    pub(super) fn grows_to(&self, inode: InodeId, len: u64) -> bool {
        let shard = self.shard(inode).lock();
        shard.get(&inode).is_some_and(|named| named.least < len)
    }

    /// The kernel is about to have an answer to what it `asked`, by which a file is `len` long. It may take it.
    pub(super) fn answers_len(&self, inode: InodeId, asked: Asked, len: u64) {
        if self.told.since(inode, asked) || self.is_passed_over(inode, asked) {
            self.say_len(inode, |before| before.max(len));
        } else {
            self.say_len(inode, |_| len);
        }
    }

    fn say_len(&self, inode: InodeId, len: impl FnOnce(u64) -> u64) {
        if let Some(named) = self.shard(inode).lock().get_mut(&inode) {
            named.len = len(named.len);
            self.told.raise(inode, self.next());
        }
    }

    /// A read for a thread is about to be answered at `now` with fewer bytes than were asked for.
    /// They end at `end`, and so may the file then for the kernel.
    pub(super) fn reads_short(&self, inode: InodeId, thread: u32, end: u64, now: Instant) {
        if let Some(named) = self.shard(inode).lock().get_mut(&inode) {
            named.short = named.short.wrapping_add(1).max(1);
            if named.least != UNKNOWN {
                named.least = named.least.min(end);
            }
        }
        self.short_reads.begins(inode, thread, now);
    }

    /// How many answers may have left the kernel a page of a file that was filled up with zeros behind the end.
    pub(super) fn short(&self, inode: InodeId) -> u32 {
        let named = self.shard(inode).lock().get(&inode).copied();
        named.map_or(0, |named| named.short)
    }

    /// It has dropped the pages that it had when there were so many.
    pub(super) fn dropped_short(&self, inode: InodeId, short: u32) {
        if let Some(named) = self.shard(inode).lock().get_mut(&inode)
            && named.short == short
        {
            named.short = 0;
        }
    }

    /// The kernel is about to be told that a write ended at `end`: the file is as long for it.
    pub(super) fn grows(&self, inode: InodeId, end: u64) {
        self.say_len(inode, |before| before.max(end));
        self.delivered(inode);
    }

    /// It has the page of that end, and no page that ended in zeros before.
    pub(super) fn has_page(&self, inode: InodeId, end: u64) {
        if let Some(named) = self.shard(inode).lock().get_mut(&inode)
            && named.given != UNKNOWN
            && named.short == 0
        {
            named.given = named.given.max(end);
            named.least = named.least.max(end);
        }
    }

    /// How long the kernel was told that a file is; zero of one that it does not know.
    pub(super) fn told_len(&self, inode: InodeId) -> u64 {
        let named = self.shard(inode).lock().get(&inode).copied();
        named.map_or(0, |named| named.len)
    }

    /// Whether an answer that names an inode may not have been taken in at `now`.
    pub(super) fn is_on_its_way(&self, inode: InodeId, now: Instant) -> bool {
        let named = self.shard(inode).lock().get(&inode).copied();
        let since = |named: Named| self.millis(now).wrapping_sub(named.last);
        named.is_some_and(|named| u128::from(since(named)) < TAKEN_IN.as_millis())
    }

    fn millis(&self, at: Instant) -> u32 {
        // Modulo 2^32: of one that was named 50 days ago a notice may be given again for a second, for nothing.
        at.saturating_duration_since(self.begun).as_millis() as u32
    }

    /// The kernel asks for a listing now.
    pub(super) fn asked_names(&self) -> AskedNames {
        AskedNames(self.listings.lock().forgotten)
    }

    /// A listing is about to be given at `now`. Says whether its names may be kept.
    pub(super) fn lists(&self, asked: AskedNames, now: Instant) -> bool {
        let mut listings = self.listings.lock();
        let fresh = listings.forgotten == asked.0;
        if fresh {
            listings.given = Some(now);
        }
        fresh
    }

    /// The kernel is about to be told to forget names. Gives the moment from which it is to be told once more.
    pub(super) fn forget_names(&self, now: Instant) -> Option<Instant> {
        let mut listings = self.listings.lock();
        listings.forgotten += 1;
        let taken_in = listings.given.map(|given| given + LISTING_TAKEN_IN);
        taken_in.filter(|at| *at > now)
    }

    fn shard(&self, inode: InodeId) -> &Mutex<HashMap<InodeId, Named>> {
        &self.named[mixed(inode) / PLACES % SHARDS]
    }
}

/// A moment of growth that has been taken in, in milliseconds.
fn long_before(millis: u32) -> u32 {
    millis.wrapping_sub(GROWTH_TAKEN_IN.as_millis() as u32)
}

/// Inodes of one container differ in their low bits, and containers in their high ones.
pub(super) fn mixed(inode: InodeId) -> usize {
    (inode.0.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: InodeId = InodeId(7);

    #[test]
    fn what_was_asked_for_before_a_notice_is_not_kept() {
        let crossing = Crossing::default();
        let before = crossing.asked();
        crossing.notice(FILE);
        let after = crossing.asked();
        crossing.notice(InodeId(8));
        assert!(crossing.has_crossed(FILE, before));
        assert!(!crossing.has_crossed(FILE, after));
        assert!(!crossing.has_crossed(InodeId(9), before));
        crossing.overtakes(FILE);
        assert!(!crossing.has_crossed(FILE, after), "nothing has changed");
        assert!(crossing.is_passed_over(FILE, after));
    }

    #[test]
    fn a_notice_that_was_given_lately_may_have_crossed_what_comes_after_it() {
        let crossing = Crossing::default();
        assert!(!crossing.noticed_lately(FILE, Instant::now()));
        crossing.notice(FILE);
        assert!(crossing.noticed_lately(FILE, Instant::now()));
        let later = Instant::now() + ASKED_IN;
        assert!(!crossing.noticed_lately(FILE, later));
    }

    #[test]
    fn a_file_grows_from_a_length_that_the_kernel_was_told() {
        let crossing = Crossing::default();
        let now = Instant::now();
        crossing.names(FILE, Kind::File, now);
        assert!(!crossing.grows_to(FILE, 10), "it was told none");
        let give = |len, took| {
            crossing.answers_len(FILE, crossing.asked(), len);
            crossing.gave_len(FILE, len, took);
        };
        give(10, Took::Yes);
        assert_eq!(crossing.grew_lately(FILE, now), None);
        assert!(crossing.grows_to(FILE, 11));
        give(11, Took::Perhaps);
        assert_eq!(crossing.grew_lately(FILE, Instant::now()), Some(11));
        assert_eq!(crossing.least_len(FILE), 10);
        assert!(crossing.grows_to(FILE, 11), "it was passed over, perhaps");
        give(11, Took::AtLeast);
        assert!(!crossing.grows_to(FILE, 11));
        give(5, Took::Yes);
        assert_eq!(crossing.least_len(FILE), 5);
    }

    #[test]
    fn a_length_that_a_newer_answer_has_cut_is_not_given_again() {
        let crossing = Crossing::default();
        crossing.names(FILE, Kind::File, Instant::now());
        let give = |len, took| {
            crossing.answers_len(FILE, crossing.asked(), len);
            crossing.gave_len(FILE, len, took);
        };
        give(10, Took::Yes);
        give(100, Took::AtLeast);
        assert_eq!(crossing.grew_lately(FILE, Instant::now()), Some(100));
        give(10, Took::Perhaps);
        assert_eq!(crossing.grew_lately(FILE, Instant::now()), None);
        crossing.gave_len(FILE, 100, Took::AtLeast);
        assert_eq!(crossing.grew_lately(FILE, Instant::now()), None);
        assert!(crossing.grows_to(FILE, 100), "it is not taken for given");
        assert!(crossing.grows_to(FILE, 50), "it may have taken that");
        give(50, Took::AtLeast);
        assert_eq!(crossing.grew_lately(FILE, Instant::now()), Some(50));
    }

    #[test]
    fn a_write_of_the_kernels_own_may_cross_what_it_asks() {
        let crossing = Crossing::default();
        crossing.names(FILE, Kind::File, Instant::now());
        crossing.answers_len(FILE, crossing.asked(), 50);
        crossing.gave_len(FILE, 50, Took::Yes);
        crossing.grows(FILE, 20);
        assert!(crossing.noticed_lately(FILE, Instant::now()));
        crossing.grows(FILE, 60);
        crossing.has_page(FILE, 60);
        assert!(!crossing.grows_to(FILE, 60), "it is as long by that");
        crossing.reads_short(FILE, 1, 60, Instant::now());
        crossing.has_page(FILE, 70);
        assert!(crossing.grows_to(FILE, 70), "an older page may be there");
    }

    #[test]
    fn only_who_sets_a_length_cuts_what_the_kernel_was_told() {
        let crossing = Crossing::default();
        crossing.names(FILE, Kind::File, Instant::now());
        crossing.answers_len(FILE, crossing.asked(), 100);
        crossing.tells_len(FILE, 10, Word::OfOthers);
        assert_eq!(crossing.told_len(FILE), 100, "told since");
        assert!(crossing.grows_to(FILE, 100), "the kernel has the other");
        crossing.tells_len(FILE, 10, Word::OfLength);
        assert_eq!(crossing.told_len(FILE), 10);
    }

    #[test]
    fn a_read_that_ends_early_may_cut_the_file_for_the_kernel() {
        let crossing = Crossing::default();
        let now = Instant::now();
        crossing.names(FILE, Kind::File, now);
        crossing.answers_len(FILE, crossing.asked(), 100);
        crossing.gave_len(FILE, 100, Took::Yes);
        crossing.reads_short(FILE, 1, 100, now);
        assert!(!crossing.grows_to(FILE, 100));
        crossing.reads_short(FILE, 1, 10, now);
        assert!(crossing.grows_to(FILE, 50));
    }

    #[test]
    fn a_file_gets_no_shorter_by_an_answer_that_a_newer_one_has_overtaken() {
        let crossing = Crossing::default();
        crossing.names(FILE, Kind::File, Instant::now());
        let (first, second) = (crossing.asked(), crossing.asked());
        crossing.answers_len(FILE, second, 150);
        crossing.answers_len(FILE, first, 100);
        assert_eq!(crossing.told_len(FILE), 150);
        let third = crossing.asked();
        crossing.answers_len(FILE, third, 120);
        assert_eq!(crossing.told_len(FILE), 120, "it was cut");
        let fourth = crossing.asked();
        crossing.notice(FILE);
        crossing.answers_len(FILE, fourth, 110);
        assert_eq!(crossing.told_len(FILE), 120);
    }

    #[test]
    fn names_that_cross_their_forgetting_are_not_kept() {
        let crossing = Crossing::default();
        let now = Instant::now();
        let before = crossing.asked_names();
        assert_eq!(crossing.forget_names(now), None, "nothing was listed");
        assert!(!crossing.lists(before, now));
        assert_eq!(crossing.forget_names(now), None, "none that are kept");
        assert!(crossing.lists(crossing.asked_names(), now));
        let once_more = crossing.forget_names(now).unwrap();
        assert!(once_more > now);
        let other = crossing.forget_names(now);
        assert_eq!(other, Some(once_more), "nobody relies on another's word");
        assert!(crossing.lists(crossing.asked_names(), now));
        assert_eq!(crossing.forget_names(once_more), None, "taken in");
    }

    #[test]
    fn an_answer_is_on_its_way_for_a_while() {
        let crossing = Crossing::default();
        let now = Instant::now();
        assert!(!crossing.is_on_its_way(FILE, now));
        crossing.names(FILE, Kind::File, now);
        assert!(crossing.is_on_its_way(FILE, now));
        assert!(!crossing.is_on_its_way(InodeId(8), now));
        let later = now + TAKEN_IN;
        assert!(!crossing.is_on_its_way(FILE, later));
    }

    #[test]
    fn what_the_kernel_forgot_as_often_as_it_was_named_is_not_on_its_way() {
        let crossing = Crossing::default();
        let now = Instant::now();
        let name = || crossing.names(FILE, Kind::File, now);
        name();
        name();
        crossing.forgets(FILE, 1);
        assert!(crossing.is_on_its_way(FILE, now), "the other one may be");
        crossing.forgets(FILE, 1);
        assert!(!crossing.is_on_its_way(FILE, now));
        name();
        assert!(crossing.is_on_its_way(FILE, now));
        crossing.forgets(InodeId(8), 1);
        crossing.forgets(FILE, u64::MAX);
        let kept: usize = crossing.named.iter().map(|shard| shard.lock().len()).sum();
        assert_eq!(kept, 0);
    }
}
