//! What was removed and is kept: the node's side of `perigee undelete`.

use super::failure;
use crate::admin_server::Asker;
use perigee_node::Node;
use perigee_node::trash::Credential;
use perigee_proto::admin::{AdminPath, Answer, Bring, Failure, TrashName};
use perigee_types::Errno;

const HINT: &str = "`perigee status` shows whether a container has no owner";

fn credential(who: Asker) -> Credential {
    Credential {
        uid: who.uid,
        gid: who.gid,
    }
}

pub(super) async fn list(node: &Node, path: &AdminPath, who: Asker) -> Result<Answer, Failure> {
    let rows = node.trash(path, credential(who)).await;
    rows.map(Answer::Trash).map_err(|errno: Errno| {
        failure(
            format!("cannot list what was removed from `{path}`"),
            &errno,
        )
        .hint(HINT)
    })
}

pub(super) async fn bring(node: &Node, entries: Vec<Bring>, who: Asker) -> Answer {
    Answer::Brought(node.bring_back(entries, credential(who)).await)
}

pub(super) async fn purge(
    node: &Node,
    entries: &[TrashName],
    who: Asker,
) -> Result<Answer, Failure> {
    let purged = node.purge(entries, credential(who)).await;
    purged
        .map(Answer::Purged)
        .map_err(|errno| failure("cannot purge all that was removed".to_owned(), &errno).hint(HINT))
}
