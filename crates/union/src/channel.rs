//! One SSH connection to a member: what its starter tells it and it tells its starter, and connections that cannot go any
//! other way.
//!
//! A frame is a kind (1 byte), a stream (4 bytes), a length (4 bytes) and as many bytes, numbers in little endian. Each
//! direction of a stream has a window, so that one that nobody reads does not stand before the others.

use bytes::Bytes;
use parking_lot::Mutex;
use perigee_types::NodeId;
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader, BufWriter, split};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::timeout;

/// Bytes of a stream that may be on their way: what 400 Mbit/s carry in 20 ms. More would stand before the pings of other
/// connections where the link is slow.
const WINDOW: u32 = 1 << 20;
/// Bytes of a stream in one frame.
const PIECE: usize = 64 << 10;
/// The longest message between a starter and a member: who is in a union of a thousand hosts.
const CONTROL_LEN_MAX: usize = 1 << 20;
/// Frames that wait to be written: few, since what is urgent stands behind them.
const WAITING: usize = 4;
/// Who says nothing for so long is gone; each side says something every second.
pub const SILENCE: Duration = Duration::from_secs(10);

/// Bytes in both directions.
pub trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Control = 0,
    Open = 1,
    Data = 2,
    Window = 3,
    Close = 4,
}

impl Kind {
    fn of(byte: u8) -> Option<Self> {
        [
            Self::Control,
            Self::Open,
            Self::Data,
            Self::Window,
            Self::Close,
        ]
        .into_iter()
        .find(|kind| *kind as u8 == byte)
    }
}

struct Frame {
    kind: Kind,
    stream: u32,
    body: Bytes,
}

/// What a channel brings.
pub enum Event {
    /// A message.
    Control(Bytes),
    /// The other side wants a connection to a member.
    Open(NodeId, Incoming),
}

/// A connection that the other side wants.
pub struct Incoming {
    channel: Arc<Channel>,
    stream: u32,
    bytes: mpsc::UnboundedReceiver<Bytes>,
    flow: Arc<Flow>,
}

impl Incoming {
    /// Carries it until either side ends.
    pub async fn carry(self, io: Box<dyn Duplex>) {
        let Self {
            channel,
            stream,
            bytes,
            flow,
        } = self;
        channel.carry(stream, io, bytes, &flow).await;
    }

    /// There is no such connection.
    pub async fn refuse(self) {
        self.channel.close(self.stream).await;
    }
}

struct Flow {
    /// Bytes that may be sent.
    credit: Semaphore,
    /// Bytes that arrived and are not taken yet.
    held: AtomicU64,
}

struct Stream {
    bytes: mpsc::UnboundedSender<Bytes>,
    flow: Arc<Flow>,
}

/// One side of it.
pub struct Channel {
    out: mpsc::Sender<Frame>,
    streams: Mutex<HashMap<u32, Stream>>,
    next: AtomicU32,
    over: watch::Sender<bool>,
}

/// Which side of an SSH connection this is: each numbers its streams by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Who has started the other one.
    Starter,
    /// Who was started.
    Member,
}

impl Channel {
    /// Begins to read and to write; what comes goes to `events`. It is over when the other side is silent for
    /// [`SILENCE`], breaks a rule, or ends.
    pub fn start(
        side: Side,
        reader: impl AsyncRead + Send + Unpin + 'static,
        writer: impl AsyncWrite + Send + Unpin + 'static,
        events: mpsc::Sender<Event>,
    ) -> Arc<Self> {
        let (out, waiting) = mpsc::channel(WAITING);
        let channel = Arc::new(Self {
            out,
            streams: Mutex::default(),
            next: AtomicU32::new(if side == Side::Starter { 2 } else { 1 }),
            over: watch::Sender::new(false),
        });
        let (mut ends, me) = (channel.over.subscribe(), Arc::clone(&channel));
        tokio::spawn(async move {
            let read = async {
                let mut reader = BufReader::with_capacity(256 << 10, reader);
                while let Ok(true) = me.take(&mut reader, &events).await {}
            };
            tokio::select! {
                () = read => {}
                () = write_out(writer, waiting) => {}
                _ = ends.wait_for(|over| *over) => {}
            }
            me.over.send_replace(true);
            me.streams.lock().clear();
        });
        channel
    }

    /// Waits until it is over.
    pub async fn over(&self) {
        // It lives as long as this.
        _ = self.over.subscribe().wait_for(|over| *over).await;
    }

    /// Ends it.
    pub fn end(&self) {
        self.over.send_replace(true);
    }

    /// Sends a message; lost when the channel is over.
    pub async fn control(&self, message: Vec<u8>) {
        self.send(Kind::Control, 0, message.into()).await;
    }

    /// Carries a connection to a member, until either side ends.
    pub async fn open(self: &Arc<Self>, to: NodeId, io: Box<dyn Duplex>) {
        let stream = self.next.fetch_add(2, Ordering::Relaxed);
        let (bytes, flow) = self.stream(stream);
        let body = Bytes::copy_from_slice(&to.0.to_le_bytes());
        self.send(Kind::Open, stream, body).await;
        self.carry(stream, io, bytes, &flow).await;
    }

    fn stream(&self, number: u32) -> (mpsc::UnboundedReceiver<Bytes>, Arc<Flow>) {
        let (bytes, taken) = mpsc::unbounded_channel();
        let flow = Arc::new(Flow {
            credit: Semaphore::new(WINDOW as usize),
            held: AtomicU64::new(0),
        });
        let known = Stream {
            bytes,
            flow: Arc::clone(&flow),
        };
        self.streams.lock().insert(number, known);
        (taken, flow)
    }

    async fn send(&self, kind: Kind, stream: u32, body: Bytes) {
        let mut over = self.over.subscribe();
        tokio::select! {
            _ = self.out.send(Frame { kind, stream, body }) => {}
            _ = over.wait_for(|over| *over) => {}
        }
    }

    async fn close(&self, stream: u32) {
        self.streams.lock().remove(&stream);
        self.send(Kind::Close, stream, Bytes::new()).await;
    }

    async fn carry(
        &self,
        stream: u32,
        io: Box<dyn Duplex>,
        mut bytes: mpsc::UnboundedReceiver<Bytes>,
        flow: &Flow,
    ) {
        let (mut reader, mut writer) = split(io);
        let outward = async {
            loop {
                let mut piece = bytes::BytesMut::with_capacity(PIECE);
                let Ok(len @ 1..) = reader.read_buf(&mut piece).await else {
                    return;
                };
                let Ok(credit) = flow.credit.acquire_many(len as u32).await else {
                    return;
                };
                credit.forget();
                self.send(Kind::Data, stream, piece.freeze()).await;
            }
        };
        let inward = async {
            while let Some(piece) = bytes.recv().await {
                if writer.write_all(&piece).await.is_err() {
                    return;
                }
                flow.held.fetch_sub(piece.len() as u64, Ordering::Relaxed);
                let taken = Bytes::copy_from_slice(&(piece.len() as u32).to_le_bytes());
                self.send(Kind::Window, stream, taken).await;
            }
        };
        // A stream that was begun when this was over already is closed by nobody else.
        let mut over = self.over.subscribe();
        tokio::select! {
            () = outward => {}
            () = inward => {}
            _ = over.wait_for(|over| *over) => {}
        }
        self.close(stream).await;
    }

    /// Takes one frame; false: it was the last one.
    async fn take(
        self: &Arc<Self>,
        reader: &mut (impl AsyncRead + Unpin),
        events: &mpsc::Sender<Event>,
    ) -> io::Result<bool> {
        let frame = timeout(SILENCE, read_frame(reader)).await??;
        let number = || -> io::Result<u32> {
            let bytes = frame.body[..].try_into();
            bytes.map(u32::from_le_bytes).map_err(|_| broken())
        };
        match frame.kind {
            Kind::Control => {
                return Ok(events.send(Event::Control(frame.body)).await.is_ok());
            }
            Kind::Open => {
                let to = NodeId(number()?);
                if self.streams.lock().contains_key(&frame.stream) {
                    return Err(broken());
                }
                let (bytes, flow) = self.stream(frame.stream);
                let incoming = Incoming {
                    channel: Arc::clone(self),
                    stream: frame.stream,
                    bytes,
                    flow,
                };
                return Ok(events.send(Event::Open(to, incoming)).await.is_ok());
            }
            Kind::Data => {
                // One that has ended here may still be written to there.
                if let Some(stream) = self.streams.lock().get(&frame.stream) {
                    let len = frame.body.len() as u64;
                    let held = stream.flow.held.fetch_add(len, Ordering::Relaxed) + len;
                    if held > u64::from(WINDOW) {
                        return Err(broken());
                    }
                    _ = stream.bytes.send(frame.body);
                }
            }
            Kind::Window => {
                let more = number()?;
                if let Some(stream) = self.streams.lock().get(&frame.stream) {
                    let credit = &stream.flow.credit;
                    if credit.available_permits() as u64 + u64::from(more) > u64::from(WINDOW) {
                        return Err(broken());
                    }
                    credit.add_permits(more as usize);
                }
            }
            Kind::Close => {
                self.streams.lock().remove(&frame.stream);
            }
        }
        Ok(true)
    }
}

fn broken() -> io::Error {
    io::Error::other("a frame that breaks the rules")
}

async fn read_frame(reader: &mut (impl AsyncRead + Unpin)) -> io::Result<Frame> {
    let mut head = [0; 9];
    reader.read_exact(&mut head).await?;
    let [kind, s0, s1, s2, s3, l0, l1, l2, l3] = head;
    let kind = Kind::of(kind).ok_or_else(broken)?;
    let len = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
    let most = match kind {
        Kind::Control => CONTROL_LEN_MAX,
        Kind::Data => PIECE,
        Kind::Open | Kind::Window => 4,
        Kind::Close => 0,
    };
    if len > most {
        return Err(broken());
    }
    let mut body = vec![0; len];
    reader.read_exact(&mut body).await?;
    Ok(Frame {
        kind,
        stream: u32::from_le_bytes([s0, s1, s2, s3]),
        body: body.into(),
    })
}

async fn write_out(writer: impl AsyncWrite + Unpin, mut waiting: mpsc::Receiver<Frame>) {
    let mut writer = BufWriter::with_capacity(256 << 10, writer);
    while let Some(mut frame) = waiting.recv().await {
        loop {
            let mut head = [0; 9];
            head[0] = frame.kind as u8;
            head[1..5].copy_from_slice(&frame.stream.to_le_bytes());
            head[5..].copy_from_slice(&(frame.body.len() as u32).to_le_bytes());
            let written = async {
                writer.write_all(&head).await?;
                writer.write_all(&frame.body).await
            };
            if written.await.is_err() {
                return;
            }
            match waiting.try_recv() {
                Ok(next) => frame = next,
                Err(_) => break,
            }
        }
        if writer.flush().await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::duplex;

    fn pair() -> (
        Arc<Channel>,
        mpsc::Receiver<Event>,
        Arc<Channel>,
        mpsc::Receiver<Event>,
    ) {
        let (here, there) = duplex(100_000);
        let ((hr, hw), (tr, tw)) = (split(here), split(there));
        let (events_here, here_in) = mpsc::channel(8);
        let (events_there, there_in) = mpsc::channel(8);
        let here = Channel::start(Side::Starter, hr, hw, events_here);
        let there = Channel::start(Side::Member, tr, tw, events_there);
        (here, here_in, there, there_in)
    }

    /// More than a window goes through in both directions, beside messages, and a stream that nobody reads stops nothing.
    #[tokio::test]
    async fn connections_go_beside_each_other() {
        let (here, _here_in, _there, mut there_in) = pair();
        let (stuck, _nobody_reads) = duplex(10);
        let (mut mine, carried) = duplex(PIECE);
        for io in [Box::new(stuck) as Box<dyn Duplex>, Box::new(carried)] {
            let here = Arc::clone(&here);
            tokio::spawn(async move { here.open(NodeId(7), io).await });
            let Some(Event::Open(NodeId(7), incoming)) = there_in.recv().await else {
                panic!("no connection was opened");
            };
            // It answers with what it gets.
            tokio::spawn(async move {
                let (mut io, other) = duplex(PIECE);
                tokio::spawn(incoming.carry(Box::new(other)));
                _ = io.write_all(&vec![1; 2 * WINDOW as usize]).await;
                let mut got = vec![0; 2 * WINDOW as usize];
                io.read_exact(&mut got).await.expect("bytes come");
                io.write_all(&got[..5]).await.expect("bytes go");
            });
        }
        here.control(b"a message".to_vec()).await;
        let Some(Event::Control(message)) = there_in.recv().await else {
            panic!("no message");
        };
        assert_eq!(&message[..], b"a message");
        let mut got = vec![0; 2 * WINDOW as usize];
        mine.read_exact(&mut got).await.expect("bytes come");
        mine.write_all(&vec![9; 2 * WINDOW as usize])
            .await
            .expect("bytes go");
        let mut last = [0; 5];
        mine.read_exact(&mut last).await.expect("an answer comes");
        assert_eq!(last, [9; 5]);
    }

    /// Whoever dials through a channel that is over hears of it at once, not after the time of a handshake.
    #[tokio::test]
    async fn a_connection_that_comes_too_late_ends() {
        let (here, _here_in, _there, _there_in) = pair();
        here.end();
        // Its task has let go of the streams.
        while Arc::strong_count(&here) > 1 {
            tokio::task::yield_now().await;
        }
        let (mut mine, carried) = duplex(PIECE);
        let opened = timeout(
            Duration::from_secs(5),
            here.open(NodeId(7), Box::new(carried)),
        );
        opened.await.expect("it is not carried for ever");
        assert_eq!(mine.read(&mut [0; 1]).await.expect("an end"), 0);
    }

    #[tokio::test]
    async fn whoever_breaks_a_rule_or_goes_ends_it() {
        for bytes in [
            &[9_u8, 0, 0, 0, 0, 0, 0, 0, 0][..],
            &[2, 0, 0, 0, 0, 255, 255, 255, 255],
            &[],
        ] {
            let (mut raw, other) = duplex(1_000);
            let (reader, writer) = split(other);
            let (events, _keep) = mpsc::channel(8);
            let channel = Channel::start(Side::Member, reader, writer, events);
            raw.write_all(bytes).await.expect("bytes go");
            drop(raw);
            timeout(Duration::from_secs(5), channel.over())
                .await
                .expect("it ends");
        }
    }
}
