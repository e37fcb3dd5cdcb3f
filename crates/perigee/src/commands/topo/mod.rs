//! `perigee topo`: the map of the network.

mod scale;
mod svg;
mod terminal;

use super::{DirArg, JsonArg, NodeArg};
use crate::admin_client::{ask_any, unexpected};
use crate::human::{self, Align, Table};
use crate::output::Report;
use clap::Args;
use perigee_proto::admin::{Answer, Failure, Request, Topology};
use std::path::PathBuf;
use std::time::Duration;

/// Show where nodes are in the network.
///
/// Each node finds a place on a map, whose distances are round trips, from those that it measures anyway. What is not
/// measured is read from it: which copy is nearest, where new ones go. A height is what all messages of a node have to pass
/// besides, as on a slow line of its own. OFF is how wrong the map is about what the node has measured lately, and DISK how
/// long its disk takes to keep a few bytes for good.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  perigee topo
  perigee topo --svg map.svg
  perigee topo --json | jq '.pairs[] | {a, b, measured_us, predicted_us}'")]
pub struct Topo {
    #[command(flatten)]
    dir: DirArg,
    #[command(flatten)]
    node: NodeArg,
    #[command(flatten)]
    json: JsonArg,
    /// Write the map there as a picture
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

impl Topo {
    /// Asks a node, and draws what it knows.
    pub fn run(self) -> Result<Report, Failure> {
        let layout = self.dir.open()?;
        let topology = match ask_any(&layout.chosen(self.node.node)?, &Request::Topology)? {
            Answer::Topology(topology) => topology,
            other => return Err(unexpected(&other)),
        };
        if let Some(file) = &self.svg {
            let written = std::fs::write(file, svg::draw(&topology));
            let what = || format!("cannot write the map to `{}`", file.display());
            written.map_err(|error| Failure::new(what(), error))?;
        }
        Report::either(self.json.json, &topology, || text(&topology))
    }
}

fn text(topology: &Topology) -> String {
    let mut out = table(topology);
    out.push('\n');
    out.push_str(&terminal::draw(topology));
    let sentence = match topology.median_error {
        Some(error) => format!(
            "The map is off by {:.1} % of what was measured, in the middle of {}.",
            error.as_f64() * 100.0,
            human::plural(topology.pairs.len(), "round trip")
        ),
        None => "Nothing has been measured yet: ask again in some seconds.".to_owned(),
    };
    out + &human::paragraph("", &sentence)
}

fn table(topology: &Topology) -> String {
    let asked = topology
        .nodes
        .iter()
        .find(|node| node.node == topology.asked);
    let mut table = Table::new(&[
        ("ID", Align::Right),
        ("NODE", Align::Left),
        ("SITE", Align::Left),
        ("FAR", Align::Right),
        ("MEASURED", Align::Right),
        ("HEIGHT", Align::Right),
        ("OFF", Align::Right),
        ("DISK", Align::Right),
    ]);
    for node in &topology.nodes {
        table.row(vec![
            node.node.0.to_string(),
            node.name.clone(),
            site(&node.site),
            match node.node == topology.asked {
                true => "here".to_owned(),
                false => time(node.predicted_us),
            },
            time(node.measured_us),
            time(node.at.map(|at| at.height_us)),
            node.at.map_or_else(
                || "-".to_owned(),
                |at| format!("{:.0} %", at.error.as_f64() * 100.0),
            ),
            time(node.disk_us),
        ]);
    }
    let from = asked.map_or("", |node| node.name.as_str());
    let head = human::paragraph(
        "",
        &format!("round trips from {from}, as the map says, and as measured"),
    );
    head + "\n" + &table.render(0)
}

/// The name of a site, in a table.
pub fn site(name: &str) -> String {
    match name {
        "" => "-".to_owned(),
        name => name.to_owned(),
    }
}

fn time(micros: Option<u64>) -> String {
    micros.map_or_else(
        || "-".to_owned(),
        |us| human::time(Duration::from_micros(us)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use perigee_proto::admin::{MapPoint, MappedNode, MeasuredPair, Thousandths};
    use perigee_types::NodeId;

    /// Four sites of two, the last node of which is down.
    fn topology() -> Topology {
        let places = [(0, 0), (5_000, 300), (12_000, 1_500), (29_000, -4_000)];
        let node = |number: u32| {
            let (x, y) = places[(number as usize - 1) / 2];
            let place = MapPoint {
                x_us: x + i64::from(number % 2) * 70,
                y_us: y,
                height_us: 60,
                error: Thousandths(31),
            };
            MappedNode {
                node: NodeId(number),
                name: format!("host{number}"),
                site: String::new(),
                at: (number < 8).then_some(place),
                disk_us: Some(700),
                predicted_us: (number > 1).then_some(5_100),
                measured_us: (number > 1).then_some(5_000),
            }
        };
        Topology {
            asked: NodeId(1),
            nodes: (1..=8).map(node).collect(),
            pairs: vec![MeasuredPair {
                a: NodeId(1),
                b: NodeId(2),
                measured_us: 150,
                predicted_us: 170,
                error: Thousandths(133),
            }],
            median_error: Some(Thousandths(133)),
        }
    }

    #[test]
    fn the_map_fits_a_terminal_and_names_every_node_that_is_on_it() {
        let text = text(&topology());
        assert!(
            text.lines()
                .all(|line| line.chars().count() <= human::COLUMNS)
        );
        let map = terminal::draw(&topology());
        for number in 1..8 {
            assert!(map.contains(&format!("host{number}")), "{number}:\n{map}");
        }
        assert!(!map.contains("host8"));
        assert!(text.contains("13.3 %"));
        let far = |name: &str| map.lines().find_map(|line| line.find(name));
        assert!(far("host1") < far("host3") && far("host3") < far("host5"));
    }

    #[test]
    fn a_map_of_nothing_and_of_one_point_can_be_drawn() {
        let mut few = topology();
        few.nodes.truncate(1);
        few.pairs.clear();
        few.median_error = None;
        assert!(text(&few).contains("host1"));
        few.nodes[0].at = None;
        assert!(text(&few).contains("Nothing has been measured yet"));
        assert!(svg::draw(&few).ends_with("</svg>\n"));
    }

    #[test]
    fn the_picture_has_every_node_and_survives_odd_names() {
        let mut odd = topology();
        odd.nodes[0].name = "<a&\"b\">".to_owned();
        let picture = svg::draw(&odd);
        assert!(picture.contains("&lt;a&amp;&quot;b&quot;&gt;") && !picture.contains("<a&"));
        assert_eq!(picture.matches("<circle").count(), 7);
    }
}
