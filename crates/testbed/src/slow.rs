//! A disk that is slow for one process: the kernel's limit on block I/O of a control group (cgroup v1, `blkio`).

use crate::cluster::Cluster;
use crate::error::{Call, CheckError, Checked};
use crate::leftover::report;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// Where the kernel takes limits.
const GROUPS: &str = "/sys/fs/cgroup/blkio";
/// Writes in a second that a slow disk takes.
const WRITES: u64 = 40;
/// Bytes in a second.
const BYTES: u64 = 1 << 20;
/// What can be limited.
const LIMITS: [(&str, u64); 4] = [
    ("blkio.throttle.write_iops_device", WRITES),
    ("blkio.throttle.write_bps_device", BYTES),
    ("blkio.throttle.read_iops_device", WRITES),
    ("blkio.throttle.read_bps_device", BYTES),
];

/// Whether this process can make a disk slow.
#[must_use]
pub fn is_possible() -> bool {
    rustix::process::geteuid().is_root() && Path::new(GROUPS).join(LIMITS[0].0).exists()
}

impl Cluster {
    /// Makes the disk of node `id` slow for its daemon, until what is returned is dropped.
    ///
    /// Errors: those of [`Slow::begin`]; it has no daemon.
    pub fn slow_disk(&self, id: u32) -> Checked<Slow> {
        let Some(daemon) = self.daemons.get(&id) else {
            return Err(CheckError::violated(format!("node {id} has no daemon")));
        };
        let own = self.path().file_name().unwrap_or_default();
        let name = format!("{}-{id}", own.to_string_lossy());
        let place = self.dir().join(format!("node-{id}/store"));
        Slow::begin(&name, daemon.pid, &place)
    }
}

/// A process whose disk is slow until this is dropped.
#[derive(Debug)]
pub struct Slow {
    group: PathBuf,
    device: String,
    pid: i32,
}

impl Slow {
    /// Slows the disk under `place` down for process `pid`. `name` is the group's, and nobody else's.
    ///
    /// Errors: the kernel has no such limits, or not for this disk.
    pub fn begin(name: &str, pid: i32, place: &Path) -> Checked<Self> {
        let dev = fs::metadata(place).call(|| format!("look at {}", place.display()))?;
        let dev = dev.dev();
        let device = format!("{}:{}", rustix::fs::major(dev), rustix::fs::minor(dev));
        let group = Path::new(GROUPS).join(name);
        fs::create_dir(&group).call(|| format!("make {}", group.display()))?;
        let slow = Self { group, device, pid };
        for (file, limit) in LIMITS {
            slow.write(file, &format!("{} {limit}", slow.device))?;
        }
        slow.write("cgroup.procs", &pid.to_string())?;
        let members = fs::read_to_string(slow.group.join("cgroup.procs"));
        let members = members.call(|| "list the slow processes".to_owned())?;
        if members.lines().any(|line| line == pid.to_string()) {
            Ok(slow)
        } else {
            Err(CheckError::violated(format!("process {pid} is not slow")))
        }
    }

    fn write(&self, file: &str, text: &str) -> Checked {
        let path = self.group.join(file);
        fs::write(&path, text).call(|| format!("write `{text}` to {}", path.display()))
    }
}

impl Drop for Slow {
    fn drop(&mut self) {
        for (file, _) in LIMITS {
            if let Err(error) = self.write(file, &format!("{} 0", self.device)) {
                report(&format!("testbed: a disk stays slow: {error}"));
            }
        }
        // A process that has ended has left already.
        _ = fs::write(Path::new(GROUPS).join("cgroup.procs"), self.pid.to_string());
        remove(&self.group);
    }
}

/// Removes the groups whose names begin so; their processes have ended, or left.
pub(crate) fn sweep(prefix: &str) {
    let groups = fs::read_dir(GROUPS).into_iter().flatten().flatten();
    groups
        .filter(|group| group.file_name().to_string_lossy().starts_with(prefix))
        .for_each(|group| remove(&group.path()));
}

fn remove(group: &Path) {
    match fs::remove_dir(group) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => report(&format!(
            "testbed: {} is left behind: {error}",
            group.display()
        )),
    }
}
