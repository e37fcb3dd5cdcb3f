//! The command line: one file per command, each with its arguments, its text and its work.

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
pub mod man;
pub mod mount;
pub mod mount_watchdog;
pub mod policy;
pub mod rebalance;
pub mod rebuild;
pub mod remove;
pub mod scrub;
pub mod serve;
pub mod serve_control;
pub mod status;
pub mod token;
pub mod umount;
pub mod up;
pub mod where_is;

use crate::layout::{Layout, default_dir};
use crate::output::Report;
use clap::{Args, Parser, Subcommand};
use perigee_proto::admin::Failure;
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

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 degraded but working."
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Start a cluster on this machine, or what of it is not running
    Up(up::Up),
    /// Stop the cluster's processes on this machine; the data stays
    Down(down::Down),
    /// Make a cluster of several machines: its first node
    Init(init::Init),
    /// Print a single-use token with which one machine can join
    Token(token::Token),
    /// Join this machine to a cluster
    Join(join::Join),
    /// Mount the file system
    Mount(mount::Mount),
    /// Unmount it
    Umount(umount::Umount),
    /// Show nodes, containers and mounts
    Status(status::StatusArgs),
    /// Show where the bytes of a file are
    Where(where_is::Where),
    /// Say in words how a file is read and written, and why so
    Explain(explain::Explain),
    /// Show or set what is wanted of a directory
    #[command(subcommand)]
    Policy(policy::Policy),
    /// Move what a node keeps to other nodes, so that it can be removed
    Drain(drain::Drain),
    /// Move copies from full nodes to those with room
    Rebalance(rebalance::Rebalance),
    /// Strike a node off the cluster, for good
    Remove(remove::Remove),
    /// Change where the cluster's record is kept
    #[command(subcommand)]
    Control(control::Control),
    /// Make a lost control store anew, from what the nodes know
    Rebuild(rebuild::Rebuild),
    /// Write down what the nodes of this machine know of the cluster
    Inventory(inventory::TakeInventory),
    /// Look for what is wrong, and say how to mend it
    Doctor(doctor::Doctor),
    /// Go over everything that is stored, and mend what has rotted
    Scrub(scrub::Scrub),
    /// Measure a mount against the disk beneath
    Bench(bench::Bench),
    /// Print completions for a shell
    Completions(completions::Completions),
    /// Write the man pages into a directory
    Man(man::Man),
    /// Run a node in this process
    #[command(hide = true)]
    Serve(serve::Serve),
    /// Run the control store in this process
    #[command(hide = true)]
    ServeControl(serve_control::ServeControl),
    /// End a mount's requests when its daemon is killed
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
            Self::Where(command) => command.run(),
            Self::Explain(command) => command.run(),
            Self::Policy(command) => command.run(),
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
