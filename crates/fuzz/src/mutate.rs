//! One input from others.

use perigee_types::Rng;

/// Longer inputs are cut: the decoders' own limits are far below, or have tests of their own.
const LEN_MAX: usize = 64 << 10;
/// Values at the edges of what numbers hold, as one to eight bytes.
const EDGES: [u64; 12] = [
    0,
    1,
    0x7f,
    0x80,
    0xff,
    0x7fff,
    0xffff,
    0x7fff_ffff,
    0xffff_ffff,
    i64::MAX as u64,
    u64::MAX - 1,
    u64::MAX,
];

/// An input near one of `corpus`, or in one of sixteen cases near none.
pub(crate) fn mutate(corpus: &[Vec<u8>], rng: &mut Rng) -> Vec<u8> {
    if rng.chance(1, 16) {
        let len = rng.below(80) as usize;
        return noise(len, rng);
    }
    let mut bytes = pick(corpus, rng).clone();
    for _ in 0..=rng.below(3) {
        change(&mut bytes, corpus, rng);
    }
    bytes.truncate(LEN_MAX);
    bytes
}

fn pick<'a>(corpus: &'a [Vec<u8>], rng: &mut Rng) -> &'a Vec<u8> {
    &corpus[rng.below(corpus.len() as u64) as usize]
}

fn noise(len: usize, rng: &mut Rng) -> Vec<u8> {
    (0..len).map(|_| rng.next_u64() as u8).collect()
}

/// A place in the bytes, or their end.
fn place(bytes: &[u8], rng: &mut Rng) -> usize {
    rng.below(bytes.len() as u64 + 1) as usize
}

/// A piece of the bytes, often short.
fn piece(bytes: &[u8], rng: &mut Rng) -> std::ops::Range<usize> {
    let start = place(bytes, rng);
    let most = if rng.chance(3, 4) { 8 } else { bytes.len() };
    let len = rng.below(most as u64 + 1) as usize;
    start..(start + len).min(bytes.len())
}

fn change(bytes: &mut Vec<u8>, corpus: &[Vec<u8>], rng: &mut Rng) {
    match rng.below(8) {
        0 => {
            let at = place(bytes, rng);
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= 1 << rng.below(8);
            }
        }
        1 => {
            let edge = EDGES[rng.below(EDGES.len() as u64) as usize].to_le_bytes();
            let (at, len) = (place(bytes, rng), 1 << rng.below(4));
            for (byte, new) in bytes.iter_mut().skip(at).zip(&edge[..len]) {
                *byte = *new;
            }
        }
        2 => {
            // The longest number in the encoding of lengths.
            let at = place(bytes, rng);
            let mut long = vec![0xff; rng.below(10) as usize];
            long.push(rng.below(2) as u8);
            bytes.splice(at..at, long);
        }
        3 => bytes.truncate(place(bytes, rng)),
        4 => {
            let piece = piece(bytes, rng);
            bytes.drain(piece);
        }
        5 => {
            let (at, copy) = (place(bytes, rng), bytes[piece(bytes, rng)].to_vec());
            bytes.splice(at..at, copy);
        }
        6 => {
            let other = pick(corpus, rng);
            let (at, from) = (place(bytes, rng), place(other, rng));
            bytes.truncate(at);
            bytes.extend_from_slice(&other[from..]);
        }
        _ => {
            let (at, len) = (place(bytes, rng), rng.below(9) as usize);
            let noise = noise(len, rng);
            bytes.splice(at..at, noise);
        }
    }
}
