//! Keys and values as the engine stores them.
//!
//! Key: container (4 bytes, big-endian), tag (1), then the caller's key. Value: the caller's bytes, then
//! CRC-32C of key and bytes (4, little-endian), checked on every read: the engine checks its pages only
//! after an unclean stop.

use crate::error::StoreError;
use perigee_types::{ContainerId, InodeId};

/// Which space of a container a key belongs to. The numbers are on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tag {
    State = 0,
    Log = 1,
    Local = 2,
    /// Records, validity, checksums and small contents of objects: this room's own.
    Objects = 3,
}

/// Container and tag.
pub(crate) const PREFIX_LEN: usize = 5;
const CRC_LEN: usize = 4;

/// The stored form of a key.
pub(crate) fn encode(container: ContainerId, tag: Tag, key: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(PREFIX_LEN + key.len());
    out.extend_from_slice(&container.0.to_be_bytes());
    out.push(tag as u8);
    out.extend_from_slice(key);
    out
}

/// The stored bounds of `from..to`; without `to`, up to the end of the space.
pub(crate) fn bounds(
    container: ContainerId,
    tag: Tag,
    from: &[u8],
    to: Option<&[u8]>,
) -> (Vec<u8>, Vec<u8>) {
    let to = match to {
        Some(to) => encode(container, tag, to),
        None => {
            let mut end = encode(container, tag, &[]);
            end[PREFIX_LEN - 1] += 1;
            end
        }
    };
    (encode(container, tag, from), to)
}

/// The container of a stored key.
pub(crate) fn container_of(key: &[u8]) -> Option<ContainerId> {
    Some(ContainerId(u32::from_be_bytes(*key.first_chunk::<4>()?)))
}

/// Appends the checksum.
pub(crate) fn seal(key: &[u8], value: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(value.len() + CRC_LEN);
    out.extend_from_slice(value);
    let crc = crc32c::crc32c_append(crc32c::crc32c(key), value);
    out.extend_from_slice(&crc.to_le_bytes());
    out
}

/// Checks and cuts off the checksum.
pub(crate) fn unseal<'a>(key: &[u8], stored: &'a [u8]) -> Result<&'a [u8], StoreError> {
    if let Some((value, crc)) = stored.split_last_chunk::<CRC_LEN>()
        && crc32c::crc32c_append(crc32c::crc32c(key), value) == u32::from_le_bytes(*crc)
    {
        return Ok(value);
    }
    let what = format!("value of key {} does not match its checksum", hex(key));
    Err(StoreError::Damaged { what })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Keys of one object, inside [`Tag::Objects`]: inode (8 bytes, big-endian), part (1), index (8).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// Length and presence; no index.
    Record = 0,
    /// Invalid regions of a span.
    Validity = 1,
    /// Checksums of a group of blocks.
    Sums = 2,
    /// The bytes of a small object; index 0.
    Bytes = 3,
}

/// The caller's part of an object's key.
pub(crate) fn object(inode: InodeId, part: Part, index: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(17);
    out.extend_from_slice(&inode.0.to_be_bytes());
    out.push(part as u8);
    if part != Part::Record {
        out.extend_from_slice(&index.to_be_bytes());
    }
    out
}

/// The bound after all keys of one part of an object.
pub(crate) fn object_part_end(inode: InodeId, part: Part) -> Vec<u8> {
    let mut out = inode.0.to_be_bytes().to_vec();
    out.push(part as u8 + 1);
    out
}

/// The bound before all keys of an object.
pub(crate) fn object_start(inode: InodeId) -> Vec<u8> {
    inode.0.to_be_bytes().to_vec()
}

/// The bound after all keys of an object: the next inode's [`object_start`].
pub(crate) fn object_end(inode: InodeId) -> Vec<u8> {
    match inode.0.checked_add(1) {
        Some(next) => object_start(InodeId(next)),
        None => [0xff; 9].to_vec(),
    }
}

/// The inode that an object's key is about.
pub(crate) fn inode_of(key: &[u8]) -> Option<InodeId> {
    Some(InodeId(u64::from_be_bytes(*key.first_chunk()?)))
}

/// The index in the last eight bytes of a key.
pub(crate) fn index_of(key: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(*key.last_chunk::<8>()?))
}
