//! One connection to one member of an etcd: HTTP/1.1, one question at a time.

use crate::error::CallError;
use crate::place::{Host, Secrecy};
use crate::wire::Complaint;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Request, Response, StatusCode, header};
use hyper_util::rt::TokioIo;
use rustls_pki_types::ServerName;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tracing::debug;

/// How long a member may take to be reached: another one may answer sooner.
const CONNECT_TIME: Duration = Duration::from_secs(1);
/// The longest answer. A conflict shows 128 values of 64 KiB, a third longer in base64.
const ANSWER_LEN_MAX: usize = 64 << 20;
/// gRPC's numbers of what went wrong.
pub(crate) mod code {
    /// An argument is wrong.
    pub(crate) const INVALID_ARGUMENT: u32 = 3;
    /// It does not exist.
    pub(crate) const NOT_FOUND: u32 = 5;
    /// The caller may not.
    pub(crate) const PERMISSION_DENIED: u32 = 7;
    /// There is no room.
    pub(crate) const RESOURCE_EXHAUSTED: u32 = 8;
    /// The revision is not there.
    pub(crate) const OUT_OF_RANGE: u32 = 11;
    /// The caller says not who it is.
    pub(crate) const UNAUTHENTICATED: u32 = 16;
}
/// gRPC's number for a member that cannot do it now.
const UNAVAILABLE: u32 = 14;
/// What a member without a leader says to those who ask for one. It has done nothing.
const NO_LEADER: &str = "etcdserver: no leader";
/// What a member says that has more requests at hand than it takes. It has done nothing.
const TOO_MANY: &str = "etcdserver: too many requests";

/// A connection.
pub(crate) struct Connection {
    sender: SendRequest<Full<Bytes>>,
    host: String,
}

impl Connection {
    /// Connects to a member.
    pub(crate) async fn open(
        host: &Host,
        secrecy: Secrecy,
        tls: Option<&Arc<rustls::ClientConfig>>,
    ) -> Result<Self, CallError> {
        let opened = timeout(CONNECT_TIME, connect(host, secrecy, tls)).await;
        let opened = opened.unwrap_or_else(|_| Err("it does not answer".to_owned()));
        let sender = opened.map_err(|why| CallError::NotSent(format!("{host}: {why}")))?;
        let host = host.to_string();
        Ok(Self { sender, host })
    }

    /// Whether it can take a question.
    pub(crate) fn is_open(&self) -> bool {
        !self.sender.is_closed()
    }

    /// Asks, and gives the answer's text.
    pub(crate) async fn ask(&mut self, path: &str, question: &Bytes) -> Result<Bytes, CallError> {
        let answer = self.send(path, question).await?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), ANSWER_LEN_MAX);
        let body = body.collect().await;
        let body = body.map_err(|error| CallError::Unknown(format!("{}: {error}", self.host)))?;
        let body = body.to_bytes();
        if status == StatusCode::OK {
            return Ok(body);
        }
        Err(complaint(&body, status))
    }

    /// Asks for a stream of answers.
    pub(crate) async fn stream(mut self, path: &str, question: &Bytes) -> Result<Lines, CallError> {
        let answer = self.send(path, question).await?;
        if answer.status() != StatusCode::OK {
            let status = answer.status();
            let body = Limited::new(answer.into_body(), ANSWER_LEN_MAX);
            let body = body.collect().await;
            let body = body.map_err(|error| CallError::Unknown(error.to_string()))?;
            return Err(complaint(&body.to_bytes(), status));
        }
        Ok(Lines {
            body: answer.into_body(),
            read: Vec::new(),
            _sender: self.sender,
        })
    }

    async fn send(
        &mut self,
        path: &str,
        question: &Bytes,
    ) -> Result<Response<Incoming>, CallError> {
        let request = Request::post(path)
            .header(header::HOST, &self.host)
            .header(header::CONTENT_TYPE, "application/json")
            // A member that is cut off from the others refuses at once, instead of waiting for them.
            .header("Grpc-Metadata-hasleader", "true")
            .body(Full::new(question.clone()));
        let request = request.map_err(|error| CallError::NotSent(error.to_string()))?;
        // One that the server has just closed takes nothing.
        if let Err(error) = self.sender.ready().await {
            return Err(CallError::NotSent(error.to_string()));
        }
        let sent = self.sender.try_send_request(request).await;
        sent.map_err(|mut error| match error.take_message() {
            Some(_) => CallError::NotSent(error.into_error().to_string()),
            None => CallError::Unknown(format!("{}: {}", self.host, error.into_error())),
        })
    }
}

/// Why etcd did not do it.
fn complaint(body: &[u8], status: StatusCode) -> CallError {
    let Ok(said) = serde_json::from_slice::<Complaint>(body) else {
        return CallError::Unknown(format!("it answers {status}"));
    };
    refused(&said)
}

/// What a complaint means for what was asked.
pub(crate) fn refused(said: &Complaint) -> CallError {
    let message = said.message.clone();
    match said.code.max(said.grpc_code) {
        UNAVAILABLE if message == NO_LEADER => CallError::NotSent(message),
        code::RESOURCE_EXHAUSTED if message == TOO_MANY => CallError::NotSent(message),
        code @ (code::INVALID_ARGUMENT
        | code::NOT_FOUND
        | code::PERMISSION_DENIED
        | code::RESOURCE_EXHAUSTED
        | code::OUT_OF_RANGE
        | code::UNAUTHENTICATED) => CallError::Refused { code, message },
        _ => CallError::Unknown(message),
    }
}

/// Something to read from and to write to.
trait Channel: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Channel for T {}

async fn connect(
    host: &Host,
    secrecy: Secrecy,
    tls: Option<&Arc<rustls::ClientConfig>>,
) -> Result<SendRequest<Full<Bytes>>, String> {
    let found = tokio::net::lookup_host((host.name.as_str(), host.port)).await;
    let addresses: Vec<SocketAddr> = found.map_err(|error| error.to_string())?.collect();
    let abroad = addresses.iter().any(|address| !address.ip().is_loopback());
    if secrecy == Secrecy::Plain && abroad {
        return Err("it is another machine, to which nothing is said in plain text".to_owned());
    }
    let stream = TcpStream::connect(addresses.as_slice()).await;
    let stream = stream.map_err(|error| error.to_string())?;
    // Questions are short, and their answers are waited for.
    stream
        .set_nodelay(true)
        .map_err(|error| error.to_string())?;
    let channel: Box<dyn Channel> = match (secrecy, tls) {
        (Secrecy::Plain, _) => Box::new(stream),
        (Secrecy::Tls, None) => return Err("it takes certificates".to_owned()),
        (Secrecy::Tls, Some(config)) => {
            let name = ServerName::try_from(host.name.clone()).map_err(|e| e.to_string())?;
            let connector = TlsConnector::from(Arc::clone(config));
            let secured = connector.connect(name, stream).await;
            Box::new(secured.map_err(|error| error.to_string())?)
        }
    };
    let (sender, connection) = handshake(TokioIo::new(channel))
        .await
        .map_err(|error| error.to_string())?;
    // It ends with the last of its askers.
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            debug!(%error, "a connection to etcd ended");
        }
    });
    Ok(sender)
}

/// Answers that follow each other, each a line.
pub(crate) struct Lines {
    body: Incoming,
    read: Vec<u8>,
    /// The connection ends with it.
    _sender: SendRequest<Full<Bytes>>,
}

impl Lines {
    /// The next one; `None` when there are no more, or it is too long.
    ///
    /// # Cancel safety
    /// Loses nothing.
    pub(crate) async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(end) = self.read.iter().position(|byte| *byte == b'\n') {
                let rest = self.read.split_off(end + 1);
                let line = std::mem::replace(&mut self.read, rest);
                return Some(line.into());
            }
            if self.read.len() > ANSWER_LEN_MAX {
                return None;
            }
            let frame = self.body.frame().await?.ok()?;
            if let Ok(data) = frame.into_data() {
                self.read.extend_from_slice(&data);
            }
        }
    }
}
