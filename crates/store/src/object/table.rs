//! The checksums of one object that are in memory.

use crate::error::StoreError;
use crate::kv::Kv;
use crate::kv::key::{self, Part, Tag};
use crate::sums::{GROUP_BLOCKS, GROUP_LEN};
use perigee_types::limits::BLOCK_LEN;
use perigee_types::{ByteRange, InodeId};
use std::collections::{BTreeMap, BTreeSet};

/// Groups in memory beyond which saved ones are dropped: 16 MiB, which cover 16 GiB of data.
const GROUPS_MAX: usize = 1 << 16;
const SUMS: usize = GROUP_BLOCKS as usize;

/// Checksums of 64 blocks in a row.
pub(super) type Sums = [u32; SUMS];

#[derive(Debug)]
struct Group {
    sums: Box<Sums>,
    /// The object's change that touched it last; 0 when it is as stored.
    change: u64,
}

/// Loaded groups, and the cut that hides stored ones.
#[derive(Debug, Default)]
pub(super) struct SumTable {
    groups: BTreeMap<u64, Group>,
    /// Groups that may have changed since they were stored: a sync of a large file need not look at all.
    changed: BTreeSet<u64>,
    /// Stored groups from this one on are gone, since this change.
    cut: Option<(u64, u64)>,
}

/// What a sync writes.
#[derive(Debug, Default)]
pub(super) struct UnsavedSums {
    pub(super) cut: Option<u64>,
    pub(super) groups: Vec<(u64, Box<Sums>)>,
}

/// The blocks that a range touches.
pub(super) fn blocks_of(range: ByteRange) -> std::ops::Range<u64> {
    range.start / BLOCK_LEN..range.end.div_ceil(BLOCK_LEN)
}

/// The bytes of a block.
pub(super) fn block_range(block: u64) -> ByteRange {
    ByteRange::with_len(block * BLOCK_LEN, BLOCK_LEN)
}

fn groups_of(range: ByteRange) -> std::ops::Range<u64> {
    range.start / GROUP_LEN..range.end.div_ceil(GROUP_LEN)
}

impl SumTable {
    /// Whether all checksums of a range are in memory.
    pub(super) fn has(&self, range: ByteRange) -> bool {
        let wanted = groups_of(range);
        let count = wanted.end - wanted.start;
        self.groups.range(wanted).count() as u64 == count
    }

    /// Brings the checksums of a range into memory. `committed` is the last change that is stored.
    pub(super) fn load(
        &mut self,
        kv: &Kv,
        inode: InodeId,
        range: ByteRange,
        committed: u64,
    ) -> Result<(), StoreError> {
        if self.has(range) {
            return Ok(());
        }
        if self.groups.len() > GROUPS_MAX {
            self.groups.retain(|_, group| group.change > committed);
        }
        let wanted = groups_of(range);
        for (index, sums) in self.stored(kv, inode, wanted.clone(), committed)? {
            self.groups
                .entry(index)
                .or_insert(Group { sums, change: 0 });
        }
        for index in wanted {
            self.groups.entry(index).or_insert_with(|| Group {
                sums: Box::new([0; SUMS]),
                change: 0,
            });
        }
        Ok(())
    }

    /// Groups as stored, where no cut hides them.
    fn stored(
        &mut self,
        kv: &Kv,
        inode: InodeId,
        mut wanted: std::ops::Range<u64>,
        committed: u64,
    ) -> Result<Vec<(u64, Box<Sums>)>, StoreError> {
        self.cut = self.cut.filter(|&(_, change)| change > committed);
        if let Some((from, _)) = self.cut {
            wanted.end = wanted.end.min(from);
        }
        if wanted.is_empty() {
            return Ok(Vec::new());
        }
        let from = key::object(inode, Part::Sums, wanted.start);
        let to = key::object(inode, Part::Sums, wanted.end);
        kv.scan(
            inode.container(),
            Tag::Objects,
            &from,
            Some(&to),
            usize::MAX,
        )?
        .iter()
        .map(|(key, value)| decode(inode, key, value))
        .collect()
    }

    /// The first group from `from` on that is stored or in memory and may have data.
    pub(super) fn next_used(
        &self,
        kv: &Kv,
        inode: InodeId,
        from: u64,
        committed: u64,
    ) -> Result<Option<u64>, StoreError> {
        let cut = self.cut.filter(|&(_, change)| change > committed);
        let loaded = self
            .groups
            .range(from..)
            .find(|(_, group)| group.sums.iter().any(|&sum| sum != 0))
            .map(|(&index, _)| index);
        let lower = key::object(inode, Part::Sums, from);
        let upper = key::object_part_end(inode, Part::Sums);
        let found = kv.scan(inode.container(), Tag::Objects, &lower, Some(&upper), 1)?;
        let stored = match found.first() {
            Some((key, value)) => Some(decode(inode, key, value)?.0),
            None => None,
        };
        let stored = stored.filter(|&index| cut.is_none_or(|(cut, _)| index < cut));
        Ok(match (loaded, stored) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        })
    }

    /// Stored groups inside a range of groups; for a punch, which must set them to zeros.
    pub(super) fn load_used(
        &mut self,
        kv: &Kv,
        inode: InodeId,
        range: ByteRange,
        committed: u64,
    ) -> Result<(), StoreError> {
        for (index, sums) in self.stored(kv, inode, groups_of(range), committed)? {
            self.groups
                .entry(index)
                .or_insert(Group { sums, change: 0 });
        }
        Ok(())
    }

    /// The checksum of a block that is in memory.
    pub(super) fn get(&self, block: u64) -> u32 {
        let at = (block % GROUP_BLOCKS) as usize;
        self.groups
            .get(&(block / GROUP_BLOCKS))
            .map_or(0, |group| group.sums[at])
    }

    /// Calls `visit` for each checksum of a row of blocks in memory.
    pub(super) fn row(&self, first: u64) -> impl Iterator<Item = u32> + '_ {
        let skip = (first % GROUP_BLOCKS) as usize;
        self.groups
            .range(first / GROUP_BLOCKS..)
            .flat_map(|(_, group)| group.sums.iter().copied())
            .skip(skip)
    }

    /// Sets checksums of a row of blocks, whose groups are in memory.
    pub(super) fn set(&mut self, first: u64, sums: &[u32], change: u64) {
        let mut block = first;
        let mut rest = sums;
        while !rest.is_empty() {
            let at = (block % GROUP_BLOCKS) as usize;
            let (part, more) = rest.split_at(rest.len().min(SUMS - at));
            let group = self
                .groups
                .entry(block / GROUP_BLOCKS)
                .or_insert_with(|| Group {
                    sums: Box::new([0; SUMS]),
                    change: 0,
                });
            group.sums[at..at + part.len()].copy_from_slice(part);
            group.change = change;
            self.changed.insert(block / GROUP_BLOCKS);
            block += part.len() as u64;
            rest = more;
        }
    }

    /// Sets whole blocks to zeros, in groups that are in memory. Others have no data.
    pub(super) fn clear(&mut self, blocks: std::ops::Range<u64>, change: u64) {
        if blocks.is_empty() {
            return;
        }
        let last = (blocks.end - 1) / GROUP_BLOCKS;
        for (&index, group) in self.groups.range_mut(blocks.start / GROUP_BLOCKS..=last) {
            let base = index * GROUP_BLOCKS;
            let from = blocks.start.saturating_sub(base).min(GROUP_BLOCKS) as usize;
            let to = (blocks.end - base).min(GROUP_BLOCKS) as usize;
            group.sums[from..to].fill(0);
            group.change = change;
            self.changed.insert(index);
        }
    }

    /// Forgets all blocks from `block` on. The group that it splits is in memory.
    pub(super) fn cut(&mut self, block: u64, change: u64) {
        let whole = block.div_ceil(GROUP_BLOCKS);
        self.clear(block..whole * GROUP_BLOCKS, change);
        self.groups.split_off(&whole);
        self.changed.split_off(&whole);
        let from = self.cut.map_or(whole, |(old, _)| old.min(whole));
        self.cut = Some((from, change));
    }

    /// What changed after `saved`. `committed` is the last change that is stored, and not after `saved`.
    pub(super) fn unsaved(&mut self, saved: u64, committed: u64) -> UnsavedSums {
        let Self {
            groups, changed, ..
        } = self;
        let mut unsaved = Vec::new();
        // What is queued after `committed` may be refused, and be asked for again.
        changed.retain(|index| {
            let group = groups.get(index).filter(|group| group.change > committed);
            let new = group.filter(|group| group.change > saved);
            unsaved.extend(new.map(|group| (*index, group.sums.clone())));
            group.is_some()
        });
        UnsavedSums {
            cut: self.cut.filter(|&(_, at)| at > saved).map(|(from, _)| from),
            groups: unsaved,
        }
    }
}

/// The stored form of a group.
pub(super) fn encode(sums: &Sums) -> Vec<u8> {
    sums.iter().flat_map(|sum| sum.to_le_bytes()).collect()
}

fn decode(inode: InodeId, key: &[u8], value: &[u8]) -> Result<(u64, Box<Sums>), StoreError> {
    let (words, rest) = value.as_chunks::<4>();
    let (Some(index), SUMS, true) = (key::index_of(key), words.len(), rest.is_empty()) else {
        let what = format!("checksum group of inode {inode}");
        return Err(StoreError::Damaged { what });
    };
    let mut sums = Box::new([0; SUMS]);
    for (sum, word) in sums.iter_mut().zip(words) {
        *sum = u32::from_le_bytes(*word);
    }
    Ok((index, sums))
}
