//! The two clocks of a node: the only place that reads them.

use perigee_types::{Tick, WallTime};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// A monotonic clock that starts at 1 second, so that "long ago" is representable.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    start: Instant,
}

impl Clock {
    /// A clock that starts now.
    #[must_use]
    pub fn start() -> Self {
        Self {
            start: Instant::now(),
        }
    }

    /// This moment, for decisions.
    #[must_use]
    pub fn now(&self) -> Tick {
        Tick(self.start.elapsed().as_micros() as u64 + 1_000_000)
    }

    /// This moment, for what `stat` shows.
    #[must_use]
    pub fn wall(&self) -> WallTime {
        wall_of(SystemTime::now())
    }
}

/// A moment by the wall clock, as a file system or that clock gives it.
pub(crate) fn wall_of(time: SystemTime) -> WallTime {
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => WallTime {
            secs: since.as_secs() as i64,
            nanos: since.subsec_nanos(),
        },
        Err(before) => WallTime {
            secs: -(before.duration().as_secs() as i64),
            nanos: 0,
        },
    }
}
