//! Where nodes are in the network.

use crate::message::report::Thousandths;
use perigee_types::NodeId;
use serde::{Deserialize, Serialize};

/// The map of a cluster's network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Topology {
    /// The node that was asked.
    pub asked: NodeId,
    /// The nodes, by number.
    pub nodes: Vec<MappedNode>,
    /// Round trips that were measured.
    pub pairs: Vec<MeasuredPair>,
    /// The relative error of what the map says of them, in the middle of all; none where nothing was measured.
    pub median_error: Option<Thousandths>,
}

/// A node on the map.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MappedNode {
    /// Its number.
    pub node: NodeId,
    /// Its name.
    pub name: String,
    /// The site that somebody named; empty where nobody did.
    pub site: String,
    /// Where it is; none where it does not know, or is down.
    pub at: Option<MapPoint>,
    /// How long its disk takes to keep a few bytes for good, in microseconds.
    pub disk_us: Option<u64>,
    /// The round trip from the node that was asked, as the map says, in microseconds.
    pub predicted_us: Option<u64>,
    /// The same as measured.
    pub measured_us: Option<u64>,
}

/// A point of the map: microseconds of round trips.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MapPoint {
    /// On the plane.
    pub x_us: i64,
    /// On the plane.
    pub y_us: i64,
    /// What every message of the node has to pass besides.
    pub height_us: u64,
    /// How wrong its own predictions were lately.
    pub error: Thousandths,
}

/// A round trip that was measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeasuredPair {
    /// From this node.
    pub a: NodeId,
    /// To this one.
    pub b: NodeId,
    /// In microseconds: the shortest quarter of the last ones.
    pub measured_us: u64,
    /// What the map says.
    pub predicted_us: u64,
    /// How wrong that is, relative to what was measured.
    pub error: Thousandths,
}
