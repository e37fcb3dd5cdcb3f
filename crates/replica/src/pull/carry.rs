//! Bytes that came in their record.
//!
//! Where the record is on a disk, so are they: nobody has to ask for them, and an `fsync` waits for nothing else. Once it is
//! committed they are put in place from the log. Until that is on the disk, too, the record stays there
//! ([`Pull::carried_from`]), and a restart finds them.
//!
//! A restart goes through the log in its order, and what a later record of it has changed is not what these bytes were. So the
//! one who orders sees to it that what replaces carried bytes is carried, as long as they may not be in place on every disk
//! ([`Unsettled::to_carry`](crate::Unsettled::to_carry)): else nobody may have the later ones, and what is in place be older than
//! both.

use super::{Origin, Pending, Pull, touched};
use crate::chain::planted;
use crate::region::RegionMap;
use perigee_types::{ByteRange, DataCommand, InodeId, Seq, Version};

/// Bytes of a committed record that are to be put in place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Carried {
    /// The object.
    pub inode: InodeId,
    /// The bytes.
    pub range: ByteRange,
    /// The record. Where it punches the range its bytes are zeros.
    pub version: Version,
}

impl Pull {
    /// With a deliberate fault.
    #[cfg(feature = "plant")]
    #[must_use]
    pub fn with_plant(mut self, plant: Option<crate::Plant>) -> Self {
        self.plant = plant;
        self
    }

    /// The last record that is committed here is this one. To be told before anything is fetched or put in place.
    pub fn note_committed(&mut self, committed: Version) {
        self.committed = self.committed.max(committed);
    }

    /// What is to be put in place from the log, each once: decided again by [`Pull::carried_parts`] when its turn comes.
    pub fn take_carried(&mut self) -> Vec<Carried> {
        self.to_install.drain(..).collect()
    }

    /// The parts to write now, and nothing else of it; then call [`Pull::on_carried_installed`], or
    /// [`Pull::on_carried_failed`]. What a later record has changed, or this owner itself since, is not among them. What is there by
    /// other means needs to get to the disk as well before records up to it may go.
    pub fn carried_parts(&mut self, carried: &Carried) -> Vec<ByteRange> {
        let Carried {
            inode,
            range,
            version,
        } = *carried;
        let missing = self.missing(inode, range);
        let uncertain = self.uncertain(inode, range);
        let committed = self.committed;
        let keeps_older = planted!(self, CarriedOverNewer);
        let mut first = RegionMap::new();
        for (lacking, needed) in missing.iter() {
            if self.waits_for_kept(inode, lacking, needed) {
                first.invalidate(lacking, needed);
            }
        }
        let Some(object) = self.objects.get_mut(&inode) else {
            return Vec::new();
        };
        let here = object.carried.overlapping(range);
        let here: Vec<ByteRange> = here
            .filter_map(|(part, of)| (of == version).then_some(part))
            .collect();
        let mut parts = Vec::new();
        for part in here {
            let mut there = RegionMap::new();
            there.invalidate(part, version);
            for (lacking, needed) in missing.overlapping(part) {
                there.drop_range(lacking);
                let may = uncertain.is_valid(lacking) && first.is_valid(lacking);
                if needed <= committed && may {
                    parts.push(lacking);
                } else {
                    // Its turn comes when this log has what is needed, nothing later may be in place, and what a checkpoint has of
                    // what is there now is here.
                    self.to_install.push_back(Carried {
                        range: lacking,
                        ..*carried
                    });
                }
            }
            // What is not missing is in place by other means.
            for (valid, _) in there.iter() {
                object.carried.drop_range(valid);
            }
        }
        self.forget_if_valid(inode);
        if keeps_older {
            return missing.iter().map(|(part, _)| part).collect();
        }
        parts
    }

    /// The parts of [`Pull::carried_parts`] are in place: they are valid, except where a later write has made them invalid in
    /// the meantime.
    pub fn on_carried_installed(&mut self, inode: InodeId, parts: Vec<ByteRange>, as_of: Version) {
        let mut left = RegionMap::new();
        for part in &parts {
            left.invalidate(*part, as_of);
        }
        self.fill(inode, parts, as_of);
        if let Some(object) = self.objects.get(&inode) {
            for (part, _) in left.iter() {
                // What needs more than that by now has its turn later.
                for (range, version) in object.carried.overlapping(part) {
                    self.to_install.push_back(Carried {
                        inode,
                        range,
                        version,
                    });
                }
            }
        }
    }

    /// Where carried bytes of an object end, that are not in place; 0 without any.
    #[must_use]
    pub fn carried_end(&self, inode: InodeId) -> u64 {
        let object = self.objects.get(&inode).into_iter();
        let carried = object.flat_map(|object| object.carried.iter());
        carried.map(|(part, _)| part.end).max().unwrap_or(0)
    }

    /// Where there may be bytes in place of records that are found in the log, and not known to be committed: of all that is
    /// left of an `fsync`, perhaps.
    fn uncertain(&self, inode: InodeId, range: ByteRange) -> RegionMap {
        let mut uncertain = RegionMap::new();
        if self.unsynced > 0 && !planted!(self, CarriedOverUncertain) {
            for pending in &self.pending {
                let (other, changed) = touched(&pending.command);
                if pending.origin == Origin::Unsynced
                    && other == inode
                    && let Some(part) = changed.intersect(range)
                {
                    uncertain.invalidate(part, pending.version);
                }
            }
        }
        uncertain
    }

    /// It could not be put in place, and is to be tried again.
    pub fn on_carried_failed(&mut self, carried: Carried) {
        self.to_install.push_back(carried);
    }

    /// What its record should have had is not there: it is asked for as other bytes are.
    pub fn on_carried_lost(&mut self, carried: &Carried) {
        if let Some(object) = self.objects.get_mut(&carried.inode) {
            let lost = object.carried.overlapping(carried.range);
            let lost = lost.filter(|(_, version)| *version == carried.version);
            let lost: Vec<ByteRange> = lost.map(|(part, _)| part).collect();
            lost.into_iter()
                .for_each(|part| object.carried.drop_range(part));
        }
        self.forget_if_valid(carried.inode);
    }

    /// The first record that has bytes which are not in place: it has to stay in the log, and so all after it.
    #[must_use]
    pub fn carried_from(&self) -> Option<Seq> {
        let objects = self.objects.values();
        objects
            .filter_map(|object| object.carried.oldest())
            .map(|version| version.seq)
            .min()
    }

    /// What of `range` is missing and will come from the log.
    pub(super) fn carried_here(&self, inode: InodeId, range: ByteRange) -> Vec<ByteRange> {
        let Some(object) = self.objects.get(&inode) else {
            return Vec::new();
        };
        let mut here = Vec::new();
        for (part, _) in object.carried.overlapping(range) {
            let missing = object.invalid.overlapping(part);
            here.extend(
                missing
                    .filter_map(|(lacking, needed)| (needed <= self.committed).then_some(lacking)),
            );
        }
        here
    }

    /// A record that changes `range` is committed: earlier ones have its content no more. What a restart does not know to have
    /// been punched comes as the zeros that are its content then.
    pub(super) fn pass_carried(&mut self, pending: &Pending, range: ByteRange) {
        let (inode, _) = touched(&pending.command);
        if planted!(self, CarriedOverNewer) {
            return;
        }
        let Some(object) = self.objects.get_mut(&inode) else {
            return;
        };
        let punched = matches!(
            (pending.origin, &pending.command),
            (Origin::Unsynced, DataCommand::Punched { .. })
        );
        let passed = match punched {
            true => object.carried.part(range),
            false => RegionMap::new(),
        };
        object.carried.drop_range(range);
        if let Some(since) = passed.oldest() {
            for (part, _) in passed.iter() {
                self.carry_part(inode, part, pending.version, since);
            }
        }
    }

    /// What a committed record brought of its own bytes is to be put in place, where it is missing.
    pub(super) fn carry(&mut self, pending: &Pending) {
        if pending.origin != Origin::Own {
            let (inode, _) = touched(&pending.command);
            for part in &pending.carried {
                self.carry_part(inode, *part, pending.version, pending.version);
            }
        }
    }

    /// `since`: the record from which on a restart has to go through the log to find it again.
    fn carry_part(&mut self, inode: InodeId, range: ByteRange, version: Version, since: Version) {
        if let Some(object) = self.objects.get_mut(&inode) {
            object.carried.invalidate_since(range, version, since);
            self.to_install.push_back(Carried {
                inode,
                range,
                version,
            });
        }
    }
}
