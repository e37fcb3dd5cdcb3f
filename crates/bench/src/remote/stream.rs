//! One TLS stream between two processes: what the network and the encryption allow where nothing else is done.
//!
//! TLS is the daemons' own, with the identities of two of them; one end sends from memory, the other throws away what comes.

use super::Between;
use crate::pipe::{self, PIECE, Way};
use perigee_net::Identity;
use perigee_testbed::{Call, CheckError, Checked, Cluster};
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, ConnectionCommon, ServerConnection, SideData, StreamOwned};
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::ops::{Deref, DerefMut};
use std::path::Path;
use std::process::{Child, Command, Stdio};

fn tls(error: impl std::fmt::Display) -> CheckError {
    CheckError::violated(format!("the TLS stream failed: {error}"))
}

/// The other end, with the identity of a directory, until standard input ends: listens at that address, prints its port, and
/// does what it is asked over one connection.
///
/// Errors: the system's, or a connection that breaks.
pub fn serve(identity: &Path, address: Ipv4Addr) -> Checked {
    std::thread::spawn(|| {
        // Whoever started this process keeps its input open for as long as it lives.
        _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        std::process::exit(0);
    });
    let config = Identity::load(identity).and_then(|own| own.tls_server());
    let config = config.map_err(tls)?;
    let what = || "serve the TLS stream".to_owned();
    let listener = TcpListener::bind((address, 0)).call(what)?;
    let port = listener.local_addr().call(what)?.port();
    let mut out = std::io::stdout();
    writeln!(out, "{port}").call(what)?;
    out.flush().call(what)?;
    let (socket, _) = listener.accept().call(what)?;
    let connection = ServerConnection::new(config).map_err(tls)?;
    let mut stream = ready(connection, socket)?;
    pipe::serve(&mut stream).call(|| "serve the TLS stream".to_owned())
}

fn ready<C, S>(mut connection: C, socket: TcpStream) -> Checked<StreamOwned<C, TcpStream>>
where
    C: DerefMut + Deref<Target = ConnectionCommon<S>>,
    S: SideData,
{
    socket
        .set_nodelay(true)
        .call(|| "set up the TLS stream".to_owned())?;
    connection.set_buffer_limit(Some(PIECE));
    Ok(StreamOwned::new(connection, socket))
}

/// A connection to a process of its own, which ends with it.
#[derive(Debug)]
pub(super) struct Stream {
    child: Child,
    connection: StreamOwned<ClientConnection, TcpStream>,
}

impl Stream {
    /// Starts `program` on the host `there`, which is to call [`serve`] with the directory that follows `--serve-stream`, and
    /// connects to it from the host `here`. Each has the identity of the member there.
    pub(super) fn start(
        program: &Path,
        cluster: &Cluster,
        between: Between,
        here: u32,
        there: u32,
    ) -> Checked<Self> {
        let identity = |node: u32| cluster.dir().join(format!("node-{node}/identity"));
        let address = between.address(there);
        let mut child = between.inside(cluster, there, || {
            Command::new(program)
                .arg("--serve-stream")
                .arg(identity(there))
                .arg("--serve-at")
                .arg(address.to_string())
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .call(|| "start the other end of the TLS stream".to_owned())
        })?;
        let connection = between.inside(cluster, here, || {
            Self::connect(&mut child, address, &identity(here), &identity(there))
        });
        match connection {
            Ok(connection) => Ok(Self { child, connection }),
            Err(error) => {
                end(&mut child);
                Err(error)
            }
        }
    }

    fn connect(
        child: &mut Child,
        address: Ipv4Addr,
        here: &Path,
        there: &Path,
    ) -> Checked<StreamOwned<ClientConnection, TcpStream>> {
        let out = child.stdout.take().ok_or_else(|| tls("it says nothing"))?;
        let mut port = String::new();
        let what = || "connect the TLS stream".to_owned();
        BufReader::new(out).read_line(&mut port).call(what)?;
        let port: u16 = port.trim().parse().map_err(tls)?;
        let config = Identity::load(here).and_then(|own| own.tls_client());
        let peer = Identity::load(there).map_err(tls)?;
        let name = peer.name().dns(peer.cluster());
        let name = name.ok_or_else(|| tls("the identity of a joiner has no name"))?;
        let name = ServerName::try_from(name).map_err(tls)?;
        let connection = ClientConnection::new(config.map_err(tls)?, name).map_err(tls)?;
        let socket = TcpStream::connect((address, port)).call(what)?;
        ready(connection, socket)
    }

    /// The other process.
    pub(super) fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    /// Moves so many bytes; those that go up have arrived when it returns.
    pub(super) fn pass(&mut self, way: Way, bytes: u64) -> Checked {
        let what = || "move bytes over the TLS stream".to_owned();
        pipe::pass(&mut self.connection, way, bytes).call(what)
    }
}

fn end(child: &mut Child) {
    // It may have ended by itself.
    _ = child.kill();
    _ = child.wait();
}

impl Drop for Stream {
    fn drop(&mut self) {
        end(&mut self.child);
    }
}
