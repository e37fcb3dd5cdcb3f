//! `perigee rebalance`: copies move from full nodes to those with room.

use super::status::node_name;
use super::{DirArg, JsonArg, status};
use crate::admin_client::{ask_any, unexpected};
use crate::human::{self, Align, Table};
use crate::layout::Layout;
use crate::output::{Progress, Report, write_out};
use clap::Args;
use perigee_cluster::rebalance::Margin;
use perigee_proto::admin::{
    Answer, ContainerStatus, CopyMove, Failure, Goes, RebalancePlan, Request, Status,
};
use serde::Serialize;
use std::thread;
use std::time::{Duration, Instant};

/// How often the cluster is asked how far it is.
const LOOK: Duration = Duration::from_millis(250);
/// How long a move may not be seen that was asked for: nodes hear of it a moment later.
const SEEN: Duration = Duration::from_secs(10);
/// So many plans are carried out: what is written meanwhile may make another one worth it.
const ROUNDS: u32 = 4;

/// Move copies from full nodes to those with room.
///
/// One copy moves at a time, as gently as a new copy is made, and programs go on meanwhile. A copy is given up only when its
/// container has all others and the new one, whole; copies stay on as many sites and machines as they were; and a node
/// keeps the container in which its own new directories start. A copy moves only to a node that is less full with it than
/// the node that had it was, by the margin: it ends when there is none of which that is true. Where programs of the owner's
/// host write a file past the daemon, the move waits until they have closed it and nobody maps it for writing. The plan is
/// printed first. Broken off, it goes on with the move under way and begins no other; the next `perigee rebalance` continues.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  perigee rebalance --dry-run     what would move
  perigee rebalance               move it, and wait
  perigee rebalance --stop        nothing moves any more
  perigee rebalance --dry-run --json | jq '.plan.moves'")]
pub struct Rebalance {
    /// Only say what would move
    #[arg(long, conflicts_with = "stop")]
    dry_run: bool,
    /// Stop the move under way: copies stay where they are whole
    #[arg(long)]
    stop: bool,
    /// How much better a move has to make it: 1 to 100 per cent of the mean fill [default: 5]
    #[arg(long, value_name = "PERCENT", conflicts_with = "stop", value_parser = parse_margin)]
    margin: Option<u8>,
    #[command(flatten)]
    dir: DirArg,
    #[command(flatten)]
    json: JsonArg,
}

fn parse_margin(text: &str) -> Result<u8, String> {
    let percent = text.trim_end_matches('%').parse().ok();
    let known = percent.filter(|percent| Margin::percent(*percent).is_some());
    known.ok_or_else(|| "expected 1 to 100 per cent, as in 5".to_owned())
}

/// What was planned, and what was done of it.
#[derive(Debug, Default, Serialize)]
struct Outcome {
    /// The first plan.
    plan: RebalancePlan,
    /// The moves that this command has seen done.
    done: Vec<CopyMove>,
    /// Their bytes.
    done_bytes: u64,
}

impl Rebalance {
    /// Plans, moves, and waits.
    pub fn run(self) -> Result<Report, Failure> {
        let layout = self.dir.open()?;
        if self.stop {
            return self.stop(&layout);
        }
        let plan = fetch(&layout, self.margin)?;
        let status = status::fetch(&layout, None)?;
        if self.dry_run {
            let outcome = Outcome {
                plan,
                ..Outcome::default()
            };
            return Report::either(self.json.json, &outcome, || {
                plan_text(&outcome.plan, &status) + next_step(&outcome.plan)
            });
        }
        if !self.json.json {
            let shown = write_out(&plan_text(&plan, &status));
            shown.map_err(|error| Failure::new("cannot write to standard output", error))?;
        }
        let outcome = self.carry_out(&layout, plan)?;
        Report::either(self.json.json, &outcome, || done_text(&outcome))
    }

    fn stop(&self, layout: &Layout) -> Result<Report, Failure> {
        let stopped = match ask_any(&layout.nodes, &Request::StopMoves)? {
            Answer::Stopped(stopped) => stopped,
            other => return Err(unexpected(&other)),
        };
        let said = serde_json::json!({ "stopped": stopped });
        Report::either(self.json.json, &said, || match stopped {
            0 => "nothing was moving\n".to_owned(),
            stopped => format!("stopped: {}\n", human::plural(stopped as usize, "move")),
        })
    }

    /// Moves what is planned, one after the other; then what a new plan says, for nodes do not stand still.
    fn carry_out(&self, layout: &Layout, first: RebalancePlan) -> Result<Outcome, Failure> {
        let mut outcome = Outcome {
            plan: first.clone(),
            ..Outcome::default()
        };
        let mut run = Run::new(layout);
        let mut plan = first;
        for _ in 0..ROUNDS {
            // What somebody has begun goes on in any case, and comes first.
            let begun = plan.under_way.iter().map(|moving| (*moving, Begun::Before));
            let planned = plan.moves.iter().map(|moving| (*moving, Begun::Now));
            let todo: Vec<_> = begun.chain(planned).collect();
            if todo.is_empty() {
                break;
            }
            run.left_bytes = todo.iter().map(|(moving, _)| moving.bytes).sum();
            for (moving, begun) in todo {
                run.one(&moving, begun)?;
                outcome.done_bytes = outcome.done_bytes.saturating_add(moving.bytes);
                outcome.done.push(moving);
            }
            plan = fetch(layout, self.margin)?;
        }
        run.progress.clear();
        Ok(outcome)
    }
}

fn fetch(layout: &Layout, margin_percent: Option<u8>) -> Result<RebalancePlan, Failure> {
    match ask_any(&layout.nodes, &Request::RebalancePlan { margin_percent })? {
        Answer::Rebalance(plan) => Ok(plan),
        other => Err(unexpected(&other)),
    }
}

/// Who has asked for a move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Begun {
    Before,
    Now,
}

/// How a move stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stands {
    /// The copy is where it should be.
    Done,
    /// So many bytes of it are to be fetched yet.
    Moving(u64),
    /// Nobody moves it.
    Still,
}

fn stands(status: &Status, moving: &CopyMove) -> Stands {
    let mut containers = status.containers.iter();
    let found = containers.find(|container| container.id == moving.container);
    match found {
        Some(container) if is_done(container, moving) => Stands::Done,
        Some(container) => match container.moving {
            Some(now) if now.from == moving.from && now.to == moving.to => {
                let left = now.left_bytes.unwrap_or(moving.bytes);
                Stands::Moving(left.min(moving.bytes))
            }
            Some(_) | None => Stands::Still,
        },
        None => Stands::Still,
    }
}

fn is_done(container: &ContainerStatus, moving: &CopyMove) -> bool {
    container.chain.contains(&moving.to) && !container.chain.contains(&moving.from)
}

/// Moves one after the other, and what is shown meanwhile.
struct Run<'a> {
    layout: &'a Layout,
    progress: Progress,
    began: Instant,
    done_bytes: u64,
    /// Of the moves that are not done.
    left_bytes: u64,
}

impl<'a> Run<'a> {
    fn new(layout: &'a Layout) -> Self {
        Self {
            layout,
            progress: Progress::new(),
            began: Instant::now(),
            done_bytes: 0,
            left_bytes: 0,
        }
    }

    /// Has one copy move, and waits until it has.
    fn one(&mut self, moving: &CopyMove, begun: Begun) -> Result<(), Failure> {
        let asked = match begun {
            Begun::Before => Ok(()),
            Begun::Now => self.ask_for(moving),
        };
        let waited = asked.and_then(|()| self.wait(moving));
        if waited.is_err() {
            self.progress.clear();
        }
        waited
    }

    fn ask_for(&self, moving: &CopyMove) -> Result<(), Failure> {
        let request = Request::MoveCopy {
            container: moving.container,
            from: moving.from,
            to: moving.to,
        };
        match ask_any(&self.layout.nodes, &request)? {
            Answer::Done => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    fn wait(&mut self, moving: &CopyMove) -> Result<(), Failure> {
        let mut seen = Instant::now();
        loop {
            let status = status::fetch(self.layout, None)?;
            match stands(&status, moving) {
                Stands::Done => {
                    self.done_bytes += moving.bytes;
                    self.left_bytes = self.left_bytes.saturating_sub(moving.bytes);
                    return Ok(());
                }
                Stands::Moving(left) => {
                    seen = Instant::now();
                    let fetched = moving.bytes - left;
                    let so_far = (self.done_bytes + fetched, self.left_bytes - fetched);
                    let took = self.began.elapsed();
                    self.progress.show(|| line(&status, moving, so_far, took));
                }
                Stands::Still if seen.elapsed() > SEEN => {
                    return Err(broken_off(&status, moving));
                }
                Stands::Still => {}
            }
            thread::sleep(LOOK);
        }
    }
}

fn broken_off(status: &Status, moving: &CopyMove) -> Failure {
    let what = format!(
        "cannot move a copy of {} to {}",
        moving.container,
        node_name(status, moving.to)
    );
    Failure::new(what, "it was stopped, or that node is gone or leaves")
        .hint("`perigee status` shows the nodes; `perigee rebalance` makes a new plan")
}

fn line(status: &Status, moving: &CopyMove, (done, left): (u64, u64), took: Duration) -> String {
    let to_go = match (done, left) {
        (0, _) | (_, 0) => String::new(),
        (done, left) => {
            let seconds = took.as_secs_f64() * left as f64 / done as f64;
            let left = human::time(Duration::from_secs_f64(seconds));
            format!(", about {left} to go")
        }
    };
    format!(
        "{} from {} to {}: {} of {} done{to_go}",
        moving.container,
        node_name(status, moving.from),
        node_name(status, moving.to),
        human::size(done),
        human::size(done.saturating_add(left))
    )
}

/// How full nodes are and would be, and what would move.
fn plan_text(plan: &RebalancePlan, status: &Status) -> String {
    let mut table = Table::new(&[
        ("NODE", Align::Left),
        ("KEEPS", Align::Right),
        ("OF", Align::Right),
        ("FILL", Align::Right),
        ("THEN", Align::Right),
        ("FILL", Align::Right),
    ]);
    for node in &plan.nodes {
        table.row(vec![
            node.name.clone(),
            human::size(node.before_bytes),
            human::size(node.capacity_bytes),
            percent(node.before_bytes, node.capacity_bytes),
            human::size(node.after_bytes),
            percent(node.after_bytes, node.capacity_bytes),
        ]);
    }
    let mut out = table.render(0);
    let moves = [("moving", &plan.under_way), ("moves", &plan.moves)];
    if moves.iter().all(|(_, moves)| moves.is_empty()) {
        out.push_str(&format!(
            "\nno move makes this better by {} % of the mean fill\n",
            plan.margin_percent
        ));
        return out;
    }
    let mut table = Table::new(&[
        ("CONTAINER", Align::Left),
        ("FROM", Align::Left),
        ("TO", Align::Left),
        ("SIZE", Align::Right),
        ("", Align::Left),
    ]);
    for (what, moves) in moves {
        for moving in moves {
            let goes = match moving.goes {
                Goes::Copy => what.to_owned(),
                Goes::Ownership => format!("{what}, with the ownership"),
            };
            table.row(vec![
                moving.container.to_string(),
                node_name(status, moving.from),
                node_name(status, moving.to),
                human::size(moving.bytes),
                goes,
            ]);
        }
    }
    out.push('\n');
    out.push_str(&table.render(0));
    out
}

fn percent(part: u64, whole: u64) -> String {
    let tenths = (u128::from(part) * 1_000).checked_div(u128::from(whole));
    tenths.map_or_else(
        || "-".to_owned(),
        |tenths| format!("{}.{} %", tenths / 10, tenths % 10),
    )
}

fn next_step(plan: &RebalancePlan) -> &'static str {
    match plan.moves.is_empty() && plan.under_way.is_empty() {
        true => "",
        false => "\n`perigee rebalance` does it\n",
    }
}

fn done_text(outcome: &Outcome) -> String {
    match outcome.done.len() {
        0 => String::new(),
        moves => format!(
            "\ndone: {}, {}\n",
            human::plural(moves, "move"),
            human::size(outcome.done_bytes)
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use perigee_proto::admin::{CopyMoving, NodeFill, NodeStatus};
    use perigee_types::{ContainerId, NodeId};

    const MOVE: CopyMove = CopyMove {
        container: ContainerId(5),
        from: NodeId(1),
        to: NodeId(2),
        bytes: 3 << 30,
        goes: Goes::Ownership,
    };

    fn status(chain: &[u32], moving: Option<CopyMoving>) -> Status {
        let node = |id: u32| NodeStatus {
            id: NodeId(id),
            name: format!("node-{id}"),
            ..NodeStatus::default()
        };
        Status {
            nodes: vec![node(1), node(2)],
            containers: vec![ContainerStatus {
                id: ContainerId(5),
                chain: chain.iter().copied().map(NodeId).collect(),
                moving,
                ..ContainerStatus::default()
            }],
            ..Status::default()
        }
    }

    #[test]
    fn a_move_is_done_when_the_chain_says_so() {
        let moving = |left_bytes| CopyMoving {
            from: NodeId(1),
            to: NodeId(2),
            left_bytes,
        };
        let of = |chain: &[u32], moving| stands(&status(chain, moving), &MOVE);
        assert_eq!(of(&[1], None), Stands::Still);
        assert_eq!(of(&[1], Some(moving(None))), Stands::Moving(3 << 30));
        assert_eq!(of(&[1, 2], Some(moving(Some(7)))), Stands::Moving(7));
        // One that does not know its end yet lacks no more than there is.
        assert_eq!(
            of(&[1, 2], Some(moving(Some(u64::MAX)))),
            Stands::Moving(3 << 30)
        );
        assert_eq!(of(&[2], None), Stands::Done);
        assert_eq!(stands(&Status::default(), &MOVE), Stands::Still);
    }

    #[test]
    fn progress_says_what_is_done_and_how_long_the_rest_takes() {
        let status = status(&[1], None);
        let said = line(&status, &MOVE, (1 << 30, 2 << 30), Duration::from_secs(30));
        assert_eq!(
            said,
            "c5 from node-1 to node-2: 1.00 GiB of 3.00 GiB done, about 1 min to go"
        );
        let said = line(&status, &MOVE, (0, 2 << 30), Duration::from_secs(30));
        assert_eq!(said, "c5 from node-1 to node-2: 0 B of 2.00 GiB done");
    }

    #[test]
    fn the_plan_fits_eighty_columns_and_names_the_next_command() {
        let fill = |id: u32, before_bytes, after_bytes| NodeFill {
            node: NodeId(id),
            name: format!("a-node-with-a-name-that-is-far-too-long-for-a-table-{id}"),
            capacity_bytes: 100 << 30,
            before_bytes,
            after_bytes,
        };
        let mut plan = RebalancePlan {
            margin_percent: 5,
            nodes: vec![fill(1, 9 << 30, 6 << 30), fill(2, 0, 3 << 30)],
            moves: vec![MOVE],
            under_way: Vec::new(),
        };
        let text = plan_text(&plan, &status(&[1], None)) + next_step(&plan);
        assert!(
            text.lines().all(|line| line.chars().count() <= 80),
            "{text}"
        );
        for part in [
            "9.0 %",
            "3.0 %",
            "3.00 GiB  moves, with the ownership",
            "`perigee rebalance`",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        plan.moves.clear();
        let text = plan_text(&plan, &status(&[1], None)) + next_step(&plan);
        assert!(
            text.ends_with("no move makes this better by 5 % of the mean fill\n"),
            "{text}"
        );
    }

    #[test]
    fn margins_are_checked() {
        assert_eq!(parse_margin("5"), Ok(5));
        assert_eq!(parse_margin("10%"), Ok(10));
        for wrong in ["0", "101", "300", "much", ""] {
            assert!(parse_margin(wrong).is_err(), "{wrong}");
        }
    }
}
