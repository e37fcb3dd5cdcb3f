//! What records do that are in the log and not committed: they were decoded, or encoded, when they came.

use perigee_types::{Batch, Seq, Version};
use std::collections::VecDeque;

/// In the order of the log. Records may be missing, and some may have been truncated from the log: an effect is one of its
/// version alone.
#[derive(Debug, Default)]
pub(super) struct Logged(VecDeque<(Version, Batch)>);

impl Logged {
    /// A record comes to the end of the log; what was in its place, and behind it, is there no more.
    pub(super) fn push(&mut self, version: Version, batch: Batch) {
        while self.last().is_some_and(|last| last >= version.seq) {
            self.0.pop_back();
        }
        self.0.push_back((version, batch));
    }

    /// Takes what a record does that is committed now, if it is known; of earlier ones nobody asks any more.
    pub(super) fn take(&mut self, version: Version) -> Option<Batch> {
        while let Some((first, _)) = self.0.front() {
            if first.seq > version.seq {
                return None;
            }
            let (found, batch) = self.0.pop_front()?;
            if found == version {
                return Some(batch);
            }
        }
        None
    }

    fn last(&self) -> Option<Seq> {
        self.0.back().map(|(version, _)| version.seq)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use perigee_types::{Epoch, Mutation};

    fn version(epoch: u64, seq: u64) -> Version {
        Version {
            epoch: Epoch(epoch),
            seq: Seq(seq),
        }
    }

    /// A batch that tells of which record it is.
    fn batch(version: Version) -> Batch {
        let mutation = Mutation {
            key: format!("{version}").into_bytes(),
            value: None,
        };
        Batch {
            mutations: vec![mutation],
            data: Vec::new(),
        }
    }

    #[test]
    fn a_record_in_the_place_of_another_is_not_taken_for_it() {
        let mut logged = Logged::default();
        for (epoch, seq) in [(1, 1), (1, 2), (1, 4), (1, 5), (2, 4)] {
            let version = version(epoch, seq);
            logged.push(version, batch(version));
        }
        let mut take = |epoch, seq| {
            let version = version(epoch, seq);
            logged.take(version).map(|found| found == batch(version))
        };
        assert_eq!(take(1, 1), Some(true));
        assert_eq!(take(1, 3), None, "and the one before is asked for no more");
        assert_eq!(take(1, 2), None);
        assert_eq!(take(2, 4), Some(true));
        assert_eq!(take(1, 5), None, "it was truncated");
    }
}
