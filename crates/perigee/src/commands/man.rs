//! `perigee man`: the man pages, made from what --help says.

use super::Cli;
use crate::human::plural;
use crate::output::Report;
use clap::{Args, CommandFactory};
use perigee_proto::admin::Failure;
use std::path::PathBuf;

/// Write the man pages into a directory.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  perigee man /usr/local/share/man/man1")]
pub struct Man {
    /// The directory, which exists
    dir: PathBuf,
}

impl Man {
    /// Writes one page per command.
    pub fn run(self) -> Result<Report, Failure> {
        let what = || format!("cannot write man pages into `{}`", self.dir.display());
        if !self.dir.is_dir() {
            return Err(Failure::new(what(), "it is not a directory"));
        }
        let mut open = vec![("perigee".to_owned(), Cli::command())];
        let mut pages = 0;
        while let Some((name, command)) = open.pop() {
            if command.is_hide_set() {
                continue;
            }
            let inner = command.get_subcommands().cloned();
            open.extend(inner.map(|inner| (format!("{name}-{}", inner.get_name()), inner)));
            // clap keeps names for ever; there is one per command
            let named: &'static str = Box::leak(name.clone().into_boxed_str());
            let mut page = Vec::new();
            clap_mangen::Man::new(command.name(named).disable_help_subcommand(true))
                .render(&mut page)
                .and_then(|()| std::fs::write(self.dir.join(format!("{name}.1")), page))
                .map_err(|error| Failure::new(what(), error))?;
            pages += 1;
        }
        Ok(Report::text(format!(
            "wrote {} into {}\n",
            plural(pages, "page"),
            self.dir.display()
        )))
    }
}
