//! Which regions of an object are invalid here, which version of the content they need, and since when.
//!
//! Invariant: regions are disjoint, none is empty, and two that touch differ in a version.
//! Region invalidation is AwareFS's; the version that a region needs is ours.

use perigee_types::{ByteRange, Version};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// One invalid region, keyed by its first byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Region {
    end: u64,
    lack: Lack,
}

/// What an invalid region lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Lack {
    /// Content of this version or later makes it valid.
    needed: Version,
    /// The first record whose bytes are missing: an older one than `needed` when a record that overwrote it came
    /// before its bytes did. `None`: nobody has them, and nobody waits for them.
    since: Option<Version>,
    leftover: Leftover,
}

/// What is in place where content is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Leftover {
    /// Older content, or that of a write whose record was lost: when nobody has newer, it may be the content.
    Older,
    /// What was never the content: it must not pass for it, whatever becomes of the newer. What was there before may have
    /// been the newest.
    Nothing,
    /// The same, and what was there before was older than what is missing.
    NothingNew,
}

impl Leftover {
    /// Of a place of which both are said.
    fn join(self, other: Self) -> Self {
        match (self, other) {
            (Self::Nothing, _) | (_, Self::Nothing) => Self::Nothing,
            (Self::NothingNew, _) | (_, Self::NothingNew) => Self::NothingNew,
            (Self::Older, Self::Older) => Self::Older,
        }
    }
}

impl Lack {
    fn join(self, other: Self) -> Self {
        let since = match (self.since, other.since) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        Self {
            needed: self.needed.max(other.needed),
            since,
            leftover: self.leftover.join(other.leftover),
        }
    }
}

/// The invalid regions of one object.
///
/// Serializes as the list of its regions; what is read back is merged again, so that damaged bytes
/// cannot break the invariant.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "Vec<(ByteRange, Lack)>", from = "Vec<(ByteRange, Lack)>")]
pub struct RegionMap {
    regions: BTreeMap<u64, Region>,
    /// How many regions lack bytes since which record: writes of one record are many regions.
    since: BTreeMap<Version, usize>,
}

impl RegionMap {
    /// A map of an object that is valid everywhere.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            regions: BTreeMap::new(),
            since: BTreeMap::new(),
        }
    }

    /// Marks `range` invalid until content of version `needed` or later is here. Where a part needs a
    /// later version already, that one stays.
    pub fn invalidate(&mut self, range: ByteRange, needed: Version) {
        self.invalidate_since(range, needed, needed);
    }

    /// The same, of the record of `needed`, which replaces what was here or was missing: nothing here is of it.
    pub fn replace(&mut self, range: ByteRange, needed: Version) {
        for (part, lack) in self.cut(range) {
            let leftover = match lack.leftover {
                Leftover::Nothing => Leftover::NothingNew,
                other => other,
            };
            self.insert(part, Lack { leftover, ..lack });
        }
        self.invalidate(range, needed);
    }

    /// The same, where the bytes of records from `since` on are missing.
    pub fn invalidate_since(&mut self, range: ByteRange, needed: Version, since: Version) {
        let since = Some(since);
        let leftover = Leftover::Older;
        let lack = Lack {
            needed,
            since,
            leftover,
        };
        self.add(range, lack);
    }

    /// The same, of all records, where what is in place is not older content of the object either: a disk spoiled it, or
    /// nobody knows what it is of.
    pub fn spoil(&mut self, range: ByteRange, needed: Version) {
        let lack = Lack {
            needed,
            since: Some(Version::default()),
            leftover: Leftover::Nothing,
        };
        self.add(range, lack);
    }

    fn add(&mut self, range: ByteRange, lack: Lack) {
        let old = self.cut(range);
        let mut at = range.start;
        for (part, before) in old {
            self.insert(ByteRange::new(at, part.start), lack);
            self.insert(part, before.join(lack));
            at = part.end;
        }
        self.insert(ByteRange::new(at, range.end), lack);
    }

    /// Regions of which nothing says what content they need need that of `version`. Says whether there are any.
    pub fn need_where_unknown(&mut self, version: Version) -> bool {
        let unknown: Vec<(ByteRange, Version)> = self
            .iter()
            .filter(|(_, needed)| *needed == Version::default())
            .collect();
        for &(range, _) in &unknown {
            self.invalidate_since(range, version, Version::default());
        }
        !unknown.is_empty()
    }

    /// Nobody has content of `range` as of `as_of`: what needs no later one is not waited for. It stays invalid.
    pub fn give_up(&mut self, range: ByteRange, as_of: Version) {
        for (part, lack) in self.cut(range) {
            let since = lack.since.filter(|_| lack.needed > as_of);
            self.insert(part, Lack { since, ..lack });
        }
    }

    /// Somebody may have content of `range` after all: it is waited for.
    pub fn await_again(&mut self, range: ByteRange) {
        if range.is_empty() {
            return;
        }
        for (part, lack) in self.cut(range) {
            let since = lack.since.or(Some(lack.needed));
            self.insert(part, Lack { since, ..lack });
        }
    }

    /// The invalid parts of `range` that are waited for, in order.
    pub fn awaited(&self, range: ByteRange) -> impl Iterator<Item = (ByteRange, Version)> + '_ {
        self.parts(range, |lack| lack.since.is_some())
    }

    /// The invalid parts of `range` that nobody has, in order.
    pub fn lost(&self, range: ByteRange) -> impl Iterator<Item = (ByteRange, Version)> + '_ {
        self.parts(range, |lack| lack.since.is_none())
    }

    /// The invalid parts of `range` in whose place there is nothing that could be the content, in order.
    pub fn spoiled(&self, range: ByteRange) -> impl Iterator<Item = (ByteRange, Version)> + '_ {
        self.parts(range, |lack| lack.leftover != Leftover::Older)
    }

    /// Those of them in whose place there may have been what is missing.
    pub fn unreadable(&self, range: ByteRange) -> impl Iterator<Item = (ByteRange, Version)> + '_ {
        self.parts(range, |lack| lack.leftover == Leftover::Nothing)
    }

    /// Whether in the place of all that is invalid in `range` there is older content of the object, and of nothing else.
    #[must_use]
    pub fn is_older(&self, range: ByteRange) -> bool {
        let older = |lack: Lack| {
            let since = lack.since.is_some_and(|since| since > Version::default());
            since && lack.leftover == Leftover::Older
        };
        self.parts(range, |lack| !older(lack)).next().is_none()
    }

    /// Whether bytes of records before `version` are missing in `range` and waited for, of which some were never here.
    #[must_use]
    pub fn lags_behind(&self, range: ByteRange, version: Version) -> bool {
        let lags = |lack: Lack| {
            let since = lack.since.is_some_and(|since| since < version);
            since && lack.leftover != Leftover::Nothing
        };
        self.parts(range, lags).next().is_some()
    }

    /// What this map says of `range`, and nothing else.
    #[must_use]
    pub fn part(&self, range: ByteRange) -> Self {
        let mut part = Self::new();
        part.merge(self, range);
        part
    }

    /// Adds all that another map says of `range`.
    pub fn merge(&mut self, other: &Self, range: ByteRange) {
        for (part, lack) in other.touching(range) {
            if let Some(part) = part.intersect(range) {
                self.add(part, lack);
            }
        }
    }

    /// The first record whose bytes are missing and waited for; `None` when there is none.
    #[must_use]
    pub fn oldest(&self) -> Option<Version> {
        self.since.first_key_value().map(|(since, _)| *since)
    }

    /// Makes valid what content of version `content` satisfies inside `range`; returns those parts, in
    /// order. Parts that need a later version stay invalid.
    pub fn fill(&mut self, range: ByteRange, content: Version) -> Vec<ByteRange> {
        let mut filled: Vec<ByteRange> = Vec::new();
        for (part, lack) in self.cut(range) {
            if lack.needed > content {
                self.insert(part, lack);
                continue;
            }
            match filled.last_mut() {
                Some(last) if last.end == part.start => last.end = part.end,
                _ => filled.push(part),
            }
        }
        filled
    }

    /// Forgets `range`: whatever it needed, it is valid now (cut off, punched, or written whole here).
    pub fn drop_range(&mut self, range: ByteRange) {
        self.cut(range);
    }

    /// The invalid parts of `range` with the version that each needs, in order.
    pub fn overlapping(&self, range: ByteRange) -> impl Iterator<Item = (ByteRange, Version)> + '_ {
        self.parts(range, |_| true)
    }

    fn parts(
        &self,
        range: ByteRange,
        which: impl Fn(Lack) -> bool,
    ) -> impl Iterator<Item = (ByteRange, Version)> {
        self.touching(range)
            .filter(move |(_, lack)| which(*lack))
            .filter_map(move |(part, lack)| Some((part.intersect(range)?, lack.needed)))
    }

    /// Whether every byte of `range` is valid.
    #[must_use]
    pub fn is_valid(&self, range: ByteRange) -> bool {
        range.is_empty() || self.touching(range).all(|(part, _)| !part.overlaps(range))
    }

    /// Whether the whole object is valid.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.regions.is_empty()
    }

    /// How many regions there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.regions.len()
    }

    /// The invalid regions with the version that each needs, in order.
    pub fn iter(&self) -> impl Iterator<Item = (ByteRange, Version)> + '_ {
        self.regions
            .iter()
            .map(|(&start, region)| (ByteRange::new(start, region.end), region.lack.needed))
    }

    /// Regions from the one that may reach into `range` to the last that starts inside it.
    fn touching(&self, range: ByteRange) -> impl Iterator<Item = (ByteRange, Lack)> + '_ {
        let first = self
            .regions
            .range(..=range.start)
            .next_back()
            .map_or(range.start, |(&start, _)| start);
        self.regions
            .range(first..range.end.max(first))
            .map(|(&start, region)| (ByteRange::new(start, region.end), region.lack))
    }

    /// Removes what lies in `range`, returns it in order; parts outside stay.
    fn cut(&mut self, range: ByteRange) -> Vec<(ByteRange, Lack)> {
        if range.is_empty() {
            return Vec::new();
        }
        let hit: Vec<(ByteRange, Lack)> = self
            .touching(range)
            .filter(|(part, _)| part.overlaps(range))
            .collect();
        let mut inside = Vec::with_capacity(hit.len());
        for (part, lack) in hit {
            self.take_out(part.start);
            for rest in [
                ByteRange::new(part.start, range.start),
                ByteRange::new(range.end.max(part.start), part.end),
            ] {
                if !rest.is_empty() {
                    self.put_in(rest, lack);
                }
            }
            if let Some(common) = part.intersect(range) {
                inside.push((common, lack));
            }
        }
        inside
    }

    /// Puts a region where nothing is, and merges it with neighbours that need the same.
    fn insert(&mut self, range: ByteRange, lack: Lack) {
        if range.is_empty() {
            return;
        }
        let mut merged = range;
        if let Some((&start, before)) = self.regions.range(..range.start).next_back()
            && before.end == range.start
            && before.lack == lack
        {
            merged.start = start;
            self.take_out(start);
        }
        if let Some(after) = self.regions.get(&range.end).copied()
            && after.lack == lack
        {
            self.take_out(range.end);
            merged.end = after.end;
        }
        self.put_in(merged, lack);
    }

    /// Adds a region, as it is.
    fn put_in(&mut self, range: ByteRange, lack: Lack) {
        let end = range.end;
        self.regions.insert(range.start, Region { end, lack });
        if let Some(since) = lack.since {
            *self.since.entry(since).or_default() += 1;
        }
    }

    /// Removes the region that starts at `start`.
    fn take_out(&mut self, start: u64) {
        let Some(region) = self.regions.remove(&start) else {
            return;
        };
        let Some(since) = region.lack.since else {
            return;
        };
        if let Entry::Occupied(mut count) = self.since.entry(since) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}

impl From<RegionMap> for Vec<(ByteRange, Lack)> {
    fn from(map: RegionMap) -> Self {
        let regions = map.regions.into_iter();
        regions
            .map(|(start, region)| (ByteRange::new(start, region.end), region.lack))
            .collect()
    }
}

impl From<Vec<(ByteRange, Lack)>> for RegionMap {
    fn from(list: Vec<(ByteRange, Lack)>) -> Self {
        let mut map = Self::new();
        for (range, lack) in list {
            map.add(range, lack);
        }
        map
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use perigee_types::{Epoch, Seq};
    use proptest::prelude::*;

    fn v(seq: u64) -> Version {
        Version {
            epoch: Epoch(1),
            seq: Seq(seq),
        }
    }

    fn r(start: u64, end: u64) -> ByteRange {
        ByteRange::new(start, end)
    }

    fn list(map: &RegionMap) -> Vec<(ByteRange, Version)> {
        map.iter().collect()
    }

    #[test]
    fn a_later_write_inside_an_earlier_one_splits_it() {
        let mut map = RegionMap::new();
        map.invalidate(r(0, 100), v(1));
        map.invalidate(r(40, 60), v(2));
        map.invalidate(r(30, 70), v(1));
        assert_eq!(
            list(&map),
            [(r(0, 40), v(1)), (r(40, 60), v(2)), (r(60, 100), v(1))]
        );
    }

    #[test]
    fn content_fills_only_what_it_is_new_enough_for() {
        let mut map = RegionMap::new();
        map.invalidate(r(0, 100), v(1));
        map.invalidate(r(40, 60), v(3));
        assert_eq!(map.fill(r(10, 90), v(2)), [r(10, 40), r(60, 90)]);
        assert!(map.is_valid(r(10, 40)));
        assert!(!map.is_valid(r(10, 41)));
        assert_eq!(map.fill(r(0, 100), v(3)), [r(0, 10), r(40, 60), r(90, 100)]);
        assert!(map.is_empty());
    }

    #[test]
    fn neighbours_that_need_the_same_are_one_region() {
        let mut map = RegionMap::new();
        map.invalidate(r(0, 10), v(1));
        map.invalidate(r(20, 30), v(1));
        map.invalidate(r(10, 20), v(1));
        assert_eq!(list(&map), [(r(0, 30), v(1))]);
        map.drop_range(r(5, 25));
        assert_eq!(list(&map), [(r(0, 5), v(1)), (r(25, 30), v(1))]);
        assert_eq!(
            map.overlapping(r(3, 27)).collect::<Vec<_>>(),
            [(r(3, 5), v(1)), (r(25, 27), v(1))]
        );
    }

    #[test]
    fn a_region_written_again_before_its_bytes_came_lacks_the_older_ones_too() {
        let mut map = RegionMap::new();
        map.invalidate(r(0, 10), v(3));
        map.invalidate(r(5, 15), v(7));
        assert_eq!(map.oldest(), Some(v(3)));
        map.fill(r(0, 5), v(3));
        assert_eq!(
            map.overlapping(r(0, 15)).collect::<Vec<_>>(),
            [(r(5, 10), v(7)), (r(10, 15), v(7))]
        );
        assert_eq!(map.oldest(), Some(v(3)));
        map.fill(r(5, 10), v(7));
        assert_eq!(map.oldest(), Some(v(7)));
    }

    #[test]
    fn empty_ranges_change_nothing() {
        let mut map = RegionMap::new();
        map.invalidate(r(5, 5), v(1));
        assert!(map.is_empty());
        map.invalidate(r(0, 10), v(1));
        assert!(map.is_valid(r(5, 5)));
        assert_eq!(map.fill(r(5, 5), v(9)), []);
        assert_eq!(list(&map), [(r(0, 10), v(1))]);
    }

    proptest! {
        /// Against an array of one version per byte.
        #[test]
        fn agrees_with_a_byte_array(ops in prop::collection::vec((0u8..5, 0u64..32, 0u64..12, 1u64..6), 0..60)) {
            let mut map = RegionMap::new();
            let mut model = [None::<Version>; 48];
            let mut lost = [false; 48];
            let mut spoiled = [false; 48];
            for (kind, start, len, seq) in ops {
                let range = ByteRange::with_len(start, len);
                let places = start as usize..(start + len) as usize;
                let bytes = &mut model[places.clone()];
                match kind {
                    0 => {
                        map.invalidate(range, v(seq));
                        bytes.iter_mut().for_each(|b| *b = (*b).max(Some(v(seq))));
                        lost[places].fill(false);
                    }
                    3 => {
                        map.spoil(range, v(seq));
                        bytes.iter_mut().for_each(|b| *b = (*b).max(Some(v(seq))));
                        lost[places.clone()].fill(false);
                        spoiled[places].fill(true);
                    }
                    4 => {
                        map.give_up(range, v(seq));
                        for (at, byte) in places.zip(bytes.iter()) {
                            lost[at] |= byte.is_some_and(|needed| needed <= v(seq));
                        }
                    }
                    1 => {
                        let got: u64 = map.fill(range, v(seq)).iter().map(|p| p.len()).sum();
                        let want = bytes.iter().filter(|b| b.is_some_and(|n| n <= v(seq))).count();
                        prop_assert_eq!(got, want as u64);
                        bytes.iter_mut().for_each(|b| *b = b.filter(|n| *n > v(seq)));
                    }
                    _ => {
                        map.drop_range(range);
                        bytes.fill(None);
                    }
                }
                for (at, byte) in model.iter().enumerate() {
                    lost[at] &= byte.is_some();
                    spoiled[at] &= byte.is_some();
                    let here = r(at as u64, at as u64 + 1);
                    prop_assert_eq!(map.lost(here).next().is_some(), lost[at]);
                    prop_assert_eq!(map.awaited(here).next().is_some(), byte.is_some() && !lost[at]);
                    prop_assert_eq!(map.spoiled(here).next().is_some(), spoiled[at]);
                }
                let half = r(0, 24);
                let mut whole = map.part(half);
                whole.merge(&map, r(24, 48));
                prop_assert_eq!(&whole, &map);
                prop_assert_eq!(map.is_valid(range), model[start as usize..(start + len) as usize].iter().all(Option::is_none));
                let regions: Vec<(ByteRange, Lack)> = map.clone().into();
                prop_assert_eq!(map.oldest(), regions.iter().filter_map(|(_, lack)| lack.since).min());
                for (byte, want) in model.iter().enumerate() {
                    let at = r(byte as u64, byte as u64 + 1);
                    let got = map.overlapping(at).next().map(|(_, needed)| needed);
                    prop_assert_eq!(got, *want);
                }
                for pair in regions.windows(2) {
                    prop_assert!(pair[0].0.end < pair[1].0.start || (pair[0].0.end == pair[1].0.start && pair[0].1 != pair[1].1));
                }
                prop_assert_eq!(&RegionMap::from(regions), &map);
            }
        }
    }
}
