//! Over how many containers the chunks of a file are spread.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A policy of directories, for files that are made there. 1: all chunks of a file are in one container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "u8", into = "u8")]
pub struct StripeWidth(u8);

/// Zero, or more than [`StripeWidth::MAX`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoWidth;

impl fmt::Display for NoWidth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a number of containers to spread a file over")
    }
}

impl std::error::Error for NoWidth {}

impl StripeWidth {
    /// Everything in one container.
    pub const ONE: Self = Self(1);
    /// The most: a change of such a file's length is told to as many owners.
    pub const MAX: u8 = 32;

    /// So many containers, from 1 to [`Self::MAX`].
    #[must_use]
    pub const fn of(containers: u8) -> Option<Self> {
        match containers {
            1..=Self::MAX => Some(Self(containers)),
            _ => None,
        }
    }

    /// How many containers.
    #[must_use]
    pub const fn get(self) -> u8 {
        self.0
    }

    /// Reads what [`fmt::Display`] writes.
    #[must_use]
    pub fn named(word: &str) -> Option<Self> {
        Self::of(word.parse().ok()?)
    }
}

impl Default for StripeWidth {
    fn default() -> Self {
        Self::ONE
    }
}

impl TryFrom<u8> for StripeWidth {
    type Error = NoWidth;

    fn try_from(containers: u8) -> Result<Self, NoWidth> {
        Self::of(containers).ok_or(NoWidth)
    }
}

impl From<StripeWidth> for u8 {
    fn from(width: StripeWidth) -> Self {
        width.0
    }
}

impl fmt::Display for StripeWidth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}
