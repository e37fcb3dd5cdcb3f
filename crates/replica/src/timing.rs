//! The times of the chain protocol, and the inequality that makes its leases safe.

use perigee_types::{Span, Tick};

/// Times of one chain. All nodes of a cluster use the same ones.
///
/// Safe while `lease / (1 - drift) < takeover / (1 + drift)` in real time; see [`Timing::is_safe`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// The owner sends to each member at least this often.
    pub heartbeat: Span,
    /// How long an acknowledged message lets the owner go on, from the moment when it was sent.
    pub lease: Span,
    /// A member proposes itself this long after it granted its last lease.
    pub takeover: Span,
    /// Added once for each place in the chain, so that the members do not propose at once.
    pub stagger: Span,
    /// The owner removes a member that answers, but has made nothing durable for this long.
    pub stall: Span,
    /// A joiner that has fetched all there was within this is awaited from then on.
    pub brief: Span,
    /// How much faster or slower than true time a node's clock may run, in per cent.
    pub drift_percent: u64,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            heartbeat: Span::from_millis(300),
            lease: Span::from_millis(2_000),
            takeover: Span::from_millis(2_500),
            stagger: Span::from_millis(150),
            stall: Span::from_millis(10_000),
            brief: Span::from_millis(500),
            drift_percent: 5,
        }
    }
}

impl Timing {
    /// The part of the lease that the owner uses: less by the drift, on its own clock.
    #[must_use]
    pub const fn lease_held(&self) -> Span {
        Span(self.lease.0 - self.lease.0 * self.drift_percent / 100)
    }

    /// When an owner sends to all its members next: at the same moments for all containers of a node, whose messages leave together
    /// then.
    #[must_use]
    pub const fn next_heartbeat(&self, now: Tick) -> Tick {
        Tick((now.0 / self.heartbeat.0 + 1) * self.heartbeat.0)
    }

    /// Whether no member can take over before the owner's lease has run out, at the worst drift.
    #[must_use]
    pub const fn is_safe(&self) -> bool {
        let (slow, fast) = (100 - self.drift_percent, 100 + self.drift_percent);
        self.drift_percent < 100 && self.lease_held().0 * fast < self.takeover.0 * slow
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heartbeats_are_due_at_moments_that_all_containers_share() {
        let timing = Timing::default();
        let after = |offset: u64| timing.next_heartbeat(Tick(3_000_000 + offset));
        for offset in [0, 1, 150_000, 299_999] {
            assert_eq!(after(offset), Tick(3_300_000), "at {offset}");
        }
        assert_eq!(after(300_000), Tick(3_600_000));
    }

    #[test]
    fn default_times_are_safe_and_a_short_takeover_is_not() {
        assert!(Timing::default().is_safe());
        let short = Timing {
            takeover: Span::from_millis(2_050),
            ..Timing::default()
        };
        assert!(!short.is_safe());
    }
}
