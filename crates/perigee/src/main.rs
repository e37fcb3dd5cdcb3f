//! `perigee`: the daemon, the mount helper and the command line in one binary.
//!
//! Reading order: this page, [`commands`] (one file each), [`daemon`] (the processes), the rest.
#![forbid(unsafe_code)]

mod admin_client;
mod admin_server;
mod admin_socket;
mod bundle;
mod commands;
mod config;
mod daemon;
mod human;
mod layout;
mod local_port;
mod logging;
mod mount_helper;
mod mount_options;
mod mounts;
mod output;
mod pid_file;
mod process;

use clap::Parser;
use commands::Cli;
use std::process::ExitCode;

/// The daemons move megabytes through short-lived buffers: the system's allocator gives each of them back to
/// the kernel, and takes new pages, which must be cleared, for the next.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os();
    let name = arguments.next().unwrap_or_default();
    if mount_helper::is_called_as(&name) {
        return mount_helper::run(arguments);
    }
    let cli = Cli::parse();
    output::finish(cli.command.run())
}
