//! Joining: the one request that may be made without a certificate.
//!
//! The client knows the cluster by the fingerprint in its token; the cluster knows the client by the token's secret, which
//! is part of the request and which the service checks. One request and one answer, both bounded, then the end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use perigee_proto::Priority;
use rustls_pki_types::ServerName;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tracing::{Instrument, info_span};

use crate::audit::AUDIT;
use crate::channel::{FrameReader, FrameWriter};
use crate::error::{CallError, ConnectError, Ended, Fault, JoinError, Refusal};
use crate::frame::{Bounds, FLAG_FAULT, FLAG_REFUSED, Frame, Kind};
use crate::hello::{Hello, LaneName};
use crate::identity::{JoinToken, PeerName};
use crate::inbound::within;
use crate::lane::{connect_tls, say_hello};
use crate::limits::PROTOCOL;
use crate::queue::Outgoing;
use crate::replies::Outcome;
use crate::service::{Answer, Call};
use crate::shared::Shared;
use crate::stats::PeerCounters;
use crate::tls::{ALPN_JOIN, join_config};

/// A certificate request and a token's secret take 2 KiB; the answer holds two certificates and what a node must know.
const BOUNDS: Bounds = Bounds {
    body_max: 64 << 10,
    payload_max: 0,
};
/// From connecting to the answer.
const TIME_MAX: Duration = Duration::from_secs(10);

/// Serves the request of one connection. Lines that the service logs meanwhile say whence it came.
pub(crate) async fn serve(
    shared: &Shared,
    address: SocketAddr,
    mut reader: FrameReader,
    mut writer: FrameWriter,
) -> Ended {
    reader.set_bounds(BOUNDS);
    let request = within(TIME_MAX, reader.next(TIME_MAX, TIME_MAX, || {}));
    let frame = match request.await {
        Ok(frame) if frame.header.kind == Kind::Call => frame,
        Ok(frame) => return Ended::Unexpected(frame.header.kind),
        Err(ended) => return ended,
    };
    let id = frame.header.id;
    let call = Call {
        method: frame.header.method,
        body: frame.body,
        payload: frame.payload,
    };
    let service = Arc::clone(&shared.service);
    let inside = shared.runs.enter();
    // a task of its own: a certificate that is being issued is issued, whatever becomes of the connection
    let work = async move {
        let deadline = Instant::now() + TIME_MAX;
        let outcome = service.call(PeerName::Joining, call, deadline).await;
        drop(inside);
        outcome
    };
    let work = tokio::spawn(work.instrument(info_span!(target: AUDIT, "joining", %address)));
    let outcome = match work.await {
        Err(_panicked) => Outcome::Fault(Fault::Failed),
        Ok(Ok(answer)) if answer.body.len() > BOUNDS.body_max || !answer.payload.is_empty() => {
            Outcome::Fault(Fault::AnswerTooLarge)
        }
        Ok(Ok(answer)) => Outcome::Answered(answer),
        Ok(Err(refusal)) => Outcome::Refused(refusal),
    };
    let answer = outcome.frame(id, Priority::Control);
    let sent = within(TIME_MAX, writer.send(&[answer], 0, TIME_MAX)).await;
    writer.say_goodbye();
    sent.err().unwrap_or(Ended::Closed)
}

/// Sends `request` to the cluster of `token` and returns its answer. The token's secret is not added: put
/// [`JoinToken::secret`] into the request's body.
///
/// # Errors
/// [`JoinError::Lost`] leaves open whether the token is used up; every other error but a refusal means that nothing was
/// asked.
pub async fn join(token: &JoinToken, request: Call) -> Result<Answer, JoinError> {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    if token.is_expired(now.as_secs()) {
        return Err(JoinError::Expired);
    }
    let len = request.body.len() + request.payload.len();
    if len > BOUNDS.body_max || !request.payload.is_empty() {
        return Err(JoinError::TooLarge {
            len,
            max: BOUNDS.body_max,
        });
    }
    let mut last = ConnectError::NoAddress;
    for address in &token.addresses {
        let opened = timeout(TIME_MAX, connect(token, *address)).await;
        match opened.unwrap_or(Err(ConnectError::Timeout)) {
            Ok((reader, writer)) => return ask(reader, writer, request).await,
            Err(cause) => last = cause,
        }
    }
    Err(JoinError::Unreachable(last))
}

async fn connect(
    token: &JoinToken,
    address: std::net::SocketAddr,
) -> Result<(FrameReader, FrameWriter), ConnectError> {
    let tls = |detail: String| ConnectError::Tls { detail };
    let config =
        join_config(token.cluster, token.fingerprint).map_err(|error| tls(error.to_string()))?;
    let dns = PeerName::Control.dns(token.cluster).unwrap_or_default();
    let server = ServerName::try_from(dns).map_err(|error| tls(error.to_string()))?;
    let counters = Arc::new(PeerCounters::default());
    let connector = TlsConnector::from(config);
    let (mut reader, mut writer, _) =
        connect_tls(address, connector, server, ALPN_JOIN, &counters).await?;
    let hello = Hello {
        versions: PROTOCOL,
        lane: LaneName::Join,
        cluster: token.cluster,
        incarnation: 0,
    };
    say_hello(&mut reader, &mut writer, &hello, TIME_MAX).await?;
    reader.set_bounds(BOUNDS);
    Ok((reader, writer))
}

async fn ask(
    mut reader: FrameReader,
    mut writer: FrameWriter,
    request: Call,
) -> Result<Answer, JoinError> {
    let mut frame = Outgoing::new(Kind::Call, Priority::Control, request.method, 1)
        .with_content(request.body, request.payload);
    frame.deadline = Some(Instant::now() + TIME_MAX);
    let exchange = async {
        writer.send(&[frame], 0, TIME_MAX).await?;
        reader.next(TIME_MAX, TIME_MAX, || {}).await
    };
    let answer: Frame = within(TIME_MAX, exchange)
        .await
        .map_err(|_| JoinError::Lost)?;
    match (answer.header.kind, answer.header.flags) {
        (Kind::Answer, 0) => Ok(Answer {
            body: answer.body,
            payload: answer.payload,
        }),
        (Kind::Answer, FLAG_REFUSED) => Err(JoinError::Refused(Refusal {
            code: answer.header.method,
            detail: answer.body,
        })),
        (Kind::Answer, FLAG_FAULT) => {
            let fault: CallError = Fault::error(answer.header.method);
            tracing::debug!(%fault, "join failed");
            Err(JoinError::Lost)
        }
        _ => Err(JoinError::Lost),
    }
}
