//! Records as bytes: one byte of version, then postcard. Nothing may follow.

use crate::model::{
    CHAIN_LEN_MAX, ClusterInfo, Container, ControlProcess, Grown, Live, Move, NODE_NAME_LEN_MAX,
    Node, Policy, Readmission, Revoked, Token,
};
use perigee_types::{ContainerId, NodeId};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Why bytes from the control store are not the record that their key names.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// A later program wrote it.
    #[error("a {what} record has version {found}, this program reads up to {supported}")]
    Newer {
        /// The kind of record.
        what: &'static str,
        /// Its version.
        found: u8,
        /// The last version that is known here.
        supported: u8,
    },
    /// The bytes are not such a record.
    #[error("a {what} record is damaged")]
    Corrupt {
        /// The kind of record.
        what: &'static str,
    },
    /// It reads well, and says something that cannot be.
    #[error("a {what} record breaks its rules: {rule}")]
    Unsound {
        /// The kind of record.
        what: &'static str,
        /// The rule.
        rule: &'static str,
    },
    /// The record is that of another key.
    #[error("the record under `{key}` is of another object")]
    Misplaced {
        /// The key where it was found.
        key: String,
    },
}

/// A record of the control store.
pub trait Record: Serialize + DeserializeOwned {
    /// The kind, for messages.
    const WHAT: &'static str;
    /// The version that is written; every one from 1 on is read.
    const VERSION: u8 = 1;

    /// The body of this version for a body of an earlier one.
    fn update(_version: u8, body: &[u8]) -> Vec<u8> {
        body.to_vec()
    }

    /// The rule that it breaks, if any.
    fn broken_rule(&self) -> Option<&'static str> {
        None
    }

    /// The record as bytes.
    fn encode(&self) -> Vec<u8> {
        // The records have no map and no sequence of unknown length, all that postcard can refuse.
        postcard::to_extend(self, vec![Self::VERSION]).expect("records always encode")
    }

    /// Reads bytes that came from outside.
    ///
    /// # Errors
    /// See [`DecodeError`].
    fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let what = Self::WHAT;
        let corrupt = DecodeError::Corrupt { what };
        let Some((&version, body)) = bytes.split_first() else {
            return Err(corrupt);
        };
        if version > Self::VERSION {
            return Err(DecodeError::Newer {
                what,
                found: version,
                supported: Self::VERSION,
            });
        }
        if version == 0 {
            return Err(corrupt);
        }
        let body = match version < Self::VERSION {
            true => &Self::update(version, body),
            false => body,
        };
        let Ok((record, rest)) = postcard::take_from_bytes::<Self>(body) else {
            return Err(corrupt);
        };
        if !rest.is_empty() {
            return Err(corrupt);
        }
        match record.broken_rule() {
            Some(rule) => Err(DecodeError::Unsound { what, rule }),
            None => Ok(record),
        }
    }
}

impl Record for ClusterInfo {
    const WHAT: &'static str = "cluster";
}

/// Whether a name of a node or a site is one that people can read and scripts can use.
#[must_use]
pub fn is_name(name: &str) -> bool {
    (1..=NODE_NAME_LEN_MAX).contains(&name.len())
        && !name.chars().any(|c| c.is_control() || c.is_whitespace())
}

impl Record for Node {
    const WHAT: &'static str = "node";

    fn broken_rule(&self) -> Option<&'static str> {
        if self.id == NodeId(0) {
            return Some("nodes are numbered from 1");
        }
        if !is_name(&self.name) || !self.site.as_deref().is_none_or(is_name) {
            return Some("a name has 1 to 253 bytes and no spaces");
        }
        None
    }
}

impl Record for Container {
    const WHAT: &'static str = "container";

    fn broken_rule(&self) -> Option<&'static str> {
        (!self.is_sound()).then_some("a chain has 1 to 16 different nodes and an epoch above 0")
    }
}

impl Record for Move {
    const WHAT: &'static str = "move";

    fn broken_rule(&self) -> Option<&'static str> {
        (self.from == self.to).then_some("a move is from one node to another one")
    }
}

impl Record for Grown {
    const WHAT: &'static str = "grown container";
    const VERSION: u8 = 2;

    fn update(_version: u8, body: &[u8]) -> Vec<u8> {
        // All went on for another one.
        [body, &[0]].concat()
    }

    fn broken_rule(&self) -> Option<&'static str> {
        (self.root >= self.container).then_some("a container goes on for an older one")
    }
}

impl Record for Live {
    const WHAT: &'static str = "live";
    const VERSION: u8 = 2;

    /// Version 1 ended before `coordinate` and `disk`, of which nothing is known then.
    fn update(_version: u8, body: &[u8]) -> Vec<u8> {
        [body, &[0, 0]].concat()
    }
}

impl Record for ControlProcess {
    const WHAT: &'static str = "control process";
}

impl Record for Policy {
    const WHAT: &'static str = "policy";

    fn broken_rule(&self) -> Option<&'static str> {
        let fits = (1..=CHAIN_LEN_MAX).contains(&usize::from(self.copies));
        (!fits).then_some("copies are 1 to 16")
    }
}

impl Record for Token {
    const WHAT: &'static str = "token";
    const VERSION: u8 = 2;

    /// Version 1 ended before `admits`, and admitted anybody.
    fn update(_version: u8, body: &[u8]) -> Vec<u8> {
        [body, &[0]].concat()
    }
}

impl Record for Readmission {
    const WHAT: &'static str = "readmission";
    const VERSION: u8 = 2;

    /// It ends with its token.
    fn update(version: u8, body: &[u8]) -> Vec<u8> {
        Token::update(version, body)
    }
}

impl Record for Revoked {
    const WHAT: &'static str = "revoked certificate";
}

impl Record for NodeId {
    const WHAT: &'static str = "next node";
}

impl Record for ContainerId {
    const WHAT: &'static str = "next container";
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Admits, NodeState, Role};
    use perigee_types::WallTime;

    #[test]
    fn records_of_the_version_before_are_read_and_may_what_they_could() {
        let token = Token {
            hash: [7; 32],
            expires: WallTime { secs: 9, nanos: 0 },
            used_by: None,
            admits: Admits::Anybody,
        };
        let earlier = (token.hash, token.expires, None::<u8>);
        let earlier = postcard::to_extend(&earlier, vec![1]).expect("plain data");
        assert_eq!(Token::decode(&earlier), Ok(token.clone()));
        assert_eq!(Token::decode(&token.encode()), Ok(token.clone()));
        let readers = Token {
            admits: Admits::Readers,
            ..token
        };
        assert_eq!(Token::decode(&readers.encode()), Ok(readers.clone()));
        let mut cut = readers.encode();
        cut.pop();
        assert!(Token::decode(&cut).is_err());
        assert!(Token::decode(&[earlier, vec![1]].concat()).is_err());

        let live = Live {
            node: NodeId(3),
            free: 7,
            version: "0.1".to_owned(),
            ..Live::default()
        };
        let earlier = (live.node, live.free, &live.version);
        let earlier = postcard::to_extend(&earlier, vec![1]).expect("plain data");
        assert_eq!(Live::decode(&earlier), Ok(live));

        let address: std::net::SocketAddr = ([10, 0, 0, 1], 1).into();
        for (storage, role) in [(false, Role::Mounts), (true, Role::Stores)] {
            let node = Node {
                id: NodeId(3),
                name: "n".to_owned(),
                address,
                site: None,
                role,
                joined: WallTime::default(),
                cert_serial: vec![1],
                state: NodeState::Active,
                capacity: 5,
            };
            let site: Option<&str> = None;
            let body = (NodeId(3), "n", address, site, storage);
            let rest = (WallTime::default(), vec![1_u8], NodeState::Active, 5_u64);
            let earlier = postcard::to_extend(&(body, rest), vec![1]).expect("plain data");
            assert_eq!(Node::decode(&earlier), Ok(node));
        }
    }
}
