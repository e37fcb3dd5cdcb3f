//! How fast this node fetches what it lacks, for people who wait for it.

use parking_lot::Mutex;
use std::time::{Duration, Instant};

/// Over what time the speed is taken.
const WINDOW: Duration = Duration::from_secs(2);
/// Nothing for so long: nobody fetches.
const OVER: Duration = Duration::from_secs(6);

/// The speed of the last seconds.
#[derive(Debug)]
pub(crate) struct Pace(Mutex<State>);

#[derive(Debug)]
struct State {
    began: Instant,
    bytes: u64,
    bytes_per_second: u64,
}

impl Default for Pace {
    fn default() -> Self {
        Self(Mutex::new(State {
            began: Instant::now(),
            bytes: 0,
            bytes_per_second: 0,
        }))
    }
}

impl Pace {
    /// Some bytes came in.
    pub(crate) fn add(&self, bytes: u64, now: Instant) {
        let mut state = self.0.lock();
        let took = now.duration_since(state.began);
        if took > OVER {
            // The first after a pause: how long it took nobody knows.
            (state.began, state.bytes) = (now, 0);
            state.bytes_per_second = 0;
        } else if took >= WINDOW {
            state.bytes_per_second = (state.bytes as f64 / took.as_secs_f64()) as u64;
            (state.began, state.bytes) = (now, 0);
        }
        state.bytes += bytes;
    }

    /// Bytes in a second; 0 when nothing came in for a while, or is not known yet.
    pub(crate) fn bytes_per_second(&self, now: Instant) -> u64 {
        let state = self.0.lock();
        let is_over = now.duration_since(state.began) > OVER;
        if is_over { 0 } else { state.bytes_per_second }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_speed_is_that_of_the_last_seconds() {
        let pace = Pace::default();
        let began = Instant::now();
        let at = |ms| began + Duration::from_millis(ms);
        (0..10).for_each(|tenth| pace.add(1_000, at(tenth * 100)));
        assert_eq!(pace.bytes_per_second(at(1_000)), 0, "not known yet");
        pace.add(1_000, at(2_500));
        let speed = pace.bytes_per_second(at(2_500));
        assert!((3_900..=4_100).contains(&speed), "{speed}");
        assert_eq!(pace.bytes_per_second(at(9_000)), 0);
        pace.add(1_000, at(60_000));
        assert_eq!(pace.bytes_per_second(at(60_000)), 0);
    }
}
