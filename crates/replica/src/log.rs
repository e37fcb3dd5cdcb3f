//! The retained end of a container's log, in memory; what of it is on disk is the chain's business.
//!
//! Invariant: records are consecutive from `base`, and epochs never fall along the log. So two logs that
//! hold the same version hold the same records up to it (log matching; Ongaro and Ousterhout, 2014).

use crate::message::{Entry, Holds};
use perigee_types::{Epoch, Seq, Version};
use std::collections::VecDeque;

/// How many bytes one record takes beside its payload, for all limits.
const ENTRY_OVERHEAD: u64 = 64;

/// The size of a record for limits.
pub(crate) fn cost(entry: &Entry) -> u64 {
    entry.payload.len() as u64 + ENTRY_OVERHEAD
}

#[derive(Debug, Clone)]
pub(crate) struct Log {
    base: Version,
    entries: VecDeque<Entry>,
    bytes: u64,
}

/// How a run of records fits a log.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Fit {
    /// The log ends before it.
    Gap,
    /// Another record is where the one before the run should be.
    Mismatch,
    /// It fits: records from `conflict` on must go, then those from index `new_from` of the run are new.
    Fits {
        conflict: Option<Seq>,
        new_from: usize,
    },
}

impl Log {
    /// The log that a disk holds; records that do not follow each other end it.
    pub(crate) fn new(base: Version, entries: Vec<Entry>) -> Self {
        let mut log = Self {
            base,
            entries: VecDeque::with_capacity(entries.len()),
            bytes: 0,
        };
        for entry in entries {
            if !follows(log.last(), entry.version) {
                break;
            }
            log.push(entry);
        }
        log
    }

    pub(crate) fn base(&self) -> Version {
        self.base
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn last(&self) -> Version {
        self.entries.back().map_or(self.base, |e| e.version)
    }

    /// The version at `seq`, when it is retained or the base.
    pub(crate) fn version_at(&self, seq: Seq) -> Option<Version> {
        if seq == self.base.seq {
            return Some(self.base);
        }
        self.entries.get(self.index(seq)?).map(|e| e.version)
    }

    /// Retained records from `from` to `to`, both included.
    pub(crate) fn range(&self, from: Seq, to: Seq) -> impl Iterator<Item = &Entry> {
        let start = from.0.saturating_sub(self.base.seq.0 + 1) as usize;
        let end = to.0.saturating_sub(self.base.seq.0) as usize;
        let end = end.min(self.entries.len());
        self.entries.range(start.min(end)..end)
    }

    /// Adds a record. The caller has checked that it follows.
    pub(crate) fn push(&mut self, entry: Entry) {
        assert!(
            follows(self.last(), entry.version),
            "record {} cannot follow {}",
            entry.version,
            self.last()
        );
        self.bytes += cost(&entry);
        self.entries.push_back(entry);
    }

    /// Removes `from` and everything after it; returns them in order.
    pub(crate) fn truncate(&mut self, from: Seq) -> Vec<Entry> {
        let keep = from.0.saturating_sub(self.base.seq.0 + 1) as usize;
        let removed: Vec<Entry> = self.entries.drain(keep.min(self.entries.len())..).collect();
        self.bytes -= removed.iter().map(cost).sum::<u64>();
        removed
    }

    /// Drops records up to `through` from memory.
    pub(crate) fn trim(&mut self, through: Seq) {
        while let Some(first) = self.entries.front()
            && first.version.seq <= through
        {
            self.base = first.version;
            self.bytes -= cost(first);
            self.entries.pop_front();
        }
    }

    /// The last record that may go so that no more than `keep_bytes` stay.
    pub(crate) fn surplus(&self, keep_bytes: u64) -> Option<Seq> {
        let mut left = self.bytes;
        let mut through = None;
        for entry in &self.entries {
            if left <= keep_bytes {
                break;
            }
            left -= cost(entry);
            through = Some(entry.version.seq);
        }
        through
    }

    /// Forgets everything: the state now includes all up to `base`.
    pub(crate) fn reset(&mut self, base: Version) {
        *self = Self::new(base, Vec::new());
    }

    /// Compares a run of records that follow `prev` with what is here.
    pub(crate) fn fit(&self, prev: Version, run: &[Entry]) -> Fit {
        if prev.seq > self.last().seq {
            return Fit::Gap;
        }
        if prev.seq >= self.base.seq && self.version_at(prev.seq) != Some(prev) {
            return Fit::Mismatch;
        }
        for (new_from, entry) in run.iter().enumerate() {
            let seq = entry.version.seq;
            if seq < self.base.seq {
                continue;
            }
            match self.version_at(seq) {
                Some(held) if held == entry.version => {}
                Some(_) if seq == self.base.seq => return Fit::Mismatch,
                Some(_) => {
                    let conflict = Some(seq);
                    return Fit::Fits { conflict, new_from };
                }
                None => {
                    let conflict = None;
                    return Fit::Fits { conflict, new_from };
                }
            }
        }
        Fit::Fits {
            conflict: None,
            new_from: run.len(),
        }
    }

    /// Whether the part of the log up to `through` holds `version`.
    ///
    /// One owner gives out the places of one epoch, so a record of the same epoch at or after it is proof.
    pub(crate) fn holds(&self, version: Version, through: Seq) -> Holds {
        if version == Version::default() || version.seq > through {
            let last = self.version_at(through).unwrap_or(self.base);
            return match version {
                v if v == Version::default() => Holds::Yes,
                v if v.epoch < last.epoch => Holds::Never,
                _ => Holds::NotYet,
            };
        }
        match self.version_at(version.seq) {
            Some(held) if held == version => Holds::Yes,
            None if version.epoch == self.base.epoch => Holds::Yes,
            _ => Holds::Never,
        }
    }

    fn index(&self, seq: Seq) -> Option<usize> {
        seq.0
            .checked_sub(self.base.seq.0 + 1)
            .and_then(|i| usize::try_from(i).ok())
    }
}

/// Whether `next` may stand right after `last`.
pub(crate) fn follows(last: Version, next: Version) -> bool {
    next.seq == last.seq.next() && next.epoch >= last.epoch && next.epoch > Epoch(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    fn v(epoch: u64, seq: u64) -> Version {
        Version {
            epoch: Epoch(epoch),
            seq: Seq(seq),
        }
    }

    fn run(versions: &[(u64, u64)]) -> Vec<Entry> {
        versions
            .iter()
            .map(|&(e, s)| Entry {
                version: v(e, s),
                payload: Bytes::new(),
            })
            .collect()
    }

    #[test]
    fn a_run_fits_only_after_its_predecessor() {
        let log = Log::new(v(1, 2), run(&[(1, 3), (2, 4)]));
        assert_eq!(log.fit(v(2, 5), &[]), Fit::Gap);
        assert_eq!(log.fit(v(1, 4), &[]), Fit::Mismatch);
        assert_eq!(log.fit(v(3, 2), &[]), Fit::Mismatch);
        let fits = |conflict, new_from| Fit::Fits { conflict, new_from };
        assert_eq!(log.fit(v(2, 4), &run(&[(3, 5)])), fits(None, 0));
        assert_eq!(
            log.fit(v(1, 3), &run(&[(3, 4), (3, 5)])),
            fits(Some(Seq(4)), 0)
        );
        assert_eq!(
            log.fit(v(1, 1), &run(&[(1, 2), (1, 3), (2, 4)])),
            fits(None, 3)
        );
        assert_eq!(log.fit(v(1, 1), &run(&[(2, 2)])), Fit::Mismatch);
    }

    #[test]
    fn holding_a_version_is_decided_by_epoch_and_place() {
        let log = Log::new(v(2, 2), run(&[(2, 3), (4, 4), (4, 5)]));
        let at = |e, s| log.holds(v(e, s), Seq(4));
        assert_eq!(at(2, 3), Holds::Yes);
        assert_eq!(at(2, 1), Holds::Yes);
        assert_eq!(at(1, 1), Holds::Never);
        assert_eq!(at(2, 4), Holds::Never);
        assert_eq!(at(4, 5), Holds::NotYet);
        assert_eq!(at(3, 5), Holds::Never);
        assert_eq!(at(5, 6), Holds::NotYet);
    }

    #[test]
    fn damage_in_the_middle_ends_a_log_that_is_read_back() {
        let log = Log::new(v(1, 0), run(&[(1, 1), (1, 2), (1, 4)]));
        assert_eq!(log.last(), v(1, 2));
    }
}
