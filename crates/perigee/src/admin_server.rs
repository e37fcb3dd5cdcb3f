//! The node's side of the admin socket.
//!
//! Bounds: a line has a greatest length, a connection a time in which it must speak, and there are
//! only so many connections. Only the node's own user and root are answered.

use crate::admin_socket::ShortPath;
use perigee_cluster::BoxFuture;
use perigee_net::{AUDIT, Refusals};
use perigee_proto::admin::{Answer, Failure, REQUEST_BYTES_MAX, Reply, Request, SOCKET_NAME};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinSet;
use tracing::{debug, info, warn};

/// More people and scripts than ever ask one node at a time.
const CONNECTIONS_MAX: usize = 32;
/// How long a connection may be silent before it is closed.
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// The name under which the socket is made, before it has its mode.
const NEW_SOCKET_NAME: &str = "admin.sock.new";

/// What answers the requests.
pub trait AdminBackend: Send + Sync {
    /// Answers one request. [`Request::Stop`] does not come here: the server handles it.
    fn admin(&self, who: Asker, request: Request) -> BoxFuture<'static, Result<Answer, Failure>>;
}

/// Who asks, as the kernel says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asker {
    /// Effective user.
    pub uid: u32,
    /// Effective group.
    pub gid: u32,
}

/// The listening socket of a node.
pub struct AdminServer {
    listener: UnixListener,
    backend: Arc<dyn AdminBackend>,
    /// Told when somebody asks the node to stop.
    stop: Arc<Notify>,
    /// Bounds the lines about users who may not ask.
    refusals: Arc<Refusals>,
}

impl AdminServer {
    /// Opens the socket in `data_dir`, replacing what a dead process left. The caller has claimed
    /// the directory.
    pub fn bind(
        data_dir: &Path,
        backend: Arc<dyn AdminBackend>,
        stop: Arc<Notify>,
    ) -> std::io::Result<Self> {
        let made = data_dir.join(NEW_SOCKET_NAME);
        match std::fs::remove_file(&made) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let short = ShortPath::of(data_dir, NEW_SOCKET_NAME)?;
        let listener = UnixListener::bind(short.path())?;
        // renamed when it has its mode: under its own name it is never open to others
        std::fs::set_permissions(&made, std::fs::Permissions::from_mode(0o600))?;
        std::fs::rename(&made, data_dir.join(SOCKET_NAME))?;
        Ok(Self {
            listener,
            backend,
            stop,
            refusals: Arc::default(),
        })
    }

    /// Serves until the future is dropped.
    ///
    /// # Cancel safety
    /// Dropping it ends every connection; a request that a backend has begun goes on or not as the
    /// backend decides.
    pub async fn run(self) {
        let slots = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        let mut connections = JoinSet::new();
        loop {
            while connections.try_join_next().is_some() {}
            let Ok(slot) = Arc::clone(&slots).acquire_owned().await else {
                return;
            };
            let stream = match self.listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    warn!(%error, "admin socket did not accept");
                    // out of descriptors, most likely: it passes
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            };
            let backend = Arc::clone(&self.backend);
            let (stop, refusals) = (Arc::clone(&self.stop), Arc::clone(&self.refusals));
            connections.spawn(async move {
                if let Err(error) = serve(stream, &*backend, &stop, &refusals).await {
                    debug!(%error, "admin connection ended");
                }
                drop(slot);
            });
        }
    }
}

async fn serve(
    mut stream: UnixStream,
    backend: &dyn AdminBackend,
    stop: &Notify,
    refusals: &Refusals,
) -> std::io::Result<()> {
    let peer = stream.peer_cred()?;
    let who = Asker {
        uid: peer.uid(),
        gid: peer.gid(),
    };
    let uid = who.uid;
    if !may_ask(uid, rustix::process::geteuid().as_raw()) {
        if let Some(left_out) = refusals.line(Instant::now()) {
            info!(target: AUDIT, event = "command", outcome = "refused", uid, left_out);
        }
        let failure = Failure::new("cannot ask this node", "it belongs to another user");
        return answer(&mut stream, &Reply::Error(failure)).await;
    }
    let (read, mut write) = stream.split();
    let mut lines = BufReader::new(read);
    loop {
        let mut line = Vec::new();
        let mut bounded = (&mut lines).take(REQUEST_BYTES_MAX as u64);
        let reading = bounded.read_until(b'\n', &mut line);
        let Ok(read) = tokio::time::timeout(SILENCE_MAX, reading).await else {
            return Ok(());
        };
        if read? == 0 {
            return Ok(());
        }
        if line.last() != Some(&b'\n') {
            let failure = Failure::new(
                "cannot read the request",
                format!("it has no end within {REQUEST_BYTES_MAX} bytes"),
            );
            return answer(&mut write, &Reply::Error(failure)).await;
        }
        let (reply, stops) = reply_to(&line, who, backend).await;
        answer(&mut write, &reply).await?;
        if stops {
            stop.notify_one();
        }
    }
}

/// Whether a request changes who may do what, where data is kept, or how it is reached.
fn is_audited(request: &Request) -> bool {
    match request {
        Request::Mount { .. }
        | Request::Umount { .. }
        | Request::PolicySet { .. }
        | Request::Adopt { .. }
        | Request::SnapshotCreate { .. }
        | Request::SnapshotDelete { .. }
        | Request::TrashBring { .. }
        | Request::TrashPurge { .. }
        | Request::Token { .. }
        | Request::TokenAgain { .. }
        | Request::Drain { .. }
        | Request::MoveCopy { .. }
        | Request::StopMoves
        | Request::Remove { .. }
        | Request::Stop => true,
        Request::Status
        | Request::Topology
        | Request::Union
        | Request::Locate { .. }
        | Request::Where { .. }
        | Request::PolicyGet { .. }
        | Request::SnapshotList
        | Request::TrashList { .. }
        | Request::RebalancePlan { .. }
        | Request::Doctor
        | Request::Scrub { .. }
        | Request::Quiesce => false,
    }
}

/// A request as a line of the log tells it.
fn shown(request: &Request) -> String {
    match request {
        Request::TrashBring { entries } => {
            let more = entries.len().saturating_sub(1);
            format!("TrashBring {:?} and {more} more", entries.first())
        }
        Request::TrashPurge { entries } => {
            let more = entries.len().saturating_sub(1);
            format!("TrashPurge {:?} and {more} more", entries.first())
        }
        Request::Adopt { step, files } => {
            let more = files.len().saturating_sub(1);
            format!("Adopt {step:?} {:?} and {more} more", files.first())
        }
        request => format!("{request:?}"),
    }
}

async fn reply_to(line: &[u8], who: Asker, backend: &dyn AdminBackend) -> (Reply, bool) {
    match serde_json::from_slice(line) {
        Err(error) => {
            let failure = Failure::new("cannot read the request", error)
                .hint("the command line and the node may be of different versions");
            (Reply::Error(failure), false)
        }
        Ok(request) => {
            // A request has no secrets in it; an answer may.
            let shown = is_audited(&request).then(|| shown(&request));
            let (answered, stops) = match request {
                Request::Stop => (Ok(Answer::Done), true),
                request => (backend.admin(who, request).await, false),
            };
            if let Some(request) = shown {
                let outcome = if answered.is_ok() { "done" } else { "failed" };
                let why = answered.as_ref().err().map(|failure| failure.why.as_str());
                let uid = who.uid;
                info!(target: AUDIT, event = "command", outcome, uid, request, why);
            }
            (answered.map_or_else(Reply::Error, Reply::Ok), stops)
        }
    }
}

/// The user that the node runs as, and root, who may anyway.
fn may_ask(peer: u32, own: u32) -> bool {
    peer == own || peer == 0
}

async fn answer<W: AsyncWriteExt + Unpin>(write: &mut W, reply: &Reply) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(reply)?;
    line.push(b'\n');
    write.write_all(&line).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use perigee_proto::admin::Status;
    use tempfile::TempDir;

    struct Fixed;

    impl AdminBackend for Fixed {
        fn admin(&self, _: Asker, request: Request) -> BoxFuture<'static, Result<Answer, Failure>> {
            Box::pin(async move {
                match request {
                    Request::Status => Ok(Answer::Status(Status::default())),
                    _ => Err(Failure::new("cannot do it", "it is a test").hint("none")),
                }
            })
        }
    }

    struct Scene {
        temp: TempDir,
        stop: Arc<Notify>,
    }

    fn scene() -> Scene {
        let temp = tempfile::tempdir().unwrap();
        let stop = Arc::new(Notify::new());
        let server = AdminServer::bind(temp.path(), Arc::new(Fixed), Arc::clone(&stop)).unwrap();
        tokio::spawn(server.run());
        Scene { temp, stop }
    }

    async fn talk(scene: &Scene, bytes: Vec<u8>) -> Vec<String> {
        let path = scene.temp.path().join(SOCKET_NAME);
        let mut stream = UnixStream::connect(path).await.unwrap();
        let (mut read, mut write) = stream.split();
        let send = async {
            // the server may close before it has read everything
            let _ = write.write_all(&bytes).await;
            let _ = write.shutdown().await;
        };
        let mut text = String::new();
        let (_, read) = tokio::join!(send, read.read_to_string(&mut text));
        read.unwrap();
        text.lines().map(str::to_owned).collect()
    }

    #[tokio::test]
    async fn requests_of_one_connection_are_answered_line_by_line() {
        let scene = scene();
        let lines = talk(
            &scene,
            b"{\"do\":\"status\"}\n{\"do\":\"doctor\"}\n".to_vec(),
        )
        .await;
        assert_eq!(lines.len(), 2);
        assert!(lines[0].starts_with(r#"{"ok":{"status":"#), "{}", lines[0]);
        assert_eq!(
            lines[1],
            r#"{"error":{"what":"cannot do it","why":"it is a test","hint":"none"}}"#
        );
    }

    #[tokio::test]
    async fn an_unknown_or_broken_request_is_refused_and_the_next_is_served() {
        let scene = scene();
        let lines = talk(
            &scene,
            b"{\"do\":\"fly\"}\nnonsense\n\xff\xfe\n{\"do\":\"status\"}\n".to_vec(),
        )
        .await;
        assert_eq!(lines.len(), 4);
        assert!(
            lines[..3]
                .iter()
                .all(|line| line.starts_with(r#"{"error""#))
        );
        assert!(lines[3].starts_with(r#"{"ok""#));
    }

    #[tokio::test]
    async fn a_line_without_end_is_refused_and_the_connection_closed() {
        let scene = scene();
        let lines = talk(&scene, vec![b'x'; REQUEST_BYTES_MAX]).await;
        assert_eq!(lines.len(), 1);
        assert!(lines[0].contains("no end within 65536 bytes"));
    }

    #[tokio::test]
    async fn stop_is_acknowledged_before_it_is_done() {
        let scene = scene();
        let lines = talk(&scene, b"{\"do\":\"stop\"}\n".to_vec()).await;
        assert_eq!(lines, [r#"{"ok":"done"}"#]);
        scene.stop.notified().await;
    }

    #[tokio::test]
    async fn the_socket_is_private_and_replaces_a_dead_one() {
        let scene = scene();
        let path = scene.temp.path().join(SOCKET_NAME);
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        AdminServer::bind(scene.temp.path(), Arc::new(Fixed), Arc::default()).unwrap();
    }

    #[tokio::test]
    async fn a_directory_deeper_than_a_socket_address_works() {
        let temp = tempfile::tempdir().unwrap();
        let deep = temp.path().join("d".repeat(200));
        std::fs::create_dir(&deep).unwrap();
        let server = AdminServer::bind(&deep, Arc::new(Fixed), Arc::default()).unwrap();
        tokio::spawn(server.run());
        let asked = tokio::task::spawn_blocking(move || {
            crate::admin_client::ask(&deep, &Request::Status, Duration::from_secs(5))
        });
        assert!(matches!(asked.await.unwrap(), Ok(Answer::Status(_))));
    }

    #[test]
    fn only_the_own_user_and_root_may_ask() {
        assert!(may_ask(1000, 1000) && may_ask(0, 1000));
        assert!(!may_ask(1001, 1000) && !may_ask(1000, 0));
    }
}
