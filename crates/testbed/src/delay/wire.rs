//! When a packet arrives that is sent now.

use std::num::NonZeroU64;
use std::time::{Duration, Instant};

/// How long a packet may wait for those before it; a router drops what comes after that.
const QUEUE: Duration = Duration::from_millis(50);

/// What lies between any two hosts, the same in both directions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wire {
    /// From one end to the other.
    pub one_way: Duration,
    /// Bytes a second; as fast as this machine where none is given.
    pub rate: Option<NonZeroU64>,
}

impl Wire {
    /// One without a bound on its rate, over which an answer comes after `round_trip`.
    #[must_use]
    pub fn of_round_trip(round_trip: Duration) -> Self {
        Self {
            one_way: round_trip / 2,
            rate: None,
        }
    }

    fn takes(self, bytes: u64) -> Duration {
        let Some(rate) = self.rate else {
            return Duration::ZERO;
        };
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(rate.get());
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

/// One direction of a wire.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lane {
    wire: Wire,
    /// When the last bit of what was sent before has left.
    free_at: Instant,
}

impl Lane {
    pub(super) fn new(wire: Wire, now: Instant) -> Self {
        Self { wire, free_at: now }
    }

    pub(super) fn set(&mut self, wire: Wire) {
        self.wire = wire;
    }

    /// When a packet that is sent now arrives, and never before one that was sent earlier; none where it is dropped.
    pub(super) fn send(&mut self, now: Instant, bytes: u64) -> Option<Instant> {
        let begins = self.free_at.max(now);
        if begins - now > QUEUE {
            return None;
        }
        self.free_at = begins + self.wire.takes(bytes);
        Some(self.free_at + self.wire.one_way)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn without_a_rate_every_packet_takes_the_same_time() {
        let start = Instant::now();
        let mut lane = Lane::new(Wire::of_round_trip(2 * MS), start);
        for bytes in [40, 65_000, 40] {
            assert_eq!(lane.send(start, bytes), Some(start + MS));
        }
        assert_eq!(lane.send(start + 5 * MS, 40), Some(start + 6 * MS));
    }

    #[test]
    fn with_a_rate_packets_wait_for_those_before_them_until_there_are_too_many() {
        let start = Instant::now();
        let wire = Wire {
            one_way: 3 * MS,
            rate: NonZeroU64::new(1_000_000),
        };
        let mut lane = Lane::new(wire, start);
        for place in 1..=51_u32 {
            assert_eq!(lane.send(start, 1_000), Some(start + place * MS + 3 * MS));
        }
        assert_eq!(lane.send(start, 1_000), None);
        // What was dropped takes no time of those after it.
        assert_eq!(lane.send(start + MS, 1_000), Some(start + 55 * MS));
        assert_eq!(lane.send(start + 90 * MS, 1_000), Some(start + 94 * MS));
    }
}
