//! Joining a cluster: a token in exchange for a certificate and a number.

use super::{block_on, failure};
use crate::config::NodeConfig;
use crate::layout::make_private_dir;
use perigee_cluster::JoinRequest;
use perigee_control::client::enter;
use perigee_net::identity::{Identity, JoinToken, NodeKey};
use perigee_proto::admin::Failure;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

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

/// Joins the cluster with a token: the node's certificate and key come to lie in `data_dir`, which
/// is made when the cluster has agreed.
pub fn join(data_dir: &Path, config: &NodeConfig, token: &str) -> Result<(), Failure> {
    let token = parse(token)?;
    let what = || format!("cannot join the cluster as `{}`", config.name);
    let request = JoinRequest {
        name: config.name.clone(),
        address: config.listen,
        site: Some(config.site.clone()),
        storage: config.storage,
        capacity: 0,
    };
    let key = NodeKey::generate().map_err(|error| failure(what(), &error))?;
    let certified = key.request().map_err(|error| failure(what(), &error))?;
    let admission = block_on(async {
        enter(&token, &certified, request).await.map_err(|error| {
            failure(what(), &error)
                .hint("a token lets one node in, once: `perigee token` on a node of the cluster prints another")
        })
    })?;
    let identity = Identity::new(&key, &admission.certificate, &admission.authority)
        .map_err(|error| failure(what(), &error))?;
    let place = identity_dir(data_dir);
    make_private_dir(&place)?;
    identity
        .save(&place)
        .map_err(|error| failure(what(), &error))
}
