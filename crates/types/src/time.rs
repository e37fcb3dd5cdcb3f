//! Two kinds of time: monotonic [`Tick`] for every decision, [`WallTime`] only for what `stat` shows.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::{Add, Sub};

/// A moment on one node's monotonic clock, in microseconds since an arbitrary start.
/// Two nodes' ticks cannot be compared.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Tick(pub u64);

/// A length of time in microseconds.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Span(pub u64);

impl Span {
    /// No time at all.
    pub const ZERO: Self = Self(0);

    /// A span of whole milliseconds.
    #[must_use]
    pub const fn from_millis(ms: u64) -> Self {
        Self(ms * 1000)
    }

    /// The span in microseconds.
    #[must_use]
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// The span as the standard library's type.
    #[must_use]
    pub const fn as_duration(self) -> std::time::Duration {
        std::time::Duration::from_micros(self.0)
    }
}

impl Tick {
    /// The time from `earlier` to this moment; zero when `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Tick) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Span> for Tick {
    type Output = Tick;
    fn add(self, span: Span) -> Tick {
        Tick(self.0.saturating_add(span.0))
    }
}

impl Sub<Span> for Tick {
    type Output = Tick;
    fn sub(self, span: Span) -> Tick {
        Tick(self.0.saturating_sub(span.0))
    }
}

impl Add for Span {
    type Output = Span;
    fn add(self, other: Span) -> Span {
        Span(self.0.saturating_add(other.0))
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            us if us < 1_000 => write!(f, "{us} us"),
            us if us < 1_000_000 => write!(f, "{:.1} ms", us as f64 / 1e3),
            us => write!(f, "{:.2} s", us as f64 / 1e6),
        }
    }
}

/// A moment of the wall clock, as files carry it: seconds and nanoseconds since 1970.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct WallTime {
    /// Whole seconds, negative before 1970.
    pub secs: i64,
    /// 0 to 999,999,999.
    pub nanos: u32,
}

/// A moment as a name that sorts by time: year, month, day, hour, minute and second of UTC, as `2026-11-25T03.00.00Z`.
#[must_use]
pub fn utc_name(at: WallTime) -> String {
    let (days, secs) = (at.secs.div_euclid(86_400), at.secs.rem_euclid(86_400));
    // Days of the era that began on 0000-03-01, in which leap days end years (Howard Hinnant, "chrono-compatible low-level
    // date algorithms").
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let of_era = shifted.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = (month_from_march + 2) % 12 + 1;
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let (hour, minute, second) = (secs / 3_600, secs / 60 % 60, secs % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}.{minute:02}.{second:02}Z")
}

impl WallTime {
    /// Whether it is one: what arrives from elsewhere may not be.
    #[must_use]
    pub const fn is_valid(self) -> bool {
        self.nanos < 1_000_000_000
    }

    /// How long after `earlier` it is; zero where it is not after it, and no more than the longest span there is.
    #[must_use]
    pub fn since(self, earlier: Self) -> Span {
        let nanos = |time: Self| i128::from(time.secs) * 1_000_000_000 + i128::from(time.nanos);
        let micros = (nanos(self) - nanos(earlier)).max(0) / 1_000;
        Span(u64::try_from(micros).unwrap_or(u64::MAX))
    }

    /// The next nanosecond; the last second of all stays.
    #[must_use]
    pub const fn next(self) -> Self {
        if self.nanos < 999_999_999 {
            return Self {
                secs: self.secs,
                nanos: self.nanos + 1,
            };
        }
        Self {
            secs: self.secs.saturating_add(1),
            nanos: 0,
        }
    }
}
