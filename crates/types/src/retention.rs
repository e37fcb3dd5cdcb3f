//! For how long what was removed is kept.

use std::fmt;

/// The longest time, in seconds: ten years.
const SECS_MAX: u64 = 3_650 * 86_400;

/// A policy of directories.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Retention {
    /// It is not kept.
    #[default]
    Off,
    /// For so many seconds.
    For {
        /// At least 1.
        secs: u64,
    },
}

impl Retention {
    /// The longest.
    pub const LONGEST: Self = Self::For { secs: SECS_MAX };

    /// What people type: `off`, or a whole number with its unit, as in `30s`, `15m`, `12h`, `7d`.
    #[must_use]
    pub fn named(text: &str) -> Option<Self> {
        if text == "off" {
            return Some(Self::Off);
        }
        let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit())?);
        let scale = match unit {
            "s" => 1,
            "m" | "min" => 60,
            "h" => 3_600,
            "d" => 86_400,
            _ => return None,
        };
        let secs = number.parse::<u64>().ok()?.checked_mul(scale)?;
        (1..=SECS_MAX).contains(&secs).then_some(Self::For { secs })
    }
}

impl fmt::Display for Retention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::For { secs } = *self else {
            return f.write_str("off");
        };
        let units = [(86_400, "d"), (3_600, "h"), (60, "m"), (1, "s")];
        let whole = units.iter().find(|(scale, _)| secs.is_multiple_of(*scale));
        let (scale, unit) = whole.copied().unwrap_or((1, "s"));
        write!(f, "{}{unit}", secs / scale)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_is_read_again() {
        for text in ["off", "1s", "90s", "15m", "25h", "7d", "3650d"] {
            let known = Retention::named(text).expect(text);
            assert_eq!(known.to_string(), text);
        }
        let shown = |text| Retention::named(text).map(|known| known.to_string());
        assert_eq!(shown("60min").as_deref(), Some("1h"));
        for text in [
            "",
            "7",
            "d",
            "0d",
            "-1d",
            "1.5h",
            "3651d",
            "99999999999999999999s",
            "7 d",
        ] {
            assert_eq!(Retention::named(text), None, "{text}");
        }
    }
}
