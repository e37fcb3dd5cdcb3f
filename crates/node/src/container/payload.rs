//! What a record says: the effects of an operation, and the bytes of small writes that it carries.
//!
//! ```text
//! payload  batch | list of (inode, range) | their bytes, one after the other
//! ```
//!
//! in postcard; most end with the batch. An empty payload begins an epoch, and has no effects.

use bytes::Bytes;
use perigee_proto::service::{Malformed, decode_front};
use perigee_types::{Batch, ByteRange, DataCommand, InodeId};

/// The content of a part of a file as of its record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Carry {
    pub(super) inode: InodeId,
    pub(super) range: ByteRange,
    /// As many as `range` is long.
    pub(super) bytes: Bytes,
}

/// What of its writes a record carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Carrying {
    /// What replaces carried bytes that may not be in place on every disk.
    WhatItMust,
    /// All, since somebody waits for it.
    All,
}

/// Which parts of files a record carries.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct CarriedParts(Vec<(InodeId, ByteRange)>);

impl CarriedParts {
    pub(super) fn of(carries: &[Carry]) -> Self {
        let parts = carries.iter().map(|carry| (carry.inode, carry.range));
        Self(parts.collect())
    }

    /// The parts of what a command writes.
    pub(super) fn by(&self, command: &DataCommand) -> Vec<ByteRange> {
        let DataCommand::Written { inode, range } = command else {
            return Vec::new();
        };
        let of_it = self.0.iter().filter(|(other, _)| other == inode);
        of_it
            .filter_map(|(_, part)| part.intersect(*range))
            .collect()
    }
}

/// A payload that was read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Payload {
    pub(super) batch: Batch,
    pub(super) carried: CarriedParts,
}

impl Payload {
    /// Errors: bytes that are no payload.
    pub(super) fn decode(payload: &[u8]) -> Result<Self, Malformed> {
        let (read, _) = read(payload)?;
        Ok(read)
    }
}

/// A record's payload.
pub(super) fn encode(batch: &Batch, carries: &[Carry]) -> Bytes {
    let payload = perigee_proto::encode(batch);
    if carries.is_empty() {
        return payload;
    }
    let mut payload = Vec::from(payload);
    payload.extend(perigee_proto::encode(&CarriedParts::of(carries).0));
    for carry in carries {
        payload.extend_from_slice(&carry.bytes);
    }
    payload.into()
}

/// The content of `range` as of a record: what it carries of it, or the zeros that it makes of it. `None`: it does not say.
pub(super) fn content(
    payload: &[u8],
    inode: InodeId,
    range: ByteRange,
) -> Result<Option<Bytes>, Malformed> {
    let (read, mut bytes) = read(payload)?;
    let Payload { batch, carried } = read;
    for (other, part) in carried.0 {
        let (these, rest) = bytes.split_at(part.len() as usize);
        bytes = rest;
        if other == inode && part.start <= range.start && range.end <= part.end {
            let from = (range.start - part.start) as usize;
            let these = &these[from..from + range.len() as usize];
            return Ok(Some(Bytes::copy_from_slice(these)));
        }
    }
    let punched = batch.data.iter().any(|command| match command {
        DataCommand::Punched {
            inode: other,
            range: hole,
        } => *other == inode && hole.start <= range.start && range.end <= hole.end,
        _ => false,
    });
    Ok(punched.then(|| Bytes::from(vec![0; range.len() as usize])))
}

/// A payload, and the bytes that it carries: all that it says it does.
fn read(payload: &[u8]) -> Result<(Payload, &[u8]), Malformed> {
    if payload.is_empty() {
        return Ok(Default::default());
    }
    let (batch, rest) = decode_front(payload)?;
    if rest.is_empty() {
        let carried = CarriedParts::default();
        return Ok((Payload { batch, carried }, rest));
    }
    let (parts, bytes) = decode_front::<Vec<(InodeId, ByteRange)>>(rest)?;
    let sound = parts.iter().all(|(_, part)| part.start <= part.end);
    let lens = parts.iter().map(|(_, part)| part.len());
    let said = sound.then(|| lens.fold(0, u64::saturating_add));
    if said != Some(bytes.len() as u64) {
        return Err(Malformed::of::<Payload>());
    }
    let carried = CarriedParts(parts);
    Ok((Payload { batch, carried }, bytes))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a panic is how a test fails")]
mod tests {
    use super::*;
    use perigee_fuzz::{Verdict, assault};
    use perigee_types::{ContainerId, InodeIndex, Mutation};

    const FILE: InodeId = InodeId::new(ContainerId::ROOT, InodeIndex(7));

    fn r(start: u64, end: u64) -> ByteRange {
        ByteRange::new(start, end)
    }

    fn batch() -> Batch {
        Batch {
            mutations: vec![Mutation {
                key: b"key".to_vec(),
                value: Some(b"value".to_vec()),
            }],
            data: vec![
                DataCommand::Written {
                    inode: FILE,
                    range: r(10, 20),
                },
                DataCommand::Punched {
                    inode: FILE,
                    range: r(40, 50),
                },
            ],
        }
    }

    fn carries() -> Vec<Carry> {
        let carry = |range, bytes| Carry {
            inode: FILE,
            range,
            bytes: Bytes::from_static(bytes),
        };
        vec![carry(r(10, 14), b"abcd"), carry(r(16, 18), b"xy")]
    }

    #[test]
    fn a_record_gives_back_what_it_carries() {
        let payload = encode(&batch(), &carries());
        let read = Payload::decode(&payload).unwrap();
        assert_eq!(read.batch, batch());
        assert_eq!(read.carried.by(&batch().data[0]), [r(10, 14), r(16, 18)]);
        assert_eq!(read.carried.by(&batch().data[1]), []);
        let found = |range| content(&payload, FILE, range).unwrap();
        assert_eq!(found(r(11, 13)).as_deref(), Some(&b"bc"[..]));
        assert_eq!(found(r(16, 18)).as_deref(), Some(&b"xy"[..]));
        assert_eq!(found(r(13, 17)), None);
        assert_eq!(found(r(45, 47)).as_deref(), Some(&[0, 0][..]));
        let plain = encode(&batch(), &[]);
        assert_eq!(plain, perigee_proto::encode(&batch()), "as it always was");
        assert_eq!(Payload::decode(&plain).unwrap().batch, batch());
        assert_eq!(Payload::decode(&[]).unwrap(), Payload::default());
    }

    #[test]
    fn fuzz_records() {
        let examples = [encode(&batch(), &carries()), encode(&batch(), &[])];
        let examples = examples.map(|payload| payload.to_vec());
        assault("a record's payload", &examples, |bytes| {
            let read = Payload::decode(bytes);
            let content = content(bytes, FILE, r(10, 14));
            assert_eq!(read.is_ok(), content.is_ok());
            Verdict::from(read)
        });
    }
}
