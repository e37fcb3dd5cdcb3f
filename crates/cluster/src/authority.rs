//! What of the record a node may change by itself.

use crate::codec::Record as _;
use crate::key;
use crate::model::{Live, Node};
use crate::store::{Txn, Write};

/// Whether `node` may commit `txn`. One that stores data is trusted with the whole record. One that only mounts may
/// change what it says of itself: its sign of life, its address, its capacity.
#[must_use]
pub fn may_commit(node: &Node, txn: &Txn) -> bool {
    node.role.stores() || txn.writes.iter().all(|write| is_of_itself(node, write))
}

fn is_of_itself(node: &Node, write: &Write) -> bool {
    let Write::Put { key, value, lease } = write else {
        return *write.key() == key::live(node.id);
    };
    if *key == key::live(node.id) {
        return lease.is_some() && Live::decode(value).is_ok_and(|live| live.node == node.id);
    }
    let says = |said: Node| {
        let told = Node {
            address: said.address,
            capacity: said.capacity,
            ..node.clone()
        };
        told == said
    };
    *key == key::node(node.id) && lease.is_none() && Node::decode(value).is_ok_and(says)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{NodeState, Role};
    use crate::store::LeaseNumber;
    use perigee_types::{NodeId, WallTime};

    fn node(role: Role) -> Node {
        Node {
            id: NodeId(4),
            name: "client".to_owned(),
            address: ([10, 0, 0, 4], 7400).into(),
            site: None,
            role,
            joined: WallTime::default(),
            cert_serial: vec![1],
            state: NodeState::Draining,
            capacity: 0,
        }
    }

    fn put(node: &Node) -> Txn {
        Txn::default().put(key::node(NodeId(4)), node.encode())
    }

    #[test]
    fn who_only_mounts_changes_its_life_and_its_address_alone() {
        let client = node(Role::Reads);
        let live = |node| Live {
            node,
            free: 0,
            ..Live::default()
        };
        let alive =
            |at, of| Txn::default().put_leased(key::live(at), live(of).encode(), LeaseNumber(1));
        let moved = Node {
            address: ([10, 0, 0, 5], 7400).into(),
            capacity: 9,
            ..client.clone()
        };
        assert!(may_commit(&client, &put(&moved)));
        assert!(may_commit(&client, &alive(NodeId(4), NodeId(4))));

        assert!(!may_commit(&client, &alive(NodeId(1), NodeId(1))));
        assert!(!may_commit(&client, &alive(NodeId(4), NodeId(1))));
        let without_end = Txn::default().put(key::live(NodeId(4)), live(NodeId(4)).encode());
        assert!(!may_commit(&client, &without_end));
        for changed in [
            Node {
                role: Role::Mounts,
                ..client.clone()
            },
            Node {
                state: NodeState::Active,
                ..client.clone()
            },
            Node {
                cert_serial: vec![2],
                ..client.clone()
            },
            Node {
                id: NodeId(1),
                ..client.clone()
            },
        ] {
            assert!(!may_commit(&client, &put(&changed)), "{changed:?}");
        }
        let with_more = put(&moved).delete(key::node(NodeId(1)));
        assert!(!may_commit(&client, &with_more));
        assert!(may_commit(&node(Role::Stores), &with_more));
    }
}
