//! Where each thing lies in the control store. Numbers have fixed width, so that the order of keys is
//! the order of numbers.

use perigee_types::{ContainerId, NodeId};

/// Everything that Perigee keeps.
pub const ROOT: &str = "/";
/// The cluster itself: [`crate::ClusterInfo`].
pub const CLUSTER: &str = "/cluster";
/// Prefix of [`crate::Node`] records.
pub const NODES: &str = "/nodes/";
/// Prefix of [`crate::Container`] records.
pub const CONTAINERS: &str = "/containers/";
/// Prefix of [`crate::Move`] records.
pub const MOVES: &str = "/moves/";
/// Prefix of [`crate::Grown`] records.
pub const GROWN: &str = "/grown/";
/// Prefix of [`crate::Policy`] records.
pub const POLICIES: &str = "/policies/";
/// Prefix of [`crate::Token`] records.
pub const TOKENS: &str = "/tokens/";
/// Prefix of [`crate::Readmission`] records.
pub const READMISSIONS: &str = "/readmissions/";
/// Prefix of [`crate::Revoked`] records.
pub const REVOKED: &str = "/revoked/";
/// Prefix of [`crate::ControlProcess`] records.
pub const CONTROLS: &str = "/controls/";
/// Prefix of [`crate::Live`] records, which end with their node's lease.
pub const LIVE: &str = "/live/";
/// The number that the next node gets.
pub const NEXT_NODE: &str = "/next/node";
/// The number that the next container gets.
pub const NEXT_CONTAINER: &str = "/next/container";
/// The name of the policy that holds where no other does.
pub const DEFAULT_POLICY: &str = "default";
/// Its record says that some directory has, or had, what is removed from it kept. What it asks for itself means nothing.
pub const TRASH_IN_USE: &str = "trash";
/// The same, that new files of some directory are, or were, striped.
pub const STRIPES_IN_USE: &str = "stripes";

/// The key of a node's record.
#[must_use]
pub fn node(id: NodeId) -> String {
    format!("{NODES}{:08}", id.0)
}

/// The key of a container's record.
#[must_use]
pub fn container(id: ContainerId) -> String {
    format!("{CONTAINERS}{:08}", id.0)
}

/// The key of the move of a container's copy.
#[must_use]
pub fn moving(id: ContainerId) -> String {
    format!("{MOVES}{:08}", id.0)
}

/// The key of what says for which container another one goes on.
#[must_use]
pub fn grown(id: ContainerId) -> String {
    format!("{GROWN}{:08}", id.0)
}

/// The key of a node's sign of life.
#[must_use]
pub fn live(id: NodeId) -> String {
    format!("{LIVE}{:08}", id.0)
}

/// The key of a policy.
#[must_use]
pub fn policy(name: &str) -> String {
    format!("{POLICIES}{name}")
}

/// The name of the policy of a container that belongs to one directory.
#[must_use]
pub fn policy_of(id: ContainerId) -> String {
    format!("container-{:08}", id.0)
}

/// The key of a join token, by the hash of its secret.
#[must_use]
pub fn token(hash: &[u8; 32]) -> String {
    with_hex(TOKENS, hash)
}

/// The key of a readmission, by the hash of its secret.
#[must_use]
pub fn readmission(hash: &[u8; 32]) -> String {
    with_hex(READMISSIONS, hash)
}

/// The key of a control process, by its number.
#[must_use]
pub fn control(process: u128) -> String {
    format!("{CONTROLS}{process:032x}")
}

/// The key of a void certificate, by its serial number.
#[must_use]
pub fn revoked(serial: &[u8]) -> String {
    with_hex(REVOKED, serial)
}

fn with_hex(prefix: &str, bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    let mut key = prefix.to_owned();
    for byte in bytes {
        // Writing into a string cannot fail.
        _ = write!(key, "{byte:02x}");
    }
    key
}

/// The bytes of lower-case hexadecimal digits, as [`revoked`] writes them.
fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |c: u8| {
        char::from(c)
            .to_digit(16)
            .filter(|_| !c.is_ascii_uppercase())
    };
    let pairs = text.as_bytes().chunks(2).map(|pair| match pair {
        [high, low] => u8::try_from(digit(*high)? * 16 + digit(*low)?).ok(),
        _ => None,
    });
    pairs.collect()
}

/// What a key names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Name<'a> {
    /// [`CLUSTER`].
    Cluster,
    /// A node's record.
    Node(NodeId),
    /// A container's record.
    Container(ContainerId),
    /// The move of a container's copy.
    Move(ContainerId),
    /// For which container one goes on.
    Grown(ContainerId),
    /// A node's sign of life.
    Live(NodeId),
    /// A policy, by its name.
    Policy(&'a str),
    /// A token, by the hexadecimal hash of its secret.
    Token(&'a str),
    /// A readmission, by the hexadecimal hash of its secret.
    Readmission(&'a str),
    /// A void certificate, by its serial number.
    Revoked(Vec<u8>),
    /// A control process, by its number.
    Control(u128),
    /// [`NEXT_NODE`].
    NextNode,
    /// [`NEXT_CONTAINER`].
    NextContainer,
    /// A key of a later version, or of somebody else: to be left alone.
    Other,
}

impl<'a> Name<'a> {
    /// Reads a key.
    #[must_use]
    pub fn parse(key: &'a str) -> Self {
        let number = |text: &str| text.parse::<u32>().ok().filter(|_| text.len() >= 8);
        match key {
            CLUSTER => return Self::Cluster,
            NEXT_NODE => return Self::NextNode,
            NEXT_CONTAINER => return Self::NextContainer,
            _ => {}
        }
        if let Some(text) = key.strip_prefix(NODES) {
            return number(text).map_or(Self::Other, |n| Self::Node(NodeId(n)));
        }
        if let Some(text) = key.strip_prefix(CONTAINERS) {
            return number(text).map_or(Self::Other, |n| Self::Container(ContainerId(n)));
        }
        if let Some(text) = key.strip_prefix(MOVES) {
            return number(text).map_or(Self::Other, |n| Self::Move(ContainerId(n)));
        }
        if let Some(text) = key.strip_prefix(GROWN) {
            return number(text).map_or(Self::Other, |n| Self::Grown(ContainerId(n)));
        }
        if let Some(text) = key.strip_prefix(LIVE) {
            return number(text).map_or(Self::Other, |n| Self::Live(NodeId(n)));
        }
        if let Some(text) = key.strip_prefix(REVOKED) {
            return from_hex(text).map_or(Self::Other, Self::Revoked);
        }
        if let Some(text) = key.strip_prefix(CONTROLS) {
            let number = u128::from_str_radix(text, 16).ok();
            let number = number.filter(|process| control(*process) == key);
            return number.map_or(Self::Other, Self::Control);
        }
        if let Some(name) = key.strip_prefix(POLICIES) {
            return Self::Policy(name);
        }
        if let Some(hash) = key.strip_prefix(READMISSIONS) {
            return Self::Readmission(hash);
        }
        key.strip_prefix(TOKENS).map_or(Self::Other, Self::Token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_read_back_and_sort_by_number() {
        for n in [1, 9, 10, 99_999_999, u32::MAX] {
            assert_eq!(Name::parse(&node(NodeId(n))), Name::Node(NodeId(n)));
            assert_eq!(Name::parse(&live(NodeId(n))), Name::Live(NodeId(n)));
            let id = ContainerId(n);
            assert_eq!(Name::parse(&container(id)), Name::Container(id));
            assert_eq!(Name::parse(&moving(id)), Name::Move(id));
            assert_eq!(Name::parse(&grown(id)), Name::Grown(id));
        }
        assert_eq!(node(NodeId(3)), "/nodes/00000003");
        assert!(container(ContainerId(9)) < container(ContainerId(10)));
        assert_eq!(Name::parse("/nodes/3"), Name::Other);
        assert_eq!(Name::parse("/nodes/"), Name::Other);
        assert_eq!(Name::parse(CLUSTER), Name::Cluster);
        let serial = vec![0x0f, 0xa0];
        assert_eq!(revoked(&serial), "/revoked/0fa0");
        assert_eq!(Name::parse("/revoked/0fa0"), Name::Revoked(serial));
        for other in ["/revoked/0fa", "/revoked/0FA0", "/revoked/0g"] {
            assert_eq!(Name::parse(other), Name::Other);
        }
        let process = 0xa0_u128 << 64;
        assert_eq!(Name::parse(&control(process)), Name::Control(process));
        assert_eq!(Name::parse("/controls/+a0"), Name::Other);
        let hash = "ab".repeat(32);
        assert_eq!(Name::parse(&token(&[0xab; 32])), Name::Token(&hash));
    }
}
