//! What a node tells people: status, where a file is.

use crate::container::Standing;
use crate::node::Node;
use perigee_cluster::Directory;
use perigee_meta::{Op, Reply};
use perigee_proto::admin::{
    AdminPath, ContainerStatus, ControlState, ControlStatus, CopyStatus, MemberLag, NetStatus,
    NodeState, NodeStatus, Placement, Status,
};
use perigee_types::{Errno, InodeId, NodeId};
use std::time::{Duration, Instant};

/// How long the control store may take to show that it is there.
const CONTROL_CHECK: Duration = Duration::from_millis(800);

impl Node {
    /// The cluster as this node sees it.
    pub async fn status(&self) -> Status {
        let directory = self.env.directory.read().clone();
        let standings: Vec<Standing> = self
            .env
            .all_containers()
            .iter()
            .map(|container| container.standing())
            .collect();
        let space = self.env.store.space().unwrap_or_default();
        Status {
            cluster: directory
                .cluster
                .as_ref()
                .map(|known| format!("{:032x}", known.record.id))
                .unwrap_or_default(),
            node: self.env.me,
            version: String::new(),
            control: self.control_status().await,
            nodes: nodes(&directory, self.env.me, space.available),
            containers: containers(&directory, &standings),
            net: self.net(),
        }
    }

    async fn control_status(&self) -> ControlStatus {
        let began = Instant::now();
        let get = self.env.control.get(perigee_cluster::key::CLUSTER);
        let state = match tokio::time::timeout(CONTROL_CHECK, get).await {
            Ok(Ok(_)) => ControlState::Up,
            Ok(Err(_)) | Err(_) => ControlState::Away,
        };
        ControlStatus {
            state,
            address: self.control.to_string(),
            silent_ms: began.elapsed().as_millis() as u64,
        }
    }

    fn net(&self) -> NetStatus {
        let stats = self.env.network().stats();
        let mut net = NetStatus::default();
        for peer in stats.peers.values() {
            net.connections += peer.connections as u64;
            net.messages_sent += peer.frames_out;
            net.messages_received += peer.frames_in;
            net.retries += peer.calls_repeated;
            net.frames_sent += peer.writes;
            net.bytes_sent += peer.bytes_out;
            net.bytes_received += peer.bytes_in;
        }
        net
    }

    async fn ask(&self, op: Op) -> Result<Reply, Errno> {
        use perigee_client::Backend;
        let router = self.env.router().ok_or(Errno::EIO)?;
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let session = self.env.sessions.own();
        // The receiver waits below.
        router.execute(session, op, Box::new(move |result| _ = sender.send(result)));
        receiver
            .await
            .unwrap_or(Err(Errno::EIO))
            .map(|(reply, _)| reply)
    }

    /// The inode at a path of the file system, with its attributes. Symbolic links are not followed.
    ///
    /// # Errors
    /// ENOENT and so on, as `stat(2)` gives them.
    pub async fn find(&self, path: &AdminPath) -> Result<perigee_meta::Attr, Errno> {
        let mut attr = match self
            .ask(Op::GetAttr {
                inode: InodeId::ROOT,
            })
            .await?
        {
            Reply::Attr(attr) => attr,
            _ => return Err(Errno::EPROTO),
        };
        for name in path
            .0
            .split(|byte| *byte == b'/')
            .filter(|name| !name.is_empty())
        {
            let op = Op::Lookup {
                parent: attr.inode,
                name: name.to_vec(),
            };
            attr = match self.ask(op).await? {
                Reply::Entry(attr) => attr,
                Reply::Absent => return Err(Errno::ENOENT),
                _ => return Err(Errno::EPROTO),
            };
        }
        Ok(attr)
    }

    /// Where the bytes at a path are.
    ///
    /// # Errors
    /// As [`Node::find`].
    pub async fn placement(&self, path: &AdminPath) -> Result<Placement, Errno> {
        let attr = self.find(path).await?;
        let id = attr.inode.container();
        let directory = self.env.directory.read().clone();
        let record = directory.container(id).ok_or(Errno::EIO)?;
        let mut copies = Vec::new();
        for node in &record.chain {
            let known = directory.node(*node);
            copies.push(CopyStatus {
                node: *node,
                name: known.map(|node| node.name.clone()).unwrap_or_default(),
                site: known.and_then(|node| node.site.clone()).unwrap_or_default(),
                valid_bytes: self.valid_bytes(*node, &attr).await,
            });
        }
        Ok(Placement {
            inode: attr.inode,
            kind: format!("{:?}", attr.kind).to_lowercase(),
            size_bytes: attr.size,
            container: id,
            epoch: record.epoch,
            owner: record.owner(),
            asked: self.env.me,
            copies,
            held_by: Vec::new(),
        })
    }

    /// How much of a file is current at a member; none when it does not answer.
    async fn valid_bytes(&self, node: NodeId, attr: &perigee_meta::Attr) -> Option<u64> {
        let inode = attr.inode;
        if node == self.env.me {
            return Some(
                self.env
                    .container(inode.container())?
                    .valid_bytes(inode, attr.size),
            );
        }
        let request = perigee_proto::message::data::AskValid {
            inode,
            size: attr.size,
        };
        let ask = self
            .env
            .ask(node, &request, bytes::Bytes::new(), Duration::from_secs(1));
        ask.await.ok().map(|(answer, _)| answer.bytes)
    }

    /// A new single-use join token.
    ///
    /// # Errors
    /// The control store's reason.
    pub async fn token(&self, ttl: perigee_types::Span) -> Result<String, String> {
        let token = self
            .remote
            .create_token(ttl)
            .await
            .map_err(|error| error.to_string())?;
        Ok(token.text)
    }

    /// Sets how many copies every container of the cluster has, as far as there are nodes; owners
    /// bring in or dismiss members until it is so.
    ///
    /// # Errors
    /// The control store's reason.
    pub async fn set_copies(&self, copies: u8) -> Result<(), String> {
        use perigee_cluster::{Policy, change, key, transition};
        let control = self.env.control.as_ref();
        let policy = Policy { copies };
        change(control, |directory| {
            transition::set_policy(directory, key::DEFAULT_POLICY, policy.clone())
        })
        .await
        .map_err(|error| error.to_string())?;
        let ids: Vec<_> = self
            .env
            .directory
            .read()
            .containers
            .keys()
            .copied()
            .collect();
        for id in ids {
            change(control, |directory| {
                transition::set_copies(directory, id, copies)
            })
            .await
            .map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    /// The policy in force at a path.
    ///
    /// # Errors
    /// As [`Node::find`].
    pub async fn policy(&self, path: &AdminPath) -> Result<Vec<(String, String)>, Errno> {
        let attr = self.find(path).await?;
        match self.ask(Op::GetPolicy { inode: attr.inode }).await? {
            Reply::Policy(policy) => Ok(policy),
            _ => Err(Errno::EPROTO),
        }
    }

    /// Replaces the policy of a directory.
    ///
    /// # Errors
    /// As [`Node::find`]; ENOTDIR.
    pub async fn set_policy(
        &self,
        path: &AdminPath,
        policy: Vec<(String, String)>,
    ) -> Result<(), Errno> {
        let attr = self.find(path).await?;
        self.ask(Op::SetPolicy {
            inode: attr.inode,
            policy,
        })
        .await
        .map(|_| ())
    }
}

fn nodes(directory: &Directory, me: NodeId, free: u64) -> Vec<NodeStatus> {
    let known = directory.nodes.values().map(|known| &known.record);
    known
        .filter(|node| node.state != perigee_cluster::NodeState::Left)
        .map(|node| {
            let live = directory.live.get(&node.id).map(|known| &known.record);
            let state = match (live, node.state) {
                (_, perigee_cluster::NodeState::Draining) => NodeState::Leaving,
                (Some(_), _) => NodeState::Up,
                (None, _) => NodeState::Down,
            };
            NodeStatus {
                id: node.id,
                name: node.name.clone(),
                pid: (node.id == me).then(std::process::id),
                state,
                address: node.address.to_string(),
                site: node.site.clone().unwrap_or_default(),
                used_bytes: 0,
                free_bytes: if node.id == me {
                    free
                } else {
                    live.map_or(0, |live| live.free)
                },
                mounts: Vec::new(),
            }
        })
        .collect()
}

fn containers(directory: &Directory, standings: &[Standing]) -> Vec<ContainerStatus> {
    let live = directory.live_storage().count();
    let storing = directory
        .nodes
        .values()
        .filter(|known| known.record.takes_containers())
        .count();
    let known = directory.containers.values().map(|known| &known.record);
    known
        .map(|record| {
            let standing = standings.iter().find(|standing| standing.id == record.id);
            let wanted = usize::from(record.copies).min(storing);
            let lag = |standing: &Standing| {
                standing
                    .members
                    .iter()
                    .map(|member| MemberLag {
                        node: member.node,
                        records: standing.last.0.saturating_sub(member.durable.0),
                        bytes: 0,
                    })
                    .collect()
            };
            ContainerStatus {
                id: record.id,
                owner: record.owner(),
                epoch: record.epoch,
                chain: record.chain.clone(),
                copies_wanted: wanted as u32,
                degraded: record.chain.len() < wanted || live < wanted,
                members: standing.map(lag).unwrap_or_default(),
            }
        })
        .collect()
}
