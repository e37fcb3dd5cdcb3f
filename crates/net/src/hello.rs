//! The first frame of each side: who speaks which versions, of which cluster, as which process.
//!
//! Hello: versions from and to (2 bytes each), lane (1), cluster (16), incarnation (8). Answer: verdict (1), versions from
//! and to (2 each), incarnation (8). Bytes after these are from a later version and not read. Little-endian.

use bytes::Bytes;
use perigee_proto::Priority;
use std::ops::RangeInclusive;

use crate::error::{ConnectError, Ended};
use crate::frame::{Bounds, Frame, Kind};
use crate::identity::ClusterId;
use crate::queue::Outgoing;

/// Before its hello a peer may send no more than this.
pub(crate) const BOUNDS: Bounds = Bounds {
    body_max: 1 << 10,
    payload_max: 0,
};

/// The connections of one caller to one peer: bulk data never stands before a heartbeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum LaneName {
    /// Control and meta.
    Urgent,
    /// Data and background.
    Bulk(Stream),
    /// The one request of somebody who joins.
    Join,
}

/// One of the connections that bulk data goes over by turns, from 0.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Stream(pub(crate) u8);

/// More connections of one caller fill no link better.
pub(crate) const STREAMS_MAX: u8 = 4;

impl LaneName {
    pub(crate) const fn is_bulk(priority: Priority) -> bool {
        match priority {
            Priority::Control | Priority::Meta => false,
            Priority::Data | Priority::Background => true,
        }
    }

    const fn number(self) -> u8 {
        match self {
            Self::Urgent => 1,
            Self::Bulk(Stream(0)) => 2,
            Self::Join => 3,
            Self::Bulk(Stream(further)) => 3 + further,
        }
    }

    const fn numbered(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::Urgent,
            2 => Self::Bulk(Stream(0)),
            3 => Self::Join,
            _ if number > 3 && number < 3 + STREAMS_MAX => Self::Bulk(Stream(number - 3)),
            _ => return None,
        })
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) versions: RangeInclusive<u16>,
    pub(crate) lane: LaneName,
    pub(crate) cluster: ClusterId,
    pub(crate) incarnation: u64,
}

fn frame(body: Vec<u8>) -> Outgoing {
    Outgoing::new(Kind::Hello, Priority::Control, 0, 0).with_content(body.into(), Bytes::new())
}

impl Hello {
    pub(crate) fn frame(&self) -> Outgoing {
        let mut body = Vec::with_capacity(29);
        body.extend_from_slice(&self.versions.start().to_le_bytes());
        body.extend_from_slice(&self.versions.end().to_le_bytes());
        body.push(self.lane.number());
        body.extend_from_slice(&self.cluster.0.to_le_bytes());
        body.extend_from_slice(&self.incarnation.to_le_bytes());
        frame(body)
    }

    pub(crate) fn read(from: &Frame) -> Result<Self, Ended> {
        if from.header.kind != Kind::Hello {
            return Err(Ended::Unexpected(from.header.kind));
        }
        Self::parse(&from.body).ok_or(Ended::Hello("malformed"))
    }

    fn parse(body: &[u8]) -> Option<Self> {
        let (from, rest) = body.split_first_chunk::<2>()?;
        let (to, rest) = rest.split_first_chunk::<2>()?;
        let (lane, rest) = rest.split_first()?;
        let (cluster, rest) = rest.split_first_chunk::<16>()?;
        let (incarnation, _later) = rest.split_first_chunk::<8>()?;
        Some(Self {
            versions: u16::from_le_bytes(*from)..=u16::from_le_bytes(*to),
            lane: LaneName::numbered(*lane)?,
            cluster: ClusterId(u128::from_le_bytes(*cluster)),
            incarnation: u64::from_le_bytes(*incarnation),
        })
    }
}

/// The highest version in both ranges.
pub(crate) fn common_version(
    ours: &RangeInclusive<u16>,
    theirs: &RangeInclusive<u16>,
) -> Option<u16> {
    let from = *ours.start().max(theirs.start());
    let to = *ours.end().min(theirs.end());
    (from <= to).then_some(to)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Welcome,
    Version,
    OtherCluster,
    Superseded,
}

/// What the listener answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HelloAnswer {
    pub(crate) verdict: Verdict,
    pub(crate) versions: RangeInclusive<u16>,
    pub(crate) incarnation: u64,
}

impl HelloAnswer {
    pub(crate) fn frame(&self) -> Outgoing {
        let verdict: u8 = match self.verdict {
            Verdict::Welcome => 0,
            Verdict::Version => 1,
            Verdict::OtherCluster => 2,
            Verdict::Superseded => 3,
        };
        let mut body = vec![verdict];
        body.extend_from_slice(&self.versions.start().to_le_bytes());
        body.extend_from_slice(&self.versions.end().to_le_bytes());
        body.extend_from_slice(&self.incarnation.to_le_bytes());
        frame(body)
    }

    fn parse(body: &[u8]) -> Option<Self> {
        let (verdict, rest) = body.split_first()?;
        let (from, rest) = rest.split_first_chunk::<2>()?;
        let (to, rest) = rest.split_first_chunk::<2>()?;
        let (incarnation, _later) = rest.split_first_chunk::<8>()?;
        Some(Self {
            verdict: match verdict {
                0 => Verdict::Welcome,
                1 => Verdict::Version,
                2 => Verdict::OtherCluster,
                3 => Verdict::Superseded,
                _ => return None,
            },
            versions: u16::from_le_bytes(*from)..=u16::from_le_bytes(*to),
            incarnation: u64::from_le_bytes(*incarnation),
        })
    }

    /// The incarnation of the peer, or why it does not want us.
    pub(crate) fn read(from: &Frame, ours: &RangeInclusive<u16>) -> Result<u64, ConnectError> {
        let broke = |detail: &str| ConnectError::Protocol {
            detail: detail.to_owned(),
        };
        if from.header.kind != Kind::Hello {
            return Err(broke("no hello"));
        }
        let answer = Self::parse(&from.body).ok_or_else(|| broke("malformed hello"))?;
        match answer.verdict {
            Verdict::Welcome if common_version(ours, &answer.versions).is_some() => {
                Ok(answer.incarnation)
            }
            Verdict::Welcome | Verdict::Version => Err(ConnectError::Version {
                theirs: answer.versions,
                ours: ours.clone(),
            }),
            Verdict::OtherCluster => Err(ConnectError::OtherCluster),
            Verdict::Superseded => Err(ConnectError::Superseded),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_highest_common_version_is_chosen() {
        assert_eq!(common_version(&(1..=3), &(2..=5)), Some(3));
        assert_eq!(common_version(&(4..=4), &(2..=5)), Some(4));
        assert_eq!(common_version(&(1..=3), &(4..=5)), None);
        assert_eq!(common_version(&(1..=3), &RangeInclusive::new(5, 2)), None);
    }

    #[test]
    fn lanes_have_numbers_of_their_own() {
        let bulk = (0..STREAMS_MAX).map(|stream| LaneName::Bulk(Stream(stream)));
        let all: Vec<_> = bulk.chain([LaneName::Urgent, LaneName::Join]).collect();
        for lane in &all {
            assert_eq!(LaneName::numbered(lane.number()), Some(*lane));
        }
        let named = (0..=u8::MAX).filter_map(LaneName::numbered);
        assert_eq!(named.count(), all.len());
    }

    #[test]
    fn hellos_round_trip_and_ignore_what_later_versions_add() {
        let hello = Hello {
            versions: 2..=9,
            lane: LaneName::Bulk(Stream(0)),
            cluster: ClusterId(42),
            incarnation: 7,
        };
        let mut body = hello.frame().body.to_vec();
        assert_eq!(Hello::parse(&body), Some(hello.clone()));
        body.push(1);
        assert_eq!(Hello::parse(&body), Some(hello));
        let answer = HelloAnswer {
            verdict: Verdict::Superseded,
            versions: 1..=1,
            incarnation: 3,
        };
        assert_eq!(HelloAnswer::parse(&answer.frame().body), Some(answer));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            _ = (Hello::parse(&bytes), HelloAnswer::parse(&bytes));
        }
    }
}
