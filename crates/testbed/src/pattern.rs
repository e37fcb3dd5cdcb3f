//! File content that follows from a seed and the offset, so that any byte can be checked alone.

/// Bytes of one word of the pattern.
const WORD: u64 = 8;

/// The word with this index: the output function of `splitmix64` on a counter.
fn word(seed: u64, index: u64) -> u64 {
    let mut z = seed.wrapping_add(index.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Fills `buffer` with the content that belongs at `offset`.
pub fn fill(seed: u64, offset: u64, buffer: &mut [u8]) {
    let mut at = offset;
    let mut rest = buffer;
    while !rest.is_empty() {
        let bytes = word(seed, at / WORD).to_le_bytes();
        let skip = (at % WORD) as usize;
        let take = rest.len().min(bytes.len() - skip);
        let (head, tail) = rest.split_at_mut(take);
        head.copy_from_slice(&bytes[skip..skip + take]);
        at += take as u64;
        rest = tail;
    }
}

/// The first offset at which `buffer`, read at `offset`, differs from the pattern.
#[must_use]
pub fn first_difference(seed: u64, offset: u64, buffer: &[u8]) -> Option<u64> {
    let mut expected = vec![0; buffer.len()];
    fill(seed, offset, &mut expected);
    if expected == buffer {
        return None;
    }
    expected
        .iter()
        .zip(buffer)
        .position(|(want, got)| want != got)
        .map(|at| offset + at as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_cut_of_the_pattern_equals_the_whole() {
        let mut whole = vec![0; 1_000];
        fill(7, 0, &mut whole);
        for (start, length) in [(0, 1), (3, 5), (7, 2), (8, 8), (13, 500), (999, 1)] {
            let mut part = vec![0; length];
            fill(7, start as u64, &mut part);
            assert_eq!(part, whole[start..start + length]);
        }
    }

    #[test]
    fn one_wrong_byte_is_found_at_its_offset() {
        let mut bytes = vec![0; 4_096];
        fill(1, 77, &mut bytes);
        assert_eq!(first_difference(1, 77, &bytes), None);
        bytes[100] ^= 0x40;
        assert_eq!(first_difference(1, 77, &bytes), Some(177));
    }
}
