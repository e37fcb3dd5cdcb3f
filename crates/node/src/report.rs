//! What a node tells people: status, where a file is.

use crate::container::{Container, Standing, ThroughDaemon};
use crate::env::Env;
use crate::node::Node;
use perigee_cluster::Directory;
use perigee_control::AdminError;
use perigee_meta::{Op, Reply};
use perigee_net::PeerName;
use perigee_proto::admin::{
    AdminPath, ColumnPlace, ContainerStatus, ControlState, ControlStatus, CopyMoving, CopyStatus,
    Heat, Holder, HostHeat, MemberLag, NetStatus, NodeScrub, NodeState, NodeStatus, Placement,
    Rung, ScrubWish, Status,
};
use perigee_proto::message::data::{AskValid, Valid};
use perigee_proto::message::report::{self, AskReport, NodeReport};
use perigee_types::{ContainerId, Errno, InodeId, NodeId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long the control store may take to show that it is there.
const CONTROL_CHECK: Duration = Duration::from_millis(800);
/// How long a node may take to answer before it is shown as late.
const ANSWER: Duration = Duration::from_millis(800);

/// What a node that answered says of itself.
pub(crate) struct Answered {
    pub(crate) report: NodeReport,
    /// How long that took; none for this node.
    took: Option<Duration>,
    /// Its wall clock less this node's, in the middle of the call.
    clock_ahead_ms: i64,
}

/// All of them.
pub(crate) type Reports = BTreeMap<NodeId, Answered>;

/// What this node tells others of itself.
pub(crate) async fn of_this_node(env: &Arc<Env>) -> NodeReport {
    NodeReport {
        used: env.usage.bytes().await,
        free: env.store.space().ok().map(|space| space.available),
        missing: env
            .all_containers()
            .iter()
            .map(|container| (container.id, container.missing_bytes()))
            .collect(),
        bytes_per_second: env.pace.bytes_per_second(Instant::now()),
        read_only: {
            let containers = env.all_containers();
            let ids = containers.iter().map(|container| container.id);
            ids.filter(|id| env.store.read_only(*id).is_some())
                .collect()
        },
        clock_ms: clock_ms(env),
        partial: {
            let containers = env.all_containers();
            let partial = containers
                .iter()
                .filter(|container| !container.is_complete());
            partial.map(|container| container.id).collect()
        },
        given_away: {
            let containers = env.all_containers();
            let given = containers
                .iter()
                .map(|container| (container.id, container.given_away()));
            given.filter(|(_, times)| *times > 0).collect()
        },
        // As of the count that `used` has asked for.
        held: env.usage.containers().into_iter().collect(),
        heat: env.heats.told(Instant::now()),
        coordinate: env.coordinates.current(),
        round_trips: env.coordinates.round_trips(),
    }
}

/// What programs of one host do in a container.
fn heat_at(report: &NodeReport, id: ContainerId) -> Heat {
    let at = report.heat.iter().find(|(container, _)| *container == id);
    at.map_or_else(Heat::default, |(_, heat)| *heat)
}

/// The same of all hosts that answer.
fn heat_of(reports: &Reports, id: ContainerId) -> Heat {
    let each = reports
        .values()
        .map(|answered| heat_at(&answered.report, id));
    each.fold(Heat::default(), Heat::and)
}

/// Members of a container, and others whose programs work there.
fn hosts(directory: &Directory, reports: &Reports, id: ContainerId) -> Vec<HostHeat> {
    let chain = directory.container(id).map(|record| record.chain.clone());
    let mut nodes = chain.unwrap_or_default();
    let works = |(_, answered): &(&NodeId, &Answered)| !heat_at(&answered.report, id).is_cold();
    let working = reports.iter().filter(works).map(|(node, _)| *node);
    let others: Vec<NodeId> = working.filter(|node| !nodes.contains(node)).collect();
    nodes.extend(others);
    let host = |node: NodeId| {
        let answered = reports.get(&node);
        let heat = answered.map(|answered| heat_at(&answered.report, id));
        let known = directory.node(node);
        HostHeat {
            node,
            name: known.map(|node| node.name.clone()).unwrap_or_default(),
            heat,
            local_calls: heat.and_then(Heat::local_calls),
            local_bytes: heat.and_then(Heat::local_bytes),
        }
    };
    nodes.into_iter().map(host).collect()
}

/// Bytes of a container's largest copy, as far as its members say: one that has just begun has less.
pub(crate) fn size(reports: &Reports, chain: &[NodeId], id: ContainerId) -> Option<u64> {
    let members = chain.iter().filter_map(|node| reports.get(node));
    let held = |answered: &Answered| {
        let mut held = answered.report.held.iter();
        let of_it = held.find(|(container, _)| *container == id);
        // Who has counted, and found no file of it, has none.
        of_it.map_or(answered.report.used.map(|_| 0), |(_, bytes)| Some(*bytes))
    };
    members.filter_map(held).max()
}

fn goes_on_in(directory: &Directory, id: ContainerId) -> Option<ContainerId> {
    Some(directory.goes_on_in(id)).filter(|newest| *newest != id)
}

/// The copy of a container that is about to lie elsewhere.
fn moving(
    directory: &Directory,
    reports: &Reports,
    record: &perigee_cluster::Container,
) -> Option<CopyMoving> {
    let moving = directory.move_of(record.id, &record.chain)?;
    Some(CopyMoving {
        from: moving.from,
        to: moving.to,
        left_bytes: missing(reports, moving.to, record.id),
    })
}

/// How often a container's ownership moved.
fn moves(reports: &Reports, id: ContainerId) -> u64 {
    let given = reports
        .values()
        .flat_map(|answered| &answered.report.given_away);
    let of_it = given.filter(|(container, _)| *container == id);
    of_it.map(|(_, times)| times).sum()
}

fn clock_ms(env: &Env) -> i64 {
    let now = env.clock.wall();
    now.secs * 1_000 + i64::from(now.nanos / 1_000_000)
}

impl Node {
    /// Tells every node that stores data what is wanted of its scrub, and gathers how it stands.
    pub async fn scrub(&self, wish: ScrubWish) -> Vec<NodeScrub> {
        let directory = self.env.directory.read().clone();
        let ask = |node: NodeId, name: String| async move {
            let pass = if node == self.env.me {
                Ok(self.env.scrub.wish(wish))
            } else {
                let request = report::Scrub { wish };
                let asked = self.env.ask(node, &request, bytes::Bytes::new(), ANSWER);
                asked.await.map(|(answer, _)| answer.pass)
            };
            NodeScrub {
                node,
                name,
                answers: pass.is_ok(),
                pass: pass.unwrap_or(None),
            }
        };
        let nodes = directory.nodes.values().map(|known| &known.record);
        let storing = nodes.filter(|node| node.role.stores());
        let asks = storing.map(|node| ask(node.id, node.name.clone()));
        futures_util::future::join_all(asks).await
    }

    /// The cluster as this node sees it.
    pub async fn status(&self) -> Status {
        let directory = self.env.directory.read().clone();
        let standings: Vec<Standing> = self
            .env
            .all_containers()
            .iter()
            .map(|container| container.standing())
            .collect();
        let (control, reports) = tokio::join!(self.control_status(), self.reports(&directory));
        Status {
            cluster: directory
                .cluster
                .as_ref()
                .map(|known| format!("{:032x}", known.record.id))
                .unwrap_or_default(),
            node: self.env.me,
            version: String::new(),
            control,
            nodes: nodes(&directory, self.env.me, &reports),
            containers: containers(&directory, &standings, &reports),
            net: Box::new(self.net()),
        }
    }

    /// Asks every node that shows a sign of life.
    pub(crate) async fn reports(&self, directory: &Directory) -> Reports {
        let ask = |node: NodeId| async move {
            if node == self.env.me {
                let answered = Answered {
                    report: of_this_node(&self.env).await,
                    took: None,
                    clock_ahead_ms: 0,
                };
                return Some((node, answered));
            }
            let (began, before) = (Instant::now(), clock_ms(&self.env));
            let asked = self
                .env
                .ask(node, &AskReport, bytes::Bytes::new(), ANSWER)
                .await;
            let (report, _) = asked.ok()?;
            let middle = before.midpoint(clock_ms(&self.env));
            let answered = Answered {
                clock_ahead_ms: report.clock_ms - middle,
                took: Some(began.elapsed()),
                report,
            };
            Some((node, answered))
        };
        let me = std::iter::once(self.env.me);
        let others = directory.live.keys().copied();
        let asked = me.chain(others.filter(|node| *node != self.env.me));
        let answers = futures_util::future::join_all(asked.map(ask)).await;
        answers.into_iter().flatten().collect()
    }

    async fn control_status(&self) -> ControlStatus {
        let began = Instant::now();
        // A list has a revision, which tells a store that was put back.
        let list = self.env.control.list(perigee_cluster::key::CLUSTER);
        let state = match tokio::time::timeout(CONTROL_CHECK, list).await {
            Ok(Ok(_)) => ControlState::Up,
            Ok(Err(perigee_cluster::StoreError::WentBack)) => ControlState::WentBack,
            Ok(Err(_)) | Err(_) => ControlState::Away,
        };
        let kept = match state {
            ControlState::Up => tokio::time::timeout(CONTROL_CHECK, self.remote.status()).await,
            ControlState::Away | ControlState::WentBack => Ok(Err(AdminError::Unreadable)),
        };
        ControlStatus {
            state,
            known: self.places.all().iter().map(ToString::to_string).collect(),
            kept: kept
                .ok()
                .and_then(Result::ok)
                .map_or(String::new(), |told| told.kept),
            address: self.places.asked().to_string(),
            silent_ms: began.elapsed().as_millis() as u64,
        }
    }

    fn net(&self) -> NetStatus {
        let stats = self.env.network().stats();
        let mut net = NetStatus::default();
        for (name, peer) in &stats.peers {
            net.connections += peer.connections as u64;
            net.messages_sent += peer.frames_out;
            net.messages_received += peer.frames_in;
            net.retries += peer.calls_repeated;
            net.frames_sent += peer.writes;
            net.messages_merged += peer.frames_merged;
            net.queue_lengths.resize(peer.queue_lengths.len(), 0);
            for (all, some) in net.queue_lengths.iter_mut().zip(peer.queue_lengths) {
                *all += some;
            }
            if let PeerName::Node(_) = name {
                net.waited_us += peer.waited.as_micros() as u64;
                net.calls += peer.calls;
                net.calls_took_us += peer.calls_took.as_micros() as u64;
                net.served += peer.served;
                net.serving_took_us += peer.serving_took.as_micros() as u64;
            }
            net.bytes_sent += peer.bytes_out;
            net.bytes_received += peer.bytes_in;
        }
        net
    }

    pub(crate) async fn ask(&self, op: Op) -> Result<Reply, Errno> {
        crate::router::ask_as_node(&self.env, op).await
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
        let copies = self.copies_of(&directory, attr.inode, attr.size).await;
        let reports = self.reports(&directory).await;
        let heat = heat_of(&reports, id);
        Ok(Placement {
            inode: attr.inode,
            kind: format!("{:?}", attr.kind).to_lowercase(),
            size_bytes: attr.size,
            container: id,
            epoch: record.epoch,
            owner: record.owner(),
            asked: self.env.me,
            copies,
            held_by: self.held_by(attr.inode).await,
            migration: self
                .policy_of(attr.inode)
                .await
                .map(|settings| crate::policy::migration(&settings).to_string())
                .unwrap_or_default(),
            moves: moves(&reports, id),
            container_bytes: size(&reports, &record.chain, id),
            container_bytes_max: self
                .policy_of(crate::policy::governs(&directory, id))
                .await
                .ok()
                .map(|settings| crate::policy::container_size(&settings).bytes()),
            goes_on_in: goes_on_in(&directory, id),
            heat,
            local_calls: heat.local_calls(),
            local_bytes: heat.local_bytes(),
            hosts: hosts(&directory, &reports, id),
            reads: self.rung(&attr, |container| container.whole_file(&attr).map(drop)),
            writes: self.rung(&attr, |container| container.may_write_past(&attr)),
            columns: self.columns_of(&directory, &attr).await?,
        })
    }

    /// The members that hold an inode of a file of that length.
    async fn copies_of(&self, directory: &Directory, inode: InodeId, size: u64) -> Vec<CopyStatus> {
        let mut copies = Vec::new();
        let record = directory.container(inode.container());
        for node in record.iter().flat_map(|record| &record.chain) {
            let known = directory.node(*node);
            let valid = self.valid_at(*node, inode, size).await;
            copies.push(CopyStatus {
                node: *node,
                name: known.map(|node| node.name.clone()).unwrap_or_default(),
                site: known.and_then(|node| node.site.clone()).unwrap_or_default(),
                valid_bytes: valid.map(|valid| valid.bytes),
            });
        }
        copies
    }

    /// The columns of a striped file that has some.
    async fn columns_of(
        &self,
        directory: &Directory,
        attr: &perigee_meta::Attr,
    ) -> Result<Vec<ColumnPlace>, Errno> {
        let mut places = Vec::new();
        if !attr.layout.has_columns() {
            return Ok(places);
        }
        let inode = attr.inode;
        let Reply::Columns { columns, .. } = self.ask(Op::Columns { inode }).await? else {
            return Err(Errno::EPROTO);
        };
        for inode in std::iter::once(inode).chain(columns) {
            let container = inode.container();
            let record = directory.container(container);
            places.push(ColumnPlace {
                inode,
                container,
                owner: record.and_then(perigee_cluster::Container::owner),
                copies: self.copies_of(directory, inode, attr.size).await,
            });
        }
        Ok(places)
    }

    /// How programs of this node use a file; none when it is no file.
    fn rung(
        &self,
        attr: &perigee_meta::Attr,
        past: impl FnOnce(&Container) -> Result<(), ThroughDaemon>,
    ) -> Option<Rung> {
        if attr.kind != perigee_meta::Kind::File {
            return None;
        }
        let container = self.env.container(attr.inode.container());
        let past = container.map_or(Err(ThroughDaemon::NotOwned), |container| past(&container));
        Some(match past {
            Ok(()) => Rung::PastDaemon,
            Err(why) => Rung::ThroughDaemon(why.to_string()),
        })
    }

    /// The hosts that may keep an inode or have locks on it; none when its owner does not answer.
    async fn held_by(&self, inode: InodeId) -> Option<Vec<Holder>> {
        let answer = crate::router::holders(&self.env, inode, ANSWER)
            .await
            .ok()?;
        let holder = |(node, what)| Holder { node, what };
        Some(answer.holders.into_iter().map(holder).collect())
    }

    /// How much of a file is current at a member; none when it does not answer.
    /// Which bytes of a file of that length a member has; `None` where it does not answer.
    pub(crate) async fn valid_at(&self, node: NodeId, inode: InodeId, size: u64) -> Option<Valid> {
        if node == self.env.me {
            let container = self.env.container(inode.container())?;
            return Some(container.valid(inode, size));
        }
        let request = AskValid { inode, size };
        let ask = self
            .env
            .ask(node, &request, bytes::Bytes::new(), Duration::from_secs(1));
        ask.await.ok().map(|(answer, _)| answer)
    }

    /// A new single-use join token.
    ///
    /// # Errors
    /// The control store's reason.
    pub async fn token(
        &self,
        ttl: perigee_types::Span,
        admits: perigee_cluster::Admits,
    ) -> Result<String, String> {
        let token = self
            .remote
            .create_token(ttl, admits)
            .await
            .map_err(|error| error.to_string())?;
        Ok(token.text)
    }
}

/// Whether a node is there: by its sign of life, and by its answer.
fn state_of(node: &perigee_cluster::Node, live: bool, answered: bool) -> NodeState {
    match (node.state, live, answered) {
        (perigee_cluster::NodeState::Draining, ..) => NodeState::Leaving,
        (_, _, true) => NodeState::Up,
        (_, true, false) => NodeState::Suspect,
        (_, false, false) => NodeState::Down,
    }
}

fn nodes(directory: &Directory, me: NodeId, reports: &Reports) -> Vec<NodeStatus> {
    let known = directory.nodes.values().map(|known| &known.record);
    known
        .filter(|node| node.state != perigee_cluster::NodeState::Left)
        .map(|node| {
            let live = directory.live.contains_key(&node.id);
            let answered = reports.get(&node.id);
            let report = answered.map(|answered| &answered.report);
            let state = state_of(node, live, report.is_some());
            let life = directory.live.get(&node.id);
            let heats = report.into_iter().flat_map(|report| &report.heat);
            let heat = heats.fold(Heat::default(), |sum, (_, heat)| sum.and(*heat));
            NodeStatus {
                id: node.id,
                name: node.name.clone(),
                pid: (node.id == me).then(std::process::id),
                state,
                address: node.address.to_string(),
                site: node.site.clone().unwrap_or_default(),
                role: node.role,
                used_bytes: report.and_then(|report| report.used),
                free_bytes: report.and_then(|report| report.free),
                mounts: Vec::new(),
                version: life.map_or_else(String::new, |life| life.record.version.clone()),
                answer_us: answered.and_then(|answered| Some(answered.took?.as_micros() as u64)),
                clock_ahead_ms: answered.map(|answered| answered.clock_ahead_ms),
                read_only: report.map_or_else(Vec::new, |report| report.read_only.clone()),
                heat,
                local_calls: heat.local_calls(),
                local_bytes: heat.local_bytes(),
            }
        })
        .collect()
}

/// What a member has yet to fetch of a container, as it says itself.
fn missing(reports: &Reports, node: NodeId, id: ContainerId) -> Option<u64> {
    let of = &reports.get(&node)?.report.missing;
    of.iter()
        .find(|(held, _)| *held == id)
        .map(|(_, bytes)| *bytes)
}

/// Who has said of which containers that it has what a member must have. One that has just started with an empty disk has
/// not, though it is in the chain still, nor has one that says nothing.
fn copies(reports: &Reports) -> BTreeSet<(NodeId, ContainerId)> {
    let mut copies = BTreeSet::new();
    for (node, Answered { report, .. }) in reports {
        copies.extend(report.missing.iter().map(|(id, _)| (*node, *id)));
        for id in &report.partial {
            copies.remove(&(*node, *id));
        }
    }
    copies
}

/// About how long a member fetches until it lacks nothing of any container.
fn seconds_left(reports: &Reports, node: NodeId) -> Option<u64> {
    let report = &reports.get(&node)?.report;
    // Up to an end that the member does not know yet, it lacks nearly all that there can be.
    let bytes = report.missing.iter().map(|(_, bytes)| *bytes);
    let bytes = bytes.fold(0, u64::saturating_add);
    bytes.checked_div(report.bytes_per_second)
}

fn containers(
    directory: &Directory,
    standings: &[Standing],
    reports: &Reports,
) -> Vec<ContainerStatus> {
    let live = directory.live_storage().count();
    let storing = directory
        .nodes
        .values()
        .filter(|known| known.record.takes_containers())
        .count();
    let copies = copies(reports);
    let known = directory.containers.values().map(|known| &known.record);
    known
        .map(|record| {
            let standing = standings.iter().find(|standing| standing.id == record.id);
            let wanted = usize::from(record.copies).min(storing);
            let lag = |standing: &Standing| {
                standing
                    .members
                    .iter()
                    .map(|member| {
                        let bytes = missing(reports, member.node, record.id);
                        MemberLag {
                            node: member.node,
                            records: standing.last.0.saturating_sub(member.durable.0),
                            bytes,
                            seconds: bytes.and_then(|_| seconds_left(reports, member.node)),
                        }
                    })
                    .collect()
            };
            let has_copy = |node: &&NodeId| copies.contains(&(**node, record.id));
            let copies = record.chain.iter().filter(has_copy).count();
            let heat = heat_of(reports, record.id);
            ContainerStatus {
                id: record.id,
                owner: record.owner(),
                epoch: record.epoch,
                chain: record.chain.clone(),
                copies: copies as u32,
                copies_wanted: wanted as u32,
                degraded: copies < wanted || live < wanted,
                members: standing.map(lag).unwrap_or_default(),
                moves: moves(reports, record.id),
                heat,
                local_calls: heat.local_calls(),
                size_bytes: size(reports, &record.chain, record.id),
                goes_on_in: goes_on_in(directory, record.id),
                moving: moving(directory, reports, record),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests;
