//! Connections that keep no rule: what they show and say is up to the test. Frames as docs/PROTOCOL.md has them.

use perigee_net::{ClusterCa, ClusterId, Identity, NodeKey, PeerName};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, SignatureScheme, StreamOwned};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub const MEMBER: &[u8] = b"perigee/1";
pub const JOIN: &[u8] = b"perigee-join/1";
/// A peer that breaks a rule is gone within this; the longest patience of the product is 10 s.
const PATIENCE: Duration = Duration::from_secs(20);
const HEADER_LEN: usize = 40;

/// A certificate with its key.
pub struct Papers {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

impl Papers {
    /// Those of an identity's directory.
    pub fn load(identity: &Path) -> Self {
        let certificate = |name| CertificateDer::from_pem_file(identity.join(name)).unwrap();
        Self {
            chain: vec![certificate("node.pem"), certificate("ca.pem")],
            key: PrivateKeyDer::from_pem_file(identity.join("node.key.pem")).unwrap(),
        }
    }

    /// Those that an authority of one's own makes for `name` in `cluster`.
    pub fn forge(cluster: ClusterId, name: PeerName, at: &Path) -> Self {
        let authority = ClusterCa::create(cluster).unwrap();
        let key = NodeKey::generate().unwrap();
        let (certificate, _) = authority.issue(&key.request().unwrap(), name).unwrap();
        let identity = Identity::new(&key, &certificate, authority.certificate()).unwrap();
        std::fs::create_dir_all(at).unwrap();
        identity.save(at).unwrap();
        Self::load(at)
    }
}

/// Believes whoever answers.
#[derive(Debug)]
struct Anybody;

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        let algorithms = default_provider().signature_verification_algorithms;
        algorithms.supported_schemes()
    }
}

/// A socket that remembers what was sent through it.
pub struct Recorded {
    socket: TcpStream,
    sent: Arc<Mutex<Vec<u8>>>,
}

impl Read for Recorded {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.socket.read(into)
    }
}

impl Write for Recorded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let len = self.socket.write(bytes)?;
        self.sent.lock().unwrap().extend_from_slice(&bytes[..len]);
        Ok(len)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.socket.flush()
    }
}

/// How a connection ended.
#[derive(Debug, PartialEq, Eq)]
pub struct Rest {
    /// What came before, decrypted where there is encryption.
    pub bytes: Vec<u8>,
    /// Whether the other side has closed it.
    pub closed: bool,
}

fn rest(from: &mut impl Read) -> Rest {
    let mut bytes = Vec::new();
    let closed = match from.read_to_end(&mut bytes) {
        Ok(_) => true,
        Err(error) => !matches!(
            error.kind(),
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
        ),
    };
    Rest { bytes, closed }
}

/// A connection, with what it takes to say anything over it.
pub struct Rogue {
    tls: StreamOwned<ClientConnection, Recorded>,
    sent: Arc<Mutex<Vec<u8>>>,
}

fn open(address: SocketAddr) -> TcpStream {
    let socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.set_write_timeout(Some(PATIENCE)).unwrap();
    socket.set_nodelay(true).unwrap();
    socket
}

impl Rogue {
    /// Begins TLS 1.3; the handshake itself goes with the first bytes.
    pub fn connect(address: SocketAddr, papers: Option<&Papers>, protocols: &[&[u8]]) -> Self {
        let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Anybody));
        let mut config = match papers {
            Some(papers) => config
                .with_client_auth_cert(papers.chain.clone(), papers.key.clone_key())
                .unwrap(),
            None => config.with_no_client_auth(),
        };
        config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        let name = ServerName::try_from("n1.perigee").unwrap();
        let session = ClientConnection::new(Arc::new(config), name).unwrap();
        let sent = Arc::default();
        let socket = Recorded {
            socket: open(address),
            sent: Arc::clone(&sent),
        };
        Self {
            tls: StreamOwned::new(session, socket),
            sent,
        }
    }

    /// A member's connection that was welcome.
    pub fn enter(
        address: SocketAddr,
        papers: &Papers,
        cluster: ClusterId,
        incarnation: u64,
    ) -> Self {
        let mut rogue = Self::connect(address, Some(papers), &[MEMBER]);
        rogue.say(&hello(cluster, 1, incarnation)).unwrap();
        let answer = rogue.hear().unwrap();
        assert_eq!((answer.kind, answer.body[0]), (1, 0), "not welcome");
        rogue
    }

    pub fn say(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.tls.write_all(bytes)?;
        self.tls.flush()
    }

    /// The next frame.
    pub fn hear(&mut self) -> io::Result<Frame> {
        let mut header = [0; HEADER_LEN];
        self.tls.read_exact(&mut header)?;
        let number = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().unwrap());
        let mut body = vec![0; number(28) as usize + number(32) as usize];
        self.tls.read_exact(&mut body)?;
        body.truncate(number(28) as usize);
        Ok(Frame {
            kind: header[1],
            flags: header[2],
            method: u16::from_le_bytes([header[4], header[5]]),
            body,
        })
    }

    /// The next frame that is no ping.
    pub fn answer(&mut self) -> io::Result<Frame> {
        loop {
            let frame = self.hear()?;
            if !matches!(frame.kind, PING | PONG) {
                return Ok(frame);
            }
        }
    }

    /// Everything until the end.
    pub fn rest(&mut self) -> Rest {
        rest(&mut self.tls)
    }

    /// Everything that was sent so far, as it was on the wire.
    pub fn captured(&self) -> Vec<u8> {
        self.sent.lock().unwrap().clone()
    }
}

/// What is answered to bytes that are no handshake.
pub fn answer_to(address: SocketAddr, bytes: &[u8]) -> Rest {
    let mut socket = open(address);
    // it may be closed before all is read
    _ = socket.write_all(bytes);
    _ = socket.shutdown(std::net::Shutdown::Write);
    rest(&mut socket)
}

/// The first message of TLS 1.2: no extension offers anything later.
pub fn hello_of_tls_12() -> Vec<u8> {
    let mut hello = vec![3, 3];
    hello.extend([7; 32]);
    // no session, one suite (ECDHE-ECDSA-AES128-GCM-SHA256), no compression
    hello.extend([0, 0, 2, 0xc0, 0x2b, 1, 0]);
    // groups: P-256; points: uncompressed; signatures: ECDSA with SHA-256
    let extensions = [
        &[0, 10, 0, 4, 0, 2, 0, 23][..],
        &[0, 11, 0, 2, 1, 0],
        &[0, 13, 0, 4, 0, 2, 4, 3],
    ]
    .concat();
    hello.extend([0, extensions.len() as u8]);
    hello.extend(extensions);
    let len = hello.len() as u8;
    [&[0x16, 3, 1, 0, len + 4, 1, 0, 0, len], &hello[..]].concat()
}

pub const CALL: u8 = 2;
pub const CAST: u8 = 4;
const PING: u8 = 6;
const PONG: u8 = 7;
/// Of an answer: the service refused, and the method is the reason.
pub const REFUSED: u8 = 1;

/// A frame that was heard.
#[derive(Debug)]
pub struct Frame {
    pub kind: u8,
    pub flags: u8,
    /// Of a refusal: the reason.
    pub method: u16,
    pub body: Vec<u8>,
}

/// A frame to say.
pub fn frame(kind: u8, method: u16, id: u64, body: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut header = [0; HEADER_LEN];
    header[0] = 1;
    header[1] = kind;
    header[3] = 1;
    header[4..6].copy_from_slice(&method.to_le_bytes());
    header[8..16].copy_from_slice(&id.to_le_bytes());
    header[24..28].copy_from_slice(&10_000_u32.to_le_bytes());
    header[28..32].copy_from_slice(&(body.len() as u32).to_le_bytes());
    header[32..36].copy_from_slice(&(payload.len() as u32).to_le_bytes());
    let sum = crc32c::crc32c(&[body, payload, &header[..36]].concat());
    header[36..].copy_from_slice(&sum.to_le_bytes());
    [&header, body, payload].concat()
}

/// The first frame of a connection.
pub fn hello(cluster: ClusterId, lane: u8, incarnation: u64) -> Vec<u8> {
    // From the first to the last version that it speaks.
    let mut body = Vec::new();
    body.extend(perigee_net::PROTOCOL.start().to_le_bytes());
    body.extend(perigee_net::PROTOCOL.end().to_le_bytes());
    body.push(lane);
    body.extend(cluster.0.to_le_bytes());
    body.extend(incarnation.to_le_bytes());
    frame(1, 0, 0, &body, &[])
}
