//! The command line's side of the admin socket: one request, one answer, bounded in time and size.

use crate::admin_socket::ShortPath;
use crate::layout::NodeDir;
use perigee_proto::admin::{ANSWER_BYTES_MAX, Answer, Failure, REQUEST_BYTES_MAX, Reply, Request};
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// How long a question may take: a few round trips to peers, each bounded by a lease.
pub const ASK_TIME: Duration = Duration::from_secs(15);
/// How long a change may take that makes data durable first.
pub const CHANGE_TIME: Duration = Duration::from_secs(120);

/// Asks the node with this data directory.
///
/// Errors: nothing listens there, the node refused, or it answered nonsense.
pub fn ask(data_dir: &Path, request: &Request, patience: Duration) -> Result<Answer, Failure> {
    let what = || format!("cannot reach the node of `{}`", data_dir.display());
    let stream = connect(data_dir).map_err(|error| not_reached(&what(), &error))?;
    let fail = |error: std::io::Error| match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => {
            Failure::new(what(), format!("no answer within {} s", patience.as_secs()))
                .hint("`perigee doctor` looks for the cause")
        }
        _ => Failure::new(what(), error),
    };
    stream
        .set_read_timeout(Some(patience))
        .and_then(|()| stream.set_write_timeout(Some(patience)))
        .map_err(fail)?;
    let mut line = serde_json::to_vec(request).map_err(|error| Failure::new(what(), error))?;
    line.push(b'\n');
    if line.len() > REQUEST_BYTES_MAX {
        return Err(Failure::new(what(), "the request is too long"));
    }
    (&stream).write_all(&line).map_err(fail)?;
    let mut answer = Vec::new();
    BufReader::new(&stream)
        .take(ANSWER_BYTES_MAX as u64)
        .read_until(b'\n', &mut answer)
        .map_err(fail)?;
    if answer.last() != Some(&b'\n') {
        return Err(
            Failure::new(what(), "it closed the connection without an answer")
                .hint(format!("see `{}/daemon.log`", data_dir.display())),
        );
    }
    let reply = serde_json::from_slice(&answer).map_err(|error| {
        Failure::new(what(), format!("its answer cannot be read: {error}"))
            .hint("the node may run another version: `perigee down`, then `perigee up`")
    })?;
    match reply {
        Reply::Ok(answer) => Ok(answer),
        Reply::Error(failure) => Err(failure),
    }
}

/// Asks each node in turn until one is reached, and gives its answer.
///
/// Errors: the first node's, when none is reached; a refusal is an answer.
pub fn ask_any(nodes: &[NodeDir], request: &Request) -> Result<Answer, Failure> {
    let running: Vec<&NodeDir> = nodes
        .iter()
        .filter(|node| crate::pid_file::running(&node.path).is_some())
        .collect();
    let Some((last, others)) = running.split_last() else {
        let node = nodes.first().map(NodeDir::name).unwrap_or_default();
        return Err(Failure::new(
            "cannot reach the cluster",
            format!("no node runs here ({node})"),
        )
        .hint("`perigee up` starts what is not running"));
    };
    for node in others {
        if let Ok(answer) = ask(&node.path, request, ASK_TIME) {
            return Ok(answer);
        }
    }
    ask(&last.path, request, ASK_TIME)
}

/// An answer of another kind than the question asks for.
pub fn unexpected(answer: &Answer) -> Failure {
    let mut text = format!("{answer:?}");
    text.truncate(text.char_indices().nth(60).map_or(text.len(), |(at, _)| at));
    Failure::new(
        "cannot understand the node",
        format!("it answered `{text}`"),
    )
    .hint("the node may run another version: `perigee down`, then `perigee up`")
}

/// Whether a node listens on the admin socket of this data directory.
pub fn listens(data_dir: &Path) -> bool {
    connect(data_dir).is_ok()
}

/// Whether no process answers at a node's socket, or is there to do so.
pub fn nobody_listens(data_dir: &Path) -> bool {
    connect(data_dir).is_err_and(|error| is_silent(&error))
}

fn is_silent(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::NotFound | ErrorKind::ConnectionRefused
    )
}

fn connect(data_dir: &Path) -> std::io::Result<UnixStream> {
    let short = ShortPath::socket(data_dir)?;
    UnixStream::connect(short.path())
}

fn not_reached(what: &str, error: &std::io::Error) -> Failure {
    match error.kind() {
        _ if is_silent(error) => {
            Failure::new(what, "it is not running").hint("`perigee up` starts it")
        }
        ErrorKind::PermissionDenied => Failure::new(what, "it belongs to another user")
            .hint("run the command as that user, or as root"),
        _ => Failure::new(what, error),
    }
}
