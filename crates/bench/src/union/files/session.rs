//! One system in one round: three mounts, since what shall be cold begins with one. The large file is read from the disk of
//! its host, too.

use super::ground::{self, POINT};
use super::row::{Act, Place, Row};
use super::{HOSTS, Settings, System};
use crate::content::Content;
use crate::large;
use crate::target::Target;
use perigee_testbed::ssh_hosts::SshHosts;
use perigee_testbed::{Call, Checked, ensure};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Directories of each tree.
pub(super) const DIRECTORIES: u32 = 40;
/// Bytes of a small file.
const SMALL: usize = 4 << 10;
/// The directory of the large file, which the first host alone has.
const LARGE: &str = "large";

/// Hosts with what is measured.
pub(super) struct Field<'a> {
    hosts: &'a SshHosts,
    settings: &'a Settings,
    content: Content,
    turn: u32,
}

/// The values of a round.
type Values = Vec<(Row, f64)>;

/// What was written, for whoever reads it.
struct Written {
    large: (String, Vec<usize>),
    small: Vec<(Place, String, Vec<usize>)>,
}

impl<'a> Field<'a> {
    /// Lays out directories and trees on the hosts' disks.
    ///
    /// Errors: those of writing.
    pub(super) fn new(hosts: &'a SshHosts, settings: &'a Settings) -> Checked<Self> {
        let field = Self {
            hosts,
            settings,
            content: Content::new(5),
            turn: 0,
        };
        make_directory(&field.disk(1)?.join(LARGE))?;
        for place in Place::ALL {
            for host in 1..=HOSTS {
                if place == Place::Shared || host == 1 {
                    make_directory(&field.disk(host)?.join(place.key()))?;
                }
            }
            field.plant(place)?;
        }
        Ok(field)
    }

    fn disk(&self, host: u32) -> Checked<PathBuf> {
        self.hosts.directory(host)
    }

    /// Makes a tree: of directories each on one host by turns, or on all with the files by turns.
    fn plant(&self, place: Place) -> Checked {
        let disks = (1..=HOSTS).map(|host| self.disk(host));
        let disks = disks.collect::<Checked<Vec<_>>>()?;
        for disk in &disks {
            make_directory(&disk.join(tree(place)))?;
        }
        let having = |directory: u32, file: u32| match place {
            Place::Home => directory % HOSTS,
            Place::Shared => file / DIRECTORIES % HOSTS,
        };
        for directory in 0..DIRECTORIES {
            for (host, disk) in (0..).zip(&disks) {
                if place == Place::Shared || having(directory, 0) == host {
                    make_directory(&disk.join(tree(place)).join(format!("d{directory}")))?;
                }
            }
        }
        for file in 0..self.settings.tree {
            let directory = file % DIRECTORIES;
            let disk = &disks[having(directory, file) as usize];
            let path = disk.join(format!("{}/d{directory}/f{file}", tree(place)));
            fs::write(&path, b"leaf").call(|| format!("write {}", path.display()))?;
        }
        Ok(())
    }

    /// Measures one system.
    ///
    /// Errors: the first call that fails, or content that is not what was written.
    pub(super) fn measure(&mut self, system: System) -> Checked<Values> {
        self.turn += 1;
        let mut values = Values::new();
        let written = self.mounted(system, |field, root| field.write(system, root, &mut values))?;
        at_rest(Vec::new()).drop_caches(Duration::ZERO)?;
        self.mounted(system, |field, root| {
            field.look(root, &written, &mut values)
        })?;
        self.mounted(system, |field, root| {
            field.read_and_remove(system, root, &written, &mut values)
        })?;
        let (name, _) = &written.large;
        let path = self.disk(1)?.join(name);
        fs::remove_file(&path).call(|| format!("remove {}", path.display()))?;
        Ok(values)
    }

    /// Does something with a fresh mount, which knows of nothing. Small files the hosts have in memory, since their disk would
    /// take longer than all else, and more one time than another.
    fn mounted<T>(
        &mut self,
        system: System,
        work: impl FnOnce(&mut Self, &Path) -> Checked<T>,
    ) -> Checked<T> {
        rustix::fs::sync();
        for host in 1..=HOSTS {
            let disk = self.disk(host)?;
            for place in Place::ALL {
                remember(&disk.join(place.key()))?;
                remember(&disk.join(tree(place)))?;
            }
        }
        system.mount(self.hosts)?;
        let root = ground::seen(self.hosts, POINT)?;
        at_rest(ground::pids(self.hosts)?).settle();
        let outcome = work(self, &root)?;
        system.unmount(self.hosts)?;
        Ok(outcome)
    }

    fn write(&mut self, system: System, root: &Path, values: &mut Values) -> Checked<Written> {
        let mib = self.settings.mib;
        let name = format!("{LARGE}/f{}", self.turn);
        let start = Instant::now();
        let (file, places) = large::make(&mut self.content, &root.join(&name), mib)?;
        drop(file);
        values.push((Row::Write, mib as f64 / seconds(start)));
        large::check(&self.content, &self.disk(1)?.join(&name), &places)?;
        let mut small = Vec::new();
        for place in Place::ALL {
            let row = Row::Small(place, Act::Create);
            if system.has(row) {
                let prefix = format!("{}/t{}-", place.key(), self.turn);
                let start = Instant::now();
                let places = self.create(&root.join(&prefix))?;
                values.push((row, self.rate(start)));
                small.push((place, prefix, places));
            }
        }
        Ok(Written {
            large: (name, places),
            small,
        })
    }

    fn look(&self, root: &Path, written: &Written, values: &mut Values) -> Checked {
        let (mib, (name, places)) = (self.settings.mib, &written.large);
        let path = root.join(name);
        let start = Instant::now();
        large::read(&path, mib)?;
        values.push((Row::Read, mib as f64 / seconds(start)));
        large::check(&self.content, &path, places)?;
        for (place, prefix, _) in &written.small {
            let start = Instant::now();
            for number in 0..self.settings.files {
                let path = numbered(&root.join(prefix), number);
                let seen =
                    fs::symlink_metadata(&path).call(|| format!("stat {}", path.display()))?;
                ensure!(
                    seen.len() == SMALL as u64,
                    "{} has {} bytes",
                    path.display(),
                    seen.len()
                );
            }
            values.push((Row::Small(*place, Act::Stat), self.rate(start)));
        }
        Ok(())
    }

    fn read_and_remove(
        &self,
        system: System,
        root: &Path,
        written: &Written,
        values: &mut Values,
    ) -> Checked {
        for (place, prefix, places) in &written.small {
            let start = Instant::now();
            self.read(&root.join(prefix), places)?;
            values.push((Row::Small(*place, Act::Read), self.rate(start)));
        }
        for (place, prefix, _) in &written.small {
            let start = Instant::now();
            for number in 0..self.settings.files {
                let path = numbered(&root.join(prefix), number);
                fs::remove_file(&path).call(|| format!("remove {}", path.display()))?;
            }
            values.push((Row::Small(*place, Act::Unlink), self.rate(start)));
        }
        for place in Place::ALL {
            let row = Row::List(place);
            if system.has(row) {
                let start = Instant::now();
                let entries = walk(&root.join(tree(place)))?;
                values.push((row, seconds(start) * 1e3));
                let expected = self.settings.tree + DIRECTORIES;
                ensure!(
                    entries == expected,
                    "{entries} entries in the tree, not {expected}"
                );
            }
        }
        Ok(())
    }

    fn create(&mut self, prefix: &Path) -> Checked<Vec<usize>> {
        let mut places = Vec::new();
        for number in 0..self.settings.files {
            let path = numbered(prefix, number);
            let (place, bytes) = self.content.next_with_place(SMALL);
            let made = File::create_new(&path).and_then(|mut file| file.write_all(bytes));
            made.call(|| format!("write {}", path.display()))?;
            places.push(place);
        }
        Ok(places)
    }

    /// Reads and compares, which takes a thousandth of the time of the fastest reading.
    fn read(&self, prefix: &Path, places: &[usize]) -> Checked {
        let mut bytes = Vec::with_capacity(2 * SMALL);
        for (number, place) in (0..).zip(places) {
            let path = numbered(prefix, number);
            bytes.clear();
            let read = File::open(&path).and_then(|mut file| file.read_to_end(&mut bytes));
            read.call(|| format!("read {}", path.display()))?;
            let right = bytes == self.content.at(*place, SMALL);
            ensure!(right, "{}: other bytes", path.display());
        }
        Ok(())
    }

    fn rate(&self, start: Instant) -> f64 {
        f64::from(self.settings.files) / seconds(start)
    }
}

fn seconds(start: Instant) -> f64 {
    start.elapsed().as_secs_f64().max(1e-9)
}

/// What waits until processes are at rest.
fn at_rest(daemons: Vec<i32>) -> Target {
    Target {
        label: String::new(),
        directory: PathBuf::new(),
        one_copy: None,
        daemons,
    }
}

fn make_directory(path: &Path) -> Checked {
    fs::create_dir(path).call(|| format!("make {}", path.display()))
}

/// Reads a directory with all that is below it, if it is there.
fn remember(directory: &Path) -> Checked {
    let what = || format!("read {}", directory.display());
    if !directory.exists() {
        return Ok(());
    }
    for entry in fs::read_dir(directory).call(what)? {
        let path = entry.call(what)?.path();
        if path.is_dir() {
            remember(&path)?;
        } else {
            fs::read(&path).call(|| format!("read {}", path.display()))?;
        }
    }
    Ok(())
}

fn tree(place: Place) -> String {
    format!("tree-{}", place.key())
}

fn numbered(prefix: &Path, number: u32) -> PathBuf {
    let mut path = prefix.as_os_str().to_owned();
    path.push(number.to_string());
    PathBuf::from(path)
}

/// Reads a directory and all below it, with the attributes of each entry, and counts them.
fn walk(directory: &Path) -> Checked<u32> {
    let what = || format!("list {}", directory.display());
    let mut count = 0;
    for entry in fs::read_dir(directory).call(what)? {
        let path = entry.call(what)?.path();
        let attributes = fs::symlink_metadata(&path).call(|| format!("stat {}", path.display()))?;
        count += 1;
        if attributes.is_dir() {
            count += walk(&path)?;
        }
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_counts_directories_and_files() {
        let folder = perigee_testbed::leftover::Workspace::new().unwrap();
        let root = folder.path().join("root");
        for directory in ["a", "b/c"] {
            fs::create_dir_all(root.join(directory)).unwrap();
            fs::write(root.join(directory).join("file"), "text").unwrap();
        }
        assert_eq!(walk(&root).unwrap(), 5);
        assert_eq!(numbered(Path::new("d/t1-"), 7), Path::new("d/t1-7"));
    }
}
