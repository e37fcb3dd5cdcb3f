//! What a checkpoint has of a file is copied at the owner before it is replaced there, and at a member nothing replaces it before
//! that copy is here (F5).

use super::{Object, Pull};
use crate::chain::planted;
use perigee_types::{ByteRange, InodeId, InodeIndex, Version};
use std::ops::RangeInclusive;

impl Pull {
    /// Files with these numbers are checkpoints': they have content of other files, each at its own place, from before that was
    /// replaced. The record of it comes before the one of what replaces it.
    #[must_use]
    pub fn with_kept(mut self, kept: RangeInclusive<InodeIndex>) -> Self {
        self.kept = Some(kept);
        self
    }

    /// `kept` is the file that a checkpoint has for content of `of`. Of a file of which this is not said it may be any.
    pub fn on_kept_file(&mut self, kept: InodeId, of: InodeId) {
        self.kept_of.insert(kept, of);
    }

    /// The checkpoints' files with content of `inode` that is missing in `range` and waited for.
    #[must_use]
    pub fn kept_awaited(&self, inode: InodeId, range: ByteRange) -> Vec<InodeId> {
        let files = self.kept_for(inode);
        let awaits = files.filter(|(kept, _)| self.awaits(*kept, range));
        awaits.map(|(kept, _)| kept).collect()
    }

    /// What checkpoints have, or may have, of a file, and is not whole here.
    fn kept_for(&self, inode: InodeId) -> impl Iterator<Item = (InodeId, &Object)> {
        let kept = self
            .kept
            .clone()
            .filter(|kept| !kept.contains(&inode.index()));
        let id = move |index: InodeIndex| InodeId::new(inode.container(), index);
        let files = kept.map(|kept| self.objects.range(id(*kept.start())..=id(*kept.end())));
        let files = files.into_iter().flatten();
        let its = move |kept: &InodeId| self.kept_of.get(kept).is_none_or(|of| *of == inode);
        files
            .filter(move |(kept, _)| its(kept))
            .map(|(kept, object)| (*kept, object))
    }

    /// Whether content as of `needed` must not be put in place of `part` yet (F5).
    pub(super) fn waits_for_kept(&self, inode: InodeId, part: ByteRange, needed: Version) -> bool {
        let protects = |object: &Object| object.invalid.spoiled(part).next().is_none();
        let mut files = self.kept_for(inode);
        !planted!(self, ReplacedBeforeKept)
            && files.any(|(_, object)| object.invalid.lags_behind(part, needed))
            && self.objects.get(&inode).is_none_or(protects)
    }
}
