//! Bytes that are in place here and do not count: where a member says that they are the content, they need not travel.
//!
//! A node that returns from beyond the log gets the container's rows, and has most of the bytes still that it is to have. Which
//! of them are the content no record here says any more: records that others had truncated may be among those that wrote them.
//! So it tells with each range that it asks for what it has in place of it, by hashes that nobody finds a second content for;
//! a member leaves out what is the same. The bytes that were hashed are then taken as if they had
//! arrived: what happens to the range meanwhile does as much as to any others on their way.

use super::refill::piece;
use super::{Container, State};
use bytes::{Bytes, BytesMut};
use perigee_proto::message::data::{InPlace, Region, Wanted};
use perigee_replica::Fetch;
use std::sync::Arc;

/// Fewer bytes than this travel as they are: the hash and the reading of them cost as much.
const LEN_MIN: u64 = 4 << 10;

/// What one fetch asks for, and what of it is in place.
pub(super) struct Asked {
    pub(super) fetch: Fetch,
    pub(super) in_place: Option<Bytes>,
}

impl Asked {
    /// Of what nothing is in place.
    pub(super) const fn new(fetch: Fetch) -> Self {
        Self {
            fetch,
            in_place: None,
        }
    }

    /// As the message has it.
    pub(super) fn wanted(&self) -> Wanted {
        Wanted {
            inode: self.fetch.inode,
            range: piece(self.fetch.range),
            in_place: self.in_place.as_deref().map(told),
        }
    }
}

/// Bytes as a message tells of them.
fn told(bytes: &[u8]) -> InPlace {
    let units = bytes.chunks(InPlace::UNIT).map(hash);
    InPlace {
        units: units.collect(),
    }
}

fn hash(unit: &[u8]) -> [u8; 32] {
    sha256([unit])
}

/// SHA-256 of some parts, one after the other.
pub(super) fn sha256<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> [u8; 32] {
    let mut context = ring::digest::Context::new(&ring::digest::SHA256);
    for part in parts {
        context.update(part);
    }
    let mut sha256 = [0; 32];
    sha256.copy_from_slice(context.finish().as_ref());
    sha256
}

/// Takes out of an answer, whose region begins at `start` of the payload and ends with it, what the one who asks has in place.
/// `None`: that is nothing, and all stays.
pub(super) fn leave_out(
    in_place: &InPlace,
    payload: &mut BytesMut,
    start: usize,
) -> Option<Region> {
    let content = payload.split_off(start);
    let (mut same, mut others) = (Vec::new(), BytesMut::new());
    let mut has = in_place.units.iter();
    for (number, unit) in (0..).zip(content.chunks(InPlace::UNIT)) {
        if has.next().is_some_and(|has| *has == hash(unit)) {
            same.push(number);
        } else {
            others.extend_from_slice(unit);
        }
    }
    if same.is_empty() {
        payload.unsplit(content);
        return None;
    }
    payload.unsplit(others);
    let len = content.len() as u64;
    Some(Region::Beside { len, same })
}

/// A region of which a part was sent.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Whole {
    pub(super) bytes: Bytes,
    /// How many of them were sent.
    pub(super) sent: usize,
}

/// The content of a region of `len` bytes, `most` at most: units of `own` where they are the `same`, and else what was `sent`. `None`: there is
/// no such content.
pub(super) fn put_together(
    own: &[u8],
    (len, most): (u64, u64),
    same: &[u32],
    sent: &[u8],
) -> Option<Whole> {
    // A peer may say anything.
    let len = usize::try_from(len).ok().filter(|_| len <= most)?;
    if !same.is_sorted_by(|a, b| a < b) {
        return None;
    }
    let mut bytes = BytesMut::with_capacity(len);
    let (mut same, mut at) = (same.iter().copied().peekable(), 0);
    for number in 0..u32::try_from(len.div_ceil(InPlace::UNIT)).ok()? {
        let unit = InPlace::UNIT.min(len - bytes.len());
        if same.next_if_eq(&number).is_some() {
            let from = bytes.len();
            bytes.extend_from_slice(own.get(from..from + unit)?);
        } else {
            bytes.extend_from_slice(sent.get(at..at + unit)?);
            at += unit;
        }
    }
    let whole = Whole {
        bytes: bytes.freeze(),
        sent: at,
    };
    same.next().is_none().then_some(whole)
}

impl Container {
    /// Reads what is in place of ranges that were never the content of this state as far as this node knows.
    pub(super) async fn look_in_place(self: &Arc<Self>, fetches: Vec<Fetch>) -> Vec<Asked> {
        let new = |fetches: &[Fetch]| fetches.iter().copied().map(Asked::new).collect();
        let any = {
            let st = self.state.lock();
            fetches.iter().any(|fetch| may_be_in_place(&st, fetch))
        };
        if !any {
            return new(&fetches);
        }
        let (me, looked) = (self.clone(), fetches.clone());
        let looked = self.env.runtime.spawn_blocking(move || {
            let asked = looked.into_iter().map(|fetch| Asked {
                fetch,
                in_place: me.bytes_in_place(&fetch),
            });
            asked.collect()
        });
        looked.await.unwrap_or_else(|_| new(&fetches))
    }

    fn bytes_in_place(&self, fetch: &Fetch) -> Option<Bytes> {
        let (inode, range) = (fetch.inode, piece(fetch.range));
        if !may_be_in_place(&self.state.lock(), fetch) {
            return None;
        }
        let object = &self.file(inode).ok()?.object;
        // A new copy is a hole.
        let data = object.seek_data(range.start).ok()??;
        if data >= range.end {
            return None;
        }
        // What does not fit its checksum is fetched as what is not there.
        let found = object.read_older(range).ok()??;
        (found.len() as u64 == range.len()).then_some(found)
    }
}

/// Whether what is in place of a range could be what is asked for, and is worth a look.
fn may_be_in_place(st: &State, fetch: &Fetch) -> bool {
    let range = piece(fetch.range);
    // What was written since is another content, and what is invalid for a record has not come.
    range.len() >= LEN_MIN && st.pull.spoiled(fetch.inode, range) == [range]
}

#[cfg(test)]
mod tests {
    use super::*;
    use perigee_types::Rng;

    /// What one end has, and the other.
    fn sides(rng: &mut Rng) -> (Vec<u8>, Vec<u8>) {
        let len = rng.below(6 * InPlace::UNIT as u64) as usize;
        let content: Vec<u8> = (0..len).map(|at| (at / 999) as u8).collect();
        let mut own = content.clone();
        own.resize(rng.below(6 * InPlace::UNIT as u64) as usize, 7);
        for _ in 0..rng.below(4) {
            let at = rng.below(own.len().max(1) as u64) as usize;
            if let Some(byte) = own.get_mut(at) {
                *byte ^= 1;
            }
        }
        (own, content)
    }

    #[test]
    fn what_is_left_out_is_put_together_again() {
        let mut rng = Rng::new(1);
        let mut left_out = 0;
        for _ in 0..500 {
            let (own, content) = sides(&mut rng);
            let mut payload = BytesMut::from(&b"before"[..]);
            payload.extend_from_slice(&content);
            match leave_out(&told(&own), &mut payload, 6) {
                None => assert_eq!(payload[6..], content),
                Some(Region::Beside { len, same }) => {
                    left_out += same.len();
                    let sent = payload.len() - 6;
                    payload.extend_from_slice(b"after");
                    let whole = put_together(&own, (len, len), &same, &payload[6..]);
                    let bytes = Bytes::from(content);
                    assert_eq!(whole, Some(Whole { bytes, sent }));
                }
                Some(other) => panic!("{other:?}"),
            }
            assert_eq!(payload[..6], b"before"[..]);
        }
        assert!(left_out > 300, "{left_out}");
    }

    #[test]
    fn answers_that_fit_nothing_are_refused() {
        const UNIT: u64 = InPlace::UNIT as u64;
        let own = vec![1; 2 * InPlace::UNIT];
        let fits = |len, same: &[u32], sent: &[u8]| {
            put_together(&own, (len, 3 * UNIT), same, sent).is_some()
        };
        assert!(fits(2 * UNIT, &[0, 1], &[]));
        assert!(fits(UNIT + 5, &[0], &[0; 5]));
        assert!(!fits(UNIT + 5, &[0], &[0; 4]), "too little was sent");
        assert!(
            !fits(3 * UNIT, &[0, 2], &vec![0; InPlace::UNIT]),
            "not in place"
        );
        assert!(!fits(2 * UNIT, &[0, 1, 2], &[]), "behind the end");
        assert!(!fits(2 * UNIT, &[1, 0], &[]), "not in order");
        assert!(
            !fits(3 * UNIT + 1, &[0], &vec![0; 3 * InPlace::UNIT]),
            "too long"
        );
    }
}
