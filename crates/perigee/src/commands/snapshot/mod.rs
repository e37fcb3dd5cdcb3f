//! `perigee snapshot`: a directory as it was.

mod restore;

use super::JsonArg;
use crate::admin_client::{CHANGE_TIME, ask, unexpected};
use crate::human::{self, Align, Table};
use crate::mounts;
use crate::output::{Outcome, Report};
use clap::{Args, Subcommand};
use perigee_proto::admin::{AdminPath, Answer, Failure, Request, SnapshotInfo};
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

pub use restore::Restore;

/// Keep a directory as it is now, and go back to it.
///
/// A snapshot has a directory and all that is below it, over all nodes, as of one moment; files that programs write past
/// the daemon as right after it. It costs nothing to make; what is changed or removed afterwards is kept, in pieces of
/// 64 KiB, until the snapshot is deleted. It is read below `.snapshots/NAME` of the directory, which no listing shows.
/// `perigee policy set DIR snapshots=1h:24,1d:7` makes and deletes them by a schedule.
#[derive(Debug, Subcommand)]
pub enum Snapshot {
    /// Make one
    Create(Create),
    /// List them, and what each takes
    List(List),
    /// Bring a directory back to what it was
    Restore(Restore),
    /// Delete some: what is kept for them alone is removed in the background
    Delete(Delete),
}

/// Make a snapshot of a directory.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  perigee snapshot create /mnt/perigee before-upgrade
  ls /mnt/perigee/.snapshots/before-upgrade")]
pub struct Create {
    /// A directory in a mount
    #[arg(value_name = "DIR")]
    path: PathBuf,
    /// Its name; without one, the time
    #[arg(value_name = "NAME")]
    name: Option<String>,
    #[command(flatten)]
    json: JsonArg,
}

/// List snapshots of a directory and of those below it, and what each takes.
///
/// `KEPT` is what was replaced between a snapshot and the next one, in one copy: deleting the only snapshot frees that much
/// on each node that has a copy. Of several, the one before takes over what it needs.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  perigee snapshot list /mnt/perigee
  perigee snapshot list /mnt/perigee --json | jq '.[].name'")]
pub struct List {
    /// A directory in a mount
    #[arg(value_name = "DIR")]
    path: PathBuf,
    #[command(flatten)]
    json: JsonArg,
}

/// Delete snapshots of a directory.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  perigee snapshot delete /mnt/perigee before-upgrade")]
pub struct Delete {
    /// The directory that they are of
    #[arg(value_name = "DIR")]
    path: PathBuf,
    /// Their names
    #[arg(value_name = "NAME", required = true)]
    names: Vec<String>,
    #[command(flatten)]
    json: JsonArg,
}

impl Snapshot {
    /// Asks the node behind the mount.
    pub fn run(self) -> Result<Report, Failure> {
        match self {
            Self::Create(command) => command.run(),
            Self::List(command) => command.run(),
            Self::Restore(command) => command.run(),
            Self::Delete(command) => command.run(),
        }
    }
}

/// A name that sorts by time.
fn name_of_now() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    perigee_types::time::utc_name(perigee_types::WallTime {
        secs: since.map_or(0, |since| since.as_secs().try_into().unwrap_or(i64::MAX)),
        nanos: 0,
    })
}

/// Makes one, of a path in a mount.
fn create(path: &Path, name: String) -> Result<SnapshotInfo, Failure> {
    let place = mounts::resolve(path)?;
    let request = Request::SnapshotCreate {
        path: place.inside,
        name,
    };
    match ask(&place.data_dir, &request, CHANGE_TIME)? {
        Answer::Snapshots(mut made) if made.len() == 1 => Ok(made.remove(0)),
        other => Err(unexpected(&other)),
    }
}

impl Create {
    fn run(self) -> Result<Report, Failure> {
        let began = Instant::now();
        let made = create(&self.path, self.name.unwrap_or_else(name_of_now))?;
        let took = human::time(began.elapsed());
        let at = self.path.join(".snapshots").join(&made.name);
        Report::either(self.json.json, &made, || {
            format!("snapshot {} made in {took}: {}\n", made.name, at.display())
        })
    }
}

/// Those of a directory and of what is below it.
fn list(path: &Path) -> Result<(AdminPath, Vec<SnapshotInfo>), Failure> {
    let place = mounts::resolve(path)?;
    match ask(&place.data_dir, &Request::SnapshotList, CHANGE_TIME)? {
        Answer::Snapshots(all) => Ok((place.inside, all)),
        other => Err(unexpected(&other)),
    }
}

impl List {
    fn run(self) -> Result<Report, Failure> {
        let (inside, mut all) = list(&self.path)?;
        all.retain(|snapshot| snapshot.path.as_path().starts_with(inside.as_path()));
        let unknown = all.iter().any(|snapshot| snapshot.kept_bytes.is_none());
        let outcome = if unknown {
            Outcome::Degraded
        } else {
            Outcome::Done
        };
        Ok(Report::either(self.json.json, &all, || text(&all))?.outcome(outcome))
    }
}

fn text(all: &[SnapshotInfo]) -> String {
    if all.is_empty() {
        return "no snapshots; `perigee snapshot create DIR` makes one\n".to_owned();
    }
    let mut table = Table::new(&[
        ("NAME", Align::Left),
        ("DIRECTORY", Align::Left),
        ("AGE", Align::Right),
        ("KEPT", Align::Right),
    ]);
    for snapshot in all {
        let age = SystemTime::now()
            .duration_since(UNIX_EPOCH + std::time::Duration::from_secs(snapshot.taken))
            .unwrap_or_default();
        table.row(vec![
            snapshot.name.clone(),
            snapshot.path.to_string(),
            human::time(age),
            snapshot
                .kept_bytes
                .map_or_else(|| "?".to_owned(), human::size),
        ]);
    }
    table.render(0)
}

impl Delete {
    fn run(self) -> Result<Report, Failure> {
        let place = mounts::resolve(&self.path)?;
        let mut deleted = Vec::new();
        for name in self.names {
            let request = Request::SnapshotDelete {
                path: place.inside.clone(),
                name,
            };
            match ask(&place.data_dir, &request, CHANGE_TIME)? {
                Answer::Snapshots(gone) => deleted.extend(gone),
                other => return Err(unexpected(&other)),
            }
        }
        Report::either(self.json.json, &deleted, || {
            let lines = deleted.iter();
            lines
                .map(|gone| format!("snapshot {} deleted\n", gone.name))
                .collect()
        })
    }
}
