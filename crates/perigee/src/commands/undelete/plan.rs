//! What has to be asked for so that removed files are there again: directories before what is in them.

use perigee_proto::admin::{AdminPath, Bring, TrashKind, TrashRow};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};

/// What a directory is made as that nothing is known of.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plain {
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
}

/// One request to the node, and the size of what it brings back.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Step {
    pub(super) bring: Bring,
    pub(super) size: u64,
}

/// What is to be brought back.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Plan {
    pub(super) steps: Vec<Step>,
    /// Older files of a path that a later one had.
    pub(super) older: usize,
}

/// What brings back everything at `from` and below it under `to`. `rows`: the latest first. `exists`: whether there is a
/// directory of this path inside the file system.
pub(super) fn plan(
    rows: &[TrashRow],
    from: &Path,
    to: &Path,
    plain: Plain,
    exists: impl Fn(&Path) -> bool,
) -> Plan {
    let mut files: BTreeMap<PathBuf, &TrashRow> = BTreeMap::new();
    let mut directories: HashMap<PathBuf, &TrashRow> = HashMap::new();
    let mut plan = Plan::default();
    for row in rows {
        let Some(path) = row.path.as_ref().map(AdminPath::as_path) else {
            continue;
        };
        let target = match path.strip_prefix(from) {
            Ok(below) if below.as_os_str().is_empty() => to.to_path_buf(),
            Ok(below) => to.join(below),
            // Directories above it are as they were where it comes back to its own place.
            Err(_) if from == to => path.to_path_buf(),
            Err(_) => continue,
        };
        if row.kind == TrashKind::Directory {
            directories.entry(target).or_insert(row);
        } else if path.starts_with(from) {
            match files.entry(target) {
                Entry::Vacant(free) => _ = free.insert(row),
                Entry::Occupied(_) => plan.older += 1,
            }
        }
    }
    let mut made: BTreeSet<PathBuf> = BTreeSet::new();
    for (target, row) in files {
        let above: Vec<&Path> = target.ancestors().skip(1).collect();
        for directory in above.into_iter().rev() {
            if made.contains(directory) || exists(directory) {
                continue;
            }
            made.insert(directory.to_path_buf());
            plan.steps
                .push(make(directory, directories.get(directory).copied(), plain));
        }
        plan.steps.push(Step {
            bring: Bring::Kept {
                name: row.name,
                to: AdminPath::from(&target),
            },
            size: row.size,
        });
    }
    plan
}

fn make(path: &Path, row: Option<&TrashRow>, plain: Plain) -> Step {
    let (mode, uid, gid) = match row {
        Some(row) => (row.mode, row.uid, row.gid),
        None => (plain.mode, plain.uid, plain.gid),
    };
    let path = AdminPath::from(path);
    let bring = Bring::Directory {
        path,
        mode,
        uid,
        gid,
    };
    Step { bring, size: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use perigee_proto::admin::TrashName;
    use perigee_types::InodeId;

    fn row(inode: u64, path: &str, kind: TrashKind) -> TrashRow {
        TrashRow {
            name: TrashName {
                inode: InodeId(inode),
                until_ms: 9,
            },
            path: Some(AdminPath::from(path)),
            last: AdminPath::from("x"),
            removed_ms: 1,
            by: 0,
            kind,
            mode: 0o700 + inode as u32,
            uid: 5,
            gid: 6,
            size: inode,
        }
    }

    fn told(plan: &Plan) -> Vec<String> {
        let steps = plan.steps.iter();
        let told = steps.map(|step| match &step.bring {
            Bring::Directory {
                path, mode, uid, ..
            } => format!("{path} {mode:o} {uid}"),
            Bring::Kept { name, to } => format!("{} {to}", name.inode.0),
        });
        told.collect()
    }

    fn exists(path: &Path) -> bool {
        [Path::new("/"), Path::new("/d")].contains(&path)
    }

    #[test]
    fn directories_come_before_what_is_in_them_and_the_latest_file_wins() {
        let rows = [
            row(1, "/d/a/f", TrashKind::File),
            row(2, "/d/a", TrashKind::Directory),
            row(3, "/d/a/b", TrashKind::Directory),
            row(4, "/d/a/f", TrashKind::File),
            row(5, "/d/a/b/s", TrashKind::Symlink),
            row(6, "/d/a", TrashKind::Directory),
            row(7, "/d/c/g", TrashKind::File),
        ];
        let plain = Plain {
            mode: 0o755,
            uid: 0,
            gid: 0,
        };
        let all = plan(&rows, Path::new("/d"), Path::new("/d"), plain, exists);
        let expected = [
            "/d/a 702 5",
            "/d/a/b 703 5",
            "5 /d/a/b/s",
            "1 /d/a/f",
            "/d/c 755 0",
            "7 /d/c/g",
        ];
        assert_eq!(
            (told(&all), all.older),
            (expected.map(String::from).to_vec(), 1)
        );

        let one = Path::new("/d/a/b/s");
        let expected = ["/d/a 702 5", "/d/a/b 703 5", "5 /d/a/b/s"];
        assert_eq!(told(&plan(&rows, one, one, plain, exists)), expected);
        let elsewhere = plan(&rows, one, Path::new("/d/s"), plain, exists);
        assert_eq!(told(&elsewhere), ["5 /d/s"]);
        let tree = plan(&rows, Path::new("/d/a"), Path::new("/d/z"), plain, exists);
        let expected = ["/d/z 702 5", "/d/z/b 703 5", "5 /d/z/b/s", "1 /d/z/f"];
        assert_eq!(told(&tree), expected);
        let none = plan(
            &rows,
            Path::new("/d/a/x"),
            Path::new("/d/a/x"),
            plain,
            exists,
        );
        assert_eq!(none, Plan::default());
    }
}
