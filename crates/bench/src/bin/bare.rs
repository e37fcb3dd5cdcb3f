//! `perigee-bench-bare DIRECTORY MOUNTPOINT`: a FUSE file system that does nothing of its own, to compare with.

use clap::Parser;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// Mount a directory through a FUSE file system that does nothing of its own, until it is unmounted.
#[derive(Debug, Parser)]
#[command(version)]
struct Cli {
    /// The local directory
    directory: PathBuf,
    /// Where it appears
    mountpoint: PathBuf,
    /// Threads that serve the kernel
    #[arg(long, default_value_t = 2)]
    threads: usize,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    match perigee_bench::bare::serve(&cli.directory, &cli.mountpoint, cli.threads) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let mountpoint = cli.mountpoint.display();
            // Whoever closed standard error does not want to hear.
            _ = writeln!(
                std::io::stderr(),
                "error: cannot serve {mountpoint}: {error}"
            );
            ExitCode::FAILURE
        }
    }
}
