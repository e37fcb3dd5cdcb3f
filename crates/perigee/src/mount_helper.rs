//! `mount -t perigee SOURCE DIR -o OPTIONS`, and /etc/fstab: what mount(8) calls `mount.perigee` for.
//!
//! SOURCE is a node's data directory or a cluster directory, with or without `perigee:` before it.
//! A node that is not running is started, for at boot nobody else does.

use crate::commands::{mount, up};
use crate::layout::Layout;
use crate::mount_options::Options;
use crate::mounts::SOURCE_PREFIX;
use crate::output::{self, Report};
use clap::Parser;
use perigee_proto::admin::Failure;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The names under which mount(8) looks for a helper.
const NAMES: [&str; 2] = ["mount.perigee", "mount.fuse.perigee"];

/// Mount a Perigee file system; called by mount(8).
#[derive(Debug, Parser)]
#[command(name = "mount.perigee", version)]
struct Arguments {
    /// Data directory of the node, or the cluster's directory with `-o node=N`.
    source: OsString,
    /// Where to mount.
    dir: PathBuf,
    /// Mount options.
    #[arg(short, value_name = "OPTIONS")]
    options: Vec<String>,
    /// The type, which mount(8) passes on.
    #[arg(short, value_name = "TYPE")]
    t: Option<String>,
    /// Do everything but the mount.
    #[arg(short)]
    fake: bool,
    /// Tolerate unknown options.
    #[arg(short)]
    sloppy: bool,
    /// No entry in mtab (there is none anyway).
    #[arg(short)]
    no_mtab: bool,
    /// Say more.
    #[arg(short)]
    verbose: bool,
}

/// Whether the binary was called by one of the helper's names.
pub fn is_called_as(name: &OsStr) -> bool {
    let file = Path::new(name).file_name().and_then(OsStr::to_str);
    file.is_some_and(|file| NAMES.contains(&file))
}

/// Mounts, and gives the exit code that mount(8) expects: 0, 1 for wrong usage, 32 for a failure.
pub fn run(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let name = OsString::from(NAMES[0]);
    let arguments = match Arguments::try_parse_from(std::iter::once(name).chain(arguments)) {
        Ok(arguments) => arguments,
        Err(error) => {
            // nobody is left to tell when this fails
            let _ = error.print();
            return ExitCode::from(u8::from(error.use_stderr()));
        }
    };
    match mount(&arguments) {
        Ok(()) => output::finish(Ok(Report::silent())),
        Err(failure) => {
            output::print_failure(&failure);
            ExitCode::from(32)
        }
    }
}

fn mount(arguments: &Arguments) -> Result<(), Failure> {
    let mut lists = arguments.options.clone();
    if arguments.sloppy {
        lists.retain(|list| Options::parse(&[list]).is_ok());
    }
    let options = Options::parse(&lists)?;
    let layout = Layout::open(&source_dir(&arguments.source))?;
    if arguments.fake {
        return Ok(());
    }
    up::start_missing(&layout)?;
    let node = mount::serving_node(&layout, options.node)?;
    mount::mount(&node, &arguments.dir, &options)
}

fn source_dir(source: &OsStr) -> PathBuf {
    let bytes = source.as_bytes();
    let dir = bytes
        .strip_prefix(SOURCE_PREFIX.as_bytes())
        .unwrap_or(bytes);
    PathBuf::from(OsStr::from_bytes(dir))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_helper_goes_by_its_name_wherever_it_lies() {
        assert!(is_called_as(OsStr::new("/usr/sbin/mount.perigee")));
        assert!(is_called_as(OsStr::new("mount.fuse.perigee")));
        assert!(!is_called_as(OsStr::new("/usr/bin/perigee")));
    }

    #[test]
    fn the_call_of_mount_is_understood() {
        let call = [
            "mount.perigee",
            "perigee:/d",
            "/mnt",
            "-n",
            "-o",
            "rw,_netdev",
        ];
        let arguments = Arguments::try_parse_from(call).unwrap();
        assert_eq!(source_dir(&arguments.source), Path::new("/d"));
        assert_eq!(arguments.options, ["rw,_netdev"]);
        assert!(Arguments::try_parse_from(["mount.perigee", "/d"]).is_err());
    }
}
