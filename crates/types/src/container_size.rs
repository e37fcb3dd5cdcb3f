//! How large a container may become before new directories start in another one.

use std::fmt;

/// A policy of the file system, and of directories with a container of their own. In bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ContainerSize(u64);

const UNITS: [(char, u32); 4] = [('T', 40), ('G', 30), ('M', 20), ('K', 10)];

impl ContainerSize {
    /// The least, in bytes: each container has a log and a chain of its own.
    pub const MIN: u64 = 1 << 20;

    /// The word for the default.
    pub const DEFAULT: &str = "64GiB";

    /// So many bytes; `None`: less than [`Self::MIN`].
    #[must_use]
    pub fn of(bytes: u64) -> Option<Self> {
        (bytes >= Self::MIN).then_some(Self(bytes))
    }

    /// In bytes.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.0
    }

    /// Reads what [`fmt::Display`] writes, and what people type: `64GiB`, `64G`, `1536M`.
    #[must_use]
    pub fn named(word: &str) -> Option<Self> {
        let digits = word.trim_end_matches(|c: char| !c.is_ascii_digit());
        let unit = word.strip_prefix(digits)?;
        let letter = unit.strip_suffix("iB").unwrap_or(unit);
        let shift = match letter {
            "" if unit.is_empty() => 0,
            letter => {
                let mut known = UNITS.iter();
                known.find(|(name, _)| letter.chars().eq([*name]))?.1
            }
        };
        let number: u64 = digits.parse().ok()?;
        Self::of(number.checked_mul(1 << shift)?)
    }
}

impl Default for ContainerSize {
    /// Small enough that a copy moves within minutes, large enough that a disk has no more than hundreds.
    fn default() -> Self {
        Self(64 << 30)
    }
}

impl fmt::Display for ContainerSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fits = |(_, shift): &&(char, u32)| self.0.is_multiple_of(1 << shift);
        match UNITS.iter().find(fits) {
            Some((unit, shift)) => write!(f, "{}{unit}iB", self.0 >> shift),
            None => write!(f, "{}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_they_are_written_and_typed() {
        for bytes in [1 << 20, (1 << 20) + 1, 3 << 19, 64 << 30, 5 << 40, u64::MAX] {
            let size = ContainerSize::of(bytes);
            let text = size.map(|size| size.to_string()).unwrap_or_default();
            assert_eq!(ContainerSize::named(&text), size, "{text}");
        }
        assert_eq!(ContainerSize::default().to_string(), ContainerSize::DEFAULT);
        for same in ["64GiB", "64G", "65536MiB", "68719476736"] {
            assert_eq!(ContainerSize::named(same), Some(ContainerSize::default()));
        }
        for wrong in [
            "",
            "G",
            "1",
            "1023K",
            "64GB",
            "64iB",
            "64 G",
            "-1G",
            "99999999T",
            "1.5G",
        ] {
            assert_eq!(ContainerSize::named(wrong), None, "{wrong}");
        }
    }
}
