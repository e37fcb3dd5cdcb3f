//! Which nodes have which bytes of which files.

use super::AdminPath;
use perigee_types::NodeId;
use serde::{Deserialize, Serialize};

/// The most files of one question.
pub const LOCATED_MAX: usize = 512;

/// Where the bytes of some files are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Located {
    /// The node that was asked.
    pub asked: NodeId,
    /// The files, in the order of the question.
    pub files: Vec<LocatedFile>,
    /// The nodes that have any of them.
    pub nodes: Vec<LocatedNode>,
}

/// A node that has bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocatedNode {
    /// Its number.
    pub node: NodeId,
    /// Its name.
    pub name: String,
    /// Its host, by address.
    pub host: String,
    /// The site that somebody named; empty where nobody did.
    pub site: String,
}

/// Where the bytes of one file are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocatedFile {
    /// Its path inside the file system.
    pub path: AdminPath,
    /// Its length in bytes; 0 where it was not found.
    pub size_bytes: u64,
    /// Its parts, in order and without gaps.
    pub pieces: Vec<LocatedPiece>,
    /// Why there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A part of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocatedPiece {
    /// The first byte.
    pub start: u64,
    /// The byte after the last one.
    pub end: u64,
    /// The nodes whose copy of it is current, the owner first. None where no node that answers has it.
    pub nodes: Vec<NodeId>,
}
