//! The control store: made once, then run. It lies in `control` of the cluster's directory.

use super::{block_on, failure};
use perigee_cluster::Admits;
use perigee_control::process::{Control, ControlError, init_control_on as make_control};
use perigee_control::{Bundle, EtcdChoice, MoveNeeded, Moved, join_control};
use perigee_etcd::OpenError;
use perigee_proto::admin::Failure;
use perigee_types::Span;
use std::net::SocketAddr;
use std::path::Path;

/// A file that every control store's directory has from its making on.
const MARK: &str = "ca.key.pem";
/// How long the first token is good for. It is used at once.
const FIRST_TOKEN_TTL: Span = Span::from_millis(600_000);

/// Whether `dir` is that of a control store.
pub fn is_control(dir: &Path) -> bool {
    dir.join(MARK).exists()
}

/// Where the control store of a directory listens.
pub fn address(dir: &Path) -> Result<SocketAddr, Failure> {
    let what = || format!("cannot use the control store in `{}`", dir.display());
    perigee_control::process::address(dir).map_err(|error| failure(what(), &error))
}

/// Makes a cluster with its authority and its control store, which will listen on `listen`, and a
/// token for its first node.
pub fn init_control(
    cluster: &Path,
    listen: SocketAddr,
    etcd: Option<&EtcdChoice>,
) -> Result<String, Failure> {
    let what = format!("cannot make a cluster in `{}`", cluster.display());
    block_on(async {
        let made = make_control(cluster, listen, etcd).await;
        made.map(|new| new.token.to_string())
            .map_err(|error| hinted(what, &error))
    })
}

/// Whether a move has anything against it that can be said before anything stops.
pub fn check_etcd(cluster: &Path, etcd: &EtcdChoice) -> Result<MoveNeeded, Failure> {
    let what = format!("cannot move the control store to `{}`", etcd.place);
    block_on(async {
        let checked = perigee_control::check_move(cluster, etcd).await;
        checked.map_err(|error| hinted(what, &error))
    })
}

/// Moves the record of a control store, which does not run, to an etcd.
pub fn move_control(cluster: &Path, etcd: &EtcdChoice) -> Result<Moved, Failure> {
    let what = format!("cannot move the control store to `{}`", etcd.place);
    block_on(async {
        let moved = perigee_control::move_control(cluster, etcd).await;
        moved.map_err(|error| hinted(what, &error))
    })
}

/// What a further process needs that serves the record of `cluster`.
pub fn export_control(cluster: &Path) -> Result<Vec<u8>, Failure> {
    let what = || format!("cannot export the control store of `{}`", cluster.display());
    let bundle = Bundle::of(cluster).map_err(|error| hinted(what(), &error))?;
    bundle.encode().map_err(|error| failure(what(), &error))
}

/// Makes a further process in `cluster`, from what another one has exported.
pub fn import_control(
    cluster: &Path,
    listen: SocketAddr,
    bundle: &[u8],
) -> Result<SocketAddr, Failure> {
    let what = || format!("cannot make a control store in `{}`", cluster.display());
    let bundle = Bundle::decode(bundle).map_err(|error| failure(what(), &error))?;
    block_on(async {
        let made = join_control(cluster, listen, &bundle).await;
        made.map_err(|error| hinted(what(), &error))
    })
}

/// A failure with what a person can do about it.
fn hinted(what: String, error: &ControlError) -> Failure {
    let failure = failure(what, error);
    match error {
        ControlError::Etcd(OpenError::Silent { .. }) => failure.hint(
            "start etcd (version 3.4 or later), or name another of its members; over TLS its certificate must be good \
             for the name given here",
        ),
        ControlError::Etcd(OpenError::InUse { .. }) => failure.hint(
            "this directory is older than the cluster, whose control processes use that record; where nobody does any \
             more, after `perigee rebuild`: etcdctl del --prefix /perigee/CLUSTER/",
        ),
        ControlError::Embedded => {
            failure.hint("`perigee control move` moves it to an etcd first")
        }
        ControlError::Etcd(OpenError::Credentials(_)) => {
            failure.hint("give --etcd-ca, --etcd-cert and --etcd-key, as PEM files")
        }
        _ => failure,
    }
}

/// A token from a control store that is not running: its cluster has no node yet to ask.
pub fn first_token(cluster: &Path) -> Result<String, Failure> {
    let what = || {
        format!(
            "cannot make a token for the cluster in `{}`",
            cluster.display()
        )
    };
    block_on(async {
        let control = Control::start(cluster)
            .await
            .map_err(|error| failure(what(), &error))?;
        let made = control
            .gatekeeper()
            .create_token(FIRST_TOKEN_TTL, Admits::Anybody)
            .await;
        control.stop().await;
        made.map(|token| token.text)
            .map_err(|error| failure(what(), &error))
    })
}

/// Serves a control store until `shutdown` or the failure of its disk; calls `ready` when it listens.
pub async fn run_control(
    cluster: &Path,
    ready: impl FnOnce() -> Result<(), Failure>,
    shutdown: impl Future<Output = ()>,
) -> Result<(), Failure> {
    let what = || format!("cannot serve the control store in `{}`", cluster.display());
    let control = Control::start(cluster)
        .await
        .map_err(|error| failure(what(), &error))?;
    let result = match ready() {
        Err(failure) => Err(failure),
        Ok(()) => tokio::select! {
            () = shutdown => Ok(()),
            () = control.disk_failed() => Err(Failure::new(what(), "the disk beneath it failed")
                .hint("mend the disk, then `perigee up`: what was acknowledged is there")),
        },
    };
    control.stop().await;
    result
}
