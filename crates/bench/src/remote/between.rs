//! What lies between the two hosts.

use perigee_testbed::delay::Wire;
use perigee_testbed::links::address_of;
use perigee_testbed::{Checked, Cluster};
use std::fmt;
use std::net::Ipv4Addr;
use std::num::NonZeroU64;
use std::str::FromStr;
use std::time::Duration;

const BYTES_PER_MBIT: u64 = 1_000_000 / 8;

/// What lies between the two hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Between {
    /// Nothing: both are this machine.
    Loopback,
    /// A link that takes its time.
    Link(Wire),
}

impl Between {
    /// A link of so many million bits a second, over which an answer comes after so many milliseconds. Without a rate (0) it is as
    /// fast as this machine.
    #[must_use]
    pub fn link(mbit: u32, round_trip_ms: u32) -> Self {
        let wire = Wire::of_round_trip(Duration::from_millis(round_trip_ms.into()));
        Self::Link(Wire {
            rate: NonZeroU64::new(u64::from(mbit) * BYTES_PER_MBIT),
            ..wire
        })
    }

    pub(super) fn cluster(self, nodes: u32, limit: Duration) -> Checked<Cluster> {
        match self {
            Self::Loopback => Cluster::start_within(nodes, limit),
            Self::Link(wire) => Cluster::start_far_apart(nodes, limit, wire),
        }
    }

    /// Runs on a host.
    pub(super) fn inside<T: Send>(
        self,
        cluster: &Cluster,
        host: u32,
        run: impl FnOnce() -> Checked<T> + Send,
    ) -> Checked<T> {
        match self {
            Self::Loopback => run(),
            Self::Link(_) => cluster.links()?.inside(host, run),
        }
    }

    /// Where a host is found.
    pub(super) fn address(self, host: u32) -> Ipv4Addr {
        match self {
            Self::Loopback => Ipv4Addr::LOCALHOST,
            Self::Link(_) => address_of(host),
        }
    }

    /// For people.
    #[must_use]
    pub fn title(&self) -> String {
        match self {
            Self::Loopback => "loopback".to_owned(),
            Self::Link(wire) if wire.rate.is_none() => format!("{} ms", round_trip_ms(*wire)),
            Self::Link(wire) => format!("{} Mbit/s, {} ms", mbit(*wire), round_trip_ms(*wire)),
        }
    }

    /// In names of files.
    #[must_use]
    pub fn key(&self) -> String {
        match self {
            Self::Loopback => "loopback".to_owned(),
            Self::Link(wire) => format!("{}mbit_{}ms", mbit(*wire), round_trip_ms(*wire)),
        }
    }
}

fn mbit(wire: Wire) -> u64 {
    wire.rate.map_or(0, |rate| rate.get() / BYTES_PER_MBIT)
}

fn round_trip_ms(wire: Wire) -> u128 {
    (wire.one_way * 2).as_millis()
}

/// As it is given on the command line.
impl fmt::Display for Between {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Loopback => write!(out, "loopback"),
            Self::Link(wire) => write!(out, "{}:{}", mbit(*wire), round_trip_ms(*wire)),
        }
    }
}

/// `loopback`, or `MBIT:MS`.
impl FromStr for Between {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "loopback" {
            return Ok(Self::Loopback);
        }
        let parts = text.split_once(':');
        let numbers = parts.and_then(|(mbit, ms)| Some((mbit.parse().ok()?, ms.parse().ok()?)));
        match numbers {
            Some((mbit, ms)) if ms <= 10_000 => Ok(Self::link(mbit, ms)),
            _ => Err(format!(
                "`{text}` is no link: give `loopback`, or million bits a second and milliseconds there and back, as in `1000:20`"
            )),
        }
    }
}
