//! How fast a copy is filled that nobody waits for: as fast as programs do not feel it.
//!
//! What fills it competes with programs for disks, links and processors of every node that gives. Each of these shows in
//! the time that an answer takes: when answers take longer than the fastest ones did, fewer are asked for at a time, and
//! then there is a rest between them (as LEDBAT, RFC 6817, does for background transfers).

use std::time::Duration;

/// Requests under way, at most.
pub(super) const REQUESTS_MAX: usize = 6;
/// An answer that takes so much longer than the fastest, in per cent of that, met somebody.
const LATE_PERCENT: f64 = 150.0;
/// Each answer lets the fastest be forgotten by so much: links and disks change.
const FORGET: f64 = 1.01;
/// A region of a request costs as much as so many bytes.
const REGION_COST: u64 = 32 << 10;
/// The longest rest.
const REST_MAX: Duration = Duration::from_millis(200);

/// What was learnt from the answers so far.
#[derive(Debug, Clone, Copy)]
pub(super) struct Gentle {
    /// Seconds that a unit of cost took where it went fastest.
    fastest: f64,
    /// Requests that may be under way.
    window: f64,
    rest: Duration,
}

impl Default for Gentle {
    fn default() -> Self {
        Self {
            fastest: f64::INFINITY,
            window: 1.0,
            rest: Duration::ZERO,
        }
    }
}

/// What a request asks for, as one number.
pub(super) fn cost(regions: usize, bytes: u64) -> u64 {
    bytes.saturating_add(REGION_COST.saturating_mul(regions as u64))
}

impl Gentle {
    /// An answer to a request of this cost came.
    pub(super) fn answered(&mut self, took: Duration, cost: u64) {
        let each = took.as_secs_f64() / cost.max(1) as f64;
        self.fastest = (self.fastest * FORGET).min(each);
        if each * 100.0 <= self.fastest * LATE_PERCENT {
            self.window = (self.window + 1.0 / self.window).min(REQUESTS_MAX as f64);
            self.rest = Duration::ZERO;
        } else if self.window >= 2.0 {
            self.window /= 2.0;
        } else {
            self.window = 1.0;
            self.rest = took.min(REST_MAX);
        }
    }

    /// How many requests may be under way.
    pub(super) const fn requests(&self) -> usize {
        self.window as usize
    }

    /// How long to wait after an answer before the next request.
    pub(super) const fn rest(&self) -> Duration {
        self.rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// The requests under way after some answers, each of which takes `time` of how many are.
    fn after(gentle: &mut Gentle, answers: usize, time: impl Fn(u32) -> Duration) -> usize {
        for _ in 0..answers {
            let under_way = gentle.requests() as u32;
            gentle.answered(time(under_way), 1 << 21);
        }
        gentle.requests()
    }

    #[test]
    fn a_long_way_takes_as_many_as_may_be() {
        let mut gentle = Gentle::default();
        assert_eq!(after(&mut gentle, 40, |_| 50 * MS), REQUESTS_MAX);
        assert_eq!(gentle.rest(), Duration::ZERO);
    }

    #[test]
    fn what_is_shared_is_asked_for_once_at_a_time() {
        let mut gentle = Gentle::default();
        let mut most = 0;
        for _ in 0..100 {
            most = most.max(after(&mut gentle, 1, |under_way| 4 * MS * under_way));
        }
        assert!(most <= 2, "{most} at a time, each in the way of the others");
    }

    #[test]
    fn programs_get_half_of_the_time_and_it_is_taken_back_when_they_rest() {
        let mut gentle = Gentle::default();
        after(&mut gentle, 10, |_| 4 * MS);
        assert_eq!(after(&mut gentle, 10, |_| 20 * MS), 1);
        assert_eq!(gentle.rest(), 20 * MS);
        after(&mut gentle, 20, |_| 4 * MS);
        assert_eq!(gentle.rest(), Duration::ZERO);
        assert!(gentle.requests() > 1);
    }

    #[test]
    fn small_files_are_not_taken_for_somebody_in_the_way() {
        let mut gentle = Gentle::default();
        for number in 0..40 {
            let (regions, bytes) = if number % 2 == 0 {
                (2, 2 << 20)
            } else {
                (64, 256 << 10)
            };
            gentle.answered(4 * MS, cost(regions, bytes));
        }
        assert!(gentle.requests() > 1, "{gentle:?}");
    }
}
