//! `perigee undelete`: what was removed where a policy has it kept.

mod bring;
mod plan;

use super::JsonArg;
use crate::admin_client::{CHANGE_TIME, ask, unexpected};
use crate::human::{self, Align, Table};
use crate::mounts::{self, Place};
use crate::output::{Progress, Report};
use clap::{Args, Subcommand};
use perigee_proto::admin::{Answer, Failure, Request, TrashKind, TrashName, TrashRow};
use serde::Serialize;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// What one question purges: a request line has room for as many names.
const PURGE_BATCH: usize = 400;

/// Bring back what was removed where a policy has it kept
///
/// `perigee policy set DIR trash=7d` has files kept for so long that are removed from DIR and below it, or replaced by a
/// rename. This gives one of them its name again, as it was: content, owner, mode, times and extended attributes. Of a
/// directory that was removed, all files below it come back, and the directories are made again. Where
/// a file was removed several times, the last one comes back. What has the name now is never replaced.
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "\
Examples:
  perigee undelete list /mnt/perigee/home            what can be brought back
  perigee undelete /mnt/perigee/home/report.txt
  perigee undelete /mnt/perigee/home/src --to /mnt/perigee/home/src.old
  perigee undelete /mnt/perigee --id 4398046511106   an older one, by its number in the list
  perigee undelete purge /mnt/perigee/home --older-than 1d"
)]
pub struct Undelete {
    #[command(subcommand)]
    other: Option<Other>,
    /// The path that it had; of a directory, everything below it
    #[arg(value_name = "PATH", required = true)]
    path: Option<PathBuf>,
    /// The number of a file in the list; PATH is any path in the mount then
    #[arg(long, value_name = "NUMBER")]
    id: Option<u64>,
    /// Bring it back under this path instead of its own
    #[arg(long, value_name = "NEWPATH")]
    to: Option<PathBuf>,
    #[command(flatten)]
    json: JsonArg,
}

/// What else there is to do.
#[derive(Debug, Subcommand)]
enum Other {
    /// List what was removed and is kept
    List(List),
    /// Give up what was removed and is kept, for good
    Purge(Purge),
}

/// List what was removed and is kept, the latest first.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  perigee undelete list /mnt/perigee/home
  perigee undelete list /mnt/perigee/home --json | jq '.[] | select(.by == 1000) | .path'")]
struct List {
    /// A directory in a mount; it may have been removed
    #[arg(value_name = "DIR")]
    path: PathBuf,
    #[command(flatten)]
    json: JsonArg,
}

/// Give up what was removed and is kept, for good. Its space is free when no program has it open any more.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  perigee undelete purge /mnt/perigee/scratch
  perigee undelete purge /mnt/perigee --older-than 1d")]
struct Purge {
    /// A directory in a mount; it may have been removed
    #[arg(value_name = "DIR")]
    path: PathBuf,
    /// Only what was removed before that long: 90m, 12h, 2d
    #[arg(long, value_name = "TIME", value_parser = human::parse_time)]
    older_than: Option<Duration>,
    #[command(flatten)]
    json: JsonArg,
}

impl Undelete {
    /// Asks the node behind the mount.
    pub fn run(self) -> Result<Report, Failure> {
        match (self.other, self.path) {
            (Some(Other::List(list)), _) => list.run(),
            (Some(Other::Purge(purge)), _) => purge.run(),
            (None, Some(path)) => {
                let (id, to, json) = (self.id, self.to, self.json);
                let bring = bring::Bring { path, id, to, json };
                bring.run()
            }
            // The parser has asked for one.
            (None, None) => Err(Failure::new(
                "cannot bring anything back",
                "no path is given",
            )),
        }
    }
}

/// What is kept at and below a place, and the directories that were above it.
struct Found {
    place: Place,
    /// The place on this machine.
    full: PathBuf,
    rows: Vec<TrashRow>,
}

impl Found {
    fn look(path: &Path) -> Result<Self, Failure> {
        let (place, full) = mounts::resolve_gone(path)?;
        let rows = rows_at(&place)?;
        Ok(Self { place, full, rows })
    }

    /// Where a path inside the file system is on this machine, if it is the place or below it.
    fn local(&self, row: &TrashRow) -> Option<PathBuf> {
        let path = row.path.as_ref()?.as_path();
        let below = path.strip_prefix(self.place.inside.as_path()).ok()?;
        if below.as_os_str().is_empty() {
            return Some(self.full.clone());
        }
        Some(self.full.join(below))
    }

    /// Rows at and below the place, directories left out: of the root, also those whose path is not known.
    fn files(&self) -> impl Iterator<Item = (&TrashRow, Option<PathBuf>)> {
        let all = self.place.inside.as_path() == Path::new("/");
        let files = self
            .rows
            .iter()
            .filter(|row| row.kind != TrashKind::Directory);
        files.filter_map(move |row| {
            let local = self.local(row);
            (local.is_some() || (all && row.path.is_none())).then_some((row, local))
        })
    }
}

fn rows_at(place: &Place) -> Result<Vec<TrashRow>, Failure> {
    let path = place.inside.clone();
    match ask(&place.data_dir, &Request::TrashList { path }, CHANGE_TIME)? {
        Answer::Trash(rows) => Ok(rows),
        other => Err(unexpected(&other)),
    }
}

/// One line of the list.
#[derive(Debug, Serialize)]
struct Line {
    /// Names it for `--id`.
    id: u64,
    /// Where it was on this machine; none where a directory above it is not known any more.
    path: Option<String>,
    /// The last part of that.
    name: String,
    kind: TrashKind,
    size: u64,
    /// Seconds since 1970.
    removed: u64,
    /// The user who removed it.
    by: u32,
    /// The user to whom it belongs.
    uid: u32,
    gid: u32,
    mode: u32,
    /// Seconds since 1970.
    kept_until: u64,
}

impl Line {
    fn of(row: &TrashRow, local: Option<PathBuf>) -> Self {
        Self {
            id: row.name.inode.0,
            path: local.map(|path| path.to_string_lossy().into_owned()),
            name: row.last.to_string(),
            kind: row.kind,
            size: row.size,
            removed: row.removed_ms / 1_000,
            by: row.by,
            uid: row.uid,
            gid: row.gid,
            mode: row.mode,
            kept_until: row.name.until_ms / 1_000,
        }
    }
}

impl List {
    fn run(self) -> Result<Report, Failure> {
        let found = Found::look(&self.path)?;
        let lines: Vec<Line> = found
            .files()
            .map(|(row, local)| Line::of(row, local))
            .collect();
        Report::either(self.json.json, &lines, || text(&lines, now().as_secs()))
    }
}

fn now() -> Duration {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default()
}

/// A table, with paths as long as they are: they are for the clipboard.
fn text(lines: &[Line], now: u64) -> String {
    if lines.is_empty() {
        return "Nothing that was removed there is kept.\n".to_owned();
    }
    let mut table = Table::new(&[
        ("ID", Align::Right),
        ("REMOVED", Align::Right),
        ("LEFT", Align::Right),
        ("BY", Align::Right),
        ("SIZE", Align::Right),
    ]);
    for line in lines {
        table.row(vec![
            line.id.to_string(),
            format!("{} ago", span(now.saturating_sub(line.removed))),
            span(line.kept_until.saturating_sub(now)),
            line.by.to_string(),
            human::size(line.size),
        ]);
    }
    let paths = lines.iter().map(|line| match &line.path {
        Some(path) => shown(path),
        None => format!("?/{}", shown(&line.name)),
    });
    let paths = std::iter::once("PATH".to_owned()).chain(paths);
    let table = table.render(0);
    let rows = table.lines().zip(paths);
    rows.map(|(row, path)| format!("{row}  {path}\n")).collect()
}

/// A name from elsewhere must not move the cursor of a person's terminal.
fn shown(path: &str) -> String {
    let clean = |c: char| if c.is_control() { '?' } else { c };
    path.chars().map(clean).collect()
}

/// `5 s`, `12 min`, `3 h`, `6 d`: one number is enough for a column.
fn span(secs: u64) -> String {
    match secs {
        0..120 => format!("{secs} s"),
        120..7_200 => format!("{} min", secs / 60),
        7_200..172_800 => format!("{} h", secs / 3_600),
        _ => format!("{} d", secs / 86_400),
    }
}

/// What was purged.
#[derive(Debug, Default, Serialize)]
struct Purged {
    files: u64,
    bytes: u64,
}

impl Purge {
    fn run(self) -> Result<Report, Failure> {
        let found = Found::look(&self.path)?;
        let before = now().saturating_sub(self.older_than.unwrap_or_default());
        let before_ms = u64::try_from(before.as_millis()).unwrap_or(u64::MAX);
        // What a directory was like goes by itself: what is kept of it takes next to nothing, and leads to the files.
        let old: Vec<&TrashRow> = found
            .files()
            .map(|(row, _)| row)
            .filter(|row| row.removed_ms <= before_ms)
            .collect();
        let mut purged = Purged::default();
        let mut progress = Progress::new();
        for rows in old.chunks(PURGE_BATCH) {
            progress.show(|| format!("{} of {} files purged", purged.files, old.len()));
            let entries: Vec<TrashName> = rows.iter().map(|row| row.name).collect();
            let request = Request::TrashPurge { entries };
            match ask(&found.place.data_dir, &request, CHANGE_TIME)? {
                Answer::Purged(files) => purged.files += files,
                other => return Err(unexpected(&other)),
            }
            purged.bytes += rows.iter().map(|row| row.size).sum::<u64>();
        }
        progress.clear();
        Report::either(self.json.json, &purged, || {
            let files = human::plural(usize::try_from(purged.files).unwrap_or(usize::MAX), "file");
            format!("{files} purged, {}\n", human::size(purged.bytes))
        })
    }
}

/// Bytes that a path takes in a request.
fn request_bytes(path: &Path) -> usize {
    let bytes = path.as_os_str().as_bytes();
    // What is not UTF-8 travels as a list of numbers.
    bytes.len() * if bytes.is_ascii() { 2 } else { 6 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use perigee_proto::admin::AdminPath;
    use perigee_types::InodeId;

    fn line(path: Option<&str>) -> Line {
        let row = TrashRow {
            name: TrashName {
                inode: InodeId(4_398_046_511_106),
                until_ms: 700_000_000,
            },
            path: path.map(AdminPath::from),
            last: AdminPath::from("f"),
            removed_ms: 90_000_000,
            by: 1_000,
            kind: TrashKind::File,
            mode: 0o644,
            uid: 1_000,
            gid: 100,
            size: 1_536,
        };
        Line::of(&row, path.map(PathBuf::from))
    }

    #[test]
    fn the_list_has_whole_paths_and_nothing_that_moves_a_cursor() {
        let long = format!("/mnt/{}/f\u{1b}[2J", "d".repeat(100));
        let lines = [line(Some(&long)), line(None)];
        let table = text(&lines, 100_000);
        let rows: Vec<&str> = table.lines().collect();
        assert!(rows[0].ends_with("SIZE  PATH"), "{table}");
        assert!(
            rows[1].contains("  2 h ago   6 d  1000  1.50 KiB  /mnt/ddd"),
            "{table}"
        );
        assert!(
            rows[1].ends_with("d/f?[2J") && rows[2].ends_with("  ?/f"),
            "{table}"
        );
        assert!(text(&[], 0).starts_with("Nothing"));
    }
}
