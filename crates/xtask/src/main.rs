//! Checks of the workspace that no compiler makes: `cargo xtask arrows`, `licences` and `promises`.
#![forbid(unsafe_code)]

mod arrows;
mod licences;
mod metadata;
mod promises;
mod spdx;

use clap::Parser;
use metadata::Metadata;
use std::process::ExitCode;

/// Checks of the workspace.
#[derive(Parser)]
#[command(name = "cargo xtask")]
enum Task {
    /// Holds the crate graph against the arrows of ARCHITECTURE.md, and prints it.
    Arrows,
    /// Holds the licence of every dependency against the list of deny.toml.
    Licences,
    /// Holds the tests that docs/SEMANTICS.md and docs/FAULTS.md name against those that exist.
    Promises,
}

fn main() -> ExitCode {
    let task = Task::parse();
    let metadata = match Metadata::load() {
        Ok(metadata) => metadata,
        Err(why) => {
            eprintln!(
                "error: cannot read the crate graph: {why}\nhint: run `cargo fetch --locked` once"
            );
            return ExitCode::FAILURE;
        }
    };
    let report = match task {
        Task::Arrows => arrows::check(&metadata),
        Task::Licences => licences::check(&metadata),
        Task::Promises => promises::check(&metadata.workspace_root),
    };
    println!("{}", report.text);
    for fault in &report.faults {
        eprintln!("error: {fault}");
    }
    if report.faults.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// What a check found.
pub struct Report {
    /// What is as it should be.
    pub text: String,
    /// What is not.
    pub faults: Vec<String>,
}
