//! What this member remembers of the names of others, and for how long.
//!
//! Nothing is used that is older than the union's freshness, counted from the moment at which it was asked for. What this
//! member changes itself it knows at once: a later moment wins over an earlier one, so an answer that was on its way while a
//! name was changed here does not bring the old one back.

use crate::path::RelPath;
use crate::wire::{BranchId, Stat};
use perigee_client::fs::Kind;
use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

/// Names that are remembered; about 200 bytes each.
const NAMES_MAX: usize = 400_000;
/// After so many names that were looked for one by one, a directory is asked for all that it has.
const LISTS_AFTER: u32 = 2;

/// What branches have under one name, the nearest first.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Seen {
    /// Which have what.
    pub copies: Vec<(BranchId, Stat)>,
    /// No other branch has anything.
    pub complete: bool,
}

impl Seen {
    /// What programs see: the nearest.
    #[must_use]
    pub fn first(&self) -> Option<(BranchId, Stat)> {
        self.copies.first().copied()
    }

    /// The branches whose directory is a part of what programs see.
    pub fn directories(&self) -> impl Iterator<Item = BranchId> {
        let copies = self
            .copies
            .iter()
            .filter(|(_, stat)| stat.kind == Kind::Directory);
        copies.map(|(branch, _)| *branch)
    }

    /// Whether it answers what programs ask: a file hides what is farther away; of a directory the attributes of the nearest
    /// count; that there is nothing, only all can say.
    #[must_use]
    pub fn answers(&self) -> bool {
        self.complete || !self.copies.is_empty()
    }
}

/// All names of a directory.
pub type Listing = BTreeMap<Vec<u8>, Vec<(BranchId, Stat)>>;

#[derive(Debug, Default)]
struct Directory {
    /// The branches that have it: all of them.
    homes: Option<(Vec<BranchId>, Instant)>,
    listing: Option<(Listing, Instant)>,
    names: HashMap<Vec<u8>, (Seen, Instant)>,
    /// It has more names than are asked for at once.
    large: bool,
    /// Names that were looked for since.
    looked: Option<(u32, Instant)>,
    /// When this member has brought it to one more branch: what was asked before that does not know it.
    spread: Option<Instant>,
}

/// What is remembered of all directories.
#[derive(Debug)]
pub struct Knowledge {
    directories: HashMap<RelPath, Directory>,
    fresh: Duration,
    names: usize,
}

impl Knowledge {
    /// Nothing, yet.
    #[must_use]
    pub fn new(fresh: Duration) -> Self {
        Self {
            directories: HashMap::new(),
            fresh,
            names: 0,
        }
    }

    /// How long what was asked for at a moment may still be used.
    #[must_use]
    pub fn left(&self, asked: Instant, now: Instant) -> Option<Duration> {
        let left = (asked + self.fresh).checked_duration_since(now)?;
        (!left.is_zero()).then_some(left)
    }

    fn is_fresh(&self, asked: Instant, now: Instant) -> bool {
        self.left(asked, now).is_some()
    }

    /// What is known of a name, and when that was asked for.
    #[must_use]
    pub fn name(&self, directory: &RelPath, name: &[u8], now: Instant) -> Option<(Seen, Instant)> {
        let known = self.directories.get(directory)?;
        let alone = known.names.get(name);
        let alone = alone.filter(|(_, at)| self.is_fresh(*at, now));
        let listed = known.listing.as_ref();
        let listed = listed.filter(|(_, at)| self.is_fresh(*at, now));
        match (alone, listed) {
            (Some((seen, at)), Some((_, listed))) if at >= listed => Some((seen.clone(), *at)),
            (_, Some((listing, at))) => {
                let copies = listing.get(name).cloned().unwrap_or_default();
                let complete = true;
                Some((Seen { copies, complete }, *at))
            }
            (Some((seen, at)), None) => Some((seen.clone(), *at)),
            (None, None) => None,
        }
    }

    /// Remembers a name, as it was at `asked` or, by this member's own doing, is since.
    pub fn learn(&mut self, directory: &RelPath, name: &[u8], seen: Seen, asked: Instant) {
        if self.names > NAMES_MAX {
            self.directories.clear();
            self.names = 0;
        }
        let known = self.directories.entry(directory.clone()).or_default();
        match known.names.get_mut(name) {
            Some((_, at)) if *at > asked => {}
            Some(place) => *place = (seen, asked),
            None => {
                self.names += 1;
                known.names.insert(name.to_vec(), (seen, asked));
            }
        }
    }

    /// Remembers all names of a directory.
    pub fn learn_listing(&mut self, directory: &RelPath, listing: Listing, asked: Instant) {
        if self.names + listing.len() > NAMES_MAX {
            self.directories.clear();
            self.names = 0;
        }
        let known = self.directories.entry(directory.clone()).or_default();
        // What was changed here since, stays; else the listing says it.
        let before = known.names.len();
        known.names.retain(|_, (_, at)| *at >= asked);
        self.names -= before - known.names.len();
        let old = known
            .listing
            .as_ref()
            .map_or(0, |(listing, _)| listing.len());
        self.names = (self.names + listing.len()).saturating_sub(old);
        known.listing = Some((listing, asked));
    }

    /// A fresh listing with all changes of this member, and when it was asked for.
    #[must_use]
    pub fn listing(&self, directory: &RelPath, now: Instant) -> Option<(Listing, Instant)> {
        let known = self.directories.get(directory)?;
        let (listing, asked) = known.listing.as_ref()?;
        if !self.is_fresh(*asked, now) {
            return None;
        }
        let mut listing = listing.clone();
        for (name, (seen, at)) in &known.names {
            if at < asked {
                continue;
            }
            match seen.copies.is_empty() {
                true => listing.remove(name),
                false => listing.insert(name.clone(), seen.copies.clone()),
            };
        }
        Some((listing, *asked))
    }

    /// The names of a directory with what is nearest of each, as they were listed, if that was at another moment than
    /// `known`; and when it was.
    #[must_use]
    pub fn listed(
        &self,
        directory: &RelPath,
        known: Option<Instant>,
        now: Instant,
    ) -> Option<(&Listing, Instant)> {
        let (listing, asked) = self.directories.get(directory)?.listing.as_ref()?;
        let new = Some(*asked) != known && self.is_fresh(*asked, now);
        new.then_some((listing, *asked))
    }

    /// The branches that have a directory, where all of them are known, and when that was asked for.
    #[must_use]
    pub fn homes(&self, directory: &RelPath, now: Instant) -> Option<(Vec<BranchId>, Instant)> {
        let known = self.directories.get(directory);
        let own = known.and_then(|known| known.homes.clone());
        let own = own.filter(|(_, at)| self.is_fresh(*at, now));
        own.or_else(|| {
            let (above, name) = directory.split()?;
            let (seen, at) = self.name(&above, name, now)?;
            let spread = known.and_then(|known| known.spread);
            let knows = seen.complete && spread.is_none_or(|spread| at > spread);
            knows.then(|| (seen.directories().collect(), at))
        })
    }

    /// Remembers which branches have a directory: all of them have answered.
    pub fn learn_homes(&mut self, directory: &RelPath, homes: Vec<BranchId>, asked: Instant) {
        let known = self.directories.entry(directory.clone()).or_default();
        let later = known.homes.as_ref().is_none_or(|(_, at)| *at <= asked);
        if later && known.spread.is_none_or(|spread| spread < asked) {
            known.homes = Some((homes, asked));
        }
    }

    /// This member has brought a directory to one more branch.
    pub fn spreads(&mut self, directory: &RelPath) {
        let known = self.directories.entry(directory.clone()).or_default();
        known.homes = None;
        known.spread = Some(Instant::now());
    }

    /// Whether a directory should be asked for everything rather than for one more name.
    pub fn wants_listing(&mut self, directory: &RelPath, names: u32, now: Instant) -> bool {
        let fresh = self.fresh;
        let known = self.directories.entry(directory.clone()).or_default();
        let before = known
            .looked
            .filter(|(_, at)| now.duration_since(*at) <= fresh);
        let (count, since) = before.unwrap_or((0, now));
        known.looked = Some((count + names, since));
        count + names > LISTS_AFTER && !known.large
    }

    /// It has too many names for that.
    pub fn is_large(&mut self, directory: &RelPath) {
        self.directories.entry(directory.clone()).or_default().large = true;
    }

    /// Forgets a name.
    pub fn forget_name(&mut self, directory: &RelPath, name: &[u8]) {
        let Some(known) = self.directories.get_mut(directory) else {
            return;
        };
        if known.names.remove(name).is_some() {
            self.names -= 1;
        }
        if let Some((listing, _)) = known.listing.take() {
            self.names = self.names.saturating_sub(listing.len());
        }
    }

    /// Forgets a directory and all that is below it.
    pub fn forget_below(&mut self, directory: &RelPath) {
        let mut gone = 0;
        self.directories.retain(|path, known| {
            let within = path.is_within(directory);
            if within {
                let listed = known
                    .listing
                    .as_ref()
                    .map_or(0, |(listing, _)| listing.len());
                gone += known.names.len() + listed;
            }
            !within
        });
        self.names = self.names.saturating_sub(gone);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRESH: Duration = Duration::from_secs(1);

    fn file(inode: u64) -> Seen {
        Seen {
            copies: vec![(BranchId(0), Stat::of(inode, Kind::File, 1))],
            complete: true,
        }
    }

    fn inode(known: Option<(Seen, Instant)>) -> Option<Option<u64>> {
        known.map(|(seen, _)| seen.first().map(|(_, stat)| stat.inode))
    }

    /// Answers that were asked for before a change of this member do not undo it, whichever comes last.
    #[test]
    fn an_own_change_outlives_answers_that_were_on_their_way() {
        let (dir, start) = (RelPath::ROOT, Instant::now());
        let at = |ms: u64| start + Duration::from_millis(ms);
        let mut known = Knowledge::new(FRESH);
        let removed = Seen {
            copies: Vec::new(),
            complete: true,
        };
        known.learn(&dir, b"f", removed, at(10));
        known.learn(&dir, b"f", file(1), at(5));
        assert_eq!(inode(known.name(&dir, b"f", at(20))), Some(None));
        let listing = Listing::from([(b"f".to_vec(), file(1).copies)]);
        known.learn_listing(&dir, listing.clone(), at(5));
        assert_eq!(inode(known.name(&dir, b"f", at(20))), Some(None));
        assert!(
            known
                .listing(&dir, at(20))
                .is_some_and(|(listing, _)| listing.is_empty())
        );
        known.learn_listing(&dir, listing, at(30));
        assert_eq!(inode(known.name(&dir, b"f", at(40))), Some(Some(1)));
    }

    #[test]
    fn nothing_is_used_that_is_older_than_it_may_be() {
        let (dir, start) = (RelPath::ROOT, Instant::now());
        let mut known = Knowledge::new(FRESH);
        known.learn(&dir, b"f", file(1), start);
        known.learn_listing(&dir, Listing::new(), start);
        known.learn_homes(&dir, vec![BranchId(3)], start);
        assert_eq!(known.homes(&dir, start), Some((vec![BranchId(3)], start)));
        let later = start + FRESH;
        assert_eq!(inode(known.name(&dir, b"f", later)), None);
        assert_eq!(known.homes(&dir, later), None);
        assert!(known.listing(&dir, later).is_none());
    }

    #[test]
    fn where_a_directory_is_follows_from_its_name() {
        let start = Instant::now();
        let mut known = Knowledge::new(FRESH);
        let below = RelPath::ROOT.join(b"d").expect("a name");
        let copies = vec![
            (BranchId(2), Stat::of(1, Kind::Directory, 1)),
            (BranchId(4), Stat::of(2, Kind::File, 1)),
            (BranchId(1), Stat::of(3, Kind::Directory, 1)),
        ];
        let seen = |complete| Seen {
            copies: copies.clone(),
            complete,
        };
        known.learn(&RelPath::ROOT, b"d", seen(false), start);
        assert_eq!(known.homes(&below, start), None, "others may have it, too");
        known.learn(&RelPath::ROOT, b"d", seen(true), start);
        let two = Some((vec![BranchId(2), BranchId(1)], start));
        assert_eq!(known.homes(&below, start), two);
        known.learn_homes(&below, vec![BranchId(9)], start);
        known.forget_below(&below);
        assert_eq!(known.homes(&below, start), two);
        // What was asked for before this member brought it to another branch does not know that.
        known.spreads(&below);
        known.learn_homes(&below, vec![BranchId(2)], start);
        assert_eq!(known.homes(&below, start), None);
    }
}
