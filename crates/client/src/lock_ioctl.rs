//! How a program asks for a lock in one of the five modes: an ioctl on an open file, whose argument is 40 bytes in the
//! machine's order.
//!
//! | bytes | what |
//! | --- | --- |
//! | 0..8 | the first byte that is locked |
//! | 8..16 | how many; 0: all to the end of the file, however far that is |
//! | 16..20 | mode: 1 CR, 2 CW, 3 PR, 4 PW, 5 EX; 0: lets the lock go |
//! | 20..24 | 1: it is refused (EAGAIN) where others have what excludes it; 0: it waits |
//! | 24..32 | comes back: the epoch of the grant's token |
//! | 32..40 | comes back: its number; who excludes an earlier holder has a greater token, first by epoch |
//!
//! An open file has one such lock at a time: another request gives the first one up before it asks. It ends with the last
//! descriptor of the open file.

use perigee_meta::{Mode, Token};
use perigee_types::{ByteRange, Epoch};

/// The ioctl's number: `_IOWR('P', 1, 40 bytes)`.
pub const COMMAND: u32 = (3 << 30) | ((LockCall::BYTES as u32) << 16) | ((b'P' as u32) << 8) | 1;

/// Whether a request waits for its turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waits {
    /// Until the lock is had, or a signal comes.
    Yes,
    /// It is refused at once.
    No,
}

/// The argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockCall {
    /// `end` is `u64::MAX` for "to the end".
    pub range: ByteRange,
    /// None: lets go.
    pub mode: Option<Mode>,
    /// For its turn.
    pub waits: Waits,
    /// Of the grant, on the way back.
    pub token: Token,
}

impl LockCall {
    /// How long the argument is.
    pub const BYTES: usize = 40;

    /// None: no such range, mode or flag.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let long = |at: usize| Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        let short = |at: usize| Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let (start, len) = (long(0)?, long(8)?);
        let end = match len {
            0 => u64::MAX,
            len => start.checked_add(len)?,
        };
        let mode = match short(16)? {
            0 => None,
            number => Some(*Mode::ALL.get(number as usize - 1)?),
        };
        let waits = match short(20)? {
            0 => Waits::Yes,
            1 => Waits::No,
            _ => return None,
        };
        let token = Token {
            epoch: Epoch(long(24)?),
            number: long(32)?,
        };
        (start < end).then_some(Self {
            range: ByteRange::new(start, end),
            mode,
            waits,
            token,
        })
    }

    /// As [`Self::decode`] reads it.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let len = match self.range.end {
            u64::MAX => 0,
            _ => self.range.len(),
        };
        let number = |mode| Mode::ALL.iter().position(|other| *other == mode);
        let mode = self.mode.and_then(number).map_or(0, |place| place + 1);
        let refuse = u32::from(self.waits == Waits::No);
        let mut bytes = [0; Self::BYTES];
        bytes[0..8].copy_from_slice(&self.range.start.to_ne_bytes());
        bytes[8..16].copy_from_slice(&len.to_ne_bytes());
        bytes[16..20].copy_from_slice(&(mode as u32).to_ne_bytes());
        bytes[20..24].copy_from_slice(&refuse.to_ne_bytes());
        bytes[24..32].copy_from_slice(&self.token.epoch.0.to_ne_bytes());
        bytes[32..40].copy_from_slice(&self.token.number.to_ne_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_arrives() {
        for (place, mode) in Mode::ALL.into_iter().enumerate() {
            for (start, end) in [(0, u64::MAX), (7, 9), (1 << 40, u64::MAX)] {
                let call = LockCall {
                    range: ByteRange::new(start, end),
                    mode: Some(mode),
                    waits: [Waits::Yes, Waits::No][place % 2],
                    token: Token {
                        epoch: Epoch(3),
                        number: u64::MAX,
                    },
                };
                assert_eq!(LockCall::decode(&call.encode()), Some(call));
            }
        }
    }

    #[test]
    fn nonsense_is_refused() {
        let call = |start: u64, len: u64, mode: u32, flags: u32| {
            let mut bytes = [0; LockCall::BYTES];
            bytes[0..8].copy_from_slice(&start.to_ne_bytes());
            bytes[8..16].copy_from_slice(&len.to_ne_bytes());
            bytes[16..20].copy_from_slice(&mode.to_ne_bytes());
            bytes[20..24].copy_from_slice(&flags.to_ne_bytes());
            LockCall::decode(&bytes).is_some()
        };
        assert!(call(0, 0, 0, 0) && call(5, 1, 5, 1));
        assert!(!call(0, 0, 6, 0) && !call(0, 0, 1, 2));
        assert!(!call(2, u64::MAX, 1, 0) && !call(u64::MAX, 0, 1, 0));
        assert_eq!(LockCall::decode(&[0; LockCall::BYTES - 1]), None);
    }

    #[test]
    fn the_number_is_the_kernels_way_to_say_both_ways_and_forty_bytes() {
        assert_eq!(COMMAND, 0xc028_5001);
    }
}
