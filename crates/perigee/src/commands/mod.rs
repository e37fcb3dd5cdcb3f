//! The command line: one file per command, each with its arguments, its text and its work.

pub mod adopt;
pub mod bench;
pub mod completions;
pub mod control;
pub mod doctor;
pub mod down;
pub mod drain;
pub mod explain;
pub mod init;
pub mod inventory;
pub mod join;
pub mod locate;
pub mod lock;
pub mod man;
pub mod mirror;
pub mod mount;
pub mod mount_watchdog;
pub mod policy;
pub mod rebalance;
pub mod rebuild;
pub mod remove;
pub mod scrub;
pub mod serve;
pub mod serve_control;
pub mod serve_union;
pub mod snapshot;
pub mod status;
pub mod token;
pub mod topo;
pub mod umount;
pub mod undelete;
pub mod union;
pub mod up;
pub mod where_is;

use crate::layout::{Layout, default_dir};
use crate::output::Report;
use clap::{Args, Parser, Subcommand};
use perigee_proto::admin::Failure;
use std::fs::File;
use std::path::PathBuf;

/// A POSIX file system over the disks that your machines already have.
#[derive(Debug, Parser)]
#[command(
    name = "perigee",
    version,
    max_term_width = 80,
    after_help = "\
Examples:
  perigee up --nodes 3 --mount /mnt/perigee   a cluster on this machine, mounted
  perigee status                              how it is
  perigee where /mnt/perigee/file             where a file's bytes are
  perigee down                                stop it; the data stays
  perigee union h1:/data h2:/data /mnt/u      directories of several hosts as one, over SSH alone

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 degraded but working."
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands. What each does is said once, where its arguments are: a text here would hide all but its first line.
#[derive(Debug, Subcommand)]
pub enum Command {
    Up(up::Up),
    Down(down::Down),
    Init(init::Init),
    Token(token::Token),
    Join(join::Join),
    Mount(mount::Mount),
    Umount(umount::Umount),
    Status(status::StatusArgs),
    Topo(topo::Topo),
    Where(where_is::Where),
    Locate(locate::Locate),
    Adopt(adopt::Adopt),
    Union(union::Union),
    Explain(explain::Explain),
    Lock(lock::Lock),
    #[command(subcommand)]
    Policy(policy::Policy),
    #[command(subcommand)]
    Snapshot(snapshot::Snapshot),
    Undelete(undelete::Undelete),
    Drain(drain::Drain),
    Rebalance(rebalance::Rebalance),
    Remove(remove::Remove),
    #[command(subcommand)]
    Control(control::Control),
    Rebuild(rebuild::Rebuild),
    Inventory(inventory::TakeInventory),
    Doctor(doctor::Doctor),
    Scrub(scrub::Scrub),
    Bench(bench::Bench),
    Completions(completions::Completions),
    Man(man::Man),
    #[command(hide = true)]
    Serve(serve::Serve),
    #[command(hide = true)]
    ServeControl(serve_control::ServeControl),
    #[command(hide = true)]
    ServeUnion(serve_union::ServeUnion),
    #[command(hide = true)]
    MountWatchdog(mount_watchdog::MountWatchdog),
}

impl Command {
    /// Does it.
    pub fn run(self) -> Result<Report, Failure> {
        match self {
            Self::Up(command) => command.run(),
            Self::Down(command) => command.run(),
            Self::Init(command) => command.run(),
            Self::Token(command) => command.run(),
            Self::Join(command) => command.run(),
            Self::Mount(command) => command.run(),
            Self::Umount(command) => command.run(),
            Self::Status(command) => command.run(),
            Self::Topo(command) => command.run(),
            Self::Where(command) => command.run(),
            Self::Locate(command) => command.run(),
            Self::Adopt(command) => command.run(),
            Self::Union(command) => command.run(),
            Self::Explain(command) => command.run(),
            Self::Lock(command) => command.run(),
            Self::Policy(command) => command.run(),
            Self::Snapshot(command) => command.run(),
            Self::Undelete(command) => command.run(),
            Self::Drain(command) => command.run(),
            Self::Rebalance(command) => command.run(),
            Self::Remove(command) => command.run(),
            Self::Control(command) => command.run(),
            Self::Rebuild(command) => command.run(),
            Self::Inventory(command) => command.run(),
            Self::Doctor(command) => command.run(),
            Self::Scrub(command) => command.run(),
            Self::Bench(command) => command.run(),
            Self::Completions(command) => command.run(),
            Self::Man(command) => command.run(),
            Self::Serve(command) => command.run(),
            Self::ServeControl(command) => command.run(),
            Self::ServeUnion(command) => command.run(),
            Self::MountWatchdog(command) => command.run(),
        }
    }
}

/// Which cluster is meant.
#[derive(Debug, Args)]
pub struct DirArg {
    /// The cluster's directory on this machine
    ///
    /// By default $PERIGEE_DIR, else /var/lib/perigee for root and ~/.local/share/perigee for others.
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
}

impl DirArg {
    /// The directory that is meant.
    pub fn path(&self) -> PathBuf {
        self.dir.clone().unwrap_or_else(default_dir)
    }

    /// The cluster that is meant, of which a node must be here.
    pub fn open(&self) -> Result<Layout, Failure> {
        Layout::open(&self.path())
    }

    /// The same, as it is while no other command starts or stops it.
    pub fn open_alone(&self) -> Result<Alone, Failure> {
        let before = self.open()?;
        let lock = up::lock(&before.dir)?;
        let layout = Layout::open(&before.dir)?;
        Ok(Alone {
            layout,
            _lock: lock,
        })
    }
}

/// A cluster that no other command starts or stops for as long as this is kept.
pub struct Alone {
    pub layout: Layout,
    _lock: File,
}

/// Which node is asked.
#[derive(Debug, Args)]
pub struct NodeArg {
    /// The node of this machine to ask, by the number in its directory's name
    #[arg(long, value_name = "N")]
    pub node: Option<u32>,
}

/// How the answer is printed.
#[derive(Debug, Args)]
pub struct JsonArg {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[cfg(test)]
mod tests {
    use super::Cli;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_long_text_of_a_command_is_shown() {
        let mut command = Cli::command();
        let drain = command.find_subcommand_mut("drain").unwrap();
        let help = drain.render_long_help().to_string();
        assert!(help.contains("Each container gets a whole copy"), "{help}");
    }

    #[test]
    fn every_shown_command_has_an_example() {
        let mut open: Vec<clap::Command> = Cli::command().get_subcommands().cloned().collect();
        while let Some(mut command) = open.pop() {
            if command.is_hide_set() {
                continue;
            }
            let inner: Vec<_> = command.get_subcommands().cloned().collect();
            let help = command.render_long_help().to_string();
            assert!(
                !inner.is_empty() || help.contains("Example"),
                "{}",
                command.get_name()
            );
            open.extend(inner);
        }
    }
}
