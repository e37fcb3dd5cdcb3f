//! A tree of small files: the calls of `tar x` and of `rm -r`, from memory.

use super::Figures;
use crate::{Row, Settings, Target};
use perigee_testbed::{Call, Checked, pattern};
use perigee_types::Rng;
use std::fs::{self, File, FileTimes, OpenOptions, Permissions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

/// Files of one directory.
const IN_DIRECTORY: usize = 20;
/// Sizes lie between these, each doubling as likely as the next.
const SMALLEST: f64 = 100.0;
const LARGEST: f64 = 65_536.0;

pub(super) fn run(settings: &Settings, target: &Target, directory: &Path) -> Checked<Figures> {
    let archive = archive(settings.tree_files);
    let root = directory.join("tree");
    let count = archive.len() as u64;
    target.settle();
    let meter = target.meter();
    for (name, content) in &archive {
        extract(&root.join(name), content)?;
    }
    let untar = meter.stop().time(count);
    target.settle();
    let meter = target.meter();
    fs::remove_dir_all(&root).call(|| "rm -r".to_owned())?;
    Ok(vec![
        (Row::Untar, untar),
        (Row::RmRf, meter.stop().time(count)),
    ])
}

/// Names with contents, the same at every run.
fn archive(files: usize) -> Vec<(PathBuf, Vec<u8>)> {
    let mut rng = Rng::new(77);
    (0..files)
        .map(|number| {
            let group = number / IN_DIRECTORY;
            let name = format!(
                "d{:02}/s{:02}/f{:02}",
                group / 10,
                group % 10,
                number % IN_DIRECTORY
            );
            let part = rng.below(1 << 20) as f64 / f64::from(1 << 20);
            let mut content = vec![0; (SMALLEST * (LARGEST / SMALLEST).powf(part)) as usize];
            pattern::fill(rng.next_u64(), 0, &mut content);
            (PathBuf::from(name), content)
        })
        .collect()
}

/// As GNU tar does it for root: create, and its directory only where that fails; then write, times,
/// owner, mode.
fn extract(path: &Path, content: &[u8]) -> Checked {
    let create = || {
        OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)
    };
    let what = || format!("extract {}", path.display());
    let mut file: File = match create() {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let parent = path.parent().unwrap_or(path);
            fs::create_dir_all(parent).call(what)?;
            create().call(what)?
        }
        opened => opened.call(what)?,
    };
    file.write_all(content).call(what)?;
    let modified = UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    file.set_times(FileTimes::new().set_modified(modified))
        .call(what)?;
    if rustix::process::geteuid().is_root() {
        fchown(&file, Some(0), Some(0)).call(what)?;
    }
    file.set_permissions(Permissions::from_mode(0o644))
        .call(what)
}
