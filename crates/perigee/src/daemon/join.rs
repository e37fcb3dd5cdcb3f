//! Joining a cluster: a token in exchange for a certificate and a number.
//!
//! What the node asks for is on its disk before it asks: a join that was cut off at any point is
//! completed by the next one, as the same node.

use super::{block_on, failure};
use crate::config::NodeConfig;
use crate::layout::{NODE_FILE, make_private_dir};
use perigee_cluster::JoinRequest;
use perigee_control::client::enter;
use perigee_control::{Admission, EnterError, JoinRefusal};
use perigee_net::identity::{Identity, JoinToken, PendingKey};
use perigee_net::{JoinError, PeerName};
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
    let addresses = parse(token)?.addresses;
    addresses
        .first()
        .copied()
        .ok_or_else(|| Failure::new("cannot use the token", "it names no address of the cluster"))
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

/// Removes what a join that is complete has left behind when it was cut off in its last step.
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
    joining.finish()
}

/// Lets a node in again with a token that `perigee rebuild` printed for it: it gets a certificate of the new authority, and
/// keeps its number and its data.
///
/// Errors: the node is as it was; a call that was cut off can be repeated with the same token.
pub fn join_again(data_dir: &Path, token: &str) -> Result<NodeConfig, Failure> {
    let token = parse(token)?;
    let node = NodeConfig::load(&data_dir.join(NODE_FILE))?;
    let what = || format!("cannot let `{}` in again", node.name);
    let place = identity_dir(data_dir);
    let kept = match PendingKey::load(&place).map_err(|error| failure(what(), &error))? {
        Some(pending) => pending,
        None => PendingKey::create(&place).map_err(|error| failure(what(), &error))?,
    };
    let address = token.addresses.first().copied();
    let joining = Joining {
        dir: data_dir.to_path_buf(),
        config: NodeConfig {
            control: address.unwrap_or(node.control),
            ..node.clone()
        },
        pending: kept,
        // The node's files stay, whatever the answer.
        again: true,
    };
    let admission = match joining.ask(&token) {
        Ok(admission) => admission,
        Err(error) => return Err(joining.refused(&error)),
    };
    let me = Identity::load(&place).map(|identity| identity.name());
    if let Ok(PeerName::Node(me)) = me
        && me != admission.node
    {
        return Err(Failure::new(
            what(),
            format!("the token lets in {}, and this is {me}", admission.node),
        )
        .hint("`perigee rebuild` prints one token for each node"));
    }
    joining.keep(&admission)?;
    let config = joining.config.clone();
    joining.finish()?;
    Ok(config)
}

/// A node that is not one yet: what it asks for is on disk.
struct Joining {
    dir: PathBuf,
    config: NodeConfig,
    pending: PendingKey,
    /// Whether an earlier call may have been answered.
    again: bool,
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
                        "an earlier join as `{}` (site `{}`) was cut off and may have succeeded",
                        earlier.name, earlier.site
                    ),
                )
                .hint(format!(
                    "repeat that one; or give it up and remove `{}`",
                    dir.display()
                )));
            }
        }
        make_private_dir(&place)?;
        let found = PendingKey::load(&place).map_err(|error| failure(what(), &error))?;
        let again = found.is_some();
        let pending = match found {
            Some(pending) => pending,
            None => {
                config.save(&dir.join(JOINING_FILE))?;
                PendingKey::create(&place).map_err(|error| failure(what(), &error))?
            }
        };
        Ok(Self {
            dir: dir.to_path_buf(),
            config: config.clone(),
            pending,
            again,
        })
    }

    fn ask(&self, token: &JoinToken) -> Result<Admission, Asked> {
        let request = JoinRequest {
            name: self.config.name.clone(),
            address: self.config.listen,
            site: Some(self.config.site.clone()),
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
            Asked::Answered(error) => failure(self.what(), error).hint(
                "a token lets one node in, once: `perigee token` on a node of the cluster prints another",
            ),
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
    fn finish(self) -> Result<(), Failure> {
        self.config.save(&self.dir.join(NODE_FILE))?;
        clear(&self.dir)
    }
}

/// Why there is no admission.
enum Asked {
    NotAsked(Failure),
    Answered(EnterError),
}

impl Asked {
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
