//! The calling side: one connection to one peer, opened when there is something to send, and opened again when it is
//! lost.

use parking_lot::Mutex;
use perigee_proto::Priority;
use perigee_types::Rng;
use rustls_pki_types::ServerName;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio::select;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout, timeout_at};
use tokio_rustls::TlsConnector;

use crate::calls::{Calls, Progress};
use crate::channel::{self, FrameReader, FrameWriter};
use crate::connection::{self, Leaving};
use crate::error::{CallError, ConnectError, Ended};
use crate::frame::Kind;
use crate::hello::{self, Hello, HelloAnswer, LaneName};
use crate::identity::{PeerName, Serial, subject_of};
use crate::outlet;
use crate::queue::{Haste, Outgoing, SendQueue};
use crate::service::{Answer, Call, CallOptions};
use crate::shared::Shared;
use crate::stats::PeerCounters;
use crate::tls::ALPN_MEMBER;

pub(crate) struct Lane {
    shared: Arc<Shared>,
    peer: PeerName,
    name: LaneName,
    queue: SendQueue,
    calls: Arc<Calls>,
    state: Mutex<State>,
    address_changed: Notify,
    counters: Arc<PeerCounters>,
}

#[derive(Debug, Clone)]
enum State {
    /// Nothing was sent yet, or a connection is being opened for the first time since the last loss.
    Idle,
    Connected,
    Unreachable(ConnectError),
}

struct Opened {
    reader: FrameReader,
    writer: FrameWriter,
    serial: Serial,
    incarnation: u64,
}

impl Lane {
    pub(crate) fn new(shared: Arc<Shared>, peer: PeerName, name: LaneName) -> Arc<Self> {
        Arc::new(Self {
            counters: shared.counters.peer(peer),
            queue: SendQueue::new(shared.limits.queue_bytes_max),
            shared,
            peer,
            name,
            calls: Arc::default(),
            state: Mutex::new(State::Idle),
            address_changed: Notify::new(),
        })
    }

    pub(crate) fn queue_bytes(&self) -> usize {
        self.queue.bytes()
    }

    pub(crate) fn is_connected(&self) -> bool {
        matches!(*self.state.lock(), State::Connected)
    }

    /// How many calls have no answer yet.
    pub(crate) fn load(&self) -> usize {
        self.calls.len()
    }

    pub(crate) fn on_address_changed(&self) {
        self.address_changed.notify_one();
    }

    pub(crate) fn cast(&self, call: Call, priority: Priority) {
        let frame = Outgoing::new(Kind::Cast, priority, call.method, 0)
            .with_content(call.body, call.payload);
        let dropped = self.queue.push_cast(frame);
        connection::count_dropped_casts(&self.counters, dropped);
    }

    /// Sees to it that there is a connection, if one can be made.
    pub(crate) fn reach(&self) {
        if !self.is_connected() && self.queue.is_empty() {
            // Its answer measures nothing: it may wait for long before it leaves.
            let ping = Outgoing::new(Kind::Ping, Priority::Control, 0, u64::MAX);
            self.queue.push(ping, Haste::Company);
        }
    }

    pub(crate) async fn call(
        &self,
        call: Call,
        options: &CallOptions,
    ) -> Result<Answer, CallError> {
        let asked = Instant::now();
        let deadline = options.deadline_from(asked);
        let begun = self
            .calls
            .begin(call, deadline, options.priority, options.retry)?;
        let given_up = GiveUp {
            lane: self,
            id: begun.id,
            priority: options.priority,
        };
        let haste = connection::haste(self.shared.merging, begun.open);
        let (frame, mut answer) = (begun.frame, begun.answer);
        let waiting = async {
            select! {
                biased;
                early = &mut answer => return early,
                () = self.queue.push_when_room(frame, haste) => {}
            }
            answer.await
        };
        let outcome = timeout_at(deadline.into(), waiting).await;
        self.counters.on_call(asked.elapsed());
        match outcome {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_)) => Err(CallError::Closed),
            Err(_) => Err(self.late(given_up.give_up())),
        }
    }

    /// Why a call has no answer at its deadline.
    fn late(&self, progress: Progress) -> CallError {
        let cause = match &*self.state.lock() {
            _ if progress != Progress::Unsent => return CallError::DeadlineExceeded,
            State::Connected => return CallError::DeadlineExceeded,
            State::Unreachable(cause) => cause.clone(),
            State::Idle => ConnectError::Timeout,
        };
        CallError::Unreachable {
            peer: self.peer,
            cause,
        }
    }

    /// The lane's task: runs until the network stops.
    pub(crate) async fn run(self: Arc<Self>) {
        let shared = Arc::clone(&self.shared);
        select! {
            // first, so that an open connection is closed properly
            biased;
            () = self.keep_connected() => {}
            () = shared.stopped() => {}
        }
        self.calls.close();
        connection::count_dropped_casts(&self.counters, self.queue.drop_casts());
    }

    async fn keep_connected(&self) {
        let limits = &self.shared.limits;
        let mut pause = limits.backoff_min;
        let mut rng = Rng::new(self.shared.incarnation);
        loop {
            self.work().await;
            let began = match self.connect().await {
                Ok(opened) => {
                    let began = Instant::now();
                    self.serve(opened).await;
                    Some(began)
                }
                Err(cause) => {
                    self.on_unreachable(cause);
                    None
                }
            };
            if began.is_some_and(|began| began.elapsed() > limits.backoff_max) {
                pause = limits.backoff_min;
                continue;
            }
            // half of it by chance, so that peers who lost the same process do not come back as one
            let half = u64::try_from(pause.as_micros() / 2).unwrap_or(u64::MAX);
            select! {
                () = sleep(Duration::from_micros(half + rng.below(half + 1))) => {}
                () = self.address_changed.notified() => {}
            }
            pause = (pause * 2).min(limits.backoff_max);
        }
    }

    /// Returns when there is something to send or to repeat.
    async fn work(&self) {
        while self.queue.is_empty() && self.calls.is_empty() {
            self.queue.ready().await;
        }
    }

    fn on_unreachable(&self, cause: ConnectError) {
        tracing::debug!(peer = %self.peer, %cause, "cannot connect");
        connection::count_dropped_casts(&self.counters, self.queue.drop_casts());
        self.queue.retain(|frame| frame.kind != Kind::Ping);
        for (priority, id) in self.calls.on_unreachable(self.peer, &cause) {
            self.queue.withdraw(priority, id);
        }
        *self.state.lock() = State::Unreachable(cause);
        self.shared.on_unreachable(self.peer);
    }

    async fn connect(&self) -> Result<Opened, ConnectError> {
        let address = self.shared.addresses.read().get(&self.peer).copied();
        let address = address.ok_or(ConnectError::NoAddress)?;
        timeout(
            self.shared.limits.handshake_timeout,
            self.shake_hands(address),
        )
        .await
        .map_err(|_| ConnectError::Timeout)?
    }

    async fn shake_hands(&self, address: SocketAddr) -> Result<Opened, ConnectError> {
        let shared = &self.shared;
        let dns = self
            .peer
            .dns(shared.cluster)
            .ok_or(ConnectError::NoAddress)?;
        let server = ServerName::try_from(dns).map_err(|error| ConnectError::Tls {
            detail: error.to_string(),
        })?;
        let connector = TlsConnector::from(Arc::clone(&shared.client_tls));
        let (mut reader, mut writer, serial) =
            connect_tls(address, connector, server, ALPN_MEMBER, &self.counters).await?;
        if shared.is_revoked(&serial) {
            return Err(ConnectError::Revoked);
        }
        let hello = Hello {
            versions: shared.protocol.clone(),
            lane: self.name,
            cluster: shared.cluster,
            incarnation: shared.incarnation,
        };
        let patience = shared.limits.handshake_timeout;
        say_hello(&mut reader, &mut writer, &hello, patience)
            .await
            .map(|incarnation| {
                reader.set_bounds(shared.limits.bounds());
                Opened {
                    reader,
                    writer,
                    serial,
                    incarnation,
                }
            })
    }

    async fn serve(&self, opened: Opened) {
        let incarnation = opened.incarnation;
        let registered = self.shared.register(self.peer, opened.serial);
        *self.state.lock() = State::Connected;
        let repeats = self.calls.on_connected(incarnation);
        self.counters
            .calls_repeated
            .fetch_add(repeats.len() as u64, Relaxed);
        self.queue.push_front(repeats.into_iter());
        let leaving = LeavingCalls {
            calls: Arc::clone(&self.calls),
            incarnation,
        };
        let (mut reader, wire) = (opened.reader, opened.writer.wire());
        let (queue, counters) = (&self.queue, Arc::clone(&self.counters));
        let open = outlet::Open::new(opened.writer, Box::new(leaving), counters);
        queue.outlet().put(open);
        let ended = select! {
            ended = self.read(&mut reader) => ended,
            ended = connection::write(&self.shared, queue) => ended,
            ended = connection::ping(&self.shared, queue) => ended,
            ended = registered.cut() => ended,
            () = self.shared.stopped() => Ended::Shutdown,
        };
        // from here on nothing is sent by anybody
        queue.outlet().close();
        wire.say_goodbye();
        *self.state.lock() = State::Idle;
        self.shared.on_end(self.peer, &ended);
        // what belongs to this connection goes with it; calls that are still queued were not sent, and repeats will be
        // made anew
        self.queue.retain(|frame| match frame.kind {
            Kind::Cast => true,
            Kind::Call => frame.flags == 0,
            Kind::Hello | Kind::Answer | Kind::Cancel | Kind::Ping | Kind::Pong => false,
        });
        self.calls.on_lost();
        drop(registered);
    }

    async fn read(&self, reader: &mut FrameReader) -> Ended {
        let limits = &self.shared.limits;
        loop {
            let next = reader.next(limits.idle_timeout, limits.frame_timeout, || {
                self.queue.wake()
            });
            match next.await {
                Err(ended) => return ended,
                Ok(frame) => match frame.header.kind {
                    Kind::Answer => self.calls.on_answer(frame),
                    Kind::Ping | Kind::Pong => {
                        connection::on_ping_or_pong(
                            &self.shared,
                            &self.queue,
                            (self.peer, &self.counters),
                            &frame,
                        );
                    }
                    Kind::Hello | Kind::Call | Kind::Cast | Kind::Cancel => {
                        return Ended::Unexpected(frame.header.kind);
                    }
                },
            }
        }
    }
}

struct LeavingCalls {
    calls: Arc<Calls>,
    incarnation: u64,
}

impl Leaving for LeavingCalls {
    fn before_sending(&self, frame: &Outgoing) -> bool {
        frame.kind != Kind::Call || self.calls.before_sending(frame.id, self.incarnation)
    }

    fn watermark(&self) -> u64 {
        self.calls.watermark()
    }
}

/// Gives a call up when its future is dropped or its time is over.
struct GiveUp<'a> {
    lane: &'a Lane,
    id: u64,
    priority: Priority,
}

impl GiveUp<'_> {
    fn give_up(&self) -> Progress {
        let progress = self.lane.calls.abandon(self.id);
        match progress {
            Progress::Answered => {}
            Progress::Unsent => {
                self.lane.queue.withdraw(self.priority, self.id);
            }
            Progress::Sent => {
                if matches!(*self.lane.state.lock(), State::Connected) {
                    let cancel = Outgoing::new(Kind::Cancel, self.priority, 0, self.id);
                    self.lane.queue.push(cancel, Haste::Company);
                }
            }
        }
        progress
    }
}

impl Drop for GiveUp<'_> {
    fn drop(&mut self) {
        self.give_up();
    }
}

/// Opens a connection and its TLS session, ready for hello.
pub(crate) async fn connect_tls(
    address: SocketAddr,
    connector: TlsConnector,
    server: ServerName<'static>,
    alpn: &[u8],
    counters: &Arc<PeerCounters>,
) -> Result<(FrameReader, FrameWriter, Serial), ConnectError> {
    let socket = TcpStream::connect(address).await.map_err(failed)?;
    socket.set_nodelay(true).map_err(failed)?;
    let stream = connector.connect(server, socket).await.map_err(failed)?;
    let (socket, session) = stream.into_inner();
    if session.alpn_protocol() != Some(alpn) {
        return Err(ConnectError::Protocol {
            detail: "no common protocol".to_owned(),
        });
    }
    let certificate = session.peer_certificates().and_then(|chain| chain.first());
    let subject = certificate
        .map(subject_of)
        .transpose()
        .map_err(|error| ConnectError::Tls {
            detail: error.to_string(),
        })?
        .ok_or_else(|| ConnectError::Tls {
            detail: "no certificate".to_owned(),
        })?;
    let session = rustls::Connection::Client(session);
    let (reader, writer) =
        channel::open(socket, session, hello::BOUNDS, Arc::clone(counters)).map_err(ended)?;
    Ok((reader, writer, subject.serial))
}

/// Exchanges hellos. Gives the peer's incarnation.
pub(crate) async fn say_hello(
    reader: &mut FrameReader,
    writer: &mut FrameWriter,
    hello: &Hello,
    patience: Duration,
) -> Result<u64, ConnectError> {
    let sent = writer.send(&[hello.frame()], 0, patience).await;
    // a listener that refused our certificate has said so before it closed: its alert is the better reason
    let answer = reader
        .next(patience, patience, || {})
        .await
        .map_err(ended)?;
    sent.map_err(ended)?;
    HelloAnswer::read(&answer, &hello.versions)
}

fn failed(error: io::Error) -> ConnectError {
    match error
        .get_ref()
        .and_then(|inner| inner.downcast_ref::<rustls::Error>())
    {
        Some(tls) => ConnectError::Tls {
            detail: tls.to_string(),
        },
        None => ConnectError::Io {
            kind: error.kind(),
            detail: error.to_string(),
        },
    }
}

fn ended(ended: Ended) -> ConnectError {
    match ended {
        Ended::Tls(detail) => ConnectError::Tls { detail },
        Ended::Io(kind) => ConnectError::Io {
            kind,
            detail: kind.to_string(),
        },
        other => ConnectError::Protocol {
            detail: other.to_string(),
        },
    }
}
