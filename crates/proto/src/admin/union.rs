//! What a union says of itself.

use super::AdminPath;
use perigee_types::NodeId;
use serde::{Deserialize, Serialize};

/// The hosts of a union, seen from the one that was asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnionStatus {
    /// Where it is mounted on this host.
    pub mountpoint: AdminPath,
    /// Its hosts, this one first.
    pub hosts: Vec<UnionHost>,
}

/// How a host is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UnionWay {
    /// It is the one that was asked.
    Here,
    /// By connections of its own.
    Direct,
    /// Through SSH alone.
    Ssh,
    /// Nobody has needed it yet.
    Unknown,
}

/// One host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnionHost {
    /// Its number.
    pub node: NodeId,
    /// As the command line names it.
    pub name: String,
    /// It cannot be reached now, and is tried again.
    pub away: bool,
    /// How it is reached.
    pub way: UnionWay,
    /// The round trip that is predicted, microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub round_trip_us: Option<u64>,
    /// Its directories.
    pub directories: Vec<AdminPath>,
}
