//! `perigee where`: which nodes hold the bytes of a file.

use super::JsonArg;
use crate::admin_client::{ASK_TIME, ask, unexpected};
use crate::human::{self, Align, Table};
use crate::mounts::{self, Place};
use crate::output::Report;
use clap::Args;
use perigee_proto::admin::{Answer, Failure, Heat, Hold, Placement, Rates, Request, Thousandths};
use perigee_types::NodeId;
use std::path::{Path, PathBuf};

/// Show where the bytes of a file are, and who works there.
///
/// Reads and writes are calls in a second of what the file's container holds, as means over about the last minute in which
/// what is older counts less and less. LOCAL is how many of them the program's own host answered, and asked nobody. What
/// the kernel answers from its memory, or reads from or writes to a local file by itself, is not counted.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  perigee where /mnt/perigee/data/file
  perigee where --json file | jq '{heat, local_calls}'
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
        Answer::Where(placement) => Ok((place, *placement)),
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
    out.push('\n');
    out.push_str(&size(placement));
    out.push_str(&lately(placement));
    out.push('\n');
    out.push_str(&copies(placement));
    out.push_str(&columns(placement));
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
            let mut hosts = placement.hosts.iter();
            let host = hosts.find(|host| host.node == holder.node);
            let name = copy.map(|copy| &copy.name).or(host.map(|host| &host.name));
            let name = name.map_or_else(|| holder.node.to_string(), Clone::clone);
            format!("{name} ({})", what(holder.what))
        })
        .collect();
    if !held.is_empty() {
        out.push_str(&format!("\nheld by {}\n", held.join(", ")));
    }
    out
}

/// How large the container is and may be.
fn size(placement: &Placement) -> String {
    let (Some(bytes), Some(most)) = (placement.container_bytes, placement.container_bytes_max)
    else {
        return String::new();
    };
    let goes_on = placement.goes_on_in.map_or_else(String::new, |next| {
        format!(": new directories start in {next}")
    });
    format!(
        "which keeps {} (container-size is {}){goes_on}\n",
        human::size(bytes),
        human::size(most)
    )
}

/// What programs do in the container, in a sentence.
fn lately(placement: &Placement) -> String {
    let all = placement.heat.all();
    let Some(local) = placement.local_calls else {
        return String::new();
    };
    format!(
        "lately {} reads/s and {} writes/s, {} served on the program's host\n",
        rate(all.reads_per_second),
        rate(all.writes_per_second),
        percent(local)
    )
}

/// Where the chunks of a striped file lie.
fn columns(placement: &Placement) -> String {
    if placement.columns.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&[
        ("COLUMN", Align::Right),
        ("CONTAINER", Align::Left),
        ("OWNER", Align::Left),
        ("COPIES", Align::Left),
        ("CURRENT", Align::Right),
    ]);
    for (number, column) in placement.columns.iter().enumerate() {
        let names = column.copies.iter().map(|copy| copy.name.as_str());
        let mut copies = column.copies.iter();
        let owner = copies.find(|copy| Some(copy.node) == column.owner);
        // A member that does not answer leaves it open.
        let least = column.copies.iter().map(|copy| copy.valid_bytes).min();
        table.row(vec![
            number.to_string(),
            column.container.to_string(),
            owner.map_or("-", |owner| owner.name.as_str()).to_owned(),
            names.collect::<Vec<_>>().join(", "),
            current(least.flatten(), placement.size_bytes),
        ]);
    }
    let width = placement.columns.len();
    let rows = table.render(0);
    format!("\nstriped: its chunks of 64 MiB lie by turns in {width} columns\n{rows}")
}

/// The copies, and hosts without one whose programs work there.
fn copies(placement: &Placement) -> String {
    let mut table = Table::new(&[
        ("NODE", Align::Left),
        ("SITE", Align::Left),
        ("ROLE", Align::Left),
        ("CURRENT", Align::Right),
        ("READS/S", Align::Right),
        ("WRITES/S", Align::Right),
        ("LOCAL", Align::Right),
        ("", Align::Left),
    ]);
    let mut row = |node: NodeId, name: &str, site: &str, role: &str, current: String| {
        let host = placement.hosts.iter().find(|host| host.node == node);
        let rates = host.and_then(|host| host.heat).map(Heat::all);
        let said = |rate_of: fn(Rates) -> Thousandths| {
            rates.map_or_else(|| "?".to_owned(), |rates| rate(rate_of(rates)))
        };
        let local = host.and_then(|host| host.local_calls);
        let here = match placement.asked == node {
            true => "this node",
            false => "",
        };
        table.row(vec![
            name.to_owned(),
            site.to_owned(),
            role.to_owned(),
            current,
            said(|rates| rates.reads_per_second),
            said(|rates| rates.writes_per_second),
            local.map_or_else(|| "-".to_owned(), percent),
            here.to_owned(),
        ]);
    };
    for copy in &placement.copies {
        let role = match placement.owner == Some(copy.node) {
            true => "owner",
            false => "replica",
        };
        let current = current(copy.valid_bytes, placement.size_bytes);
        row(
            copy.node,
            &copy.name,
            &super::topo::site(&copy.site),
            role,
            current,
        );
    }
    for host in &placement.hosts {
        if placement.copies.iter().all(|copy| copy.node != host.node) {
            row(host.node, &host.name, "", "no copy", "-".to_owned());
        }
    }
    table.render(2)
}

/// Three digits; what is not quite nothing is not called so.
pub fn rate(per_second: Thousandths) -> String {
    match per_second.0 {
        0 => "0".to_owned(),
        1..100 => "<0.1".to_owned(),
        100..100_000 => format!("{:.1}", per_second.as_f64()),
        _ => human::count(per_second.0 / 1_000),
    }
}

/// Rounded down: 100 % is said only where it is all.
pub fn percent(share: Thousandths) -> String {
    format!("{} %", share.0 / 10)
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
    use perigee_proto::admin::{CopyStatus, Holder, HostHeat};
    use perigee_types::{ContainerId, Epoch, InodeId};

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
            ..worked_in()
        };
        let text = text(Path::new("/mnt/f"), &placement);
        for part in [
            "file of 4.00 KiB",
            "inode 77",
            "c3, epoch 9, migration off, owner moved 2 times",
            "keeps 65.0 GiB (container-size is 64.0 GiB): new directories start in c8",
            "owner",
            "(25 %)",
            "this node",
            "held by node-1 (flock)",
            "lately 13.5 reads/s and 0.5 writes/s, 89 % served on",
            "no copy                -      1.0       0.5    0 %",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(
            text.lines().all(|line| line.chars().count() <= 80),
            "{text}"
        );
        let json = serde_json::to_value(&placement).unwrap();
        assert_eq!(json["copies"][1]["valid_bytes"], 1024);
        assert_eq!(json["inode"], 77);
        assert_eq!(json["held_by"][0]["what"], "flock");
        assert_eq!(json["heat"]["here"]["reads_per_second"], 12.5);
        assert_eq!(json["local_calls"], 0.893);
        assert_eq!(json["hosts"][2]["local_calls"], 0.0);
    }

    /// Who works there: the owner, and a host that keeps no copy.
    fn worked_in() -> Placement {
        let rates = |reads, writes| Rates {
            reads_per_second: Thousandths(reads),
            writes_per_second: Thousandths(writes),
            ..Rates::default()
        };
        let host = |id: u32, here, asked| {
            let heat = Heat { here, asked };
            HostHeat {
                node: NodeId(id),
                name: format!("node-{id}"),
                heat: Some(heat),
                local_calls: heat.local_calls(),
                local_bytes: heat.local_bytes(),
            }
        };
        let hosts = vec![
            host(2, rates(12_500, 0), Rates::default()),
            host(1, Rates::default(), Rates::default()),
            host(4, Rates::default(), rates(1_000, 500)),
        ];
        let heats = hosts.iter().filter_map(|host| host.heat);
        let heat = heats.fold(Heat::default(), Heat::and);
        Placement {
            container_bytes: Some(65 << 30),
            container_bytes_max: Some(64 << 30),
            goes_on_in: Some(ContainerId(8)),
            heat,
            local_calls: heat.local_calls(),
            local_bytes: heat.local_bytes(),
            hosts,
            ..Placement::default()
        }
    }

    #[test]
    fn rates_have_three_digits_and_are_nothing_only_when_nothing_is_done() {
        for (number, said) in [
            (0, "0"),
            (1, "<0.1"),
            (100, "0.1"),
            (99_949, "99.9"),
            (1_234_567, "1,234"),
        ] {
            assert_eq!(rate(Thousandths(number)), said);
        }
        assert_eq!(percent(Thousandths(999)), "99 %");
        assert_eq!(percent(Thousandths(1_000)), "100 %");
    }
}
