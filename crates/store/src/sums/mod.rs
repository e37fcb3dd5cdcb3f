//! Checksums of blocks.
//!
//! CRC-32C of 4096 bytes, the last block padded with zeros. A block of zeros, and so a hole, has 0; a
//! CRC that happens to be 0 counts as 1.

mod rows;

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
    sum_of(if padding.is_empty() {
        crc
    } else {
        crc32c::crc32c_append(crc, padding)
    })
}

const fn sum_of(crc: u32) -> u32 {
    match crc {
        ZERO_CRC => 0,
        0 => 1,
        other => other,
    }
}

/// The checksums of the 4096-byte pieces of `data`, counted from its first byte, the last one padded with zeros.
#[must_use]
pub fn block_sums(data: &[u8]) -> Vec<u32> {
    let mut sums = Vec::with_capacity(data.len().div_ceil(BLOCK));
    let rest = rows::crc_rows(data, &mut sums);
    for sum in &mut sums {
        *sum = sum_of(*sum);
    }
    if !rest.is_empty() {
        sums.push(block_sum(rest));
    }
    sums
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

    #[test]
    fn rows_of_blocks_sum_as_single_ones_do() {
        let data: Vec<u8> = (0..9 * BLOCK as u32 + 77)
            .map(|at| (at ^ (at >> 7)) as u8)
            .collect();
        for blocks in 0..10 {
            let part = &data[..blocks * BLOCK + if blocks % 2 == 0 { 0 } else { 77 }];
            let single: Vec<u32> = part.chunks(BLOCK).map(block_sum).collect();
            assert_eq!(block_sums(part), single);
        }
    }
}
