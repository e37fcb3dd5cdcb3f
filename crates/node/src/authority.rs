//! What a peer may ask of this node: by its name, which its certificate proves, and by its record in the control store.
//!
//! A node that stores data is trusted with what owners and members say to each other. One that only mounts is a client:
//! it may ask owners in the name of its own sessions, and look.

use perigee_cluster::{Directory, Node, NodeState};
use perigee_meta::Op;
use perigee_proto::message::{data, file, hold, past, report, session};
use perigee_proto::{Code, Rpc};
use perigee_types::{ContainerId, NodeId, SessionId};

/// Why a peer is not served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Denied {
    /// It joined a moment ago, or this node's picture of the cluster is old.
    #[error("node {node} is not known here yet")]
    Unknown {
        /// The peer.
        node: NodeId,
    },
    /// It was removed.
    #[error("node {node} has left the cluster")]
    HasLeft {
        /// The peer.
        node: NodeId,
    },
    /// It is a client, and the call is one between owners and members.
    #[error("node {node} stores no data, and may not ask this")]
    StoresNothing {
        /// The peer.
        node: NodeId,
    },
    /// A session that is another node's.
    #[error("session {session} is not of node {node}")]
    OtherSession {
        /// The peer.
        node: NodeId,
        /// What it named.
        session: SessionId,
    },
    /// What only an owner does to what it owns.
    #[error("only the owner itself may do that")]
    OwnersAffair,
    /// A place for new directories that is not the peer's.
    #[error("container {container} is not the home of node {node}")]
    OtherHome {
        /// The peer.
        node: NodeId,
        /// What it named.
        container: ContainerId,
    },
}

impl Denied {
    /// What the peer is answered.
    pub(crate) fn code(self) -> Code {
        match self {
            // The control store's word is on its way.
            Self::Unknown { .. } => Code::NotReady,
            _ => Code::Forbidden,
        }
    }
}

/// Whether a node that only mounts may make a call.
fn is_for_clients(method: u16) -> bool {
    matches!(
        method,
        session::Execute::METHOD
            | file::Read::METHOD
            | file::ReadCopy::METHOD
            | file::Write::METHOD
            | file::Sync::METHOD
            | file::Seek::METHOD
            | hold::AskRight::METHOD
            | hold::WantChunk::METHOD
            | data::AskValid::METHOD
            | report::AskReport::METHOD
            | report::AskHolders::METHOD
            | past::Query::METHOD
            | past::ReadPast::METHOD
    )
}

fn record(directory: &Directory, from: NodeId) -> Result<&Node, Denied> {
    let node = directory.node(from);
    match node.ok_or(Denied::Unknown { node: from })? {
        node if node.state == NodeState::Left => Err(Denied::HasLeft { node: from }),
        node => Ok(node),
    }
}

/// Whether `from` may call `method`, or send it as a message.
pub(crate) fn check_call(directory: &Directory, from: NodeId, method: u16) -> Result<(), Denied> {
    let node = record(directory, from)?;
    if node.role.stores() || is_for_clients(method) {
        Ok(())
    } else {
        Err(Denied::StoresNothing { node: from })
    }
}

/// Sessions belong to the node that calls: nobody acts in another's name.
pub(crate) fn check_session(from: NodeId, session: SessionId) -> Result<(), Denied> {
    if session.node() == from {
        Ok(())
    } else {
        Err(Denied::OtherSession {
            node: from,
            session,
        })
    }
}

/// Whether `from` may run `operation` of its sessions; one that may not is answered as on a file system that is mounted
/// for reading. Shared locks are for readers, too; one that keeps writers out for good is not.
pub(crate) fn may_run(directory: &Directory, from: NodeId, operation: &Op) -> bool {
    let changes = match operation {
        Op::SetLock { lock, .. } => lock.mode.is_some_and(|mode| !mode.is_for_reading()),
        Op::ReleaseLocks { .. } | Op::ReleaseSession { .. } | Op::EndCover { .. } => false,
        operation => crate::container::changes(operation),
    };
    !changes || may_write(directory, from)
}

/// Whether `from` may write into files.
pub(crate) fn may_write(directory: &Directory, from: NodeId) -> bool {
    record(directory, from).is_ok_and(|node| node.role.may_change_files())
}

/// Whether another node's request may have this in it.
pub(crate) fn check_request(
    directory: &Directory,
    from: NodeId,
    request: &session::Execute,
) -> Result<(), Denied> {
    check_session(from, request.session)?;
    match &request.operation {
        Op::GetLock { session, .. }
        | Op::SetLock { session, .. }
        | Op::WithdrawLock { session, .. }
        | Op::ReleaseLocks { session, .. }
        | Op::EndCover { session, .. }
        | Op::ReleaseSession { session, .. } => check_session(from, *session)?,
        Op::Wrote { .. } | Op::Reap { .. } | Op::Orphans { .. } | Op::ExpireSession { .. } => {
            return Err(Denied::OwnersAffair);
        }
        // The owner of a removed file sees to it, whoever owns it.
        Op::DropColumns { .. } if !record(directory, from)?.role.stores() => {
            return Err(Denied::StoresNothing { node: from });
        }
        Op::MakeColumns { inode, within } => {
            let own = inode.container();
            let odd = within
                .iter()
                .find(|id| !may_have_columns(directory, own, **id));
            if let Some(container) = odd.copied() {
                return Err(match directory.container(container) {
                    Some(_) => Denied::OtherHome {
                        node: from,
                        container,
                    },
                    None => Denied::Unknown { node: from },
                });
            }
        }
        // Its checkpoints are made and removed by nodes that store.
        Op::KeepSnapshot { .. } | Op::ForgetSnapshot { .. }
            if !record(directory, from)?.role.stores() =>
        {
            return Err(Denied::StoresNothing { node: from });
        }
        _ => {}
    }
    let Some(container) = request.new_directory_in else {
        return Ok(());
    };
    let stores = record(directory, from)?.role.stores();
    let root = directory.root_of(container);
    let parent = crate::router::container_of(&request.operation);
    let goes_on = container != parent && root == directory.root_of(parent);
    match directory.home_of(from) {
        // Any of the family: where it goes on by now, one of both may not have heard yet.
        Some(home) if home.id == root => Ok(()),
        Some(_) if stores && goes_on => Ok(()),
        // The word of a node's home may come a moment after that of the node, and that of where a container goes on.
        None if stores => Err(Denied::Unknown { node: from }),
        Some(_) if stores && may_go_on(directory, container) => Err(Denied::Unknown { node: from }),
        _ => Err(Denied::OtherHome {
            node: from,
            container,
        }),
    }
}

/// Whether columns of a file in one container may lie in another one: in one that was made for it, with as many copies, or in
/// homes of nodes where the file is in one.
fn may_have_columns(directory: &Directory, own: ContainerId, other: ContainerId) -> bool {
    let of_one = directory.root_of(own) == directory.root_of(other);
    let homes = !directory.is_of_directory(own) && !directory.is_of_directory(other);
    of_one || (homes && directory.container(other).is_some())
}

/// Whether a container may be about to go on for another one, though that is not known here.
fn may_go_on(directory: &Directory, id: ContainerId) -> bool {
    let is_known = directory.container(id).is_some();
    !is_known || directory.is_of_directory(id) && directory.root_of(id) == id
}

#[cfg(test)]
mod tests {
    use super::*;
    use perigee_cluster::codec::Record as _;
    use perigee_cluster::directory::Known;
    use perigee_cluster::{Container, Grown, KeyValue, Revision, Role, key};
    use perigee_meta::{FileLock, Leftovers, LockKind, Mode, Patience, SetAttr};
    use perigee_proto::message::{chain, tx};
    use perigee_types::{ByteRange, Epoch, InodeId, OpId, WallTime};

    const STORES: NodeId = NodeId(1);
    const MOUNTS: NodeId = NodeId(2);
    const LEFT: NodeId = NodeId(3);
    const READS: NodeId = NodeId(4);

    fn directory() -> Directory {
        let node = |id: NodeId, role, state| Node {
            id,
            name: id.to_string(),
            address: ([127, 0, 0, 1], 1).into(),
            site: None,
            role,
            joined: WallTime::default(),
            cert_serial: Vec::new(),
            state,
            capacity: 0,
        };
        let nodes = [
            node(STORES, Role::Stores, NodeState::Draining),
            node(MOUNTS, Role::Mounts, NodeState::Active),
            node(READS, Role::Reads, NodeState::Active),
            node(LEFT, Role::Stores, NodeState::Left),
        ];
        let rows = nodes.map(|node| KeyValue {
            key: key::node(node.id),
            value: node.encode(),
            revision: Revision(1),
        });
        Directory::from_list(&rows, Revision(1)).expect("records that were just encoded")
    }

    fn request(operation: Op) -> session::Execute {
        session::Execute {
            session: SessionId::new(MOUNTS, 7),
            op: OpId(1),
            answered_through: OpId(0),
            content_max: 0,
            names_max: 0,
            new_directory_in: None,
            operation,
        }
    }

    #[test]
    fn who_only_mounts_has_no_part_in_what_members_and_owners_say() {
        let directory = directory();
        for method in [
            chain::Envelope::METHOD,
            data::Fetch::METHOD,
            data::StatePage::METHOD,
            data::SyncData::METHOD,
            tx::Prepare::METHOD,
            tx::Resolve::METHOD,
            session::Revoke::METHOD,
            report::Scrub::METHOD,
            0xffff,
        ] {
            assert_eq!(check_call(&directory, STORES, method), Ok(()));
            let denied = check_call(&directory, MOUNTS, method);
            assert_eq!(denied, Err(Denied::StoresNothing { node: MOUNTS }));
        }
        let execute = session::Execute::METHOD;
        assert_eq!(check_call(&directory, MOUNTS, execute), Ok(()));
        let code = |node| check_call(&directory, node, execute).map_err(Denied::code);
        assert_eq!(code(LEFT), Err(Code::Forbidden));
        assert_eq!(code(NodeId(9)), Err(Code::NotReady));
    }

    #[test]
    fn nobody_acts_with_another_nodes_session_or_as_the_owner() {
        let directory = directory();
        let check = |request: &session::Execute| check_request(&directory, MOUNTS, request);
        let inode = InodeId::ROOT;
        let release = |session| Op::ReleaseSession {
            container: inode.container(),
            session,
            leftovers: Leftovers::None,
        };
        let other = SessionId::new(STORES, 7);
        assert_eq!(check(&request(Op::GetAttr { inode })), Ok(()));
        assert_eq!(check(&request(release(SessionId::new(MOUNTS, 8)))), Ok(()));
        let denied = Err(Denied::OtherSession {
            node: MOUNTS,
            session: other,
        });
        assert_eq!(check(&request(release(other))), denied);
        let end = |session| Op::EndCover {
            inode,
            session,
            cover: 1,
            locks: Vec::new(),
        };
        assert_eq!(check(&request(end(SessionId::new(MOUNTS, 8)))), Ok(()));
        assert_eq!(check(&request(end(other))), denied);
        let in_its_name = session::Execute {
            session: other,
            ..request(Op::GetAttr { inode })
        };
        assert_eq!(check(&in_its_name), denied);
        assert_eq!(
            check(&request(Op::Reap { inode })),
            Err(Denied::OwnersAffair)
        );
        let elsewhere = session::Execute {
            new_directory_in: Some(ContainerId(9)),
            ..request(Op::GetAttr { inode })
        };
        assert_eq!(
            check(&elsewhere).map_err(Denied::code),
            Err(Code::Forbidden)
        );
    }

    /// The homes of node 1 and of node 5, a directory's container, and one that goes on for each of the first and the last.
    fn families() -> Directory {
        let mut directory = directory();
        let revision = Revision(1);
        let other = Node {
            id: NodeId(5),
            name: "n5".to_owned(),
            ..directory.node(STORES).expect("a node").clone()
        };
        directory.nodes.insert(
            other.id,
            Known {
                record: other,
                revision,
            },
        );
        for (id, home) in [(1, 1), (2, 5), (3, 1), (4, 1), (5, 1), (6, 1)] {
            let record = Container {
                id: ContainerId(id),
                epoch: Epoch(1),
                chain: vec![NodeId(home)],
                copies: 1,
                home: NodeId(home),
            };
            directory
                .containers
                .insert(record.id, Known { record, revision });
        }
        for (id, root) in [(4, 1), (5, 3)] {
            let (container, root) = (ContainerId(id), ContainerId(root));
            let purpose = perigee_cluster::Purpose::GoesOn;
            let record = Grown {
                container,
                root,
                purpose,
            };
            directory
                .grown
                .insert(container, Known { record, revision });
        }
        directory
    }

    #[test]
    fn directories_start_in_the_family_of_a_home_or_of_their_parent() {
        let directory = families();
        let check = |from: NodeId, parent: u32, id: u32| {
            let inode = InodeId::new(ContainerId(parent), perigee_types::InodeIndex::FIRST);
            let request = session::Execute {
                session: SessionId::new(from, 7),
                new_directory_in: Some(ContainerId(id)),
                ..request(Op::GetAttr { inode })
            };
            check_request(&directory, from, &request).map_err(Denied::code)
        };
        let other = NodeId(5);
        for (from, parent, id) in [(STORES, 2, 1), (STORES, 2, 4), (other, 1, 2)] {
            assert_eq!(check(from, parent, id), Ok(()), "the own home: {id}");
        }
        for (from, parent, id) in [(other, 3, 5), (other, 1, 4)] {
            assert_eq!(check(from, parent, id), Ok(()), "it goes on there: {id}");
        }
        // Of what may be about to go on this node may not have heard yet.
        for (from, parent, id) in [(other, 3, 6), (other, 3, 77)] {
            assert_eq!(check(from, parent, id), Err(Code::NotReady), "{id}");
        }
        assert_eq!(
            check(other, 3, 1),
            Err(Code::Forbidden),
            "another one's home"
        );
        assert_eq!(
            check(other, 2, 4),
            Err(Code::Forbidden),
            "the same, gone on"
        );
        assert_eq!(check(MOUNTS, 3, 5), Err(Code::Forbidden));
    }

    #[test]
    fn columns_lie_where_there_are_as_many_copies_and_go_by_the_word_of_who_stores() {
        let directory = families();
        let in_container = |id| InodeId::new(ContainerId(id), perigee_types::InodeIndex(9));
        let check = |of: u32, within: &[u32]| {
            let inode = in_container(of);
            let within = within.iter().copied().map(ContainerId).collect();
            let request = request(Op::MakeColumns { inode, within });
            check_request(&directory, MOUNTS, &request).map_err(Denied::code)
        };
        for (of, within) in [(1, [2].as_slice()), (2, &[1, 4]), (3, &[5])] {
            assert_eq!(check(of, within), Ok(()), "{of}: {within:?}");
        }
        for (of, within) in [(1, [2, 3].as_slice()), (3, &[1]), (3, &[6])] {
            assert_eq!(check(of, within), Err(Code::Forbidden), "{of}: {within:?}");
        }
        assert_eq!(check(1, &[77]), Err(Code::NotReady), "it may be new");
        let inode = in_container(1);
        let drops = request(Op::DropColumns { inode });
        let checked = check_request(&directory, MOUNTS, &drops).map_err(Denied::code);
        assert_eq!(checked, Err(Code::Forbidden));
    }

    #[test]
    fn who_may_only_read_changes_nothing_and_keeps_no_writer_out() {
        let directory = directory();
        let inode = InodeId::ROOT;
        let change = Op::SetAttr {
            inode,
            set: SetAttr::default(),
            cred: Default::default(),
        };
        let lock = |mode| Op::SetLock {
            inode,
            session: SessionId::new(READS, 1),
            lock: FileLock {
                kind: LockKind::Flock,
                owner: 1,
                range: ByteRange::ALL,
                mode,
                pid: 1,
            },
            patience: Patience::Refuse,
        };
        for refused in [&change, &lock(Some(Mode::Exclusive))] {
            assert!(!may_run(&directory, READS, refused));
            assert!(may_run(&directory, MOUNTS, refused));
        }
        let shared = lock(Some(Mode::ProtectedRead));
        for fine in [Op::GetAttr { inode }, shared, lock(None)] {
            assert!(may_run(&directory, READS, &fine));
        }
        assert!(!may_write(&directory, READS) && may_write(&directory, MOUNTS));
        // who is not known may nothing
        assert!(!may_write(&directory, NodeId(9)));
    }
}
