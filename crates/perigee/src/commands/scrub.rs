//! `perigee scrub`: every node goes over what it keeps, and mends what has rotted.

use super::{DirArg, JsonArg};
use crate::admin_client::{ask_any, unexpected};
use crate::human::{self, Align, Table};
use crate::layout::Layout;
use crate::output::{Outcome, Progress, Report};
use clap::Args;
use perigee_proto::admin::{
    Answer, Failure, NodeScrub, Request, ScrubFound, ScrubPass, ScrubState, ScrubWish,
};
use std::thread;
use std::time::Duration;

/// How often the nodes are asked how far they are.
const LOOK: Duration = Duration::from_millis(250);

/// Go over everything that is stored, and mend what has rotted.
///
/// Every node reads the files that it keeps and compares them with their checksums. Corrupt blocks are fetched anew from
/// another copy. Nodes do the same by themselves once a week, slowly. Files open for writing through a map are passed
/// over. Exit code 1 when something could not be mended, 3 when a node did not answer.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  perigee scrub                go over everything, and wait
  perigee scrub --rate 50M     not faster than 50 MiB in a second on each node
  perigee scrub --status       how far it is, or what the last one found
  perigee scrub --json | jq '.[].pass.found'")]
pub struct Scrub {
    #[command(flatten)]
    dir: DirArg,
    /// Only show how it stands
    #[arg(long, conflicts_with_all = ["stop", "rate", "no_wait"])]
    status: bool,
    /// Stop what is under way; the next pass in the background goes on there
    #[arg(long, conflicts_with_all = ["rate", "no_wait"])]
    stop: bool,
    /// Bytes that each node reads in a second at most: 50M, 1G
    #[arg(long, value_name = "SIZE", value_parser = human::parse_size)]
    rate: Option<u64>,
    /// Begin, and do not wait for the end
    #[arg(long)]
    no_wait: bool,
    #[command(flatten)]
    json: JsonArg,
}

impl Scrub {
    /// Begins, waits, and reports.
    pub fn run(self) -> Result<Report, Failure> {
        let layout = self.dir.open()?;
        let wish = match (self.status, self.stop) {
            (true, _) => ScrubWish::Look,
            (_, true) => ScrubWish::Stop,
            _ => ScrubWish::Begin {
                bytes_per_second: self.rate,
            },
        };
        let mut nodes = ask(&layout, wish)?;
        let waits = !(self.status || self.stop || self.no_wait);
        let mut progress = Progress::new();
        while waits && nodes.iter().any(is_running) {
            progress.show(|| progress_line(&nodes));
            thread::sleep(LOOK);
            nodes = ask(&layout, ScrubWish::Look)?;
        }
        progress.clear();
        let outcome = outcome(&nodes);
        Ok(Report::either(self.json.json, &nodes, || text(&nodes))?.outcome(outcome))
    }
}

fn ask(layout: &Layout, wish: ScrubWish) -> Result<Vec<NodeScrub>, Failure> {
    match ask_any(&layout.nodes, &Request::Scrub { wish })? {
        Answer::Scrub(nodes) => Ok(nodes),
        other => Err(unexpected(&other)),
    }
}

fn is_running(node: &NodeScrub) -> bool {
    node.pass
        .is_some_and(|pass| pass.state == ScrubState::Running)
}

fn outcome(nodes: &[NodeScrub]) -> Outcome {
    let failed = |found: ScrubFound| found.unrepaired > 0 || found.errors > 0;
    if nodes
        .iter()
        .any(|node| node.pass.is_some_and(|pass| failed(pass.found)))
    {
        Outcome::Failed
    } else if nodes.iter().all(|node| node.answers) {
        Outcome::Done
    } else {
        Outcome::Degraded
    }
}

fn progress_line(nodes: &[NodeScrub]) -> String {
    let passes = || nodes.iter().filter_map(|node| node.pass);
    let read: u64 = passes().map(|pass| pass.found.bytes).sum();
    let all: u64 = passes().map(|pass| pass.bytes_in_all).sum();
    let bad: u64 = passes().map(|pass| pass.found.corrupt).sum();
    let left = passes().filter_map(time_left).max();
    let left = left.map_or_else(String::new, |left| format!(", {} to go", human::time(left)));
    let all = human::size(all.max(read));
    format!(
        "{} of about {all} read, {} corrupt{left}",
        human::size(read),
        human::size(bad)
    )
}

/// By the speed so far.
fn time_left(pass: ScrubPass) -> Option<Duration> {
    let left = pass.bytes_in_all.checked_sub(pass.found.bytes)?;
    if pass.state != ScrubState::Running || pass.found.bytes == 0 {
        return None;
    }
    let ms = u128::from(pass.took_ms) * u128::from(left) / u128::from(pass.found.bytes);
    Some(Duration::from_millis(u64::try_from(ms).ok()?))
}

fn text(nodes: &[NodeScrub]) -> String {
    let mut table = Table::new(&[
        ("NODE", Align::Left),
        ("SCRUB", Align::Left),
        ("FILES", Align::Right),
        ("READ", Align::Right),
        ("CORRUPT", Align::Right),
        ("MENDED", Align::Right),
        ("TOOK", Align::Right),
    ]);
    for node in nodes {
        let name = node.name.clone();
        let none = || "-".to_owned();
        match node.pass {
            Some(pass) => table.row(vec![
                name,
                state(pass.state).to_owned(),
                human::count(pass.found.files),
                human::size(pass.found.bytes),
                human::size(pass.found.corrupt),
                human::size(pass.found.repaired),
                human::time(Duration::from_millis(pass.took_ms)),
            ]),
            None => {
                let state = if node.answers {
                    "none yet"
                } else {
                    "no answer"
                };
                table.row(vec![
                    name,
                    state.to_owned(),
                    none(),
                    none(),
                    none(),
                    none(),
                    none(),
                ]);
            }
        }
    }
    let mut out = table.render(0);
    let sum = |of: fn(ScrubFound) -> u64| -> u64 {
        let passes = nodes.iter().filter_map(|node| node.pass);
        passes.map(|pass| of(pass.found)).sum()
    };
    let (unrepaired, errors) = (sum(|found| found.unrepaired), sum(|found| found.errors));
    if unrepaired > 0 || errors > 0 {
        out.push_str(&human::paragraph(
            "! ",
            &format!(
                "{} could not be mended, since no other copy has them or answers, and {} could not be read; the logs of \
                 the nodes name the files",
                human::size(unrepaired),
                human::plural(usize::try_from(errors).unwrap_or(usize::MAX), "file")
            ),
        ));
    }
    out
}

const fn state(state: ScrubState) -> &'static str {
    match state {
        ScrubState::Running => "under way",
        ScrubState::Done => "done",
        ScrubState::Stopped => "stopped",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use perigee_types::NodeId;

    fn node(id: u32, pass: Option<ScrubPass>) -> NodeScrub {
        NodeScrub {
            node: NodeId(id),
            name: format!("node-{id}"),
            answers: true,
            pass,
        }
    }

    fn pass(state: ScrubState, found: ScrubFound) -> ScrubPass {
        ScrubPass {
            state,
            took_ms: 1_500,
            found,
            ..ScrubPass::begun(true, 0, 4 << 20)
        }
    }

    #[test]
    fn what_could_not_be_mended_is_said_and_fails() {
        let found = ScrubFound {
            files: 3,
            bytes: 1 << 20,
            corrupt: 8_192,
            repaired: 4_096,
            ..ScrubFound::default()
        };
        let good = node(1, Some(pass(ScrubState::Done, found)));
        assert_eq!(outcome(std::slice::from_ref(&good)), Outcome::Done);
        let shown = text(std::slice::from_ref(&good));
        assert!(
            shown.contains("8.00 KiB") && !shown.contains('!'),
            "{shown}"
        );
        let found = ScrubFound {
            unrepaired: 4_096,
            ..found
        };
        let bad = node(2, Some(pass(ScrubState::Done, found)));
        let nodes = [good, bad];
        assert_eq!(outcome(&nodes), Outcome::Failed);
        let shown = text(&nodes);
        assert!(shown.contains("4.00 KiB could not be mended"), "{shown}");
        assert!(
            shown.lines().all(|line| line.len() <= human::COLUMNS),
            "{shown}"
        );
        let silent = NodeScrub {
            answers: false,
            ..node(3, None)
        };
        assert_eq!(outcome(&[silent]), Outcome::Degraded);
    }

    #[test]
    fn the_time_left_follows_from_the_speed_so_far() {
        let found = ScrubFound {
            bytes: 1 << 20,
            ..ScrubFound::default()
        };
        let running = pass(ScrubState::Running, found);
        assert_eq!(time_left(running), Some(Duration::from_millis(4_500)));
        assert_eq!(time_left(pass(ScrubState::Done, found)), None);
    }
}
