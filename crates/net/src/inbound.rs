//! The listening side: who may come in, and what runs for them.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tokio::net::{TcpListener, TcpStream};
use tokio::select;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tracing::warn;

use crate::budget::Charge;
use crate::callers::{Callers, Seat};
use crate::channel::{self, FrameReader, FrameWriter};
use crate::connection::{self, Leaving};
use crate::error::{Ended, Fault};
use crate::frame::{Frame, Kind};
use crate::hello::{self, Hello, HelloAnswer, LaneName, Verdict, common_version};
use crate::identity::{PeerName, Subject, subject_of};
use crate::join;
use crate::outlet;
use crate::queue::{Haste, Outgoing, SendQueue};
use crate::replies::{Admission, Outcome};
use crate::service::Call;
use crate::shared::Shared;
use crate::stats::PeerCounters;
use crate::tls::{ALPN_JOIN, ALPN_MEMBER};

/// What a bulk request costs of its peer's budget at least: it may be short, but its answer is not. A thousand may run at
/// the default bound.
const BULK_CHARGE_MIN: usize = 64 << 10;

pub(crate) struct Listener {
    pub(crate) shared: Arc<Shared>,
    pub(crate) socket: TcpListener,
}

struct Door {
    shared: Arc<Shared>,
    callers: Arc<Callers>,
    handshakes: AtomicUsize,
}

impl Listener {
    /// The listener's task: runs until the network stops.
    pub(crate) async fn run(self) {
        let door = Arc::new(Door {
            shared: Arc::clone(&self.shared),
            callers: Arc::default(),
            handshakes: AtomicUsize::new(0),
        });
        loop {
            let accepted = select! {
                () = self.shared.stopped() => return,
                accepted = self.socket.accept() => accepted,
            };
            match accepted {
                Ok((socket, address)) => door.admit(socket, address),
                Err(error) => {
                    // out of descriptors, or a connection that broke before it was taken
                    warn!(%error, "cannot accept a connection");
                    sleep(Duration::from_millis(20)).await;
                }
            }
        }
    }
}

/// One of the handshakes that may go on at a time.
struct Handshake(Arc<Door>);

impl Drop for Handshake {
    fn drop(&mut self) {
        self.0.handshakes.fetch_sub(1, Relaxed);
    }
}

/// A connection that has said hello.
enum Entered {
    Member(Box<Member>),
    Joining(Box<(FrameReader, FrameWriter)>),
}

struct Member {
    reader: FrameReader,
    writer: FrameWriter,
    subject: Subject,
    lane: LaneName,
    seat: Seat,
}

impl Door {
    fn admit(self: &Arc<Self>, socket: TcpStream, address: SocketAddr) {
        let handshake = Handshake(Arc::clone(self));
        if self.handshakes.fetch_add(1, Relaxed) >= self.shared.limits.handshakes_max {
            let (who, reason) = (PeerName::Joining, Ended::TooManyHandshakes);
            return self.shared.on_refused(who, address, &reason);
        }
        let inside = self.shared.tasks.enter();
        let door = Arc::clone(self);
        tokio::spawn(async move {
            let shared = &door.shared;
            select! {
                // first, so that an open connection is closed properly
                biased;
                () = door.host(socket, address, handshake) => {}
                () = shared.stopped() => {}
            }
            drop(inside);
        });
    }

    async fn host(&self, socket: TcpStream, address: SocketAddr, handshake: Handshake) {
        let shared = &self.shared;
        // before the certificate says who it is, it is counted as somebody who joins
        let mut who = PeerName::Joining;
        let entered = timeout(
            shared.limits.handshake_timeout,
            self.shake_hands(socket, &mut who),
        );
        let entered = match entered.await {
            Ok(Ok(entered)) => entered,
            Ok(Err(ended)) => return shared.on_refused(who, address, &ended),
            Err(_) => return shared.on_refused(who, address, &Ended::HandshakeTimeout),
        };
        let ended = match entered {
            Entered::Member(member) => {
                drop(handshake);
                self.serve(*member).await
            }
            // its place among the handshakes is kept: who joins is not authenticated
            Entered::Joining(halves) => join::serve(shared, address, halves.0, halves.1).await,
        };
        match ended {
            Ended::Revoked => shared.on_refused(who, address, &ended),
            ended => shared.on_end(who, &ended),
        }
    }

    async fn shake_hands(&self, socket: TcpStream, who: &mut PeerName) -> Result<Entered, Ended> {
        let shared = &self.shared;
        socket
            .set_nodelay(true)
            .map_err(|error| Ended::Io(error.kind()))?;
        let acceptor = TlsAcceptor::from(Arc::clone(&shared.server_tls));
        let stream = acceptor
            .accept(socket)
            .await
            .map_err(|error| Ended::Tls(error.to_string()))?;
        let (socket, session) = stream.into_inner();
        let alpn = session.alpn_protocol().map(<[u8]>::to_vec);
        let subject = session
            .peer_certificates()
            .and_then(|chain| chain.first())
            .map(subject_of)
            .transpose()
            .map_err(|error| Ended::WrongName(error.to_string()))?;
        let subject = match alpn.as_deref() {
            Some(ALPN_JOIN) => None,
            Some(ALPN_MEMBER) => Some(subject.ok_or(Ended::NoCertificate)?),
            _ => return Err(Ended::Tls("no common protocol".to_owned())),
        };
        if let Some(subject) = &subject {
            if subject.cluster != shared.cluster || subject.name == shared.name {
                return Err(Ended::WrongName(subject.name.to_string()));
            }
            if shared.is_revoked(&subject.serial) {
                return Err(Ended::Revoked);
            }
            *who = subject.name;
        }
        let counters = shared.counters.peer(*who);
        let session = rustls::Connection::Server(session);
        let (reader, writer) = channel::open(socket, session, hello::BOUNDS, counters)?;
        self.exchange_hello(reader, writer, subject).await
    }

    async fn exchange_hello(
        &self,
        mut reader: FrameReader,
        mut writer: FrameWriter,
        subject: Option<Subject>,
    ) -> Result<Entered, Ended> {
        let shared = &self.shared;
        let patience = shared.limits.handshake_timeout;
        let hello = Hello::read(&reader.next(patience, patience, || {}).await?)?;
        let answer = |verdict| HelloAnswer {
            verdict,
            versions: shared.protocol.clone(),
            incarnation: shared.incarnation,
        };
        let refusal = if common_version(&shared.protocol, &hello.versions).is_none() {
            Some((Verdict::Version, "versions do not overlap"))
        } else if hello.cluster != shared.cluster {
            Some((Verdict::OtherCluster, "another cluster"))
        } else {
            None
        };
        if let Some((verdict, reason)) = refusal {
            writer.send(&[answer(verdict).frame()], 0, patience).await?;
            writer.say_goodbye();
            return Err(Ended::Hello(reason));
        }
        let Some(subject) = subject else {
            if hello.lane != LaneName::Join {
                return Err(Ended::Hello("a lane for members"));
            }
            writer
                .send(&[answer(Verdict::Welcome).frame()], 0, patience)
                .await?;
            return Ok(Entered::Joining(Box::new((reader, writer))));
        };
        if hello.lane == LaneName::Join {
            return Err(Ended::Hello("a lane for joining"));
        }
        let limits = &shared.limits;
        let (budget, kept) = (limits.in_flight_bytes_max, limits.reply_bytes_max);
        let seat = self
            .callers
            .sit(subject.name, hello.lane, hello.incarnation, budget, kept);
        let Ok(mut seat) = seat else {
            let verdict = answer(Verdict::Superseded);
            writer.send(&[verdict.frame()], 0, patience).await?;
            writer.say_goodbye();
            return Err(Ended::Hello("a forgotten process"));
        };
        // the peer calls only after the welcome, and the welcome comes only after its old connection has ended
        seat.free().await;
        writer
            .send(&[answer(Verdict::Welcome).frame()], 0, patience)
            .await?;
        reader.set_bounds(limits.bounds());
        Ok(Entered::Member(Box::new(Member {
            reader,
            writer,
            subject,
            lane: hello.lane,
            seat,
        })))
    }

    async fn serve(&self, member: Member) -> Ended {
        let shared = &self.shared;
        let peer = member.subject.name;
        let registered = shared.register(peer, member.subject.serial);
        let host = Host {
            shared: Arc::clone(shared),
            peer,
            charge_min: match member.lane {
                LaneName::Bulk(_) => BULK_CHARGE_MIN,
                LaneName::Urgent | LaneName::Join => 0,
            },
            queue: Arc::new(SendQueue::new(shared.limits.queue_bytes_max)),
            counters: shared.counters.peer(peer),
            seat: member.seat,
        };
        let (mut reader, wire) = (member.reader, member.writer.wire());
        let (queue, counters) = (&host.queue, Arc::clone(&host.counters));
        let open = outlet::Open::new(member.writer, Box::new(Answers), counters);
        queue.outlet().put(open);
        let attached = Attached::new(&host);
        let ended = select! {
            ended = host.read(&mut reader) => ended,
            ended = connection::write(shared, queue) => ended,
            ended = connection::ping(shared, queue) => ended,
            ended = registered.cut() => ended,
            () = host.seat.replaced() => Ended::Replaced,
            () = shared.stopped() => Ended::Shutdown,
        };
        drop(attached);
        wire.say_goodbye();
        ended
    }
}

/// Answers go to a connection, for as long as this is there: also when the service has panicked.
struct Attached<'a>(&'a Host);

impl<'a> Attached<'a> {
    fn new(host: &'a Host) -> Self {
        host.seat.replies.attach(Arc::clone(&host.queue));
        Self(host)
    }
}

impl Drop for Attached<'_> {
    fn drop(&mut self) {
        self.0.seat.replies.detach(&self.0.queue);
        self.0.queue.outlet().close();
    }
}

/// Answers leave as they are.
struct Answers;

impl Leaving for Answers {
    fn before_sending(&self, _frame: &Outgoing) -> bool {
        true
    }

    fn watermark(&self) -> u64 {
        0
    }
}

/// One connection of one peer.
struct Host {
    shared: Arc<Shared>,
    peer: PeerName,
    charge_min: usize,
    queue: Arc<SendQueue>,
    counters: Arc<PeerCounters>,
    seat: Seat,
}

impl Host {
    async fn read(&self, reader: &mut FrameReader) -> Ended {
        let limits = &self.shared.limits;
        loop {
            self.seat.budget.room().await;
            let next = reader.next(limits.idle_timeout, limits.frame_timeout, || {
                self.queue.wake()
            });
            let frame = match next.await {
                Ok(frame) => frame,
                Err(ended) => return ended,
            };
            self.seat.replies.acknowledge(frame.header.acknowledged);
            match frame.header.kind {
                Kind::Call => self.on_call(frame),
                Kind::Cast => self.shared.service.cast(self.peer, into_call(frame)),
                Kind::Cancel => self.seat.replies.cancel(frame.header.id),
                Kind::Ping | Kind::Pong => {
                    let peer = (self.peer, &self.counters);
                    connection::on_ping_or_pong(&self.shared, &self.queue, peer, &frame);
                }
                Kind::Hello | Kind::Answer => return Ended::Unexpected(frame.header.kind),
            }
        }
    }

    fn on_call(&self, frame: Frame) {
        let (id, priority) = (frame.header.id, frame.header.priority);
        let budget = &self.seat.budget;
        match self.seat.replies.admit(id, priority) {
            Admission::Running => return,
            Admission::Answered(mut answer) => {
                answer.charge = Some(budget.charge(answer.len()));
                return self.queue.push(answer, Haste::Company);
            }
            Admission::Run => {}
        }
        let charge = budget.charge(frame.len().max(self.charge_min));
        let running = Running {
            shared: Arc::clone(&self.shared),
            replies: Arc::clone(&self.seat.replies),
            budget: Arc::clone(budget),
            charge: Some(charge),
            id,
            priority,
            counters: Arc::clone(&self.counters),
            came: Instant::now(),
        };
        if frame.header.deadline_ms == 0 {
            return running.finish(Outcome::Fault(Fault::Late));
        }
        let deadline = running.came + Duration::from_millis(frame.header.deadline_ms.into());
        let inside = self.shared.runs.enter();
        let peer = self.peer;
        tokio::spawn(async move {
            let work = running
                .shared
                .service
                .call(peer, into_call(frame), deadline);
            let outcome = match work.await {
                Ok(answer) => Outcome::Answered(answer),
                Err(refusal) => Outcome::Refused(refusal),
            };
            running.finish(outcome);
            drop(inside);
        });
    }
}

fn into_call(frame: Frame) -> Call {
    Call {
        method: frame.header.method,
        body: frame.body,
        payload: frame.payload,
    }
}

/// A call that the service runs. Dropped without an outcome, the service has panicked.
struct Running {
    shared: Arc<Shared>,
    replies: Arc<crate::replies::Replies>,
    budget: Arc<crate::budget::Budget>,
    charge: Option<Charge>,
    id: u64,
    priority: perigee_proto::Priority,
    counters: Arc<PeerCounters>,
    /// When its frame was read.
    came: Instant,
}

impl Running {
    fn finish(mut self, outcome: Outcome) {
        self.answer(outcome);
    }

    fn answer(&mut self, outcome: Outcome) {
        let Some(charge) = self.charge.take() else {
            return;
        };
        self.counters.on_served(self.came.elapsed());
        let limits = &self.shared.limits;
        let mut answer = outcome.frame(self.id, self.priority);
        if answer.body.len() > limits.body_max || answer.payload.len() > limits.payload_max {
            answer = Outcome::Fault(Fault::AnswerTooLarge).frame(self.id, self.priority);
        }
        let merging = self.shared.merging;
        self.replies.finish(answer, charge, &self.budget, merging);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.answer(Outcome::Fault(Fault::Failed));
    }
}

/// Waits for `future` no longer than `limit`; for the one request of somebody who joins.
pub(crate) async fn within<T>(
    limit: Duration,
    future: impl Future<Output = Result<T, Ended>>,
) -> Result<T, Ended> {
    timeout(limit, future)
        .await
        .unwrap_or(Err(Ended::HandshakeTimeout))
}
