//! CRC-32C of many blocks at once.
//!
//! The instruction takes 3 cycles and starts every cycle: three blocks side by side use all of it, and
//! need no joining afterwards, as three parts of one block do.
#![expect(
    unsafe_code,
    reason = "calls a function for a processor that was asked first"
)]

use super::BLOCK;

/// The CRC-32C of each whole block of `data`, and what follows the last one.
pub(super) fn crc_rows<'a>(data: &'a [u8], out: &mut Vec<u32>) -> &'a [u8] {
    let (blocks, rest) = data.as_chunks::<BLOCK>();
    let (threes, few) = blocks.as_chunks::<3>();
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("sse4.2") {
        for three in threes {
            // SAFETY: the processor has the feature that the function is compiled for, by the line above.
            out.extend(unsafe { crc_three(three) });
        }
        out.extend(few.iter().map(|block| crc32c::crc32c(block)));
        return rest;
    }
    out.extend(blocks.iter().map(|block| crc32c::crc32c(block)));
    rest
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "sse4.2")]
fn crc_three(blocks: &[[u8; BLOCK]; 3]) -> [u32; 3] {
    use std::arch::x86_64::_mm_crc32_u64;
    let [a, b, c] = blocks.each_ref().map(|block| block.as_chunks::<8>().0);
    let mut crcs = [u64::from(u32::MAX); 3];
    for ((a, b), c) in a.iter().zip(b).zip(c) {
        crcs[0] = _mm_crc32_u64(crcs[0], u64::from_le_bytes(*a));
        crcs[1] = _mm_crc32_u64(crcs[1], u64::from_le_bytes(*b));
        crcs[2] = _mm_crc32_u64(crcs[2], u64::from_le_bytes(*c));
    }
    // The instruction leaves 32 bits.
    crcs.map(|crc| !(crc as u32))
}
