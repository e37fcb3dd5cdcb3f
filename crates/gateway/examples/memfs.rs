//! Mounts a file system that lives in memory: `memfs MOUNTPOINT [-o OPTIONS]`.
//!
//! It costs what FUSE costs and next to nothing more, so benchmarks compare with it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "an example stops where it is wrong"
)]

#[path = "../tests/memory/mod.rs"]
mod memory;

use perigee_gateway::fuse::{Hooks, MountOptions, mount};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (point, options) = match words[..] {
        [point] => (point, ""),
        [point, "-o", options] => (point, options),
        _ => {
            eprintln!("usage: memfs MOUNTPOINT [-o OPTIONS]");
            return ExitCode::from(2);
        }
    };
    match run(Path::new(point), options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(point: &Path, options: &str) -> Result<(), Box<dyn std::error::Error>> {
    let options = MountOptions::parse([options])?;
    let (ended, wait_for_end) = tokio::sync::oneshot::channel();
    let hooks = Hooks {
        ended: Box::new(|end| _ = ended.send(end)),
        ..Hooks::default()
    };
    let mounted = mount(
        Arc::new(memory::MemoryFs::default()),
        point,
        &options,
        hooks,
    )?;
    println!(
        "mounted on {}: {:?}",
        mounted.path().display(),
        mounted.facts()
    );
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        tokio::select! {
            end = wait_for_end => println!("ended: {end:?}"),
            signal = tokio::signal::ctrl_c() => println!("interrupted: {signal:?}"),
        }
    });
    // Dropped here, it is unmounted, if nobody else has done that.
    drop(mounted);
    Ok(())
}
