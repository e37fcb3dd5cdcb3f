//! `perigee completions`: for a shell.

use super::Cli;
use crate::output::Report;
use clap::{Args, CommandFactory};
use clap_complete::Shell;
use perigee_proto::admin::Failure;

/// Print completions for a shell.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  perigee completions bash > /usr/share/bash-completion/completions/perigee
  perigee completions fish > ~/.config/fish/completions/perigee.fish")]
pub struct Completions {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

impl Completions {
    /// Prints them.
    pub fn run(self) -> Result<Report, Failure> {
        let mut out = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "perigee", &mut out);
        Ok(Report::text(String::from_utf8_lossy(&out)))
    }
}
