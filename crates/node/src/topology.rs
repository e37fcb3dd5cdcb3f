//! The map of the network, as this node can draw it.

use crate::node::Node;
use perigee_cluster::{Coordinate, NodeState};
use perigee_proto::admin::{MapPoint, MappedNode, MeasuredPair, Thousandths, Topology};
use perigee_types::{NodeId, Span};
use std::collections::BTreeMap;

impl Node {
    /// Asks all nodes where they are, and what they have measured.
    pub async fn topology(&self) -> Topology {
        let directory = self.env.directory.read().clone();
        let reports = self.reports(&directory).await;
        let told = |node: NodeId| {
            let answered = reports
                .get(&node)
                .map(|answered| answered.report.coordinate);
            let live = || directory.live.get(&node)?.record.coordinate;
            let known = |told: &Coordinate| told.is_known();
            answered.filter(known).or_else(|| live().filter(known))
        };
        let mut measured = BTreeMap::new();
        for (a, answered) in &reports {
            for (b, took) in &answered.report.round_trips {
                let pair = (*a.min(b), *a.max(b));
                let best = measured.entry(pair).or_insert(*took);
                *best = (*best).min(*took);
            }
        }
        let pairs = pairs(&measured, told);
        let known = directory.nodes.values().map(|known| &known.record);
        let there = known.filter(|node| node.state != NodeState::Left);
        let me = self.env.me;
        let mapped = |node: &perigee_cluster::Node| {
            let (from, to) = (told(me), told(node.id));
            let live = directory.live.get(&node.id).map(|known| &known.record);
            let predicted = from.zip(to).filter(|_| node.id != me);
            let took = measured.get(&(me.min(node.id), me.max(node.id)));
            MappedNode {
                node: node.id,
                name: node.name.clone(),
                site: node.site.clone().unwrap_or_default(),
                at: to.map(point),
                disk_us: live.and_then(|live| live.disk).map(Span::as_micros),
                predicted_us: predicted.map(|(from, to)| from.distance(to).as_micros()),
                measured_us: took.map(|took| took.as_micros()),
            }
        };
        Topology {
            asked: me,
            nodes: there.map(mapped).collect(),
            median_error: middle(pairs.iter().map(|pair| pair.error).collect()),
            pairs,
        }
    }
}

/// What was measured between two nodes that know where they are.
fn pairs(
    measured: &BTreeMap<(NodeId, NodeId), Span>,
    told: impl Fn(NodeId) -> Option<Coordinate>,
) -> Vec<MeasuredPair> {
    let pair = |((a, b), took): (&(NodeId, NodeId), &Span)| {
        let predicted = told(*a)?.distance(told(*b)?).as_micros();
        let took = took.as_micros().max(1);
        Some(MeasuredPair {
            a: *a,
            b: *b,
            measured_us: took,
            predicted_us: predicted,
            error: Thousandths::of(predicted.abs_diff(took) as f64 / took as f64),
        })
    };
    measured.iter().filter_map(pair).collect()
}

fn point(at: Coordinate) -> MapPoint {
    let [x, y] = at.plane();
    MapPoint {
        x_us: x as i64,
        y_us: y as i64,
        height_us: at.height().as_micros(),
        error: Thousandths(u64::from(at.error_in_thousandths())),
    }
}

fn middle(mut errors: Vec<Thousandths>) -> Option<Thousandths> {
    errors.sort_unstable();
    errors.get(errors.len() / 2).copied()
}
