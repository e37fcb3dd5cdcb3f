//! One TLS stream between two processes: what the network and the encryption allow where nothing else is done.
//!
//! The cipher, the protocol's version and the length of a record are those of the daemons' connections; one end sends from
//! memory, the other throws away what comes.

use perigee_testbed::{Call, CheckError, Checked};
use rcgen::{CertificateParams, KeyPair};
use rustls::crypto::CryptoProvider;
use rustls::crypto::ring::{cipher_suite, default_provider};
use rustls::version::TLS13;
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection};
use rustls::{ConnectionCommon, SideData, StreamOwned};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::ops::{Deref, DerefMut};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

/// Bytes of one write, and of one read.
const PIECE: usize = 1 << 20;
/// As in the daemons: with its header and its tag a record is 16 KiB.
const RECORD_LEN: usize = (16 << 10) - 1 - 16;
const NAME: &str = "stream.invalid";

/// Which way the bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Way {
    /// To the other process.
    Up = 1,
    /// From it.
    Down = 2,
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(CryptoProvider {
        cipher_suites: vec![cipher_suite::TLS13_AES_128_GCM_SHA256],
        ..default_provider()
    })
}

fn tls(error: impl std::fmt::Display) -> CheckError {
    CheckError::violated(format!("the TLS stream failed: {error}"))
}

/// The other end, until standard input ends: prints its port and its certificate, and does what it is asked over one
/// connection.
///
/// Errors: the system's, or a connection that breaks.
pub fn serve() -> Checked {
    std::thread::spawn(|| {
        // Whoever started this process keeps its input open for as long as it lives.
        _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        std::process::exit(0);
    });
    let key = KeyPair::generate().map_err(tls)?;
    let params = CertificateParams::new(vec![NAME.to_owned()]).map_err(tls)?;
    let certificate = params.self_signed(&key).map_err(tls)?;
    let key = PrivateKeyDer::try_from(key.serialize_der()).map_err(tls)?;
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .map_err(tls)?
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key)
        .map_err(tls)?;
    config.max_fragment_size = Some(RECORD_LEN);
    let what = || "serve the TLS stream".to_owned();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).call(what)?;
    let port = listener.local_addr().call(what)?.port();
    let der: Vec<String> = certificate.der().iter().map(u8::to_string).collect();
    let mut out = std::io::stdout();
    writeln!(out, "{port} {}", der.join(",")).call(what)?;
    out.flush().call(what)?;
    let (socket, _) = listener.accept().call(what)?;
    let connection = ServerConnection::new(Arc::new(config)).map_err(tls)?;
    let mut stream = ready(connection, socket)?;
    loop {
        let mut request = [0; 9];
        if stream.read_exact(&mut request).is_err() {
            return Ok(());
        }
        let [way, bytes @ ..] = request;
        let bytes = u64::from_be_bytes(bytes);
        if way == Way::Up as u8 {
            take(&mut stream, bytes)?;
            give(&mut stream, 1)?;
        } else {
            give(&mut stream, bytes)?;
        }
    }
}

fn ready<C, S>(connection: C, socket: TcpStream) -> Checked<StreamOwned<C, TcpStream>>
where
    C: DerefMut + Deref<Target = ConnectionCommon<S>>,
    S: SideData,
{
    socket
        .set_nodelay(true)
        .call(|| "set up the TLS stream".to_owned())?;
    let mut connection = connection;
    connection.set_buffer_limit(Some(PIECE));
    Ok(StreamOwned::new(connection, socket))
}

fn give(stream: &mut impl Write, bytes: u64) -> Checked {
    let piece = vec![0x5a; PIECE];
    let what = || "write to the TLS stream".to_owned();
    let mut left = bytes;
    while left > 0 {
        let len = left.min(PIECE as u64);
        stream.write_all(&piece[..len as usize]).call(what)?;
        left -= len;
    }
    stream.flush().call(what)
}

fn take(stream: &mut impl Read, bytes: u64) -> Checked {
    let mut piece = vec![0; PIECE];
    let mut left = bytes;
    while left > 0 {
        let len = left.min(PIECE as u64) as usize;
        let read = stream.read(&mut piece[..len]);
        let read = read.call(|| "read from the TLS stream".to_owned())?;
        if read == 0 {
            return Err(tls("it ended"));
        }
        left -= read as u64;
    }
    Ok(())
}

/// A connection to a process of its own, which ends with it.
#[derive(Debug)]
pub(super) struct Stream {
    child: Child,
    connection: StreamOwned<ClientConnection, TcpStream>,
}

impl Stream {
    /// Starts `program`, which is to call [`serve`] when its one argument is `--serve-stream`.
    pub(super) fn start(program: &Path) -> Checked<Self> {
        let what = || "start the other end of the TLS stream".to_owned();
        let mut child = Command::new(program)
            .arg("--serve-stream")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .call(what)?;
        match Self::connect(&mut child) {
            Ok(connection) => Ok(Self { child, connection }),
            Err(error) => {
                end(&mut child);
                Err(error)
            }
        }
    }

    fn connect(child: &mut Child) -> Checked<StreamOwned<ClientConnection, TcpStream>> {
        let out = child.stdout.take().ok_or_else(|| tls("it says nothing"))?;
        let mut line = String::new();
        let what = || "connect the TLS stream".to_owned();
        BufReader::new(out).read_line(&mut line).call(what)?;
        let (port, der) = line.trim().split_once(' ').ok_or_else(|| tls(&line))?;
        let port: u16 = port.parse().map_err(tls)?;
        let der: Result<Vec<u8>, _> = der.split(',').map(str::parse).collect();
        let mut roots = RootCertStore::empty();
        roots
            .add(CertificateDer::from(der.map_err(tls)?))
            .map_err(tls)?;
        let mut config = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])
            .map_err(tls)?
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.max_fragment_size = Some(RECORD_LEN);
        let name = ServerName::try_from(NAME).map_err(tls)?;
        let connection = ClientConnection::new(Arc::new(config), name).map_err(tls)?;
        let socket = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).call(what)?;
        ready(connection, socket)
    }

    /// The other process.
    pub(super) fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    /// Moves so many bytes; those that go up have arrived when it returns.
    pub(super) fn pass(&mut self, way: Way, bytes: u64) -> Checked {
        let mut request = [0; 9];
        request[0] = way as u8;
        request[1..].copy_from_slice(&bytes.to_be_bytes());
        let what = || "ask the TLS stream".to_owned();
        self.connection.write_all(&request).call(what)?;
        match way {
            Way::Up => {
                give(&mut self.connection, bytes)?;
                take(&mut self.connection, 1)
            }
            Way::Down => {
                self.connection.flush().call(what)?;
                take(&mut self.connection, bytes)
            }
        }
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
