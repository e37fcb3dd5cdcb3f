//! Who a peer is: the cluster's number, and the name in a certificate.

use perigee_types::NodeId;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

use crate::crypto;

/// The number of a cluster: random, made with its certificate authority. Shown as 32 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ClusterId(pub u128);

impl ClusterId {
    /// A new cluster's number.
    ///
    /// # Errors
    /// The system has no random bytes.
    pub fn random() -> Result<Self, crypto::NoRandomness> {
        Ok(Self(u128::from_le_bytes(crypto::random()?)))
    }
}

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClusterId({self})")
    }
}

/// Text that is not a cluster's number.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a cluster's number is 32 lower-case hexadecimal digits")]
pub struct NotAClusterId;

impl FromStr for ClusterId {
    type Err = NotAClusterId;

    fn from_str(text: &str) -> Result<Self, NotAClusterId> {
        let digit = |c: u8| c.is_ascii_digit() || (b'a'..=b'f').contains(&c);
        if text.len() != 32 || !text.bytes().all(digit) {
            return Err(NotAClusterId);
        }
        u128::from_str_radix(text, 16)
            .map(Self)
            .map_err(|_| NotAClusterId)
    }
}

/// The name of a peer, as its certificate proves it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PeerName {
    /// The control store.
    Control,
    /// A node.
    Node(NodeId),
    /// Somebody without a certificate, who may only ask to join.
    Joining,
}

impl PeerName {
    /// The DNS name of the certificate; `None` for [`PeerName::Joining`], which has none.
    #[must_use]
    pub fn dns(self, cluster: ClusterId) -> Option<String> {
        match self {
            Self::Control => Some(format!("control.{cluster}.perigee")),
            Self::Node(node) => Some(format!("{node}.{cluster}.perigee")),
            Self::Joining => None,
        }
    }

    /// Reads a certificate's DNS name: the peer and its cluster.
    #[must_use]
    pub fn from_dns(dns: &str) -> Option<(Self, ClusterId)> {
        let (host, rest) = dns.split_once('.')?;
        let cluster = rest.strip_suffix(".perigee")?.parse().ok()?;
        if host == "control" {
            return Some((Self::Control, cluster));
        }
        let number: u32 = host.strip_prefix('n')?.parse().ok()?;
        let name = Self::Node(NodeId(number));
        // one spelling only: no leading zeros, no sign
        (name.dns(cluster).as_deref() == Some(dns)).then_some((name, cluster))
    }
}

impl fmt::Display for PeerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Control => f.write_str("control"),
            Self::Node(node) => write!(f, "{node}"),
            Self::Joining => f.write_str("joining"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_through_dns() {
        let cluster = ClusterId(0xabc);
        for name in [
            PeerName::Control,
            PeerName::Node(NodeId(3)),
            PeerName::Node(NodeId(u32::MAX)),
        ] {
            let dns = name.dns(cluster).unwrap();
            assert_eq!(PeerName::from_dns(&dns), Some((name, cluster)), "{dns}");
        }
        assert_eq!(PeerName::Joining.dns(cluster), None);
    }

    #[test]
    fn other_spellings_are_no_names() {
        let cluster = ClusterId(1);
        for dns in [
            "".to_owned(),
            "n3".to_owned(),
            format!("n03.{cluster}.perigee"),
            format!("n+3.{cluster}.perigee"),
            format!("n4294967296.{cluster}.perigee"),
            format!("x.n3.{cluster}.perigee"),
            format!("n3.{cluster}.perigee.org"),
            format!("joining.{cluster}.perigee"),
            "n3.1.perigee".to_owned(),
        ] {
            assert_eq!(PeerName::from_dns(&dns), None, "{dns}");
        }
    }
}
