//! `perigee where`: which nodes hold the bytes of a file.

use super::JsonArg;
use crate::admin_client::{ASK_TIME, ask, unexpected};
use crate::human::{self, Align, Table};
use crate::mounts::{self, Place};
use crate::output::Report;
use clap::Args;
use perigee_proto::admin::{Answer, Failure, Hold, Placement, Request};
use std::path::{Path, PathBuf};

/// Show where the bytes of a file are.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  perigee where /mnt/perigee/data/file
  perigee where --json file | jq '.copies[].node'")]
pub struct Where {
    /// A path in a mount
    #[arg(value_name = "PATH")]
    path: PathBuf,
    #[command(flatten)]
    json: JsonArg,
}

impl Where {
    /// Asks the node behind the mount.
    pub fn run(self) -> Result<Report, Failure> {
        let (_, placement) = fetch(&self.path)?;
        Report::either(self.json.json, &placement, || text(&self.path, &placement))
    }
}

/// Where `path` is, and which mount it was found through.
pub fn fetch(path: &Path) -> Result<(Place, Placement), Failure> {
    let place = mounts::resolve(path)?;
    let request = Request::Where {
        path: place.inside.clone(),
    };
    match ask(&place.data_dir, &request, ASK_TIME)? {
        Answer::Where(placement) => Ok((place, placement)),
        other => Err(unexpected(&other)),
    }
}

fn text(path: &Path, placement: &Placement) -> String {
    let mut out = format!(
        "{}: {} of {}, inode {}\n",
        path.display(),
        placement.kind,
        human::size(placement.size_bytes),
        placement.inode.0
    );
    out.push_str(&format!(
        "in container {}, epoch {}",
        placement.container, placement.epoch.0
    ));
    if !placement.migration.is_empty() {
        out.push_str(&format!(", migration {}", placement.migration));
    }
    if placement.moves > 0 {
        out.push_str(&format!(", owner moved {}", times(placement.moves)));
    }
    out.push_str("\n\n");
    let mut table = Table::new(&[
        ("COPY ON", Align::Left),
        ("SITE", Align::Left),
        ("ROLE", Align::Left),
        ("CURRENT", Align::Right),
        ("", Align::Left),
    ]);
    for copy in &placement.copies {
        let role = if placement.owner == Some(copy.node) {
            "owner"
        } else {
            "replica"
        };
        let here = if placement.asked == copy.node {
            "this node"
        } else {
            ""
        };
        table.row(vec![
            copy.name.clone(),
            copy.site.clone(),
            role.to_owned(),
            current(copy.valid_bytes, placement.size_bytes),
            here.to_owned(),
        ]);
    }
    out.push_str(&table.render(2));
    let Some(holders) = &placement.held_by else {
        out.push_str("\nits owner does not say who has it open or locked\n");
        return out;
    };
    let held: Vec<String> = holders
        .iter()
        .map(|holder| {
            let copy = placement
                .copies
                .iter()
                .find(|copy| copy.node == holder.node);
            let name = copy.map_or_else(|| holder.node.to_string(), |copy| copy.name.clone());
            format!("{name} ({})", what(holder.what))
        })
        .collect();
    if !held.is_empty() {
        out.push_str(&format!("\nheld by {}\n", held.join(", ")));
    }
    out
}

fn times(moves: u64) -> String {
    match moves {
        1 => "once".to_owned(),
        moves => format!("{moves} times"),
    }
}

fn what(hold: Hold) -> &'static str {
    match hold {
        Hold::Read => "may cache it",
        Hold::Flock => "flock",
        Hold::Fcntl => "fcntl lock",
        Hold::Chunks => "owns chunks",
    }
}

fn current(valid_bytes: Option<u64>, size_bytes: u64) -> String {
    match valid_bytes {
        None => "no answer".to_owned(),
        Some(valid) if valid >= size_bytes => "all".to_owned(),
        Some(0) => "nothing".to_owned(),
        // rounded down: 100 % is said only of a whole copy
        Some(valid) => {
            let percent = u128::from(valid) * 100 / u128::from(size_bytes);
            format!("{} ({percent} %)", human::size(valid))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use perigee_proto::admin::{CopyStatus, Holder};
    use perigee_types::{ContainerId, Epoch, InodeId, NodeId};

    #[test]
    fn a_copy_is_called_whole_only_when_it_is() {
        assert_eq!(current(Some(1000), 1000), "all");
        assert_eq!(current(Some(0), 0), "all");
        assert_eq!(current(Some(999), 1000), "999 B (99 %)");
        assert_eq!(current(Some(0), 1000), "nothing");
        assert_eq!(current(None, 1000), "no answer");
        assert!(current(Some(u64::MAX - 1), u64::MAX).ends_with("(99 %)"));
    }

    #[test]
    fn the_text_says_who_owns_who_has_and_who_holds() {
        let copy = |id: u32, valid| CopyStatus {
            node: NodeId(id),
            name: format!("node-{id}"),
            site: "lab".to_owned(),
            valid_bytes: Some(valid),
        };
        let placement = Placement {
            inode: InodeId(77),
            kind: "file".to_owned(),
            size_bytes: 4096,
            container: ContainerId(3),
            epoch: Epoch(9),
            owner: Some(NodeId(2)),
            asked: NodeId(1),
            copies: vec![copy(2, 4096), copy(1, 1024)],
            held_by: Some(vec![Holder {
                node: NodeId(1),
                what: Hold::Flock,
            }]),
            migration: "off".to_owned(),
            moves: 2,
        };
        let text = text(Path::new("/mnt/f"), &placement);
        for part in [
            "file of 4.00 KiB",
            "inode 77",
            "c3, epoch 9, migration off, owner moved 2 times",
            "owner",
            "(25 %)",
            "this node",
            "held by node-1 (flock)",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let json = serde_json::to_value(&placement).unwrap();
        assert_eq!(json["copies"][1]["valid_bytes"], 1024);
        assert_eq!(json["inode"], 77);
        assert_eq!(json["held_by"][0]["what"], "flock");
    }
}
