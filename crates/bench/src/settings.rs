//! How much is measured.

use std::time::Duration;

/// Sizes and times of the jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Rounds; each measures every row once on each target.
    pub rounds: u32,
    /// Bytes of the large file.
    pub file_bytes: u64,
    /// How long each random row runs.
    pub random: Duration,
    /// How long a cold row rests between the emptying of the caches and its start: kernels report free pages to
    /// their hypervisor every two seconds.
    pub cold_rest: Duration,
    /// Small files of 4 KiB.
    pub small_files: usize,
    /// Files of the tree, 20 in a directory.
    pub tree_files: usize,
}

impl Default for Settings {
    /// The sizes and times of the peers' table; three rounds take about eight minutes.
    fn default() -> Self {
        Self {
            rounds: 3,
            file_bytes: 1 << 30,
            random: Duration::from_secs(10),
            cold_rest: Duration::from_secs(3),
            small_files: 5_000,
            tree_files: 3_000,
        }
    }
}
