//! Joining a cluster: a token in exchange for a certificate and a number.
//!
//! What the node asks for is on its disk before it asks: a join that was cut off at any point is
//! completed by the next one, as the same node. A node that comes back by a token of its own does the same.

use super::{block_on, failure};
use crate::config::NodeConfig;
use crate::layout::{NODE_FILE, make_private_dir};
use perigee_cluster::{JoinRequest, PlanError};
use perigee_control::client::enter;
use perigee_control::{Admission, EnterError, JoinRefusal};
use perigee_net::identity::{Identity, JoinToken, PendingKey};
use perigee_net::{JoinError, PeerName};
use perigee_node::inventory::let_start;
use perigee_proto::admin::Failure;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use tracing::warn;

/// What the node will be, while it is not one yet. Becomes [`NODE_FILE`].
const JOINING_FILE: &str = "joining.toml";

/// Where a node's certificate and key lie in its data directory.
pub fn identity_dir(data_dir: &Path) -> PathBuf {
    data_dir.join("identity")
}

/// Where the control store listens that a token belongs to.
///
/// Errors: it is no token.
pub fn control_address(token: &str) -> Result<SocketAddr, Failure> {
    control_of(&parse(token)?)
}

fn control_of(token: &JoinToken) -> Result<SocketAddr, Failure> {
    let first = token.addresses.first().copied();
    first.ok_or_else(|| Failure::new("cannot use the token", "it names no address of the cluster"))
}

fn parse(token: &str) -> Result<JoinToken, Failure> {
    token.parse().map_err(|error| {
        failure("cannot use the token", &error)
            .hint("`perigee token` on a node of the cluster prints a new one")
    })
}

/// What a join that was cut off wanted the node to be; none when there was no such join.
///
/// Errors: what it left cannot be read.
pub fn cut_off(data_dir: &Path) -> Result<Option<NodeConfig>, Failure> {
    let left = PendingKey::load(&identity_dir(data_dir));
    let left = left.map_err(|error| failure("cannot go on with an earlier join", &error))?;
    left.map(|_| NodeConfig::load(&data_dir.join(JOINING_FILE)))
        .transpose()
}

/// What a join has left in the directory of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Left {
    /// Nothing that matters.
    Nothing,
    /// The cluster has agreed, and the node is now what it has agreed to.
    Completed,
    /// The cluster has not agreed, or its answer is not here: who has a token goes on.
    Open,
}

/// Completes a join of a node that was cut off when it had its certificate; keeps what one needs that had not. The node
/// does not run.
///
/// Errors: what was left cannot be read, or the directory not be written.
pub fn settle(data_dir: &Path) -> Result<Left, Failure> {
    let what = || format!("cannot complete the join of `{}`", data_dir.display());
    let place = identity_dir(data_dir);
    let pending = PendingKey::load(&place).map_err(|error| failure(what(), &error))?;
    let Some(pending) = pending else {
        clear(data_dir)?;
        return Ok(Left::Nothing);
    };
    // Of an identity that was half written nothing is in force: the same request gets the same one again.
    let is_in_place = |identity: Identity| identity.is_of(pending.key());
    if !Identity::load(&place).is_ok_and(is_in_place) {
        return Ok(Left::Open);
    }
    let joining = data_dir.join(JOINING_FILE);
    if joining.exists() {
        let NodeConfig { control, .. } = NodeConfig::load(&joining)?;
        reach(data_dir, control)?;
    }
    complete(data_dir)?;
    Ok(Left::Completed)
}

/// Lets a node know where the control store listens.
fn reach(data_dir: &Path, control: SocketAddr) -> Result<NodeConfig, Failure> {
    let file = data_dir.join(NODE_FILE);
    let known = NodeConfig::load(&file)?;
    let config = NodeConfig { control, ..known };
    config.save(&file)?;
    Ok(config)
}

/// A node with certificate and configuration is one, and may start.
fn complete(data_dir: &Path) -> Result<(), Failure> {
    let what = || format!("cannot complete the join of `{}`", data_dir.display());
    let_start(data_dir).map_err(|error| failure(what(), &error))?;
    clear(data_dir)
}

/// Removes what a join leaves behind that is complete, or of which nothing is wanted any more.
pub fn clear(data_dir: &Path) -> Result<(), Failure> {
    let what = || format!("cannot tidy up `{}`", data_dir.display());
    match PendingKey::load(&identity_dir(data_dir)) {
        Ok(Some(pending)) => pending.forget().map_err(|error| failure(what(), &error))?,
        Ok(None) => {}
        Err(error) => return Err(failure(what(), &error)),
    }
    match std::fs::remove_file(data_dir.join(JOINING_FILE)) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Failure::new(what(), error))
        }
        _ => Ok(()),
    }
}

/// Joins the cluster with a token, and makes `data_dir` a node's: certificate and key, and the
/// configuration last, for it marks a whole one.
///
/// Errors: nothing is left in `data_dir` when the cluster has not agreed; when it may have, the same
/// call goes on where this one ended.
pub fn join(data_dir: &Path, config: &NodeConfig, token: &str) -> Result<(), Failure> {
    let token = parse(token)?;
    let joining = Joining::begin(data_dir, config)?;
    let admission = match joining.ask(&token) {
        Ok(admission) => admission,
        Err(error) => return Err(joining.refused(&error)),
    };
    joining.keep(&admission)?;
    joining.finish().map(drop)
}

/// Lets a node in again with a token that is for it (`perigee rebuild`, `perigee token --again`): it gets a certificate of the
/// new authority, and keeps its number and its data. `agreed` is called when the cluster has agreed, and nothing of the node
/// has changed yet: it must not run from then on.
///
/// Errors: the node is as it was, or the same call goes on where this one ended.
pub fn join_again(
    data_dir: &Path,
    token: &str,
    agreed: impl FnOnce() -> Result<(), Failure>,
) -> Result<NodeConfig, Failure> {
    let token = parse(token)?;
    let address = control_of(&token)?;
    let what = || format!("cannot let the node of `{}` in again", data_dir.display());
    let left = settle(data_dir)?;
    let me = Identity::load(&identity_dir(data_dir)).ok();
    if let Some(me) = &me {
        if me.cluster() != token.cluster {
            return Err(Failure::new(what(), "the token is of another cluster"));
        }
        if left == Left::Completed && me.fingerprint() == token.fingerprint {
            agreed()?;
            return reach(data_dir, address);
        }
    }
    let joining = Joining::come_back(data_dir, address)?;
    let admission = match joining.ask(&token) {
        Ok(admission) => admission,
        Err(error) => {
            let is_in =
                |me: Identity| me.fingerprint() == token.fingerprint && error.names(me.name());
            let refused = joining.refused(&error);
            // An earlier call has spent it on what this node is now.
            return match me.is_some_and(is_in) {
                true => NodeConfig::load(&data_dir.join(NODE_FILE)),
                false => Err(refused),
            };
        }
    };
    if let Some(PeerName::Node(me)) = me.map(|identity| identity.name())
        && me != admission.node
    {
        let why = format!("the token lets in {}, and this is {me}", admission.node);
        return Err(Failure::new(what(), why).hint("each node has a token of its own"));
    }
    agreed()?;
    joining.keep(&admission)?;
    joining.finish()
}

/// A node that is not one yet, or not any more: what it asks for is on disk.
struct Joining {
    dir: PathBuf,
    config: NodeConfig,
    pending: PendingKey,
    comes: Comes,
    /// Whether an earlier call may have been answered.
    again: bool,
}

/// How a node comes into the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Comes {
    /// As a new one.
    New,
    /// As what it was.
    Back,
}

impl Joining {
    fn what(&self) -> String {
        format!("cannot join the cluster as `{}`", self.config.name)
    }

    /// Puts on disk what will be asked for, or finds what an earlier call has put there.
    fn begin(dir: &Path, config: &NodeConfig) -> Result<Self, Failure> {
        let what = || format!("cannot join the cluster as `{}`", config.name);
        let place = identity_dir(dir);
        if let Some(earlier) = cut_off(dir)? {
            let asked = |c: &NodeConfig| (c.name.clone(), c.site.clone(), c.storage);
            if asked(&earlier) != asked(config) {
                return Err(Failure::new(
                    what(),
                    format!(
                        "an earlier join as `{}` (site {}) was cut off and may have succeeded",
                        earlier.name,
                        earlier.site.as_deref().unwrap_or("not named"),
                    ),
                )
                .hint(format!(
                    "repeat that one; or give it up and remove `{}`",
                    dir.display()
                )));
            }
        }
        make_private_dir(&place)?;
        Self::wish(dir, config.clone(), Comes::New)
    }

    /// The same for a node that was in the cluster, whose control store listens at `control` now.
    fn come_back(dir: &Path, control: SocketAddr) -> Result<Self, Failure> {
        let known = NodeConfig::load(&dir.join(NODE_FILE))?;
        Self::wish(dir, NodeConfig { control, ..known }, Comes::Back)
    }

    fn wish(dir: &Path, config: NodeConfig, comes: Comes) -> Result<Self, Failure> {
        let what = || format!("cannot join the cluster as `{}`", config.name);
        let place = identity_dir(dir);
        let found = PendingKey::load(&place).map_err(|error| failure(what(), &error))?;
        let again = found.is_some();
        // Before there is a certificate for it: whoever finds that completes what is written here.
        config.save(&dir.join(JOINING_FILE))?;
        let pending = match found {
            Some(pending) => pending,
            None => PendingKey::create(&place).map_err(|error| failure(what(), &error))?,
        };
        Ok(Self {
            dir: dir.to_path_buf(),
            config,
            pending,
            comes,
            again,
        })
    }

    fn ask(&self, token: &JoinToken) -> Result<Admission, Asked> {
        let request = JoinRequest {
            name: self.config.name.clone(),
            address: self.config.listen,
            site: self.config.site.clone(),
            storage: self.config.storage,
            capacity: 0,
        };
        let asked = block_on(async { Ok(enter(token, self.pending.request(), request).await) });
        asked.map_err(Asked::NotAsked)?.map_err(Asked::Answered)
    }

    /// The failure for the person; what is on disk goes when the cluster has surely not agreed.
    fn refused(self, asked: &Asked) -> Failure {
        let told = match asked {
            Asked::NotAsked(failure) => failure.clone(),
            Asked::Answered(error) => failure(self.what(), error).hint(match self.comes {
                Comes::New => "a token lets one node in, once: `perigee token` on a node of the cluster prints another"
                    .to_owned(),
                Comes::Back => format!(
                    "`perigee token --again {}` on a node of the cluster prints another token",
                    self.config.name
                ),
            }),
        };
        if !self.again && asked.is_no() {
            let (dir, place) = (&self.dir, identity_dir(&self.dir));
            if let Err(error) = clear(dir) {
                warn!(%error, "what the refused join asked for stays");
            }
            // Only empty ones go.
            _ = std::fs::remove_dir(&place);
            _ = std::fs::remove_dir(dir);
        }
        told
    }

    /// Puts certificate and key in their place.
    fn keep(&self, admission: &Admission) -> Result<(), Failure> {
        let (certificate, authority) = (&admission.certificate, &admission.authority);
        Identity::new(self.pending.key(), certificate, authority)
            .and_then(|identity| identity.save(&identity_dir(&self.dir)))
            .map_err(|error| failure(self.what(), &error))
    }

    /// The data directory is a node's from here on.
    fn finish(self) -> Result<NodeConfig, Failure> {
        self.config.save(&self.dir.join(NODE_FILE))?;
        complete(&self.dir)?;
        Ok(self.config)
    }
}

/// Why there is no admission.
enum Asked {
    NotAsked(Failure),
    Answered(EnterError),
}

impl Asked {
    /// Whether the token has let in `peer` before.
    fn names(&self, peer: PeerName) -> bool {
        match self {
            Self::Answered(EnterError::Refused(JoinRefusal::Plan(PlanError::TokenUsed {
                node,
            }))) => peer == PeerName::Node(*node),
            Self::Answered(_) | Self::NotAsked(_) => false,
        }
    }

    /// Whether the cluster has surely not let the node in.
    fn is_no(&self) -> bool {
        match self {
            Self::NotAsked(_) => true,
            Self::Answered(EnterError::Refused(refusal)) => !matches!(refusal, JoinRefusal::Away),
            Self::Answered(EnterError::Net(error)) => matches!(
                error,
                JoinError::Expired | JoinError::TooLarge { .. } | JoinError::Unreachable(_)
            ),
            Self::Answered(EnterError::Unreadable) => false,
        }
    }
}

#[cfg(test)]
#[path = "join_tests.rs"]
mod tests;
