//! Random operations on two hosts' mounts against the same on a local directory.
//!
//! After each operation both sides must have given the same outcome (the same errno, the same bytes)
//! and have moved the same times; now and then, and at the end, the whole trees are compared: modes, owners,
//! link counts, sizes, content, extended attributes. The names are few and the tree is shallow, so that
//! operations meet: most refusals of POSIX occur.

mod op;
mod perform;

use crate::error::{CheckError, Checked};
use crate::{ensure, tree};
use op::{Known, Op, draw};
use perform::perform;
use perigee_types::Rng;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Operations between two comparisons of the whole trees.
const COMPARE_EVERY: u64 = 250;
/// Operations between two looks at which names exist, so that most operations meet one that does.
const REFRESH_EVERY: u64 = 10;

/// The directories that the operations go to.
#[derive(Debug, Clone)]
pub struct Sides {
    /// The same directory on each host; operations take turns at random.
    pub hosts: Vec<PathBuf>,
    /// A local directory, the model.
    pub model: PathBuf,
}

/// Runs `operations` of them from `seed`.
///
/// Errors: `Violated` says which operation differs, how, and how to replay it; `Vacuous` when nearly
/// all operations were refused.
pub fn run(sides: &Sides, seed: u64, operations: u64) -> Checked {
    let mut rng = Rng::new(seed);
    let mut succeeded = 0_u64;
    let mut known = Known::default();
    for number in 1..=operations {
        if number % REFRESH_EVERY == 1 {
            known = Known::of(&sides.model)?;
        }
        let op = draw(&mut rng, &known);
        let host = &sides.hosts[rng.below(sides.hosts.len() as u64) as usize];
        let title = || {
            format!(
                "seed {seed}, operation {number} on {}: {op:?}",
                host.display()
            )
        };
        // One looks through a host chosen apart, so that each sees what the other did.
        let witness = &sides.hosts[rng.below(sides.hosts.len() as u64) as usize];
        let before = (times(&op, witness), times(&op, &sides.model));
        let (got, want) = (perform(&op, host), perform(&op, &sides.model));
        ensure!(got == want, "{}: {got:?} instead of {want:?}", title());
        let after = (times(&op, witness), times(&op, &sides.model));
        let (moved, expected) = (changes(&before.0, &after.0), changes(&before.1, &after.1));
        ensure!(
            moved == expected,
            "{}: moved times {moved:?}, not {expected:?}",
            title()
        );
        succeeded += u64::from(want.is_ok());
        if number % COMPARE_EVERY == 0 || number == operations {
            compare(sides).map_err(|error| error.during(&title()))?;
        }
    }
    if succeeded < operations / 4 {
        let what = format!("only {succeeded} of {operations} operations succeeded");
        return Err(CheckError::Vacuous { what });
    }
    Ok(())
}

fn compare(sides: &Sides) -> Checked {
    let expected = tree::read(&sides.model)?;
    for host in &sides.hosts {
        let differences = tree::differences(&expected, &tree::read(host)?, 5);
        ensure!(
            differences.is_empty(),
            "{}: {}",
            host.display(),
            differences.join("; ")
        );
    }
    Ok(())
}

/// Inode, modification and change time of one name, if it is there.
type Times = Option<(u64, [(i64, i64); 2])>;

/// Times of the paths that an operation may touch, and of their directories.
fn times(op: &Op, root: &Path) -> Vec<(PathBuf, Times)> {
    let touched: Vec<&String> = match op {
        Op::Rename { from, to, .. } | Op::Link { from, to } => vec![from, to],
        Op::Create { path, .. }
        | Op::Write { path, .. }
        | Op::Append { path, .. }
        | Op::Truncate { path, .. }
        | Op::Punch { path, .. }
        | Op::Mkdir { path, .. }
        | Op::Rmdir { path }
        | Op::Unlink { path }
        | Op::Symlink { path, .. }
        | Op::Chmod { path, .. }
        | Op::Chown { path, .. }
        | Op::SetXattr { path, .. }
        | Op::RemoveXattr { path, .. }
        | Op::Fifo { path } => vec![path],
        // fallocate and copy_file_range leave it to the file system which times move when the bytes
        // stay the same; reads move the access time alone.
        Op::Allocate { .. }
        | Op::Copy { .. }
        | Op::Read { .. }
        | Op::Readlink { .. }
        | Op::GetXattr { .. }
        | Op::List { .. } => vec![],
    };
    let mut paths: Vec<PathBuf> = Vec::new();
    for path in touched {
        paths.push(PathBuf::from(path));
        paths.extend(Path::new(path).parent().map(Path::to_owned));
    }
    paths
        .into_iter()
        .map(|path| {
            let data = fs::symlink_metadata(root.join(&path)).ok();
            let times = data.map(|data| {
                let modified = (data.mtime(), data.mtime_nsec());
                (data.ino(), [modified, (data.ctime(), data.ctime_nsec())])
            });
            (path, times)
        })
        .collect()
}

/// Which times moved: `(path, mtime, ctime)` for names that lead to the same inode before and after.
fn changes(
    before: &[(PathBuf, Times)],
    after: &[(PathBuf, Times)],
) -> Vec<(PathBuf, std::cmp::Ordering, std::cmp::Ordering)> {
    before
        .iter()
        .zip(after)
        .filter_map(|((path, old), (_, new))| {
            let ((inode, old), (same, new)) = (old.as_ref()?, new.as_ref()?);
            let moved = (path.clone(), new[0].cmp(&old[0]), new[1].cmp(&old[1]));
            (inode == same).then_some(moved)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use perform::list;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_model_that_lost_a_file_is_noticed() {
        let directory = tempfile::tempdir().unwrap();
        let sides = Sides {
            hosts: vec![directory.path().join("host")],
            model: directory.path().join("model"),
        };
        fs::create_dir(&sides.hosts[0]).unwrap();
        fs::create_dir(&sides.model).unwrap();
        run(&sides, 3, 300).unwrap();
        let kept = list(&sides.model).unwrap();
        assert!(!kept.is_empty());
        fs::write(sides.model.join("only-here"), "x").unwrap();
        fs::set_permissions(&sides.model, fs::Permissions::from_mode(0o755)).unwrap();
        assert!(compare(&sides).is_err());
    }
}
