//! Clocks of hosts: each runs at its own rate from its own start. Within the bound that the protocol reckons with every
//! law holds. Beyond it leases may be counted wrong, and only those laws are checked that do not rest on leases.

use perigee_replica::Timing;
use perigee_types::{Rng, Tick};

/// How much faster or slower clocks beyond the bound run, at most: so many times the bound.
const BEYOND_TIMES: u64 = 8;
/// The earliest start of a clock: room for one that is set to run slower.
const EARLIEST: u64 = 1 << 40;
/// True time in which a clock that shows true time shows as much.
const SECOND: u64 = 1_000_000;

/// How far the hosts' clocks are from true time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Drift {
    /// As far as the protocol reckons with, at most.
    #[default]
    Within,
    /// Several times as far, and they jump. Whoever reads may be shown what is old then, since two nodes may both believe
    /// in their leases: the laws `coherent` and `cached`, the part of `one owner` that is about leases, and of `as if
    /// alone` what is about answers without an effect are not checked. All others are: the epoch fences what changes.
    Beyond,
}

impl Drift {
    /// How wrong the clocks of a seed's history are: each eighth seed's are beyond the bound.
    #[must_use]
    pub const fn of(seed: u64) -> Self {
        if seed % 8 == 3 {
            Self::Beyond
        } else {
            Self::Within
        }
    }
}

/// A clock that runs at its own rate from its own start.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    /// Microseconds at true time 0.
    offset: u64,
    /// Parts in a million of true time.
    rate: u64,
}

impl Clock {
    /// Drawn; often at the end of what is allowed.
    #[must_use]
    pub fn new(rng: &mut Rng, timing: &Timing, drift: Drift) -> Self {
        Self::drawn(rng, timing, drift, |rng, most| {
            rng.below(6 * most).clamp(2 * most, 4 * most) - 2 * most
        })
    }

    /// Drawn evenly from what is allowed.
    #[must_use]
    pub fn any(rng: &mut Rng, timing: &Timing, drift: Drift) -> Self {
        Self::drawn(rng, timing, drift, |rng, most| rng.below(2 * most))
    }

    /// `draw` says by how much it is faster than the slowest, from how much a clock may be off.
    fn drawn(
        rng: &mut Rng,
        timing: &Timing,
        drift: Drift,
        draw: impl FnOnce(&mut Rng, u64) -> u64,
    ) -> Self {
        let offset = EARLIEST + rng.below(1 << 40);
        let bound = timing.drift_percent * SECOND / 100;
        let most = match drift {
            Drift::Within => bound,
            Drift::Beyond => bound * (2 + rng.below(BEYOND_TIMES - 1)),
        };
        let rate = SECOND - most + draw(rng, most);
        Self { offset, rate }
    }

    /// What it shows at a true time.
    #[must_use]
    pub fn at(self, now: u64) -> Tick {
        Tick(self.offset + self.elapsed(now))
    }

    /// The first true time at which it shows at least `tick`.
    #[must_use]
    pub fn when(self, tick: Tick) -> u64 {
        let local = u128::from(tick.0.saturating_sub(self.offset));
        let at = (local * u128::from(SECOND)).div_ceil(u128::from(self.rate));
        u64::try_from(at).unwrap_or(u64::MAX)
    }

    /// It shows `span` more from now on.
    pub fn jump(&mut self, span: u64) {
        self.offset += span;
    }

    /// It goes on from what it shows at true rate.
    pub fn correct(&mut self, now: u64) {
        let shown = self.at(now).0;
        self.rate = SECOND;
        self.offset = shown - self.elapsed(now);
    }

    fn elapsed(self, now: u64) -> u64 {
        now / SECOND * self.rate + now % SECOND * self.rate / SECOND
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_is_corrected_goes_on_from_what_it_shows() {
        let mut rng = Rng::new(5);
        for _ in 0..1_000 {
            let mut clock = Clock::new(&mut rng, &Timing::default(), Drift::Beyond);
            clock.jump(rng.below(10 * SECOND));
            let now = rng.below(60 * SECOND);
            let shown = clock.at(now);
            clock.correct(now);
            assert_eq!(clock.at(now), shown);
            assert_eq!(clock.at(now + SECOND).since(shown).0, SECOND);
            assert_eq!(clock.when(shown), now);
        }
    }

    #[test]
    fn clocks_keep_to_the_bound_or_go_several_times_beyond_it() {
        let (mut rng, timing) = (Rng::new(1), Timing::default());
        let mut off = |drift| {
            let clocks = (0..1_000).map(|_| Clock::new(&mut rng, &timing, drift));
            let off = clocks.map(|clock| clock.rate.abs_diff(SECOND) * 100 / SECOND);
            off.max()
        };
        assert_eq!(off(Drift::Within), Some(timing.drift_percent));
        assert_eq!(
            off(Drift::Beyond),
            Some(timing.drift_percent * BEYOND_TIMES)
        );
    }
}
