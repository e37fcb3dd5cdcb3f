//! Checksums of blocks.
//!
//! CRC-32C of 4096 bytes, the last block padded with zeros. A block of zeros, and so a hole, has 0; a
//! CRC that happens to be 0 counts as 1.

use perigee_types::limits::BLOCK_LEN;

/// [`BLOCK_LEN`] as a length in memory.
pub(crate) const BLOCK: usize = BLOCK_LEN as usize;
/// Blocks whose checksums are stored together: 256 bytes for 256 KiB of data.
pub(crate) const GROUP_BLOCKS: u64 = 64;
/// Bytes that one group covers.
pub(crate) const GROUP_LEN: u64 = GROUP_BLOCKS * BLOCK_LEN;
/// CRC-32C of a block of zeros.
const ZERO_CRC: u32 = 0x98f9_4189;

static ZEROS: [u8; BLOCK] = [0; BLOCK];

/// The checksum of one block, given without its padding.
pub(crate) fn block_sum(block: &[u8]) -> u32 {
    let crc = crc32c::crc32c(block);
    let padding = ZEROS.get(block.len()..).unwrap_or_default();
    let crc = if padding.is_empty() {
        crc
    } else {
        crc32c::crc32c_append(crc, padding)
    };
    match crc {
        ZERO_CRC => 0,
        0 => 1,
        other => other,
    }
}

/// The checksums of the 4096-byte pieces of `data`, counted from its first byte, the last one padded with zeros.
#[must_use]
pub fn block_sums(data: &[u8]) -> Vec<u32> {
    data.chunks(BLOCK).map(block_sum).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_of_any_length_sum_to_zero() {
        assert_eq!(crc32c::crc32c(&ZEROS), ZERO_CRC);
        assert_eq!(block_sums(&[0; 2 * BLOCK + 7]), [0, 0, 0]);
    }

    #[test]
    fn padding_does_not_change_a_sum() {
        let mut block = [0; BLOCK];
        block[..3].copy_from_slice(b"abc");
        assert_eq!(block_sum(b"abc"), block_sum(&block));
        assert_ne!(block_sum(b"abc"), 0);
    }
}
