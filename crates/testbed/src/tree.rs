//! Trees of files: making one, copying it as `cp -a` does, and telling two of them apart.

use crate::error::{Call, Checked};
use crate::pattern;
use perigee_types::Rng;
use std::collections::BTreeMap;
use std::fs::{self, File, FileTimes};
use std::hash::{DefaultHasher, Hasher};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

/// What a name leads to, with all that a copy keeps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Type and permission bits.
    pub mode: u32,
    /// User and group.
    pub owner: (u32, u32),
    /// Hard links.
    pub links: u64,
    /// Bytes, of files only: a directory's size is its file system's own affair.
    pub size: u64,
    /// Hash of a file's content, or of a symlink's target.
    pub digest: u64,
    /// Extended attributes of the user's name space.
    pub attributes: BTreeMap<String, Vec<u8>>,
}

/// A tree by relative path.
pub type Tree = BTreeMap<PathBuf, Entry>;

/// Makes `files` files of 100 B to 64 KiB below `root`, 20 in a directory, with odd modes, links and
/// symlinks among them; the same for the same seed.
///
/// Errors: those of the calls.
pub fn make(root: &Path, files: usize, seed: u64) -> Checked {
    const IN_DIRECTORY: usize = 20;
    let mut rng = Rng::new(seed);
    for number in 0..files {
        let group = number / IN_DIRECTORY;
        let folder = root.join(format!("d{:02}/s{:02}", group / 10, group % 10));
        fs::create_dir_all(&folder).call(|| format!("mkdir {}", folder.display()))?;
        let path = folder.join(format!("f{:02}", number % IN_DIRECTORY));
        let mut content = vec![0; size(&mut rng)];
        pattern::fill(rng.next_u64(), 0, &mut content);
        fs::write(&path, content).call(|| format!("write {}", path.display()))?;
        let mode = [0o644, 0o600, 0o755, 0o444][rng.below(4) as usize];
        fs::set_permissions(&path, fs::Permissions::from_mode(mode))
            .call(|| format!("chmod {}", path.display()))?;
        if rng.chance(1, 40) {
            let link = folder.join(format!("l{:02}", number % IN_DIRECTORY));
            symlink(format!("f{:02}", number % IN_DIRECTORY), &link)
                .call(|| format!("symlink {}", link.display()))?;
        }
    }
    Ok(())
}

/// A size from 100 B to 64 KiB, each power of two as likely as the next.
fn size(rng: &mut Rng) -> usize {
    let power = 7 + rng.below(9);
    let base = 1_u64 << power;
    (base - 28 + rng.below(base)).min(65_536) as usize
}

/// Copies a tree by reading and writing, with modes and modification times.
///
/// Errors: the first call that fails.
pub fn copy(from: &Path, to: &Path) -> Checked {
    fs::create_dir_all(to).call(|| format!("mkdir {}", to.display()))?;
    for entry in fs::read_dir(from).call(|| format!("list {}", from.display()))? {
        let entry = entry.call(|| format!("list {}", from.display()))?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        let kind = entry
            .file_type()
            .call(|| format!("type of {}", source.display()))?;
        if kind.is_dir() {
            copy(&source, &target)?;
        } else if kind.is_symlink() {
            let leads = fs::read_link(&source).call(|| format!("readlink {}", source.display()))?;
            symlink(leads, &target).call(|| format!("symlink {}", target.display()))?;
        } else if kind.is_file() {
            copy_file(&source, &target)?;
        }
    }
    Ok(())
}

fn copy_file(source: &Path, target: &Path) -> Checked {
    let mut from = File::open(source).call(|| format!("open {}", source.display()))?;
    let mut to = File::create_new(target).call(|| format!("create {}", target.display()))?;
    let mut buffer = vec![0; 128 * 1_024];
    loop {
        let got = from
            .read(&mut buffer)
            .call(|| format!("read {}", source.display()))?;
        if got == 0 {
            break;
        }
        to.write_all(&buffer[..got])
            .call(|| format!("write {}", target.display()))?;
    }
    let data = from
        .metadata()
        .call(|| format!("stat {}", source.display()))?;
    to.set_permissions(data.permissions())
        .call(|| format!("chmod {}", target.display()))?;
    let modified = data
        .modified()
        .call(|| format!("mtime of {}", source.display()))?;
    to.set_times(FileTimes::new().set_modified(modified))
        .call(|| format!("utimens {}", target.display()))
}

/// The relative paths of all that is below `root`, in order.
///
/// Errors: those of the listings.
pub fn names(root: &Path) -> Checked<Vec<String>> {
    let mut names = Vec::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        let path = root.join(&folder);
        for entry in fs::read_dir(&path).call(|| format!("list {}", path.display()))? {
            let entry = entry.call(|| format!("list {}", path.display()))?;
            let relative = folder.join(entry.file_name());
            names.push(relative.to_string_lossy().into_owned());
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                folders.push(relative);
            }
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// Reads a whole tree.
///
/// Errors: the first call that fails.
pub fn read(root: &Path) -> Checked<Tree> {
    let mut tree = Tree::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        let path = root.join(&folder);
        for entry in fs::read_dir(&path).call(|| format!("list {}", path.display()))? {
            let entry = entry.call(|| format!("list {}", path.display()))?;
            let relative = folder.join(entry.file_name());
            let found = describe(&entry.path())?;
            if found.mode & libc::S_IFMT == libc::S_IFDIR {
                folders.push(relative.clone());
            }
            tree.insert(relative, found);
        }
    }
    Ok(tree)
}

fn describe(path: &Path) -> Checked<Entry> {
    let data = fs::symlink_metadata(path).call(|| format!("stat {}", path.display()))?;
    let mut hasher = DefaultHasher::new();
    let mut attributes = BTreeMap::new();
    if data.is_file() {
        hash_file(path, &mut hasher)?;
    } else if data.is_symlink() {
        let target = fs::read_link(path).call(|| format!("readlink {}", path.display()))?;
        hasher.write(target.as_os_str().as_encoded_bytes());
    }
    if !data.is_symlink() {
        attributes = user_attributes(path)?;
    }
    Ok(Entry {
        mode: data.mode(),
        owner: (data.uid(), data.gid()),
        links: data.nlink(),
        size: if data.is_dir() { 0 } else { data.size() },
        digest: hasher.finish(),
        attributes,
    })
}

fn hash_file(path: &Path, hasher: &mut DefaultHasher) -> Checked {
    let mut file = File::open(path).call(|| format!("open {}", path.display()))?;
    let mut buffer = vec![0; 128 * 1_024];
    loop {
        let got = file
            .read(&mut buffer)
            .call(|| format!("read {}", path.display()))?;
        if got == 0 {
            return Ok(());
        }
        hasher.write(&buffer[..got]);
    }
}

fn user_attributes(path: &Path) -> Checked<BTreeMap<String, Vec<u8>>> {
    let mut list = Vec::with_capacity(65_536);
    rustix::fs::llistxattr(path, rustix::buffer::spare_capacity(&mut list))
        .call(|| format!("listxattr {}", path.display()))?;
    let mut attributes = BTreeMap::new();
    for name in list
        .split(|byte| *byte == 0)
        .filter(|name| name.starts_with(b"user."))
    {
        let name = String::from_utf8_lossy(name).into_owned();
        let mut value = Vec::with_capacity(65_536);
        rustix::fs::lgetxattr(path, &name, rustix::buffer::spare_capacity(&mut value))
            .call(|| format!("getxattr {name} of {}", path.display()))?;
        attributes.insert(name, value);
    }
    Ok(attributes)
}

/// The differences of two trees in words, at most `limit` of them.
#[must_use]
pub fn differences(expected: &Tree, seen: &Tree, limit: usize) -> Vec<String> {
    let missing = expected
        .iter()
        .filter_map(|(path, entry)| match seen.get(path) {
            None => Some(format!("`{}` is missing", path.display())),
            Some(other) if other != entry => Some(format!(
                "`{}` is {other:?} instead of {entry:?}",
                path.display()
            )),
            Some(_) => None,
        });
    let extra = seen
        .keys()
        .filter(|path| !expected.contains_key(*path))
        .map(|path| format!("`{}` should not be there", path.display()));
    missing.chain(extra).take(limit).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flipped_byte_a_mode_and_a_missing_name_are_differences() {
        let directory = tempfile::tempdir().unwrap();
        let (one, two) = (directory.path().join("one"), directory.path().join("two"));
        make(&one, 60, 5).unwrap();
        copy(&one, &two).unwrap();
        let expected = read(&one).unwrap();
        assert!(expected.len() > 60);
        assert_eq!(
            differences(&expected, &read(&two).unwrap(), 9),
            Vec::<String>::new()
        );

        let victim = two.join("d00/s00/f03");
        let mut content = fs::read(&victim).unwrap();
        content[10] ^= 1;
        fs::set_permissions(&victim, fs::Permissions::from_mode(0o644)).unwrap();
        fs::write(&victim, content).unwrap();
        fs::set_permissions(two.join("d00/s00/f04"), fs::Permissions::from_mode(0o611)).unwrap();
        fs::remove_file(two.join("d00/s00/f05")).unwrap();
        fs::write(two.join("extra"), "").unwrap();
        assert_eq!(differences(&expected, &read(&two).unwrap(), 9).len(), 4);
    }
}
