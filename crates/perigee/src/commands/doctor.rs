//! `perigee doctor`: this machine's part is looked at here, the cluster's part by a node.

use super::{DirArg, JsonArg};
use crate::admin_client::{ask_any, unexpected};
use crate::config::NodeConfig;
use crate::daemon::findings::FREE_BYTES_MIN;
use crate::human;
use crate::layout::{Layout, NodeDir};
use crate::mounts;
use crate::output::{Outcome, Report};
use crate::pid_file;
use clap::Args;
use perigee_proto::admin::{Answer, Failure, Finding, Level, Request};
use rustix::fs::{Access, access};
use rustix::io::Errno;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// The first kernel whose FUSE hands whole local files to programs (passthrough).
const PASSTHROUGH_KERNEL: (u32, u32) = (6, 9);

/// Look for what is wrong, and say how to mend it.
///
/// Exit code 1 when something does not work, 3 when something should be looked at.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  perigee doctor
  perigee doctor --bundle report.txt   all that helps whoever looks into it
  perigee doctor --json | jq '.[] | select(.level != \"ok\")'")]
pub struct Doctor {
    #[command(flatten)]
    dir: DirArg,
    /// Also write what is known into a new file: findings, status, configurations, the ends of the logs; no keys, and
    /// no content of files
    #[arg(long, value_name = "FILE")]
    bundle: Option<PathBuf>,
    #[command(flatten)]
    json: JsonArg,
}

impl Doctor {
    /// Looks, and reports.
    pub fn run(self) -> Result<Report, Failure> {
        let mut findings = vec![fuse_device(), fuse_helper(), kernel()];
        match self.dir.open() {
            Err(failure) => findings.push(finding_of(&failure)),
            Ok(layout) => cluster(&layout, &mut findings),
        }
        let worst = findings
            .iter()
            .map(|finding| finding.level)
            .max()
            .unwrap_or(Level::Ok);
        let outcome = match worst {
            Level::Ok => Outcome::Done,
            Level::Warn => Outcome::Degraded,
            Level::Bad => Outcome::Failed,
        };
        if let Some(path) = &self.bundle {
            let layout = Layout::look(&self.dir.path())?;
            crate::bundle::write(path, &layout, &text(&findings))?;
        }
        Ok(Report::either(self.json.json, &findings, || text(&findings))?.outcome(outcome))
    }
}

fn cluster(layout: &Layout, findings: &mut Vec<Finding>) {
    for node in &layout.nodes {
        findings.extend(data_dir(node));
        findings.push(process(node));
        findings.extend(dead_mounts(node));
    }
    match ask_any(&layout.nodes, &Request::Doctor) {
        Ok(Answer::Doctor(more)) => findings.extend(more),
        Ok(other) => findings.push(finding_of(&unexpected(&other))),
        Err(failure) => findings.push(finding_of(&failure)),
    }
}

fn finding_of(failure: &Failure) -> Finding {
    Finding {
        level: Level::Bad,
        what: failure.to_string(),
        hint: failure.hint.clone(),
    }
}

fn fuse_device() -> Finding {
    match access("/dev/fuse", Access::READ_OK | Access::WRITE_OK) {
        Ok(()) => Finding::ok("the kernel has FUSE"),
        Err(Errno::ACCESS | Errno::PERM) => Finding::bad(
            "this user may not open /dev/fuse: only root can mount",
            "`chmod 666 /dev/fuse` as root, which is what udev does by itself",
        ),
        Err(_) => Finding::bad(
            "there is no /dev/fuse: nothing can be mounted",
            "`modprobe fuse` as root; a container needs --device /dev/fuse --cap-add SYS_ADMIN",
        ),
    }
}

fn fuse_helper() -> Finding {
    if rustix::process::geteuid().is_root() {
        return Finding::ok("root mounts without a helper");
    }
    let started = Command::new("fusermount3")
        .arg("--version")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    match started {
        Ok(_) => Finding::ok("fusermount3 is there: users can mount"),
        Err(_) => Finding::bad(
            "fusermount3 is missing: only root can mount",
            "install the package fuse3",
        ),
    }
}

fn kernel() -> Finding {
    let release = rustix::system::uname()
        .release()
        .to_string_lossy()
        .into_owned();
    match kernel_version(&release) {
        Some(version) if version >= PASSTHROUGH_KERNEL => Finding::ok(format!(
            "kernel {release}: whole local files can be read and written at the disk's speed"
        )),
        _ => Finding::warn(
            format!(
                "kernel {release} has no FUSE passthrough: reads and writes go through the daemon"
            ),
            format!(
                "use kernel {}.{} or later",
                PASSTHROUGH_KERNEL.0, PASSTHROUGH_KERNEL.1
            ),
        ),
    }
}

fn kernel_version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn data_dir(node: &NodeDir) -> Vec<Finding> {
    let name = node.name();
    let mut findings = Vec::new();
    match NodeConfig::load(&node.config()) {
        Ok(_) => findings.push(Finding::ok(format!("{name}: its configuration is valid"))),
        Err(failure) => findings.push(finding_of(&failure)),
    }
    match node.path.metadata() {
        Ok(meta) if meta.permissions().mode() & 0o077 != 0 => findings.push(Finding::bad(
            format!("{name}: other users can look into its data directory"),
            format!("chmod 700 '{}'", node.path.display()),
        )),
        Ok(_) => findings.push(Finding::ok(format!(
            "{name}: its data directory is private"
        ))),
        Err(error) => findings.push(Finding::bad(
            format!("{name}: its data directory cannot be looked at: {error}"),
            "run the command as the user of the node, or as root",
        )),
    }
    // A node that runs tells of its disk itself.
    if pid_file::running(&node.path).is_none()
        && let Ok(disk) = rustix::fs::statvfs(&node.path)
    {
        let free = disk.f_bavail.saturating_mul(disk.f_frsize);
        findings.push(if free < FREE_BYTES_MIN {
            Finding::warn(
                format!("{name}: only {} free on its disk", human::size(free)),
                "make room: a full disk refuses writes",
            )
        } else {
            Finding::ok(format!("{name}: {} free on its disk", human::size(free)))
        });
    }
    findings
}

fn process(node: &NodeDir) -> Finding {
    match pid_file::running(&node.path) {
        Some(process) => Finding::ok(format!("{}: runs as process {}", node.name(), process.pid)),
        None => Finding::bad(
            format!("{} is not running", node.name()),
            "`perigee up` starts it",
        ),
    }
}

fn dead_mounts(node: &NodeDir) -> Vec<Finding> {
    if pid_file::running(&node.path).is_some() {
        return Vec::new();
    }
    let table = mounts::table().unwrap_or_default();
    let dead = mounts::of_node(&table, &node.path);
    dead.iter()
        .map(|mount| {
            let point = mount.mountpoint.display();
            Finding::bad(
                format!("{point} is the mount of a node that does not run"),
                format!("`perigee up` mends it, `perigee umount '{point}'` removes it"),
            )
        })
        .collect()
}

fn text(findings: &[Finding]) -> String {
    let mut out = String::new();
    for finding in findings {
        let mark = match finding.level {
            Level::Ok => "ok  ",
            Level::Warn => "warn",
            Level::Bad => "BAD ",
        };
        out.push_str(&format!("{mark}  {}\n", finding.what));
        if let Some(hint) = &finding.hint {
            out.push_str(&format!("      hint: {hint}\n"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_releases_are_read() {
        assert_eq!(kernel_version("6.9.12-amd64"), Some((6, 9)));
        assert_eq!(kernel_version("6.18-rc1"), Some((6, 18)));
        assert_eq!(kernel_version("weird"), None);
        assert!(kernel_version("6.10.0").unwrap() >= PASSTHROUGH_KERNEL);
    }

    #[test]
    fn a_finding_and_its_hint_are_two_lines() {
        let text = text(&[Finding::ok("fine"), Finding::bad("broken", "mend it")]);
        assert_eq!(text, "ok    fine\nBAD   broken\n      hint: mend it\n");
    }
}
