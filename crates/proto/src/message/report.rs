//! What nodes ask of each other to answer people.

use perigee_cluster::Coordinate;
use perigee_types::{ContainerId, InodeId, NodeId, Span};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// How does this node do? Reading only: a repeat is harmless.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AskReport;

/// So it does.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeReport {
    /// Bytes that its store takes on its disk; none while they are still being counted.
    pub used: Option<u64>,
    /// Bytes free on that disk; none when the disk does not say.
    pub free: Option<u64>,
    /// Bytes of file content that it has yet to fetch, of each container that it holds.
    pub missing: Vec<(ContainerId, u64)>,
    /// How fast it fetches them; 0 when it does not, or does not know yet.
    pub bytes_per_second: u64,
    /// Containers that take no changes there, since its disk failed.
    pub read_only: Vec<ContainerId>,
    /// Its wall clock, in milliseconds since 1970.
    pub clock_ms: i64,
    /// Of the containers that it holds those of which it does not have what a member must have, as after the loss of its disk.
    pub partial: Vec<ContainerId>,
    /// How often it has given containers away to members that worked in them, since it started.
    pub given_away: Vec<(ContainerId, u64)>,
    /// Bytes that its copies of containers take on its disk, without what lies among the keys.
    pub held: Vec<(ContainerId, u64)>,
    /// What its programs did lately, in each container where they did anything.
    pub heat: Vec<(ContainerId, Heat)>,
    /// Where it is in the network, as far as it knows.
    pub coordinate: Coordinate,
    /// The round trips that it has measured lately, without what stood in their way.
    pub round_trips: Vec<(NodeId, Span)>,
}

/// A number of at least 0 with three decimals: written as 12.345, kept as 12,345.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Thousandths(pub u64);

impl Thousandths {
    /// Up to here every one of them is a different floating-point number.
    const MAX: f64 = 1e15;

    /// The nearest; what is no number, or below 0, is 0.
    #[must_use]
    pub fn of(number: f64) -> Self {
        // A conversion stays within its bounds, and takes what is no number for 0.
        Self((number * 1e3).round().clamp(0.0, Self::MAX) as u64)
    }

    /// As a number.
    #[must_use]
    pub fn as_f64(self) -> f64 {
        self.0 as f64 / 1e3
    }

    /// `part` of `whole`, from 0 to 1; `None`: of nothing.
    #[must_use]
    pub fn share(part: u64, whole: u64) -> Option<Self> {
        (whole > 0).then(|| Self::of(part as f64 / whole as f64))
    }
}

impl Serialize for Thousandths {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(self.as_f64())
    }
}

impl<'de> Deserialize<'de> for Thousandths {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        f64::deserialize(deserializer).map(Self::of)
    }
}

/// What programs of one host do: means over about the last minute, in which what is older counts less and less.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rates {
    /// Reads of content, names and attributes.
    pub reads_per_second: Thousandths,
    /// Changes of content, names and attributes.
    pub writes_per_second: Thousandths,
    /// Content that was read.
    pub read_bytes_per_second: u64,
    /// Content that was written.
    pub written_bytes_per_second: u64,
}

impl Rates {
    fn calls(self) -> u64 {
        let Self {
            reads_per_second: Thousandths(reads),
            writes_per_second: Thousandths(writes),
            ..
        } = self;
        reads.saturating_add(writes)
    }

    fn bytes(self) -> u64 {
        let read = self.read_bytes_per_second;
        read.saturating_add(self.written_bytes_per_second)
    }

    fn and(self, other: Self) -> Self {
        let sum = |a: Thousandths, b: Thousandths| Thousandths(a.0.saturating_add(b.0));
        let read = self.read_bytes_per_second;
        let written = self.written_bytes_per_second;
        Self {
            reads_per_second: sum(self.reads_per_second, other.reads_per_second),
            writes_per_second: sum(self.writes_per_second, other.writes_per_second),
            read_bytes_per_second: read.saturating_add(other.read_bytes_per_second),
            written_bytes_per_second: written.saturating_add(other.written_bytes_per_second),
        }
    }
}

/// What programs of a host do, and who serves them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heat {
    /// What their own host answered, and asked nobody.
    pub here: Rates,
    /// What it had to ask another host for.
    pub asked: Rates,
}

impl Heat {
    /// Both together.
    #[must_use]
    pub fn all(self) -> Rates {
        self.here.and(self.asked)
    }

    /// That of two hosts, or of two containers.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            here: self.here.and(other.here),
            asked: self.asked.and(other.asked),
        }
    }

    /// Whether nothing is done.
    #[must_use]
    pub fn is_cold(self) -> bool {
        self == Self::default()
    }

    /// Which part of the calls their own host answered; `None` where there are none.
    #[must_use]
    pub fn local_calls(self) -> Option<Thousandths> {
        Thousandths::share(self.here.calls(), self.all().calls())
    }

    /// Which part of the bytes; `None` where there are none.
    #[must_use]
    pub fn local_bytes(self) -> Option<Thousandths> {
        Thousandths::share(self.here.bytes(), self.all().bytes())
    }
}

/// What is wanted of a node's scrub.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScrubWish {
    /// How it stands.
    Look,
    /// A pass over everything that it keeps, from now on; one that somebody asked for already goes on as it is.
    Begin {
        /// Bytes to read in a second; none: as fast as it goes.
        bytes_per_second: Option<u64>,
    },
    /// No more of the pass that is under way.
    Stop,
}

/// Something is wanted of this node's scrub. A repeat changes nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scrub {
    /// What.
    pub wish: ScrubWish,
}

/// How it stands with a node's scrub.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scrubbing {
    /// The pass under way, or the last one since the node started.
    pub pass: Option<ScrubPass>,
}

/// Whether a pass is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScrubState {
    /// It is under way.
    Running,
    /// It went over everything.
    Done,
    /// Somebody stopped it; the next one in the background goes on there.
    Stopped,
}

/// One pass of a node over what it keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubPass {
    /// Whether it is over.
    pub state: ScrubState,
    /// Somebody asked for it; otherwise it was due.
    pub asked_for: bool,
    /// When it began, in seconds since 1970.
    pub began_secs: u64,
    /// How long it has taken.
    pub took_ms: u64,
    /// About how many bytes there are.
    pub bytes_in_all: u64,
    /// What it has found.
    pub found: ScrubFound,
}

impl ScrubPass {
    /// One that begins.
    #[must_use]
    pub fn begun(asked_for: bool, began_secs: u64, bytes_in_all: u64) -> Self {
        Self {
            state: ScrubState::Running,
            asked_for,
            began_secs,
            took_ms: 0,
            bytes_in_all,
            found: ScrubFound::default(),
        }
    }
}

/// What a pass has found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubFound {
    /// Files that were gone over.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes of blocks that are not what was written.
    pub corrupt: u64,
    /// Of those: here again, from another member.
    pub repaired: u64,
    /// Of those: no member could give them in time.
    pub unrepaired: u64,
    /// Files that could not be read at all.
    pub errors: u64,
}

/// Who may keep a file, or has locks on it? Answered by the owner.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AskHolders {
    /// The file or directory.
    pub inode: InodeId,
}

/// Why a host is a holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Hold {
    /// It may keep attributes, names or content, and is told before they change.
    Read,
    /// A program of it has a `flock` lock.
    Flock,
    /// A program of it has an `fcntl` lock.
    Fcntl,
    /// Chunks of the file belong to it: it writes there without asking.
    Chunks,
}

/// These do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holders {
    /// Each host once for each kind of hold.
    pub holders: Vec<(NodeId, Hold)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_that_of_all_and_none_of_nothing() {
        let rates = |reads, bytes| Rates {
            reads_per_second: Thousandths(reads),
            read_bytes_per_second: bytes,
            ..Rates::default()
        };
        let heat = Heat {
            here: rates(9_000, 10),
            asked: rates(1_000, 30),
        };
        assert_eq!(heat.local_calls(), Some(Thousandths(900)));
        assert_eq!(heat.local_bytes(), Some(Thousandths(250)));
        assert_eq!(Heat::default().local_calls(), None);
        assert_eq!(heat.and(Heat::default()), heat);
        let most = Heat {
            here: rates(u64::MAX, u64::MAX),
            ..heat
        };
        assert_eq!(most.and(most).local_calls(), Some(Thousandths(1_000)));
    }

    #[test]
    fn numbers_with_decimals_are_read_as_they_are_written() {
        for number in [0, 1, 999, 12_345, 999_999_999_999_999] {
            let read = crate::decode(&crate::encode(&Thousandths(number)));
            assert_eq!(read.ok(), Some(Thousandths(number)));
        }
        for wrong in [f64::NAN, -1.0, f64::NEG_INFINITY] {
            assert_eq!(Thousandths::of(wrong), Thousandths(0));
        }
        assert_eq!(Thousandths::of(f64::INFINITY).0, 1_000_000_000_000_000);
    }
}
