//! Nodes for the tests of this crate.

use crate::directory::Known;
use crate::model::{Node, NodeState, Role};
use crate::store::Revision;
use perigee_types::{NodeId, WallTime};

/// An active node at 10.0.0.`ip`.
pub(crate) fn node(id: u32, ip: u8, site: Option<&str>) -> Node {
    Node {
        id: NodeId(id),
        name: format!("h{id}"),
        address: ([10, 0, 0, ip], 7000).into(),
        site: site.map(str::to_owned),
        role: Role::Stores,
        joined: WallTime::default(),
        cert_serial: Vec::new(),
        state: NodeState::Active,
        capacity: 0,
    }
}

pub(crate) fn known<T>(record: T) -> Known<T> {
    let revision = Revision::default();
    Known { record, revision }
}
