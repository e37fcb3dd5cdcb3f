//! The bytes of the log file, and which of them count after a crash.
//!
//! ```text
//! file   = header frame*
//! header = magic "PERIGCTL" | version u32 | generation u64 | crc32c of the 20 bytes before
//! frame  = len u32 | crc of (generation, offset, len) | crc of (generation, offset, body) | body
//! ```
//! All numbers are little-endian. Generation and offset are part of each checksum, so that bytes of an
//! older file, or of another place, never pass for a frame.
//!
//! A frame is written only after the one before it is durable. So a crash can damage the last frame
//! only: a bad frame with anything sound after it is rot, which is an error; a bad one at the end is
//! what a crash left, was never acknowledged, and is cut off.

use crate::error::EngineError;

const MAGIC: &[u8; 8] = b"PERIGCTL";
/// The format that this program writes.
pub(crate) const VERSION: u32 = 1;
pub(crate) const HEADER_LEN: usize = 24;
const FRAME_HEAD_LEN: usize = 12;
/// The longest body. A group of transactions stays far below.
pub(crate) const BODY_LEN_MAX: usize = 16 << 20;

/// The first bytes of a file.
pub(crate) fn header(generation: u64) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend(VERSION.to_le_bytes());
    bytes.extend(generation.to_le_bytes());
    let crc = crc32c::crc32c(&bytes);
    bytes.extend(crc.to_le_bytes());
    bytes
}

fn seed(generation: u64, offset: u64) -> u32 {
    let crc = crc32c::crc32c(&generation.to_le_bytes());
    crc32c::crc32c_append(crc, &offset.to_le_bytes())
}

/// A frame that will begin at `offset`.
pub(crate) fn frame(generation: u64, offset: u64, body: &[u8]) -> Vec<u8> {
    assert!(body.len() <= BODY_LEN_MAX, "groups are bounded far below");
    let len = (body.len() as u32).to_le_bytes();
    let seed = seed(generation, offset);
    let mut bytes = Vec::with_capacity(FRAME_HEAD_LEN + body.len());
    bytes.extend(len);
    bytes.extend(crc32c::crc32c_append(seed, &len).to_le_bytes());
    bytes.extend(crc32c::crc32c_append(seed, body).to_le_bytes());
    bytes.extend(body);
    bytes
}

/// What stands at an offset.
enum Found<'a> {
    /// A frame, and where the next one begins.
    Sound(&'a [u8], usize),
    /// No frame. The head was sound when `end` says where the body would have ended.
    Bad { end: Option<usize> },
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let word = bytes.get(at..)?.first_chunk::<4>()?;
    Some(u32::from_le_bytes(*word))
}

fn look(bytes: &[u8], generation: u64, at: usize) -> Found<'_> {
    let bad = Found::Bad { end: None };
    let words = (word(bytes, at), word(bytes, at + 4), word(bytes, at + 8));
    let (Some(len), Some(head_crc), Some(body_crc)) = words else {
        return bad;
    };
    let seed = seed(generation, at as u64);
    if crc32c::crc32c_append(seed, &len.to_le_bytes()) != head_crc || len as usize > BODY_LEN_MAX {
        return bad;
    }
    let start = at + FRAME_HEAD_LEN;
    let end = start + len as usize;
    match bytes.get(start..end) {
        Some(body) if crc32c::crc32c_append(seed, body) == body_crc => Found::Sound(body, end),
        _ => Found::Bad { end: Some(end) },
    }
}

/// The frames of a file.
#[derive(Debug)]
pub(crate) struct Scanned<'a> {
    /// The number of the file; each one that replaces another has a higher one.
    pub generation: u64,
    /// The bodies, each with the offset of its frame.
    pub bodies: Vec<(u64, &'a [u8])>,
    /// Bytes at the end that are no frame.
    pub torn: u64,
}

/// Reads a file.
///
/// # Errors
/// [`EngineError::NewerFormat`]; [`EngineError::Corrupt`] when something is damaged that no crash can
/// have damaged.
pub(crate) fn scan<'a>(file: &str, bytes: &'a [u8]) -> Result<Scanned<'a>, EngineError> {
    let corrupt = |offset: usize, what| EngineError::Corrupt {
        file: file.to_owned(),
        offset: offset as u64,
        what,
    };
    let generation = read_header(file, bytes)?;
    let mut bodies = Vec::new();
    let mut at = HEADER_LEN;
    while at < bytes.len() {
        match look(bytes, generation, at) {
            Found::Sound(body, next) => {
                bodies.push((at as u64, body));
                at = next;
            }
            Found::Bad { end } => {
                let followed = end.is_some_and(|end| end < bytes.len());
                let sound = |later| matches!(look(bytes, generation, later), Found::Sound(..));
                if followed || (at + 1..bytes.len()).any(sound) {
                    return Err(corrupt(at, "a bad frame with others after it"));
                }
                break;
            }
        }
    }
    Ok(Scanned {
        generation,
        bodies,
        torn: (bytes.len() - at) as u64,
    })
}

fn read_header(file: &str, bytes: &[u8]) -> Result<u64, EngineError> {
    let corrupt = |what| EngineError::Corrupt {
        file: file.to_owned(),
        offset: 0,
        what,
    };
    let header = bytes.first_chunk::<HEADER_LEN>();
    let header = header.ok_or_else(|| corrupt("too short for a header"))?;
    if !header.starts_with(MAGIC) {
        return Err(corrupt("not a log of a control store"));
    }
    if word(header, 20) != Some(crc32c::crc32c(&header[..20])) {
        return Err(corrupt("the header's checksum is wrong"));
    }
    match word(header, 8) {
        Some(VERSION) => {}
        Some(found) if found > VERSION => {
            return Err(EngineError::NewerFormat {
                file: file.to_owned(),
                found,
                supported: VERSION,
            });
        }
        _ => return Err(corrupt("the header names no format")),
    }
    let generation = header[12..].first_chunk::<8>();
    let generation = generation.ok_or_else(|| corrupt("too short for a header"))?;
    Ok(u64::from_le_bytes(*generation))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that fails says so")]
mod tests {
    use super::*;

    fn sample() -> (Vec<u8>, Vec<usize>) {
        let mut bytes = header(7);
        let mut ends = vec![bytes.len()];
        for body in [&b"one"[..], b"", b"three three three"] {
            let next = frame(7, bytes.len() as u64, body);
            bytes.extend(next);
            ends.push(bytes.len());
        }
        (bytes, ends)
    }

    #[test]
    fn a_cut_anywhere_leaves_the_whole_frames_before_it() {
        let (bytes, ends) = sample();
        for cut in HEADER_LEN..=bytes.len() {
            let scanned = scan("f", &bytes[..cut]).unwrap();
            let whole = ends.iter().filter(|end| **end <= cut).count() - 1;
            assert_eq!(scanned.bodies.len(), whole, "cut at {cut}");
            assert_eq!(scanned.torn as usize, cut - ends[whole]);
        }
    }

    #[test]
    fn a_flip_before_the_last_frame_is_an_error_with_its_place() {
        let (bytes, ends) = sample();
        for at in 0..ends[2] {
            for bit in 0..8 {
                let mut bad = bytes.clone();
                bad[at] ^= 1 << bit;
                let begin = ends.iter().rev().find(|end| **end <= at).copied();
                match scan("f", &bad) {
                    Err(EngineError::Corrupt { offset, .. }) => {
                        assert_eq!(offset as usize, begin.unwrap_or(0));
                    }
                    other => panic!("flip of bit {bit} at {at} gave {other:?}"),
                }
            }
        }
    }

    #[test]
    fn a_flip_in_the_last_frame_cuts_that_frame_only() {
        let (bytes, ends) = sample();
        for at in ends[2]..bytes.len() {
            let mut bad = bytes.clone();
            bad[at] ^= 0x40;
            assert_eq!(scan("f", &bad).unwrap().bodies.len(), 2, "flip at {at}");
        }
    }

    #[test]
    fn a_later_format_is_named() {
        let mut bytes = header(1);
        bytes[8] = 9;
        let crc = crc32c::crc32c(&bytes[..20]);
        bytes[20..].copy_from_slice(&crc.to_le_bytes());
        let error = scan("f", &bytes).unwrap_err();
        assert!(matches!(error, EngineError::NewerFormat { found: 9, .. }));
    }

    #[test]
    fn frames_of_an_older_file_are_not_taken() {
        let mut bytes = header(8);
        let stale = frame(7, bytes.len() as u64, b"old");
        bytes.extend(stale);
        assert!(scan("f", &bytes).unwrap().bodies.is_empty());
    }
}
