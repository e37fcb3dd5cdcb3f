//! The benchmark: the same rows on a mount at home and on the local directory beside it, by turns.
//!
//! A machine is never quiet, so a figure is a ratio of two medians taken in the same run, and beside
//! it stands the CPU time of an operation, which other load disturbs least. The goals are the ratios
//! that peers reach (`bench/peers.json`).
//!
//! What it costs that owners are on other hosts, and what it brings that ownership moves, is measured beside that: [`locality`]; and what it brings that messages leave
//! together: [`merging`]. A large file on another host, beside a TLS stream: [`remote`]. Which of two stores serves a host: [`near`]. A directory of a million files, and the memory for them: [`crowd`]. The union of directories of several hosts, beside what else there is for that: [`union`]; a workflow over it, with its tasks on their data: [`workflow`].
//!
//! Peers that are installed are measured in the same run, and a FUSE file system that does nothing: [`side_by_side`], [`bare`].
//!
//! Read [`row`] (what is measured), [`jobs`] (how), [`round`] (the interleaving), [`report`].
#![forbid(unsafe_code)]

pub mod bare;
mod content;
pub mod crowd;
pub mod jobs;
mod large;
pub mod locality;
pub mod merging;
pub mod near;
pub mod peers;
pub mod picture;
mod pipe;
pub mod remote;
pub mod report;
pub mod round;
pub mod row;
pub mod settings;
pub mod side_by_side;
pub mod target;
pub mod union;
pub mod workflow;

pub use row::Row;
pub use settings::Settings;
pub use target::{Figure, Target};

use perigee_testbed::CheckError;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// How a benchmark's process ends.
#[must_use]
pub fn ended(outcome: Result<(), BenchError>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            note(&format!("error: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// A line beside the results.
pub fn note(line: &str) {
    // Whoever closed the output does not want to hear.
    _ = writeln!(std::io::stderr(), "{line}");
}

/// Why the benchmark has no result.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// A call failed, or the cluster did not come up.
    #[error(transparent)]
    Failed(#[from] CheckError),
    /// The table of goals cannot be used.
    #[error("cannot use the peers' table `{path}`: {why}")]
    Peers {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The results cannot be written.
    #[error("cannot write the results to `{path}`: {why}")]
    Results {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
}
