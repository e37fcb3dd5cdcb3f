//! One directory of very many files: what each costs, first and last, and what memory the daemons need for them.
//!
//! A file system that people trust with a directory of a million files makes the last of them as fast as the first, lists
//! them, and removes them. Memory is that of all daemons: of a mounted cluster that has nothing to do, for what is stored, and for
//! what the kernel knows of, since each inode that it keeps may be one that a daemon keeps, too.

mod report;

pub use report::{store, table};

use perigee_testbed::{Call, CheckError, Checked, Cluster, ensure};
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A benchmark that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(14_400);
const NODES: u32 = 3;
/// After so long without anything to do daemons have given back what they needed for a moment.
const REST: Duration = Duration::from_secs(3);
/// The parts whose rates are compared.
const PARTS: usize = 10;

/// What is measured.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Files in the directory.
    pub files: usize,
    /// Another file system, to be measured instead of a cluster that is started for it.
    pub other: Option<Other>,
}

/// A file system that somebody has mounted.
#[derive(Debug, Clone)]
pub struct Other {
    /// What the table calls it.
    pub label: String,
    /// An empty directory there.
    pub directory: PathBuf,
    /// The processes that serve it, here.
    pub daemons: Vec<i32>,
}

/// Memory of all daemons, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Memory {
    /// What is in the machine's memory (`VmRSS`).
    pub resident: u64,
    /// Of that, what no file backs (`RssAnon`).
    pub own: u64,
}

/// What came of it.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// What was measured.
    pub label: String,
    /// With everything mounted and nothing done.
    pub idle: Memory,
    /// Files made a second, in each tenth.
    pub create: Vec<f64>,
    /// With all files there.
    pub stored: Memory,
    /// Names listed a second, with the kernel's caches empty.
    pub list: f64,
    /// Files whose attributes were asked for a second, with the kernel's caches empty.
    pub stat: f64,
    /// Inodes that the kernel had in its caches then, of all file systems.
    pub cached: u64,
    /// With those.
    pub known: Memory,
    /// Files removed a second, in each tenth.
    pub remove: Vec<f64>,
}

/// Runs all; `tell` hears of each step before it begins.
///
/// Errors: the first call that fails, or a directory that does not have what was put there.
pub fn run(settings: &Settings, mut tell: impl FnMut(&str)) -> Checked<Outcome> {
    match &settings.other {
        Some(other) => measure(settings.files, other, &mut tell),
        None => {
            let mut cluster = Cluster::start_within(NODES, LIMIT)?;
            let mount = cluster.mount(1)?;
            cluster.settle()?;
            let here = Other {
                label: "perigee".to_owned(),
                directory: mount,
                daemons: cluster.pids(),
            };
            measure(settings.files, &here, &mut tell)
        }
    }
}

fn measure(files: usize, place: &Other, tell: &mut impl FnMut(&str)) -> Checked<Outcome> {
    let directory = place.directory.join("crowd");
    fs::create_dir(&directory).call(|| format!("mkdir {}", directory.display()))?;
    let file = |number: usize| directory.join(format!("f{number:07}"));
    std::thread::sleep(REST);
    let mut outcome = Outcome {
        label: place.label.clone(),
        idle: memory(&place.daemons)?,
        ..Outcome::default()
    };

    tell(&format!("creates {files} files"));
    outcome.create = by_parts(files, |number| {
        let path = file(number);
        let made = File::create_new(&path).map(|_| ());
        made.call(|| format!("create {}", path.display()))
    })?;
    rustix::fs::sync();
    std::thread::sleep(REST);
    outcome.stored = memory(&place.daemons)?;

    tell("lists them");
    forget()?;
    let began = Instant::now();
    let mut names = 0_usize;
    for entry in fs::read_dir(&directory).call(|| "list".to_owned())? {
        entry.call(|| "list".to_owned())?;
        names += 1;
    }
    outcome.list = rate(names, began);
    ensure!(names == files, "{names} of {files} files are listed");

    tell("asks for the attributes of each");
    forget()?;
    let began = Instant::now();
    for number in 0..files {
        let path = file(number);
        let attr = fs::symlink_metadata(&path).call(|| format!("stat {}", path.display()))?;
        ensure!(
            attr.nlink() == 1,
            "{} has {} names",
            path.display(),
            attr.nlink()
        );
    }
    outcome.stat = rate(files, began);
    outcome.cached = cached_inodes()?;
    outcome.known = memory(&place.daemons)?;

    tell("removes them");
    outcome.remove = by_parts(files, |number| {
        let path = file(number);
        fs::remove_file(&path).call(|| format!("remove {}", path.display()))
    })?;
    fs::remove_dir(&directory).call(|| format!("rmdir {}", directory.display()))?;
    Ok(outcome)
}

/// Does it for each number; gives the rate of each tenth.
fn by_parts(files: usize, each: impl Fn(usize) -> Checked) -> Checked<Vec<f64>> {
    let end = |part: usize| files * part / PARTS;
    let part = |part: usize| {
        let began = Instant::now();
        (end(part)..end(part + 1)).try_for_each(&each)?;
        Ok(rate(end(part + 1) - end(part), began))
    };
    (0..PARTS).map(part).collect()
}

fn rate(count: usize, began: Instant) -> f64 {
    count as f64 / began.elapsed().as_secs_f64().max(1e-9)
}

/// Empties the kernel's caches of pages, names and inodes.
fn forget() -> Checked {
    rustix::fs::sync();
    fs::write("/proc/sys/vm/drop_caches", "3").call(|| "drop the kernel's caches".to_owned())
}

fn cached_inodes() -> Checked<u64> {
    let path = "/proc/sys/fs/inode-nr";
    let text = fs::read_to_string(path).call(|| format!("read {path}"))?;
    let mut numbers = text.split_whitespace().map(str::parse::<u64>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(all)), Some(Ok(free))) => Ok(all.saturating_sub(free)),
        _ => Err(CheckError::violated(format!("{path} says {text:?}"))),
    }
}

fn memory(daemons: &[i32]) -> Checked<Memory> {
    let mut all = Memory::default();
    for pid in daemons {
        let path = format!("/proc/{pid}/status");
        let text = fs::read_to_string(Path::new(&path)).call(|| format!("read {path}"))?;
        let of = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            let kib = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
            kib.map(|kib| kib << 10)
                .ok_or_else(|| CheckError::violated(format!("{path} has no {name}")))
        };
        all.resident += of("VmRSS")?;
        all.own += of("RssAnon")?;
    }
    Ok(all)
}
