//! `perigee adopt`: a directory of this machine becomes one of a cluster, and its bytes stay where they lie.
//!
//! The directory is made anew beside its place in the cluster, under a name that nobody looks for; large files get there by one
//! more name for the same bytes ([`content`]). Until every copy of everything is there, nothing of the directory has changed. Then
//! it gets a name aside, so that no program finds it any more, and what has been written to it until that moment is looked for.
//! After that the new one counts: the old one loses what is in the new one, name by name, each looked at once more ([`clear`]);
//! what is not, is brought. When it is empty, the new one appears. Each step leaves something that the next run of the command
//! recognises ([`places`]), so it may be broken off at any moment.

mod clear;
mod content;
mod places;
mod scan;

use super::JsonArg;
use super::mirror::{self, Dir, Failed, Mirror, Scope};
use crate::admin_client::unexpected;
use crate::human;
use crate::output::Report;
use clap::Args;
use clear::Cleared;
use content::{Adopting, Asks, Pass};
use perigee_proto::admin::{AdminPath, Failure, PolicyValue};
use places::{Places, Stage};
use scan::Scanned;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Times that what changed meanwhile is looked for, in each stage.
const PASSES: u32 = 8;
/// The policy that gives a directory a container of its own.
const COPIES: &str = "copies";
/// The policy by which what is made a second time would be kept twice.
const TRASH: &str = "trash";
/// Nothing is kept.
const OFF: &str = "off";
/// After so long nobody is shown what other hosts of a union had before: longer than its `--fresh` by default.
const FRESH: Duration = Duration::from_millis(1_500);

/// Make a directory of this machine a directory of the cluster, without copying its bytes.
///
/// DIR, on the disk that this machine's node uses, becomes TARGET, below a mount of that node. The bytes of its files stay
/// where they lie: they become this node's copy, and other nodes fetch theirs. DIR is whole until all copies are there; then
/// TARGET appears in its place, and DIR becomes a link to it. Files up to 16 KiB, and files that have names outside of DIR, are
/// copied.
///
/// DIR may lie in a mount of `perigee union`: what other hosts have of it is copied then, and goes there when it is done.
///
/// Programs that write below DIR have to be stopped before. If the command is broken off, the same command goes on; as long as
/// DIR is there, the directory `.NAME.adopting` beside TARGET may be removed instead, and nothing has happened.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  perigee adopt /data/images /mnt/perigee/images
  perigee adopt --copies 2 --no-link /home/ann/runs /mnt/perigee/runs")]
pub struct Adopt {
    /// The directory
    #[arg(value_name = "DIR")]
    source: PathBuf,
    /// What it becomes: a path that is free
    #[arg(value_name = "TARGET")]
    target: PathBuf,
    /// How many nodes keep it, if not as many as its new parent
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..))]
    copies: Option<u8>,
    /// Leave nothing in the place of DIR
    #[arg(long)]
    no_link: bool,
    #[command(flatten)]
    json: JsonArg,
}

/// What came of it.
#[derive(Debug, Serialize)]
struct Done {
    source: AdminPath,
    target: AdminPath,
    /// Of this run: entries that it has.
    entries: u64,
    /// Of this run: files whose bytes stayed where they lay.
    taken_files: u64,
    taken_bytes: u64,
    /// Of this run: files that were copied.
    copied_files: u64,
    copied_bytes: u64,
    /// A link leads from the old place to the new one.
    linked: bool,
}

impl Adopt {
    /// Goes on from wherever the last run ended.
    pub fn run(self) -> Result<Report, Failure> {
        let places = Places::find(&self.source, &self.target)?;
        let held = places.hold()?;
        let mut done = Done {
            source: admin(&places.source),
            target: admin(&places.target),
            entries: 0,
            taken_files: 0,
            taken_bytes: 0,
            copied_files: 0,
            copied_bytes: 0,
            linked: false,
        };
        let stage = places.stage(held.as_ref())?;
        if let Some(held) = &held {
            let work = Work {
                places: &places,
                held,
            };
            match stage {
                // The new one counts: whatever has the old name now is not what it was made of, not even by its number.
                Stage::Clearing if places.has_source()? => {
                    let why = "another directory has come in its place, before it had its new one";
                    let hint = "move that away, then the same command goes on";
                    return Err(places.fail(why).hint(hint));
                }
                Stage::Clearing => {}
                _ => self.bring(&work, stage, &mut done)?,
            }
            work.clear(&mut done)?;
        }
        if stage != Stage::Published {
            places.publish()?;
        }
        done.linked = places.finish(!self.no_link)?;
        Report::either(self.json.json, &done, || text(&done))
    }

    /// Everything is in the cluster, and the old directory is aside and counts no more, when this returns.
    fn bring(&self, work: &Work<'_>, stage: Stage, done: &mut Done) -> Result<(), Failure> {
        let Work { places, held } = *work;
        let resumed = stage != Stage::Begin;
        if places.has_source()? {
            match (resumed, self.copies) {
                (false, _) => {
                    places.make_staging(self.policies(places)?)?;
                    places.set_mark(Stage::Bringing, held)?;
                }
                (true, Some(copies)) => {
                    places.set_policies_of_staging(vec![(COPIES.to_owned(), copies.to_string())])?
                }
                (true, None) => {}
            }
            let scanned = scan::scan(places, held)?;
            work.pass(&scanned, Pass::Bring { resumed }, done)?;
            work.until_same(&scanned, done)?;
            places.set_aside(held)?;
        }
        let same = work.last_look(done).and_then(|()| places.is_whole());
        if same.is_err() {
            places.set_back()?;
            return same;
        }
        // Where this fails it is not known whether the new one counts: the old one stays aside, and the next run sees.
        places.set_mark(Stage::Clearing, held)
    }

    /// What the new directory gets of its own.
    fn policies(&self, places: &Places) -> Result<Vec<(String, String)>, Failure> {
        let values = places.policies(places.parent_inside())?;
        let in_force = |key: &str| {
            let found = values.iter().find(|value: &&PolicyValue| value.key == key);
            found.map(|value| value.value.clone()).unwrap_or_default()
        };
        let copies = match self.copies {
            Some(copies) => copies.to_string(),
            None => in_force(COPIES),
        };
        // So it has a container of its own, whose first copy is where it is made: here.
        let mut policies = vec![(COPIES.to_owned(), copies)];
        if in_force(TRASH) != OFF {
            policies.push((TRASH.to_owned(), OFF.to_owned()));
        }
        Ok(policies)
    }
}

/// What the passes of one run have in common.
struct Work<'a> {
    places: &'a Places,
    /// The old directory.
    held: &'a Dir,
}

impl Work<'_> {
    /// Where the old directory is now.
    fn root(&self) -> Result<&Path, Failure> {
        Ok(match self.places.has_source()? {
            true => &self.places.source,
            false => &self.places.aside,
        })
    }

    fn held_as(&self, root: &Path) -> Result<Dir, Failure> {
        let fd = self.held.fd.try_clone();
        Ok(Dir::new(fd.map_err(|error| self.places.fail(error))?, root))
    }

    fn failed(&self, Failed { at, error }: Failed) -> Failure {
        let what = format!("{}, at `{}`", self.places.what(), at.display());
        Failure::new(what, error).hint(HINT)
    }

    /// Goes over everything once; says whether nothing was different.
    fn pass(&self, scanned: &Scanned, pass: Pass, done: &mut Done) -> Result<bool, Failure> {
        let root = self.root()?;
        let asks = Asks::new(self.places, root);
        let content = Adopting::new(asks, scanned, pass);
        let target = self.places.open_staging()?;
        let scope = match pass {
            Pass::Bring { .. } | Pass::Check => Scope::All,
            Pass::Add => Scope::Additions,
        };
        let mut mirror = Mirror::within(scope, target, content);
        let ran = mirror.run(&self.held_as(root)?);
        let (tree, content) = (mirror.done, mirror.content);
        if scope == Scope::All {
            done.entries = tree.entries;
        }
        done.taken_files += content.taken.files;
        done.taken_bytes += content.taken.bytes;
        done.copied_files += content.copied.files;
        done.copied_bytes += content.copied.bytes;
        ran.map_err(|failed| self.failed(failed))?;
        self.nobody_writes(&content.asks.in_use)?;
        Ok(content.is_clean() && tree.changed == 0 && tree.removed == 0)
    }

    fn nobody_writes(&self, in_use: &[PathBuf]) -> Result<(), Failure> {
        let Some(first) = in_use.first() else {
            return Ok(());
        };
        let count = human::plural(in_use.len(), "file");
        let why = format!(
            "programs have {count} open for writing: `{}`",
            first.display()
        );
        Err(Failure::new(self.places.what(), why).hint(format!(
            "stop them (`fuser -v '{}'` shows who), then the same command goes on",
            first.display()
        )))
    }

    /// Brings what has changed, until nothing has.
    fn until_same(&self, scanned: &Scanned, done: &mut Done) -> Result<(), Failure> {
        for _ in 0..PASSES {
            if self.pass(scanned, Pass::Check, done)? {
                return Ok(());
            }
        }
        Err(self.changes())
    }

    fn changes(&self) -> Failure {
        self.places
            .fail("it changes on and on")
            .hint("stop the programs that work there, then the same command goes on")
    }

    /// Nobody finds the old directory any more: what is the same now stays the same.
    fn last_look(&self, done: &mut Done) -> Result<(), Failure> {
        if self.places.union.is_some() {
            std::thread::sleep(FRESH);
        }
        let scanned = scan::scan(self.places, self.held)?;
        self.until_same(&scanned, done)
    }

    /// The old directory goes, once all that it still gets is in the new one.
    fn clear(&self, done: &mut Done) -> Result<(), Failure> {
        let mut cleared = Cleared::default();
        let mut why = self.changes();
        for _ in 0..PASSES {
            let aside = &self.places.aside;
            let (root, target) = (self.held_as(aside)?, self.places.open_staging()?);
            let scanned = scan::scan(self.places, self.held)?;
            let asks = Asks::new(self.places, aside);
            let in_use = clear::clear(asks, &scanned, (&root, &target), &mut cleared);
            self.nobody_writes(&in_use.map_err(|failed| self.failed(failed))?)?;
            if cleared.left == 0 {
                match self.places.remove_aside() {
                    Ok(()) => {
                        let settled = Asks::new(self.places, aside).settle(&cleared.taken);
                        return settled.map_err(|failed| self.failed(failed));
                    }
                    // Something has come to it.
                    Err(failure) => why = failure,
                }
            }
            self.pass(&scanned, Pass::Add, done)?;
        }
        Err(why)
    }
}

/// How it goes on.
const HINT: &str = "the same command goes on from here";

fn text(done: &Done) -> String {
    let (source, target) = (&done.source, &done.target);
    let mut sentence = format!("`{source}` is `{target}` now");
    if done.entries > 0 {
        sentence += &format!(", with {}", counted(done.entries, "name"));
    }
    if done.taken_files > 0 {
        let size = human::size(done.taken_bytes);
        let files = counted(done.taken_files, "file");
        sentence += &format!("; the bytes of {files} ({size}) stayed where they lay");
    }
    if done.copied_files > 0 {
        let size = human::size(done.copied_bytes);
        let files = counted(done.copied_files, "small or shared file");
        sentence += &format!("; {files} ({size}) copied");
    }
    if done.linked {
        sentence += "; a link leads there from the old place";
    }
    human::paragraph("", &sentence)
}

fn counted(number: u64, noun: &str) -> String {
    human::plural(usize::try_from(number).unwrap_or(usize::MAX), noun)
}

/// A path as a node takes it.
fn admin(path: &Path) -> AdminPath {
    AdminPath::from(path)
}
