//! Whether the right to write moves to the host that writes.

use std::fmt;

/// A policy of directories.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Migration {
    /// It stays where it is.
    Off,
    /// It moves after a handful of changes, whatever came of the move before.
    Always,
    /// It moves when that pays.
    #[default]
    Adaptive,
}

impl Migration {
    /// All that there are.
    pub const ALL: [Self; 3] = [Self::Off, Self::Always, Self::Adaptive];

    /// The word for it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Always => "always",
            Self::Adaptive => "adaptive",
        }
    }

    /// The one that has this word.
    #[must_use]
    pub fn named(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.as_str() == word)
    }
}

impl fmt::Display for Migration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_word_is_read_as_it_is_written() {
        for migration in Migration::ALL {
            assert_eq!(Migration::named(&migration.to_string()), Some(migration));
        }
        assert_eq!(Migration::named("Off"), None);
    }
}
