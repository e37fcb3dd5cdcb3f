//! Going over the objects of a container.

use crate::error::StoreError;
use crate::kv::key::{self, Part, Tag};
use crate::store::Store;
use perigee_replica::RegionMap;
use perigee_types::{ContainerId, InodeId};
use std::collections::BTreeSet;

impl Store {
    /// The objects of which something is stored, ascending.
    pub fn object_inodes(&self, container: ContainerId) -> Result<Vec<InodeId>, StoreError> {
        let mut found = Vec::new();
        let mut from: Vec<u8> = Vec::new();
        loop {
            let row = self.kv().scan(container, Tag::Objects, &from, None, 1)?;
            let Some((stored, _)) = row.first() else {
                return Ok(found);
            };
            let Some(number) = stored.first_chunk::<8>() else {
                let what = format!("key of an object of {container} is too short");
                return Err(StoreError::Damaged { what });
            };
            let inode = InodeId(u64::from_be_bytes(*number));
            found.push(inode);
            from = key::object_end(inode);
        }
    }

    /// The objects with regions that are not valid here.
    pub fn invalid_objects(
        &self,
        container: ContainerId,
    ) -> Result<Vec<(InodeId, RegionMap)>, StoreError> {
        let mut found = Vec::new();
        for inode in self.object_inodes(container)? {
            let from = key::object(inode, Part::Validity, 0);
            let to = key::object_part_end(inode, Part::Validity);
            let rows = self
                .kv()
                .scan(container, Tag::Objects, &from, Some(&to), 1)?;
            if rows.is_empty() {
                continue;
            }
            let invalid = self.object(inode)?.invalid_map();
            if !invalid.is_empty() {
                found.push((inode, invalid));
            }
        }
        Ok(found)
    }

    /// Removes the objects that are not among `keep`.
    pub fn retain_objects(
        &self,
        container: ContainerId,
        keep: &BTreeSet<InodeId>,
    ) -> Result<(), StoreError> {
        for inode in self.object_inodes(container)? {
            if !keep.contains(&inode) {
                self.remove_object(inode)?;
            }
        }
        Ok(())
    }
}
