//! `perigee undelete PATH`: names are given again.

use super::plan::{self, Plain, Step};
use super::{Found, request_bytes, rows_at, shown};
use crate::admin_client::{CHANGE_TIME, ask, unexpected};
use crate::commands::JsonArg;
use crate::human;
use crate::mounts::{self, Place};
use crate::output::{Outcome, Progress, Report};
use perigee_proto::admin::{
    self, AdminPath, Answer, Brought, Failure, Request, TrashKind, TrashRow,
};
use serde::Serialize;
use std::path::{Path, PathBuf};

/// What one question brings back, and the bytes of paths in it: a request line has a greatest length.
const BATCH: usize = 200;
const BATCH_BYTES: usize = 30_000;

/// What is to be brought back, and where to.
pub(super) struct Bring {
    pub(super) path: PathBuf,
    pub(super) id: Option<u64>,
    pub(super) to: Option<PathBuf>,
    pub(super) json: JsonArg,
}

/// What came of it.
#[derive(Debug, Default, Serialize)]
struct Done {
    files: u64,
    bytes: u64,
    /// Older files of the same paths, which are kept still.
    older: usize,
    failed: Vec<Failed>,
}

#[derive(Debug, Serialize)]
struct Failed {
    path: String,
    why: String,
}

/// Where the file system lies on this machine.
struct Base {
    place: Place,
    full: PathBuf,
}

impl Base {
    /// Where a path inside the file system is here; itself, if it is out of this mount's sight.
    fn local(&self, inside: &Path) -> PathBuf {
        let mut here = (self.place.inside.as_path(), self.full.as_path());
        loop {
            if let Ok(below) = inside.strip_prefix(here.0) {
                return here.1.join(below);
            }
            here = match (here.0.parent(), here.1.parent()) {
                (Some(inside), Some(full)) => (inside, full),
                _ => return inside.to_path_buf(),
            };
        }
    }
}

impl Bring {
    pub(super) fn run(self) -> Result<Report, Failure> {
        let found = Found::look(&self.path)?;
        let (rows, from) = match self.id {
            Some(id) => Self::by_number(&found, id, self.to.is_some())?,
            None => (found.rows, found.place.inside.as_path().to_path_buf()),
        };
        let to = match &self.to {
            Some(to) => {
                let (place, _) = mounts::resolve_gone(to)?;
                if place.data_dir != found.place.data_dir {
                    return Err(Failure::new(
                        format!("cannot bring it back to `{}`", to.display()),
                        "it is in another mount than what was removed",
                    ));
                }
                place.inside.as_path().to_path_buf()
            }
            None => from.clone(),
        };
        let plain = Plain {
            mode: 0o755,
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
        };
        let base = Base {
            place: found.place,
            full: found.full,
        };
        let exists = |path: &Path| base.local(path).symlink_metadata().is_ok();
        let plan = plan::plan(&rows, &from, &to, plain, exists);
        if plan.steps.is_empty() {
            return Err(Failure::new(
                format!("cannot bring back `{}`", self.path.display()),
                "nothing is kept that had this path",
            )
            .hint("`perigee undelete list DIR` lists what is; `perigee policy get DIR` says for how long"));
        }
        let done = perform(&base, &plan.steps, plan.older)?;
        let single = plan.steps.len() == 1;
        if let ([failed], true, false) = (&done.failed[..], single, self.json.json) {
            let what = format!("cannot bring back `{}`", self.path.display());
            return Err(Failure::new(what, &failed.why)
                .hint("`--to NEWPATH` brings it back under another path"));
        }
        let outcome = match done.failed.is_empty() {
            true => Outcome::Done,
            false => Outcome::Failed,
        };
        Ok(Report::either(self.json.json, &done, || text(&done))?.outcome(outcome))
    }

    /// The row of a number, and directories that were above it; and the path that it had.
    fn by_number(
        found: &Found,
        id: u64,
        elsewhere: bool,
    ) -> Result<(Vec<TrashRow>, PathBuf), Failure> {
        let root = Place {
            data_dir: found.place.data_dir.clone(),
            inside: AdminPath::from("/"),
        };
        let what = || format!("cannot bring back number {id}");
        let mut rows = rows_at(&root)?;
        rows.retain(|row| row.kind == TrashKind::Directory || row.name.inode.0 == id);
        let Some(row) = rows
            .iter_mut()
            .find(|row| row.name.inode.0 == id && row.kind != TrashKind::Directory)
        else {
            return Err(Failure::new(what(), "no file of this number is kept")
                .hint("`perigee undelete list DIR` shows the numbers"));
        };
        match (&row.path, elsewhere) {
            (Some(path), _) => {
                let path = path.as_path().to_path_buf();
                Ok((rows, path))
            }
            (None, true) => {
                // Any will do: it is left for the new one.
                let path = Path::new("/").join(row.last.as_path());
                row.path = Some(AdminPath::from(&path));
                Ok((rows, path))
            }
            (None, false) => Err(Failure::new(
                what(),
                "a directory above it is not known any more",
            )
            .hint("`--to NEWPATH` says where it is to be")),
        }
    }
}

/// Asks the node for one part after the other.
fn perform(base: &Base, steps: &[Step], older: usize) -> Result<Done, Failure> {
    let mut done = Done {
        older,
        ..Done::default()
    };
    let mut progress = Progress::new();
    let mut left = steps;
    while !left.is_empty() {
        progress.show(|| format!("{} files brought back, {} to go", done.files, left.len()));
        let (batch, rest) = left.split_at(batch_len(left));
        left = rest;
        let entries = batch.iter().map(|step| step.bring.clone()).collect();
        let request = Request::TrashBring { entries };
        let came = match ask(&base.place.data_dir, &request, CHANGE_TIME)? {
            Answer::Brought(came) => came,
            other => return Err(unexpected(&other)),
        };
        for (step, came) in batch.iter().zip(came) {
            done.note(base, step, came);
        }
    }
    progress.clear();
    Ok(done)
}

/// How many of these go into one request: at least one.
fn batch_len(steps: &[Step]) -> usize {
    let mut bytes = 0;
    let fits = |step: &&Step| {
        bytes += request_bytes(path_of(step));
        bytes <= BATCH_BYTES
    };
    steps.iter().take(BATCH).take_while(fits).count().max(1)
}

fn path_of(step: &Step) -> &Path {
    match &step.bring {
        admin::Bring::Directory { path, .. } => path.as_path(),
        admin::Bring::Kept { to, .. } => to.as_path(),
    }
}

impl Done {
    fn note(&mut self, base: &Base, step: &Step, came: Brought) {
        let is_file = matches!(step.bring, admin::Bring::Kept { .. });
        let why = match came {
            Brought::Done => {
                self.files += u64::from(is_file);
                self.bytes += step.size;
                return;
            }
            // Somebody has made it meanwhile.
            Brought::Occupied if !is_file => return,
            Brought::Occupied => "something else has this name now".to_owned(),
            Brought::Gone => "it is not kept any more".to_owned(),
            Brought::Denied => "only root and its owner may, where they may make files".to_owned(),
            Brought::Failed(why) => why,
        };
        let path = base.local(path_of(step)).to_string_lossy().into_owned();
        self.failed.push(Failed { path, why });
    }
}

fn text(done: &Done) -> String {
    let files = |number| human::plural(usize::try_from(number).unwrap_or(usize::MAX), "file");
    let mut out = format!(
        "{} brought back, {}\n",
        files(done.files),
        human::size(done.bytes)
    );
    if done.older > 0 {
        let older = files(done.older as u64);
        out += &format!(
            "{older} that had the same paths before: `perigee undelete list` shows them\n"
        );
    }
    for failed in &done.failed {
        out += &format!("not `{}`: {}\n", shown(&failed.path), failed.why);
    }
    if !done.failed.is_empty() {
        out += "`--to NEWPATH` brings back what is left under another path\n";
    }
    out
}
