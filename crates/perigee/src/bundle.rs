//! What `perigee doctor --bundle` writes: one text file with all that helps whoever looks into a problem.
//!
//! It holds nothing secret: no keys, no tokens, no content of files. Everything that cannot be read is named
//! with the reason, and the rest goes on.

use crate::admin_client::ask_any;
use crate::layout::Layout;
use crate::{human, mounts};
use perigee_proto::admin::{Failure, Request};
use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// How much of the end of each log is taken.
const LOG_BYTES: u64 = 256 << 10;

/// Writes the bundle to `path`, which must not exist.
///
/// Errors: the file cannot be made or written.
pub fn write(path: &Path, layout: &Layout, findings: &str) -> Result<(), Failure> {
    let fail = |error: std::io::Error| {
        Failure::new(
            format!("cannot write the bundle `{}`", path.display()),
            error,
        )
    };
    let mut options = OpenOptions::new();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .map_err(fail)?;
    file.write_all(text(layout, findings).as_bytes())
        .and_then(|()| file.sync_all())
        .map_err(fail)
}

fn text(layout: &Layout, findings: &str) -> String {
    let mut out = String::new();
    section(&mut out, "perigee", env!("CARGO_PKG_VERSION"));
    section(&mut out, "findings", findings);
    let status = match ask_any(&layout.nodes, &Request::Status) {
        Ok(status) => serde_json::to_string_pretty(&status).unwrap_or_else(|e| e.to_string()),
        Err(failure) => failure.to_string(),
    };
    section(&mut out, "status", &status);
    let system = rustix::system::uname();
    let kernel = format!(
        "{} {} {}",
        system.release().to_string_lossy(),
        system.version().to_string_lossy(),
        system.machine().to_string_lossy()
    );
    section(&mut out, "kernel", &kernel);
    for path in [
        "/etc/os-release",
        "/proc/meminfo",
        "/proc/loadavg",
        "/proc/pressure/io",
    ] {
        section(&mut out, path, &end_of(Path::new(path)));
    }
    let table = match mounts::table() {
        Ok(table) => table
            .iter()
            .map(|mount| {
                format!(
                    "{} on {}\n",
                    mount.source.display(),
                    mount.mountpoint.display()
                )
            })
            .collect(),
        Err(failure) => failure.to_string(),
    };
    section(&mut out, "perigee mounts", &table);
    let mut logs = Vec::new();
    for node in &layout.nodes {
        section(
            &mut out,
            &node.config().display().to_string(),
            &end_of(&node.config()),
        );
        let disk = match rustix::fs::statvfs(&node.path) {
            Ok(disk) => format!(
                "{} free of {}, {} inodes free of {}",
                human::size(disk.f_bavail.saturating_mul(disk.f_frsize)),
                human::size(disk.f_blocks.saturating_mul(disk.f_frsize)),
                disk.f_favail,
                disk.f_files
            ),
            Err(error) => error.to_string(),
        };
        section(&mut out, &format!("disk of {}", node.path.display()), &disk);
        logs.push(node.path.clone());
    }
    logs.push(layout.control());
    for log in logs.iter().flat_map(logs_in) {
        section(&mut out, &log.display().to_string(), &end_of(&log));
    }
    out
}

fn section(out: &mut String, title: &str, text: &str) {
    // writing to a string cannot fail
    let _ = write!(out, "===== {title}\n{}\n\n", text.trim_end());
}

/// The logs of a process, the one before the last start first.
fn logs_in(dir: &PathBuf) -> Vec<PathBuf> {
    let mut logs: Vec<PathBuf> = std::fs::read_dir(dir)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with("daemon.log")
        })
        .collect();
    logs.sort_unstable_by(|a, b| b.cmp(a));
    logs
}

/// The end of a text file, from the beginning of a line on; or why it cannot be read.
fn end_of(path: &Path) -> String {
    let read = || -> std::io::Result<String> {
        let mut file = File::open(path)?;
        let len = file.metadata()?.len();
        let cut = len > LOG_BYTES;
        if cut {
            file.seek(SeekFrom::Start(len - LOG_BYTES))?;
        }
        let mut bytes = Vec::new();
        file.take(LOG_BYTES).read_to_end(&mut bytes)?;
        let text = String::from_utf8_lossy(&bytes);
        Ok(match text.split_once('\n').filter(|_| cut) {
            Some((_, rest)) => format!("({} before)\n{rest}", human::size(len - LOG_BYTES)),
            None => text.into_owned(),
        })
    };
    read().unwrap_or_else(|error| format!("cannot be read: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bundle_has_logs_and_configurations_and_no_keys_and_replaces_nothing() {
        let temp = tempfile::tempdir().unwrap();
        let node = temp.path().join("node-1");
        std::fs::create_dir_all(node.join("identity")).unwrap();
        std::fs::write(node.join("identity/key.pem"), "PRIVATE").unwrap();
        let line = "x".repeat(99) + "\n";
        let long = line.repeat(LOG_BYTES as usize / 100 + 50) + "the last line\n";
        std::fs::write(node.join("daemon.log"), long).unwrap();
        let layout = Layout::look(temp.path()).unwrap();
        let nodes = vec![layout.node_dir(1)];
        std::fs::write(nodes[0].config(), "name = \"node-1\"\n").unwrap();
        let layout = Layout { nodes, ..layout };
        let path = temp.path().join("report.txt");
        write(&path, &layout, "ok    fine\n").unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        for wanted in ["fine", "name = \"node-1\"", "the last line", "KiB before"] {
            assert!(text.contains(wanted), "{wanted}");
        }
        assert!(!text.contains("PRIVATE"));
        assert!(text.len() < 2 * LOG_BYTES as usize);
        assert!(write(&path, &layout, "").is_err());
    }
}
