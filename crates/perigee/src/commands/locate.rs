//! `perigee locate`: which hosts have which bytes of which files.

use super::JsonArg;
use crate::admin_client::{ASK_TIME, ask, unexpected};
use crate::human::{self, Align, Table};
use crate::mounts;
use crate::output::{Outcome, Report};
use clap::Args;
use perigee_proto::admin::{
    Answer, Failure, LOCATED_MAX, Located, LocatedFile, LocatedNode, REQUEST_BYTES_MAX, Request,
};
use perigee_types::NodeId;
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::{BufRead, stdin};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Show which hosts have which bytes of files, for those who bring work to its data.
///
/// Exit code 3 when some file was not found, or no node that answers has a part of one.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  perigee locate /mnt/perigee/images/*.fits
  perigee locate --best a.fits b.fits        # the one host that has most of them
  find . -name '*.fits' | perigee locate --json - | jq -r '.files[] | [.path, .pieces[0].nodes[0]] | @tsv'
  ssh $(perigee locate --best in.dat) process in.dat   # where the nodes' names are those of their hosts")]
pub struct Locate {
    /// Files in a mount; `-` reads one from each line of standard input
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,
    /// Print only the name of the node that has most of all bytes
    #[arg(long, conflicts_with = "json")]
    best: bool,
    #[command(flatten)]
    json: JsonArg,
}

/// What is printed, of all questions together.
#[derive(Debug, Default, Serialize)]
struct Found {
    files: Vec<LocatedFile>,
    nodes: Vec<LocatedNode>,
}

impl Found {
    fn add(&mut self, paths: &[PathBuf], located: Located) {
        for (mut file, path) in located.files.into_iter().zip(paths) {
            // As the person knows it.
            file.path = path.into();
            self.files.push(file);
        }
        for node in located.nodes {
            if self.nodes.iter().all(|known| known.node != node.node) {
                self.nodes.push(node);
            }
        }
        self.nodes.sort_by_key(|node| node.node);
    }

    fn name(&self, id: NodeId) -> String {
        let node = self.nodes.iter().find(|node| node.node == id);
        node.map_or_else(|| id.to_string(), |node| node.name.clone())
    }

    /// How many bytes each node has, those first that have more; of equals the one that owns more.
    fn shares<'a>(&self, files: impl IntoIterator<Item = &'a LocatedFile>) -> Vec<(NodeId, u64)> {
        let mut bytes: BTreeMap<NodeId, (u64, u64)> = BTreeMap::new();
        for piece in files.into_iter().flat_map(|file| &file.pieces) {
            let len = piece.end - piece.start;
            for (place, node) in piece.nodes.iter().enumerate() {
                let (all, first) = bytes.entry(*node).or_default();
                *all += len;
                *first += if place == 0 { len } else { 0 };
            }
        }
        let mut shares: Vec<_> = bytes.into_iter().collect();
        shares.sort_by_key(|(node, (all, first))| (std::cmp::Reverse((*all, *first)), *node));
        shares
            .into_iter()
            .map(|(node, (all, _))| (node, all))
            .collect()
    }

    fn is_whole(&self) -> bool {
        let there = |file: &LocatedFile| {
            file.error.is_none() && file.pieces.iter().all(|piece| !piece.nodes.is_empty())
        };
        self.files.iter().all(there)
    }
}

impl Locate {
    /// Asks the nodes behind the mounts.
    pub fn run(self) -> Result<Report, Failure> {
        let found = find(&all_paths(&self.paths)?)?;
        let outcome = match found.is_whole() {
            true => Outcome::Done,
            false => Outcome::Degraded,
        };
        if self.best {
            return best(&found).map(|report| report.outcome(outcome));
        }
        let report = Report::either(self.json.json, &found, || text(&found))?;
        Ok(report.outcome(outcome))
    }
}

/// The paths of the command line, and those of standard input in the place of `-`.
fn all_paths(given: &[PathBuf]) -> Result<Vec<PathBuf>, Failure> {
    let mut paths = Vec::new();
    for path in given {
        if path.as_os_str() != "-" {
            paths.push(path.clone());
            continue;
        }
        for line in stdin().lock().split(b'\n') {
            let line = line.map_err(|error| Failure::new("cannot read standard input", error))?;
            if !line.is_empty() {
                paths.push(PathBuf::from(std::ffi::OsStr::from_bytes(&line)));
            }
        }
    }
    Ok(paths)
}

fn find(paths: &[PathBuf]) -> Result<Found, Failure> {
    let mut found = Found::default();
    let mut batch: Vec<(PathBuf, mounts::Place)> = Vec::new();
    let mut bytes = 0;
    for path in paths {
        let place = mounts::resolve(path)?;
        // Each byte may be escaped.
        let more = place.inside.0.len() * 6 + 16;
        let elsewhere = batch
            .first()
            .is_some_and(|(_, first)| first.data_dir != place.data_dir);
        if elsewhere || batch.len() == LOCATED_MAX || bytes + more > REQUEST_BYTES_MAX / 2 {
            ask_for(&mut found, &mut batch)?;
            bytes = 0;
        }
        bytes += more;
        batch.push((path.clone(), place));
    }
    ask_for(&mut found, &mut batch)?;
    Ok(found)
}

fn ask_for(found: &mut Found, batch: &mut Vec<(PathBuf, mounts::Place)>) -> Result<(), Failure> {
    let Some((_, first)) = batch.first() else {
        return Ok(());
    };
    let data_dir = first.data_dir.clone();
    let (paths, inside): (Vec<PathBuf>, Vec<_>) = std::mem::take(batch)
        .into_iter()
        .map(|(path, place)| (path, place.inside))
        .unzip();
    match ask(&data_dir, &Request::Locate { paths: inside }, ASK_TIME)? {
        Answer::Located(located) => found.add(&paths, located),
        other => return Err(unexpected(&other)),
    }
    Ok(())
}

fn best(found: &Found) -> Result<Report, Failure> {
    let shares = found.shares(&found.files);
    let (node, _) = shares.first().ok_or_else(|| {
        Failure::new(
            "cannot say who has most of them",
            "no node has any bytes of them",
        )
        .hint("`perigee locate` without --best says why")
    })?;
    Ok(Report::text(found.name(*node) + "\n"))
}

fn text(found: &Found) -> String {
    let mut table = Table::new(&[
        ("FILE", Align::Left),
        ("SIZE", Align::Right),
        ("NODES, THE OWNER FIRST", Align::Left),
    ]);
    for file in &found.files {
        let path: &Path = file.path.as_path();
        table.row(vec![
            path.display().to_string(),
            human::size(file.size_bytes),
            file.error.clone().unwrap_or_else(|| nodes_of(found, file)),
        ]);
    }
    let mut out = table.render(0);
    if found.files.len() > 1 {
        let shares = found.shares(&found.files);
        let share = |(node, bytes): &(NodeId, u64)| {
            format!("{} {}", found.name(*node), human::size(*bytes))
        };
        let shares: Vec<String> = shares.iter().map(share).collect();
        if !shares.is_empty() {
            let sentence = format!("of all: {}", shares.join(", "));
            out.push('\n');
            out.push_str(&human::paragraph("", &sentence));
        }
    }
    out
}

/// The nodes that have a file, and how much of it where that is not all.
fn nodes_of(found: &Found, file: &LocatedFile) -> String {
    let owner = file.pieces.first().and_then(|piece| piece.nodes.first());
    let mut shares = found.shares([file]);
    shares.sort_by_key(|(node, _)| Some(node) != owner);
    let share = |(node, bytes): &(NodeId, u64)| match *bytes == file.size_bytes {
        true => found.name(*node),
        false => format!("{} ({})", found.name(*node), human::size(*bytes)),
    };
    let shares: Vec<String> = shares.iter().map(share).collect();
    shares.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use perigee_proto::admin::LocatedPiece;

    fn piece(start: u64, end: u64, nodes: &[u32]) -> LocatedPiece {
        LocatedPiece {
            start,
            end,
            nodes: nodes.iter().copied().map(NodeId).collect(),
        }
    }

    fn found(files: &[(&str, Vec<LocatedPiece>)]) -> Found {
        let node = |id: u32| LocatedNode {
            node: NodeId(id),
            name: format!("n{id}"),
            host: String::new(),
            site: String::new(),
        };
        let file = |(path, pieces): &(&str, Vec<LocatedPiece>)| LocatedFile {
            path: Path::new(path).into(),
            size_bytes: pieces.last().map_or(0, |piece| piece.end),
            pieces: pieces.clone(),
            error: pieces.is_empty().then(|| "no such file".to_owned()),
        };
        Found {
            files: files.iter().map(file).collect(),
            nodes: (1..=3).map(node).collect(),
        }
    }

    #[test]
    fn the_best_node_has_most_of_all_files_and_of_equals_owns_most() {
        let all = found(&[
            ("a", vec![piece(0, 100, &[1, 2])]),
            ("b", vec![piece(0, 60, &[2, 1]), piece(60, 90, &[3])]),
        ]);
        assert_eq!(best(&all).map(|report| report.text), Ok("n1\n".to_owned()));
        assert_eq!(
            all.shares(&all.files),
            [(NodeId(1), 160), (NodeId(2), 160), (NodeId(3), 30)]
        );
        assert!(all.is_whole());
        assert!(best(&found(&[])).is_err());
    }

    #[test]
    fn the_table_says_who_has_what_and_what_is_missing() {
        let all = found(&[
            (
                "a",
                vec![piece(0, 1 << 20, &[2, 1]), piece(1 << 20, 3 << 20, &[2])],
            ),
            ("gone", Vec::new()),
        ]);
        let text = text(&all);
        assert!(text.contains("n2, n1 (1.00 MiB)"), "{text}");
        assert!(text.contains("no such file"), "{text}");
        assert!(!all.is_whole());
        assert!(!found(&[("x", vec![piece(0, 5, &[])])]).is_whole());
    }
}
