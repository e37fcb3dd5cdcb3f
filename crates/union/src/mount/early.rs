//! Small files that are here before they are opened.
//!
//! Programs that go through a directory (`cp -r`, `grep -r`, `tar`, a loop over numbered files) open its files one after the
//! other, and a far host is a round trip away for each. So from the third one on, the files that come next are asked for with
//! their content, before they are opened. Their host lets nobody write them for [`TERM`] ([`crate::lease`]), and after that what
//! came is not used. How many files come at once doubles while they are used.

use super::Mount;
use super::data::HEAD;
use super::nodes::Node;
use crate::lease::Identity;
use crate::path::RelPath;
use crate::wire::{BranchId, Done, Op, Stat};
use bytes::Bytes;
use parking_lot::Mutex;
use perigee_client::fs::Kind;
use perigee_types::InodeId;
use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// How long what was read ahead may be used, counted from the moment at which it was asked for.
pub const TERM: Duration = Duration::from_millis(500);
/// A host that needs more of it than this to answer is too far away for that,
const LATE: Duration = Duration::from_millis(300);
/// and is not asked for so long.
const RESTS: Duration = Duration::from_secs(30);
/// Files that are opened in order before others are asked for.
const RUN_MIN: u32 = 2;
/// Whoever passes over at most so many files goes on in order.
const SKIPS_MAX: usize = 4;
/// The first files that are asked for together.
const WINDOW_FIRST: usize = 16;
/// The fewest.
const WINDOW_MIN: usize = 2;
/// The most.
const WINDOW_MAX: usize = 128;
/// Whoever opens no file of a directory for so long begins anew.
const PAUSE: Duration = Duration::from_secs(1);
/// Directories whose readers are remembered while they pause.
const READERS_MAX: usize = 16;

/// So much of other files is asked for together before they are opened.
const AHEAD_LEN: u64 = 1 << 20;
/// The files of larger directories are in no order.
const ORDERED_MAX: usize = 20_000;

/// A file of a branch.
pub type Key = (BranchId, Identity);

/// A small file that may be asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// Its name.
    pub name: Vec<u8>,
    /// Where it is.
    pub key: Key,
    /// Bytes.
    pub size: u64,
}

/// What is known of the content of a file.
#[derive(Debug)]
enum Kept {
    /// It is on its way, and of no use after a moment.
    Coming(watch::Receiver<()>, Instant),
    /// It is here.
    Here { content: Content, until: Instant },
}

/// The whole content of a file.
#[derive(Debug, Clone)]
pub struct Content {
    /// Its attributes at that moment.
    pub stat: Stat,
    /// All of it.
    pub bytes: Bytes,
}

/// The small files of a directory in the order in which people count: digits that follow each other are a number.
#[derive(Debug, Default)]
pub struct Order(Vec<Candidate>);

impl Order {
    /// Puts them in order.
    #[must_use]
    pub fn of(mut files: Vec<Candidate>) -> Self {
        files.sort_unstable_by(|a, b| natural(&a.name, &b.name));
        Self(files)
    }

    fn place(&self, name: &[u8]) -> Result<usize, usize> {
        self.0.binary_search_by(|file| natural(&file.name, name))
    }
}

/// Compares names as people count.
fn natural(a: &[u8], b: &[u8]) -> Ordering {
    let (mut left, mut right) = (a, b);
    while let (Some(one), Some(other)) = (left.first(), right.first()) {
        let order = match one.is_ascii_digit() && other.is_ascii_digit() {
            true => {
                let (x, y) = (number(&mut left), number(&mut right));
                x.len().cmp(&y.len()).then_with(|| x.cmp(y))
            }
            false => {
                (left, right) = (&left[1..], &right[1..]);
                one.cmp(other)
            }
        };
        if order != Ordering::Equal {
            return order;
        }
    }
    left.len().cmp(&right.len()).then_with(|| a.cmp(b))
}

/// Takes the digits from the front, and gives them without leading zeros.
fn number<'a>(text: &mut &'a [u8]) -> &'a [u8] {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (number, rest) = text.split_at(digits);
    *text = rest;
    let zeros = number.iter().take_while(|byte| **byte == b'0').count();
    &number[zeros..]
}

/// Who goes through a directory.
#[derive(Debug)]
struct Reader {
    /// The file that was opened last, and when.
    last: Vec<u8>,
    at: Instant,
    /// Files before it that were opened in order.
    run: u32,
    /// The last one that was asked for.
    through: Option<Vec<u8>>,
    window: usize,
    /// It was too large once: it does not grow any more.
    found: bool,
}

impl Reader {
    fn new(name: &[u8], now: Instant) -> Self {
        Self {
            last: name.to_vec(),
            at: now,
            run: 0,
            through: None,
            window: WINDOW_FIRST,
            found: false,
        }
    }

    /// What was asked for is not here, or too old by now: so many are too many for who takes his time.
    fn is_late(&mut self) {
        self.through = None;
        self.found = true;
        self.window = (self.window / 2).max(WINDOW_MIN);
    }

    /// A file is opened; gives the ones to ask for.
    fn opens(
        &mut self,
        name: &[u8],
        order: &Order,
        bytes_max: u64,
        now: Instant,
    ) -> Vec<Candidate> {
        if self.last == name {
            self.at = now;
            return Vec::new();
        }
        // One that is no candidate itself lies between two.
        let after = |name: &[u8]| order.place(name).map_or_else(|at| at, |at| at + 1);
        let (from, here) = (after(&self.last), after(name));
        let goes_on = now.duration_since(self.at) <= PAUSE
            && natural(&self.last, name) == Ordering::Less
            && here <= from + 1 + SKIPS_MAX;
        if !goes_on {
            *self = Self::new(name, now);
            return Vec::new();
        }
        self.run += 1;
        (self.last, self.at) = (name.to_vec(), now);
        if self.run < RUN_MIN {
            return Vec::new();
        }
        let asked = self.through.as_deref().map_or(here, after).max(here);
        if asked - here > self.window / 2 {
            return Vec::new();
        }
        if self.through.is_some() && !self.found {
            self.window = (2 * self.window).min(WINDOW_MAX);
        }
        let mut left = bytes_max;
        let fits = |file: &&Candidate| {
            let fits = file.size <= left;
            left -= file.size.min(left);
            fits
        };
        let next = order.0[asked..].iter().take(self.window);
        let next: Vec<Candidate> = next.take_while(fits).cloned().collect();
        if let Some(last) = next.last() {
            self.through = Some(last.name.clone());
        }
        next
    }
}

#[derive(Debug)]
struct Directory {
    reader: Reader,
    order: Order,
    /// When the listing was asked for that this is the order of.
    listed: Option<Instant>,
}

#[derive(Debug, Default)]
struct Table {
    kept: HashMap<Key, Kept>,
    directories: HashMap<RelPath, Directory>,
    /// Branches of which nothing is asked until then.
    rests: HashMap<BranchId, Instant>,
}

/// All of it.
#[derive(Debug, Default)]
pub struct Early(Mutex<Table>);

/// What is asked of one branch. Dropped, it wakes those who wait for the answer.
#[derive(Debug)]
pub struct Asking {
    /// Which.
    pub branch: BranchId,
    /// The files.
    pub files: Vec<Candidate>,
    asked: Instant,
    done: watch::Sender<()>,
}

impl Early {
    /// A program opens a file to read it. Gives what is to be asked for, up to `bytes_max`. `listing` gives the files of the
    /// directory, if it was listed at another moment.
    pub fn opens(
        &self,
        (directory, name): (&RelPath, &[u8]),
        bytes_max: u64,
        now: Instant,
        listing: impl FnOnce(Option<Instant>) -> Option<(Vec<Candidate>, Instant)>,
    ) -> Vec<Asking> {
        let Table {
            kept,
            directories,
            rests,
        } = &mut *self.0.lock();
        if directories.len() >= READERS_MAX {
            let goes_on = |known: &Directory| now.duration_since(known.reader.at) <= PAUSE;
            directories.retain(|_, known| goes_on(known));
        }
        let known = directories.entry(directory.clone());
        let known = known.or_insert_with(|| Directory {
            reader: Reader::new(name, now),
            order: Order::default(),
            listed: None,
        });
        // An older order will do: hosts say what is no longer so.
        if known.reader.run + 1 >= RUN_MIN
            && let Some((files, at)) = listing(known.listed)
        {
            (known.order, known.listed) = (Order::of(files), Some(at));
        }
        let Directory { reader, order, .. } = known;
        let asked = reader.through.as_deref();
        let asked = asked.is_some_and(|through| natural(name, through) != Ordering::Greater);
        let of_name = order.place(name).ok().and_then(|at| order.0.get(at));
        if asked && of_name.is_some_and(|file| !has(kept, &file.key, now)) {
            reader.is_late();
        }
        let wanted = reader.opens(name, order, bytes_max, now);
        let mut by_branch: BTreeMap<BranchId, Vec<Candidate>> = BTreeMap::new();
        for file in wanted {
            let rests = rests.get(&file.key.0).is_some_and(|until| now < *until);
            if !rests && !has(kept, &file.key, now) {
                by_branch.entry(file.key.0).or_default().push(file);
            }
        }
        let asks = by_branch.into_iter().map(|(branch, files)| {
            let (done, coming) = watch::channel(());
            for file in &files {
                kept.insert(file.key, Kept::Coming(coming.clone(), now + TERM));
            }
            Asking {
                branch,
                files,
                asked: now,
                done,
            }
        });
        asks.collect()
    }

    /// What was asked for is here, with the bytes of all one after the other; or there is no answer.
    pub fn arrive(
        &self,
        asking: &Asking,
        answer: Option<(Vec<Option<Stat>>, Bytes)>,
        now: Instant,
    ) {
        let table = &mut *self.0.lock();
        table.drop_old(now);
        if now.duration_since(asking.asked) > LATE {
            table.rests.insert(asking.branch, now + RESTS);
        }
        let (told, mut rest) = answer.unwrap_or_default();
        let mut told = told.into_iter();
        for file in &asking.files {
            let stat = told.next().flatten();
            let len = stat.map_or(0, |stat| stat.size);
            let content = stat
                .filter(|_| len <= rest.len() as u64)
                .map(|stat| Content {
                    stat,
                    // Whoever has it open is not to keep all the others in memory.
                    bytes: Bytes::copy_from_slice(&rest.split_to(len as usize)),
                });
            // It was forgotten meanwhile, or asked for anew.
            let awaited = match table.kept.get(&file.key) {
                Some(Kept::Coming(coming, _)) => coming.same_channel(&asking.done.subscribe()),
                Some(Kept::Here { .. }) | None => false,
            };
            if !awaited {
                continue;
            }
            let until = asking.asked + TERM;
            match content {
                Some(content) => table.kept.insert(file.key, Kept::Here { content, until }),
                None => table.kept.remove(&file.key),
            };
        }
    }

    /// The content of a file, if it is here or on its way, and may be used.
    pub async fn content(&self, key: &Key) -> Option<Content> {
        let (mut coming, until) = {
            let table = self.0.lock();
            match table.kept.get(key)? {
                Kept::Here { .. } => return table.content(key),
                Kept::Coming(coming, until) => (coming.clone(), *until),
            }
        };
        // It ends with the answer.
        _ = tokio::time::timeout_at(until.into(), coming.changed()).await;
        self.0.lock().content(key)
    }

    /// This mount is about to change a file.
    pub fn forget(&self, key: &Key) {
        self.0.lock().kept.remove(key);
    }
}

impl Mount {
    /// Asks for the content of the files that are probably opened next.
    pub(super) fn look_ahead(&self, directory: &RelPath, name: &[u8]) {
        let now = Instant::now();
        let candidates = |known: Option<Instant>| {
            let knowledge = self.knowledge.lock();
            let (listing, asked) = knowledge.listed(directory, known, now)?;
            if listing.len() > ORDERED_MAX {
                return None;
            }
            let file = |(name, copies): (&Vec<u8>, &Vec<(BranchId, Stat)>)| {
                let (branch, stat) = copies.first()?;
                let small = stat.kind == Kind::File && stat.size <= u64::from(HEAD);
                (small && self.union.own(*branch).is_none()).then(|| Candidate {
                    name: name.clone(),
                    key: (*branch, (stat.device, stat.inode)),
                    size: stat.size,
                })
            };
            Some((listing.iter().filter_map(file).collect(), asked))
        };
        let place = (directory, name);
        for asking in self.early.opens(place, AHEAD_LEN, now, candidates) {
            let Some(me) = self.me.upgrade() else { return };
            let directory = directory.clone();
            self.union.runtime.spawn(async move {
                let files = asking.files.iter();
                let op = Op::ReadAhead {
                    files: files.map(|file| (file.name.clone(), file.key.1)).collect(),
                    bytes: AHEAD_LEN as u32,
                    term_ms: TERM.as_millis() as u32,
                };
                let answer = match me.union.on(asking.branch, &directory, op).await {
                    Ok((Done::Ahead(told), bytes)) => Some((told, bytes)),
                    // Whoever opens one of them asks, and is told.
                    Ok(_) | Err(_) => None,
                };
                me.early.arrive(&asking, answer, Instant::now());
            });
        }
    }

    /// A program of this mount is about to change a file.
    pub(super) fn early_is_old(&self, node: &Node) {
        if let Some(identity) = node.identity() {
            self.early.forget(&(node.branch, identity));
        }
    }

    /// The content of a file is about to change by this mount.
    pub(super) fn rewrites(&self, inode: InodeId) {
        self.nodes.rewrites(inode);
        if let Ok(node) = self.node(inode) {
            self.early_is_old(&node);
        }
    }
}

impl Table {
    fn content(&self, key: &Key) -> Option<Content> {
        match self.kept.get(key)? {
            Kept::Here { content, until } => (Instant::now() < *until).then(|| content.clone()),
            Kept::Coming(..) => None,
        }
    }

    fn drop_old(&mut self, now: Instant) {
        self.kept.retain(|_, kept| match kept {
            Kept::Here { until, .. } => now < *until,
            Kept::Coming(..) => true,
        });
        self.rests.retain(|_, until| now < *until);
    }
}

/// Whether the content of a file is here, or on its way.
fn has(kept: &HashMap<Key, Kept>, key: &Key, now: Instant) -> bool {
    match kept.get(key) {
        Some(Kept::Here { until, .. }) => now < *until,
        Some(Kept::Coming(coming, until)) => now < *until && coming.has_changed().is_ok(),
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Stat;
    use perigee_client::fs::Kind;

    const DIR: RelPath = RelPath::ROOT;

    fn files(count: u64) -> Vec<Candidate> {
        let file = |number: u64| Candidate {
            name: number.to_string().into_bytes(),
            key: (BranchId((number % 2) as u16), (1, number)),
            size: 3,
        };
        (0..count).map(file).collect()
    }

    /// The numbers of the files that are asked for when one is opened.
    fn opens(early: &Early, number: u64, now: Instant) -> (Vec<u64>, Vec<Asking>) {
        let name = number.to_string().into_bytes();
        let listing = |known: Option<Instant>| known.is_none().then(|| (files(100), now));
        let asks = early.opens((&DIR, &name), 1 << 20, now, listing);
        let files = asks.iter().flat_map(|asking| &asking.files);
        let mut numbers: Vec<u64> = files.map(|file| file.key.1.1).collect();
        numbers.sort_unstable();
        (numbers, asks)
    }

    fn answer(asking: &Asking) -> (Vec<Option<Stat>>, Bytes) {
        let told = asking.files.iter().map(|file| {
            let mut stat = Stat::of(file.key.1.1, Kind::File, 1);
            stat.size = file.size;
            Some(stat)
        });
        let bytes = asking.files.iter().flat_map(|file| [file.key.1.1 as u8; 3]);
        (told.collect(), bytes.collect())
    }

    #[test]
    fn names_are_in_the_order_in_which_people_count() {
        let mut names = ["a10", "a9", "a09", "b", "a", "a1b2", "a1b10", "", "a1"];
        names.sort_unstable_by(|a, b| natural(a.as_bytes(), b.as_bytes()));
        assert_eq!(
            names,
            ["", "a", "a1", "a1b2", "a1b10", "a09", "a9", "a10", "b"]
        );
    }

    #[test]
    fn who_goes_through_a_directory_finds_the_next_files_and_more_each_time() {
        let (early, now) = (Early::default(), Instant::now());
        let mut on_their_way = Vec::new();
        let mut opens = |number, now| {
            let (numbers, asks) = opens(&early, number, now);
            on_their_way.extend(asks);
            numbers
        };
        assert_eq!(opens(0, now), []);
        assert_eq!(opens(1, now), []);
        let first: Vec<u64> = (3..19).collect();
        assert_eq!(opens(2, now), first);
        for number in 3..10 {
            assert_eq!(opens(number, now), [], "{number}");
            assert_eq!(opens(number, now), [], "{number} again");
        }
        // Half of it is used: the next ones come before they are needed.
        let next: Vec<u64> = (19..51).collect();
        assert_eq!(opens(10, now), next);
        // Whoever passes a few over goes on, whoever jumps or pauses begins anew.
        let through = || early.0.lock().directories[&DIR].reader.through.is_some();
        assert_eq!(opens(14, now), []);
        assert!(through());
        assert_eq!(opens(60, now), []);
        assert!(!through());
        let later = now + 2 * PAUSE;
        for number in 61..63 {
            assert_eq!(opens(number, later), []);
        }
        assert_eq!(opens(63, later).first(), Some(&64));
    }

    #[test]
    fn who_takes_his_time_gets_as_many_as_he_uses() {
        let (early, start) = (Early::default(), Instant::now());
        let (mut asked, mut used) = (0, 0);
        for number in 0..100 {
            let now = start + Duration::from_millis(80) * number as u32;
            let key = (BranchId((number % 2) as u16), (1, number));
            used += u64::from(has(&early.0.lock().kept, &key, now));
            for asking in opens(&early, number, now).1 {
                asked += asking.files.len() as u64;
                early.arrive(&asking, Some(answer(&asking)), now);
            }
        }
        assert!(used > 60 && asked < 3 * used / 2, "{used} of {asked}");
    }

    #[tokio::test]
    async fn what_came_is_used_while_it_may_be_and_not_after_a_change() {
        let (early, now) = (Early::default(), Instant::now());
        opens(&early, 0, now);
        opens(&early, 1, now);
        let (_, asks) = opens(&early, 2, now);
        assert_eq!(asks.len(), 2, "one for each branch");
        let key = |number: u64| (BranchId((number % 2) as u16), (1, number));
        early.forget(&key(4));
        for asking in &asks {
            early.arrive(asking, Some(answer(asking)), now);
        }
        let found = early.content(&key(3)).await.unwrap();
        assert_eq!((found.stat.inode, &found.bytes[..]), (3, &[3; 3][..]));
        assert!(
            early.content(&key(4)).await.is_none(),
            "changed while it was on its way"
        );
        early.forget(&key(5));
        assert!(early.content(&key(5)).await.is_none());
        assert!(early.content(&key(2)).await.is_none(), "never asked for");
        early.0.lock().drop_old(now + TERM);
        assert!(early.content(&key(3)).await.is_none(), "too old");
    }

    #[tokio::test]
    async fn who_waits_for_what_never_comes_goes_on() {
        let (early, now) = (Early::default(), Instant::now());
        opens(&early, 0, now);
        opens(&early, 1, now);
        let (_, asks) = opens(&early, 2, now);
        let key = asks[0].files[0].key;
        let waits = early.content(&key);
        tokio::pin!(waits);
        assert!(futures_util::poll!(&mut waits).is_pending());
        let (branch, late) = (asks[0].branch, now + 2 * LATE);
        early.arrive(&asks[0], None, late);
        drop(asks);
        assert!(waits.await.is_none());
        // A host that takes so long is left alone.
        for number in 20..22 {
            opens(&early, number, late);
        }
        let (_, asks) = opens(&early, 22, late);
        assert!(asks.iter().all(|asking| asking.branch != branch) && !asks.is_empty());
    }
}
