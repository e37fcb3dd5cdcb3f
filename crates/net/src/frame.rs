//! Frames: a header of 40 bytes, a body (the encoded message) and a payload (raw bytes).
//!
//! | at | bytes | field |
//! | --- | --- | --- |
//! | 0 | 1 | format of the header: 1 |
//! | 1 | 1 | kind: 1 hello, 2 call, 3 answer, 4 cast, 5 cancel, 6 ping, 7 pong |
//! | 2 | 1 | flags: of a call 1 = sent before; of an answer 1 = refused by the service, 2 = fault of the transport |
//! | 3 | 1 | priority: 0 control, 1 meta, 2 data, 3 background |
//! | 4 | 2 | method of a call or cast; code of a refusal or fault |
//! | 6 | 2 | zero |
//! | 8 | 8 | id of the call; of ping and pong the sender's time in microseconds |
//! | 16 | 8 | every call of this connection's caller with a smaller id is done: its answer may be forgotten |
//! | 24 | 4 | milliseconds that are left for the call |
//! | 28 | 4 | length of the body |
//! | 32 | 4 | length of the payload |
//! | 36 | 4 | CRC-32C of body, payload and the 36 bytes before, in this order |
//!
//! The body of a pong is what its sender tells all peers of itself; that of a ping is empty.
//!
//! Numbers are little-endian. The checksum covers body and payload first, so that the sender computes it once, when the
//! frame is made, and a repeat with other header fields need not read the payload again. It is end to end: TLS covers
//! the wire alone, this covers the queues and buffers on both sides too.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use crc32c::{crc32c, crc32c_append};
use perigee_proto::Priority;

pub(crate) const HEADER_LEN: usize = 40;
const CHECKSUM_AT: usize = 36;
const FORMAT: u8 = 1;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Hello,
    Call,
    Answer,
    Cast,
    Cancel,
    Ping,
    Pong,
}

impl Kind {
    const ALL: [Self; 7] = [
        Self::Hello,
        Self::Call,
        Self::Answer,
        Self::Cast,
        Self::Cancel,
        Self::Ping,
        Self::Pong,
    ];

    fn number(self) -> u8 {
        match self {
            Self::Hello => 1,
            Self::Call => 2,
            Self::Answer => 3,
            Self::Cast => 4,
            Self::Cancel => 5,
            Self::Ping => 6,
            Self::Pong => 7,
        }
    }

    fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.number() == number)
    }

    /// The highest value that the flags of this kind may have.
    fn flags_max(self) -> u8 {
        match self {
            Self::Call => FLAG_REPEATED,
            Self::Answer => FLAG_FAULT,
            Self::Hello | Self::Cast | Self::Cancel | Self::Ping | Self::Pong => 0,
        }
    }
}

/// Of a call: it was sent before, over a connection that is gone.
pub(crate) const FLAG_REPEATED: u8 = 1;
/// Of an answer: the service refused; `method` is its code.
pub(crate) const FLAG_REFUSED: u8 = 1;
/// Of an answer: the transport refused; `method` is a `Fault`.
pub(crate) const FLAG_FAULT: u8 = 2;

const PRIORITIES: [Priority; 4] = [
    Priority::Control,
    Priority::Meta,
    Priority::Data,
    Priority::Background,
];

/// The place of a priority in tables, the most urgent first.
pub(crate) fn rank(priority: Priority) -> usize {
    match priority {
        Priority::Control => 0,
        Priority::Meta => 1,
        Priority::Data => 2,
        Priority::Background => 3,
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) kind: Kind,
    pub(crate) flags: u8,
    pub(crate) priority: Priority,
    pub(crate) method: u16,
    pub(crate) id: u64,
    pub(crate) acknowledged: u64,
    pub(crate) deadline_ms: u32,
    pub(crate) body_len: u32,
    pub(crate) payload_len: u32,
}

/// A frame as it arrived. Body and payload share one allocation, made for this frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) header: Header,
    pub(crate) body: Bytes,
    pub(crate) payload: Bytes,
}

impl Frame {
    /// What the frame took on the wire, before encryption.
    pub(crate) fn len(&self) -> usize {
        HEADER_LEN + self.body.len() + self.payload.len()
    }
}

/// The longest body and payload that a connection takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bounds {
    pub(crate) body_max: usize,
    pub(crate) payload_max: usize,
}

/// Bytes that are no frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// A header of another format.
    #[error("frame header of format {format}, this binary knows {FORMAT}")]
    UnknownFormat {
        /// Its format.
        format: u8,
    },
    /// No such kind of frame.
    #[error("frame of unknown kind {kind}")]
    UnknownKind {
        /// Its kind.
        kind: u8,
    },
    /// Flags, priority or reserved bytes with a value that has no meaning.
    #[error("frame header with a field out of range")]
    FieldOutOfRange,
    /// A body longer than the limit.
    #[error("frame body of {len} bytes, the limit is {max}")]
    BodyTooLong {
        /// Its length.
        len: u32,
        /// The limit.
        max: usize,
    },
    /// A payload longer than the limit.
    #[error("frame payload of {len} bytes, the limit is {max}")]
    PayloadTooLong {
        /// Its length.
        len: u32,
        /// The limit.
        max: usize,
    },
    /// The checksum is wrong.
    #[error("frame checksum is {got:08x}, its bytes give {expected:08x}")]
    Checksum {
        /// What the frame said.
        got: u32,
        /// What its bytes give.
        expected: u32,
    },
}

fn part<const N: usize>(bytes: &[u8; HEADER_LEN], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[at..at + N]);
    out
}

/// The checksum of body and payload, with which the header's begins.
pub(crate) fn content_checksum(body: &[u8], payload: &[u8]) -> u32 {
    crc32c_append(crc32c(body), payload)
}

impl Header {
    pub(crate) fn encode(&self, content_checksum: u32) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[0] = FORMAT;
        bytes[1] = self.kind.number();
        bytes[2] = self.flags;
        bytes[3] = rank(self.priority) as u8;
        bytes[4..6].copy_from_slice(&self.method.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.id.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.acknowledged.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.deadline_ms.to_le_bytes());
        bytes[28..32].copy_from_slice(&self.body_len.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.payload_len.to_le_bytes());
        let checksum = crc32c_append(content_checksum, &bytes[..CHECKSUM_AT]);
        bytes[CHECKSUM_AT..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Reads a header and holds its lengths against `bounds`. The checksum cannot be checked yet.
    pub(crate) fn decode(bytes: &[u8; HEADER_LEN], bounds: Bounds) -> Result<Self, FrameError> {
        let [format, kind, flags, priority] = part(bytes, 0);
        if format != FORMAT {
            return Err(FrameError::UnknownFormat { format });
        }
        let kind = Kind::from_number(kind).ok_or(FrameError::UnknownKind { kind })?;
        let priority = *PRIORITIES
            .get(usize::from(priority))
            .ok_or(FrameError::FieldOutOfRange)?;
        if flags > kind.flags_max() || part::<2>(bytes, 6) != [0, 0] {
            return Err(FrameError::FieldOutOfRange);
        }
        let body_len = u32::from_le_bytes(part(bytes, 28));
        if body_len as usize > bounds.body_max {
            return Err(FrameError::BodyTooLong {
                len: body_len,
                max: bounds.body_max,
            });
        }
        let payload_len = u32::from_le_bytes(part(bytes, 32));
        if payload_len as usize > bounds.payload_max {
            return Err(FrameError::PayloadTooLong {
                len: payload_len,
                max: bounds.payload_max,
            });
        }
        Ok(Self {
            kind,
            flags,
            priority,
            method: u16::from_le_bytes(part(bytes, 4)),
            id: u64::from_le_bytes(part(bytes, 8)),
            acknowledged: u64::from_le_bytes(part(bytes, 16)),
            deadline_ms: u32::from_le_bytes(part(bytes, 24)),
            body_len,
            payload_len,
        })
    }
}

/// Payloads of this length or more are aligned, so that their receiver can hand them to a disk as they lie.
const ALIGNED_LEN_MIN: usize = 64 << 10;
/// Their address is a multiple of this.
const PAYLOAD_ALIGNMENT: usize = 4096;

/// Puts frames together from pieces of any length.
#[derive(Debug)]
pub(crate) struct Assembler {
    bounds: Bounds,
    head: [u8; HEADER_LEN],
    head_len: usize,
    content: Option<Content>,
}

#[derive(Debug)]
struct Content {
    header: Header,
    bytes: BytesMut,
    wanted: usize,
    checksum: u32,
}

impl Assembler {
    pub(crate) fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            head: [0; HEADER_LEN],
            head_len: 0,
            content: None,
        }
    }

    /// For what comes after the hello.
    pub(crate) fn set_bounds(&mut self, bounds: Bounds) {
        self.bounds = bounds;
    }

    /// Whether a frame has begun and not ended.
    pub(crate) fn is_inside_a_frame(&self) -> bool {
        self.head_len > 0
    }

    /// Takes bytes from the front of `input` until a frame is whole or none are left.
    ///
    /// Errors: the bytes are no frame; nothing that follows can be read.
    pub(crate) fn feed(&mut self, input: &mut &[u8]) -> Result<Option<Frame>, FrameError> {
        let mut content = match self.content.take() {
            Some(content) => content,
            None => {
                let (head, rest) = input.split_at((HEADER_LEN - self.head_len).min(input.len()));
                self.head[self.head_len..self.head_len + head.len()].copy_from_slice(head);
                self.head_len += head.len();
                *input = rest;
                if self.head_len < HEADER_LEN {
                    return Ok(None);
                }
                let header = Header::decode(&self.head, self.bounds)?;
                let wanted = header.body_len as usize + header.payload_len as usize;
                Content {
                    header,
                    bytes: room_for(&header),
                    wanted,
                    checksum: 0,
                }
            }
        };
        let (piece, rest) = input.split_at((content.wanted - content.bytes.len()).min(input.len()));
        // piece by piece, while it is in the nearest cache
        for piece in piece.chunks(crate::channel::PIECE_LEN) {
            content.bytes.extend_from_slice(piece);
            content.checksum = crc32c_append(content.checksum, piece);
        }
        *input = rest;
        if content.bytes.len() < content.wanted {
            self.content = Some(content);
            return Ok(None);
        }
        self.head_len = 0;
        self.finish(content).map(Some)
    }

    fn finish(&self, content: Content) -> Result<Frame, FrameError> {
        let got = u32::from_le_bytes(part(&self.head, CHECKSUM_AT));
        let expected = crc32c_append(content.checksum, &self.head[..CHECKSUM_AT]);
        if got != expected {
            return Err(FrameError::Checksum { got, expected });
        }
        let mut body = content.bytes.freeze();
        let payload = body.split_off(content.header.body_len as usize);
        Ok(Frame {
            header: content.header,
            body,
            payload,
        })
    }
}

/// Memory for body and payload.
fn room_for(header: &Header) -> BytesMut {
    let (body_len, payload_len) = (header.body_len as usize, header.payload_len as usize);
    if payload_len < ALIGNED_LEN_MIN {
        return BytesMut::with_capacity(body_len + payload_len);
    }
    let mut room = BytesMut::with_capacity(PAYLOAD_ALIGNMENT + body_len + payload_len);
    let payload_at = (room.as_ptr() as usize).wrapping_add(body_len);
    let skipped = payload_at.next_multiple_of(PAYLOAD_ALIGNMENT) - payload_at;
    room.put_bytes(0, skipped);
    room.advance(skipped);
    room
}

#[cfg(test)]
mod tests {
    use super::*;
    use perigee_fuzz::{Verdict, assault};
    use proptest::prelude::*;

    const BOUNDS: Bounds = Bounds {
        body_max: 1 << 12,
        payload_max: 1 << 14,
    };

    fn frame(kind: Kind, body: &[u8], payload: &[u8]) -> Vec<u8> {
        let header = Header {
            kind,
            flags: 0,
            priority: Priority::Data,
            method: 0x0201,
            id: 99,
            acknowledged: 90,
            deadline_ms: 1500,
            body_len: body.len() as u32,
            payload_len: payload.len() as u32,
        };
        let mut bytes = header.encode(content_checksum(body, payload)).to_vec();
        bytes.extend_from_slice(body);
        bytes.extend_from_slice(payload);
        bytes
    }

    fn read_all(bytes: &[u8], piece: usize) -> Result<Vec<Frame>, FrameError> {
        let mut assembler = Assembler::new(BOUNDS);
        let mut frames = Vec::new();
        for mut chunk in bytes.chunks(piece.max(1)) {
            while !chunk.is_empty() {
                frames.extend(assembler.feed(&mut chunk)?);
            }
        }
        Ok(frames)
    }

    #[test]
    fn a_header_has_these_bytes_for_ever() {
        let bytes = frame(Kind::Call, b"ab", b"cde");
        assert_eq!(
            bytes[..CHECKSUM_AT],
            [
                1, 2, 0, 2, 1, 2, 0, 0, 99, 0, 0, 0, 0, 0, 0, 0, 90, 0, 0, 0, 0, 0, 0, 0, 0xdc, 5,
                0, 0, 2, 0, 0, 0, 3, 0, 0, 0
            ]
        );
    }

    #[test]
    fn lengths_over_the_limit_are_refused_from_the_header_alone() {
        let mut bytes = frame(Kind::Call, b"", b"");
        bytes[32..36].copy_from_slice(&(BOUNDS.payload_max as u32 + 1).to_le_bytes());
        assert_eq!(
            read_all(&bytes, 1000),
            Err(FrameError::PayloadTooLong {
                len: BOUNDS.payload_max as u32 + 1,
                max: BOUNDS.payload_max
            })
        );
        let mut bytes = frame(Kind::Call, b"", b"");
        bytes[28..32].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(
            read_all(&bytes, 1000),
            Err(FrameError::BodyTooLong {
                len: u32::MAX,
                max: BOUNDS.body_max
            })
        );
    }

    #[test]
    fn unknown_fields_are_refused() {
        for (at, value, error) in [
            (0, 2, FrameError::UnknownFormat { format: 2 }),
            (1, 0, FrameError::UnknownKind { kind: 0 }),
            (1, 8, FrameError::UnknownKind { kind: 8 }),
            (2, 2, FrameError::FieldOutOfRange),
            (3, 4, FrameError::FieldOutOfRange),
            (6, 1, FrameError::FieldOutOfRange),
        ] {
            let mut bytes = frame(Kind::Call, b"", b"");
            bytes[at] = value;
            assert_eq!(read_all(&bytes, 1000), Err(error), "byte {at} = {value}");
        }
    }

    #[test]
    fn a_long_payload_lies_where_a_disk_can_take_it() {
        let bounds = Bounds {
            body_max: 1 << 12,
            payload_max: 1 << 20,
        };
        for (body_len, payload_len) in [(0, 1 << 20), (39, ALIGNED_LEN_MIN), (4095, 300_000)] {
            let payload: Vec<u8> = (0..payload_len).map(|at| (at % 251) as u8).collect();
            let bytes = frame(Kind::Call, &vec![7; body_len], &payload);
            let mut assembler = Assembler::new(bounds);
            let mut rest = &bytes[..];
            let got = assembler.feed(&mut rest).unwrap().unwrap();
            assert_eq!(got.payload, payload);
            assert_eq!(got.payload.as_ptr() as usize % PAYLOAD_ALIGNMENT, 0);
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..400), piece in 1..50_usize) {
            _ = read_all(&bytes, piece);
        }

        #[test]
        fn almost_right_headers_never_panic(
            mut bytes in prop::collection::vec(any::<u8>(), 40..400), kind in 0..9_u8, piece in 1..50_usize
        ) {
            bytes[0] = FORMAT;
            bytes[1] = kind;
            bytes[2] = 0;
            bytes[3] &= 3;
            bytes[6..8].fill(0);
            bytes[30..32].fill(0);
            bytes[34..36].fill(0);
            _ = read_all(&bytes, piece);
        }

        #[test]
        fn frames_round_trip_in_pieces_of_any_length(
            contents in prop::collection::vec(
                (prop::collection::vec(any::<u8>(), 0..100), prop::collection::vec(any::<u8>(), 0..3000)), 1..5),
            piece in 1..4000_usize
        ) {
            let bytes: Vec<u8> = contents.iter().flat_map(|(b, p)| frame(Kind::Cast, b, p)).collect();
            let frames = read_all(&bytes, piece).unwrap();
            prop_assert_eq!(frames.len(), contents.len());
            for (frame, (body, payload)) in frames.iter().zip(&contents) {
                prop_assert_eq!(&frame.body, body);
                prop_assert_eq!(&frame.payload, payload);
                prop_assert_eq!(frame.header.id, 99);
            }
        }

        #[test]
        fn a_changed_byte_is_never_taken_for_the_frame(
            body in prop::collection::vec(any::<u8>(), 0..100), at in any::<prop::sample::Index>(), bit in 0..8_u8
        ) {
            let mut bytes = frame(Kind::Call, &body, b"payload");
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
            // a longer length waits for bytes that do not come: that is no frame either
            if let Ok(frames) = read_all(&bytes, 64) {
                prop_assert!(frames.is_empty());
            }
        }
    }

    #[test]
    fn fuzz_frames() {
        let two = [
            frame(Kind::Call, b"body", &[7; 300]),
            frame(Kind::Cast, b"", b""),
        ]
        .concat();
        assault("net::Assembler", &[two], |bytes| {
            let whole = read_all(bytes, bytes.len());
            // However the bytes come, they are the same frames.
            assert_eq!(read_all(bytes, 7).is_ok(), whole.is_ok());
            whole.into()
        });
        let header = frame(Kind::Call, b"body", b"")[..HEADER_LEN].to_vec();
        assault("net::Header", &[header], |bytes| {
            let Some(bytes) = bytes.first_chunk() else {
                return Verdict::Refused;
            };
            let Ok(header) = Header::decode(bytes, BOUNDS) else {
                return Verdict::Refused;
            };
            let again = header.encode(0);
            assert_eq!(again[..CHECKSUM_AT], bytes[..CHECKSUM_AT]);
            Verdict::Taken
        });
    }
}
