//! `perigee snapshot restore`: a directory as it was, by ordinary operations on the mount ([`mirror`]).
//!
//! What has not changed since is left alone: where the times of a file and its length are those of the snapshot, its `ctime`
//! among them, nothing about it has. Of what has, only the blocks that differ are written.

use super::create;
use crate::commands::JsonArg;
use crate::commands::mirror::{
    self, At, Bring, Content, Dir, Failed, Mirror, Same, attributes, in_fd,
};
use crate::human;
use crate::output::Report;
use clap::Args;
use perigee_proto::admin::Failure;
use rustix::fs::Stat;
use serde::Serialize;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Bytes that are compared, and written, at once.
const PIECE: usize = 64 << 10;
/// Bytes that are read at once.
const READ: usize = 1 << 20;

/// Bring a directory back to what it was.
///
/// Makes everything below DIR what it was in the snapshot: content, owners, modes, times, ACLs, extended attributes, links.
/// What is there now and was not then is removed. Before that a snapshot of now is made, unless `--no-safety` is given, so
/// that it can be undone. Files that have not changed are left alone. Programs that use the directory should be stopped.
/// Exit code 1 when something could not be brought back; the rest is.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  perigee snapshot restore /mnt/perigee/data before-upgrade
  perigee snapshot restore /mnt/perigee/data before-upgrade --to /mnt/perigee/old
  cp -a /mnt/perigee/data/.snapshots/before-upgrade/file .    one file")]
pub struct Restore {
    /// The directory that the snapshot is of
    #[arg(value_name = "DIR")]
    path: PathBuf,
    /// The snapshot
    #[arg(value_name = "NAME")]
    name: String,
    /// Write it to this directory, which is made, or is empty
    #[arg(long, value_name = "DIR")]
    to: Option<PathBuf>,
    /// Make no snapshot of what is there now
    #[arg(long)]
    no_safety: bool,
    #[command(flatten)]
    json: JsonArg,
}

/// What was done.
#[derive(Debug, Default, Serialize)]
struct Done {
    /// The snapshot of what was there before.
    safety: Option<String>,
    #[serde(flatten)]
    tree: mirror::Done,
    /// Bytes of content that were written.
    written_bytes: u64,
}

impl Restore {
    pub(super) fn run(self) -> Result<Report, Failure> {
        let what = || {
            let (name, dir) = (&self.name, self.path.display());
            format!("cannot restore snapshot `{name}` of `{dir}`")
        };
        let failed = |error: io::Error| Failure::new(what(), error);
        let root = fs::File::open(&self.path).map_err(failed)?;
        let source = in_fd(&root).join(".snapshots").join(&self.name);
        let Ok(source) = fs::File::open(source) else {
            let why = "the directory has no such snapshot";
            return Err(Failure::new(what(), why).hint("`perigee snapshot list DIR` lists them"));
        };
        let target = self.to.as_ref().unwrap_or(&self.path);
        if self.to.is_some() {
            check_empty(target).map_err(|why| Failure::new(what(), why))?;
            fs::create_dir_all(target).map_err(failed)?;
        }
        let held = match self.to {
            Some(_) => fs::File::open(target).map_err(failed)?,
            None => root,
        };
        let mut done = Done::default();
        if self.to.is_none() && !self.no_safety {
            let name = format!("before-restore-{}", super::name_of_now());
            done.safety = Some(create(&self.path, name)?.name);
        }
        let mut work = Mirror::new(Dir::new(held.into(), target), Blocks::default());
        let restored = work.run(&Dir::new(source.into(), &self.path));
        done.tree = work.done;
        done.written_bytes = work.content.written_bytes;
        if let Err(Failed { at, error }) = restored {
            let failure = Failure::new(format!("{}, at `{}`", what(), at.display()), error);
            return Err(match done.safety {
                Some(name) => failure.hint(format!(
                    "run it again to go on, or go back with `perigee snapshot restore {} {name}`",
                    self.path.display()
                )),
                None => failure.hint("run it again to go on"),
            });
        }
        Report::either(self.json.json, &done, || text(&done))
    }
}

fn text(done: &Done) -> String {
    let entries = human::count(done.tree.entries);
    let mut text = format!(
        "{entries} entries looked at: {} changed, {} removed, {} written\n",
        done.tree.changed,
        done.tree.removed,
        human::size(done.written_bytes)
    );
    if let Some(safety) = &done.safety {
        text.push_str(&format!("what was there before is snapshot {safety}\n"));
    }
    text
}

fn check_empty(target: &Path) -> Result<(), String> {
    match fs::read_dir(target) {
        Ok(mut entries) => match entries.next() {
            None => Ok(()),
            Some(_) => Err(format!("`{}` is not empty", target.display())),
        },
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(format!("`{}`: {error}", target.display())),
    }
}

/// Whether nothing about it has changed since.
fn same(was: &Stat, is: &Stat) -> bool {
    (was.st_mode, was.st_size, was.st_nlink) == (is.st_mode, is.st_size, is.st_nlink)
        && (was.st_mtime, was.st_mtime_nsec) == (is.st_mtime, is.st_mtime_nsec)
        && (was.st_ctime, was.st_ctime_nsec) == (is.st_ctime, is.st_ctime_nsec)
}

/// Content that is compared, and written where it differs.
#[derive(Default)]
struct Blocks {
    written_bytes: u64,
}

impl Content for Blocks {
    fn is_same(&self, was: &Stat, is: &Stat) -> bool {
        same(was, is)
    }

    fn rewrites(&self) -> bool {
        true
    }

    fn bring(&mut self, file: Bring<'_>) -> Result<(), Failed> {
        let Bring {
            from,
            was,
            to,
            new,
            source,
            path,
        } = file;
        self.written_bytes += write_what_differs((&from, &source), (&to, &path), new)?;
        attributes(&from.into(), was, &to.into(), &path)
    }

    fn pass(&mut self, _: Same<'_>) -> Result<(), Failed> {
        Ok(())
    }

    fn settle(&mut self) -> Result<(), Failed> {
        Ok(())
    }

    fn line(&self, done: &mirror::Done) -> String {
        let bytes = human::size(self.written_bytes);
        format!(
            "{} entries, {} changed, {bytes} written",
            done.entries, done.changed
        )
    }
}

/// Makes the content of one file that of another; how many bytes had to be written.
fn write_what_differs(
    (from, source): (&fs::File, &Path),
    (to, target): (&fs::File, &Path),
    new: bool,
) -> Result<u64, Failed> {
    let (mut was, mut is) = (vec![0; READ], vec![0; READ]);
    let (mut at, mut written) = (0, 0);
    loop {
        let len = read_full(from, &mut was, at).at(source)?;
        if len == 0 {
            break;
        }
        let known = match new {
            true => 0,
            false => read_full(to, &mut is[..len], at).at(target)?,
        };
        // Behind its end a file reads as zeros.
        is[known..len].fill(0);
        for start in (0..len).step_by(PIECE) {
            let end = (start + PIECE).min(len);
            if was[start..end] != is[start..end] {
                let offset = at + start as u64;
                to.write_all_at(&was[start..end], offset).at(target)?;
                written += (end - start) as u64;
            }
        }
        at += len as u64;
    }
    if to.metadata().at(target)?.len() != at {
        to.set_len(at).at(target)?;
    }
    Ok(written)
}

fn read_full(file: &fs::File, buf: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buf.len() {
        match file.read_at(&mut buf[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    fn restore(source: &Path, target: &Path) -> Result<mirror::Done, Failed> {
        let mut work = Mirror::new(Dir::open(target)?, Blocks::default());
        work.run(&Dir::open(source)?)?;
        Ok(work.done)
    }

    #[test]
    fn a_tree_comes_back_with_links_modes_and_kinds() {
        let dir = tempfile::tempdir().expect("a directory");
        let (source, target) = (dir.path().join("was"), dir.path().join("is"));
        fs::create_dir_all(source.join("sub/deep")).expect("made");
        fs::write(source.join("sub/deep/file"), "as it was").expect("written");
        fs::write(source.join("private"), "secret").expect("written");
        let mode = fs::Permissions::from_mode(0o640);
        fs::set_permissions(source.join("private"), mode).expect("set");
        fs::hard_link(source.join("sub/deep/file"), source.join("second")).expect("linked");
        symlink("sub/deep", source.join("short")).expect("linked");
        // Things of other kinds are in the way.
        fs::create_dir_all(target.join("private/more")).expect("made");
        fs::write(target.join("sub"), "a file").expect("written");
        fs::write(target.join("extra"), "new").expect("written");
        symlink("nowhere", target.join("short")).expect("linked");
        let done = restore(&source, &target).ok().expect("restored");
        assert_eq!((done.entries, done.changed), (7, 6));
        assert!(!target.join("extra").exists());
        let read = |path: &str| fs::read_to_string(target.join(path)).expect("there");
        assert_eq!(read("short/file"), "as it was");
        assert_eq!(read("private"), "secret");
        let meta = |path: &str| fs::metadata(target.join(path)).expect("there");
        assert_eq!(meta("private").mode() & 0o7777, 0o640);
        assert_eq!(meta("second").ino(), meta("sub/deep/file").ino());
    }
}
