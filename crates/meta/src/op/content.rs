//! Which operations change the content of a file.

use super::Op;
use perigee_types::InodeId;

impl Op {
    /// The file whose content an operation changes by itself.
    #[must_use]
    pub fn data_inode(&self) -> Option<InodeId> {
        match self {
            Self::SetAttr { inode, set, .. } if set.size.is_some() => Some(*inode),
            Self::Allocate { inode, .. }
            | Self::Claim { inode, .. }
            | Self::CutColumn { inode, .. }
            | Self::PunchColumn { inode, .. }
            | Self::EndCut { inode, .. } => Some(*inode),
            _ => None,
        }
    }
}
