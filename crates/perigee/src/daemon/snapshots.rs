//! Snapshots for the command line.

use perigee_node::Node;
use perigee_node::snapshot::{SnapshotError, SnapshotUse};
use perigee_proto::admin::{AdminPath, Answer, Failure, SnapshotInfo};

fn info(used: SnapshotUse) -> SnapshotInfo {
    SnapshotInfo {
        name: used.name().to_owned(),
        path: AdminPath::from(std::path::Path::new(used.path())),
        taken: used.taken_secs(),
        scheduled: used.is_scheduled(),
        kept_bytes: used.bytes,
    }
}

fn failure(what: String, error: &SnapshotError) -> Failure {
    let failure = Failure::new(what, error);
    match error {
        SnapshotError::Missing(_) => failure.hint("`perigee snapshot list DIR` lists them"),
        SnapshotError::Exists(_) => failure.hint("choose another name, or delete that one first"),
        SnapshotError::Busy { .. } => {
            failure.hint("try again; `perigee status` shows which nodes are away")
        }
        SnapshotError::Path(_)
        | SnapshotError::NotADirectory
        | SnapshotError::BadName(_)
        | SnapshotError::TooMany => failure,
    }
}

pub(super) async fn create(node: &Node, path: &AdminPath, name: String) -> Result<Answer, Failure> {
    let what = format!("cannot make snapshot `{name}` of `{path}`");
    let made = node.make_snapshot(path, name).await;
    let made = made.map_err(|error| failure(what, &error))?;
    Ok(Answer::Snapshots(vec![info(SnapshotUse::new(made))]))
}

pub(super) async fn list(node: &Node) -> Result<Answer, Failure> {
    match node.snapshots().await {
        Ok(all) => Ok(Answer::Snapshots(all.into_iter().map(info).collect())),
        Err(errno) => Err(Failure::new("cannot list the snapshots", errno)),
    }
}

pub(super) async fn delete(node: &Node, path: &AdminPath, name: &str) -> Result<Answer, Failure> {
    let what = format!("cannot delete snapshot `{name}` of `{path}`");
    let gone = node.delete_snapshot(path, name).await;
    let gone = gone.map_err(|error| failure(what, &error))?;
    Ok(Answer::Snapshots(vec![info(SnapshotUse::new(gone))]))
}
