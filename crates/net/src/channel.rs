//! One encrypted connection as a reader and a writer of frames.
//!
//! Both halves share the TLS session behind a lock that is held while bytes are encrypted or decrypted, never across a
//! wait. Copies of a payload: one into TLS records when it leaves; out of the record and into the frame when it arrives.

use parking_lot::Mutex;
use rustls::Connection;
use std::collections::VecDeque;
use std::io::{self, BufRead, IoSlice, Read, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::timeout;

use crate::error::Ended;
use crate::frame::{Assembler, Bounds, Frame};
use crate::queue::{Outgoing, WRITE_LEN_MAX};
use crate::stats::PeerCounters;

/// Reads after which the connection's other duties have their turn, though the socket has more.
const READS_IN_A_ROW: u32 = 4;
/// What is read from the socket at once.
const READ_LEN_MAX: usize = 256 << 10;
/// A payload below this length is copied beside its neighbours, to share their TLS records; a longer one is encrypted
/// from where it lies.
const COPIED_LEN_MAX: usize = 8 << 10;
/// Payloads are copied in pieces of this length: records begin with five bytes of their own, so copies start at odd
/// places, and there C libraries before glibc 2.39 copy 2,112 bytes and more with an instruction that has a quarter of its
/// speed on AMD's processors (glibc bug 30994).
pub(crate) const PIECE_LEN: usize = 2 << 10;

pub(crate) struct FrameReader {
    socket: OwnedReadHalf,
    tls: Arc<Mutex<Connection>>,
    wire: Vec<u8>,
    assembler: Assembler,
    ready: VecDeque<Frame>,
    failed: Option<Ended>,
    frame_began: Option<Instant>,
    reads_in_a_row: u32,
    counters: Arc<PeerCounters>,
}

pub(crate) struct FrameWriter {
    wire: Wire,
    staged: Vec<u8>,
}

/// Where what is encrypted goes.
#[derive(Clone)]
pub(crate) struct Wire {
    socket: Arc<OwnedWriteHalf>,
    tls: Arc<Mutex<Connection>>,
    counters: Arc<PeerCounters>,
}

/// How much of what was to be sent the system has taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sent {
    All,
    /// The rest is to be flushed before anything else is sent.
    InPart,
}

/// Joins a socket and its TLS session, after the handshake.
pub(crate) fn open(
    socket: TcpStream,
    mut tls: Connection,
    bounds: Bounds,
    counters: Arc<PeerCounters>,
) -> Result<(FrameReader, FrameWriter), Ended> {
    // the writer bounds what it encrypts at once
    tls.set_buffer_limit(None);
    let tls = Arc::new(Mutex::new(tls));
    let (read, write) = socket.into_split();
    let mut reader = FrameReader {
        socket: read,
        tls: Arc::clone(&tls),
        wire: vec![0; READ_LEN_MAX],
        assembler: Assembler::new(bounds),
        ready: VecDeque::new(),
        failed: None,
        frame_began: None,
        reads_in_a_row: 0,
        counters: Arc::clone(&counters),
    };
    // frames that came in one segment with the end of the handshake
    reader.decrypt(0)?;
    let writer = FrameWriter {
        wire: Wire {
            socket: Arc::new(write),
            tls,
            counters,
        },
        staged: Vec::new(),
    };
    Ok((reader, writer))
}

impl FrameReader {
    pub(crate) fn set_bounds(&mut self, bounds: Bounds) {
        self.assembler.set_bounds(bounds);
    }

    /// The next frame. `woken` is called when TLS itself has something to say, which the writer must send.
    ///
    /// # Cancel safety
    /// Safe: what was read stays in the reader.
    pub(crate) async fn next(
        &mut self,
        idle: Duration,
        frame_max: Duration,
        woken: impl Fn(),
    ) -> Result<Frame, Ended> {
        loop {
            if let Some(frame) = self.ready.pop_front() {
                return Ok(frame);
            }
            if let Some(ended) = self.failed.take() {
                return Err(ended);
            }
            if self
                .frame_began
                .is_some_and(|began| began.elapsed() > frame_max)
            {
                return Err(Ended::SlowFrame);
            }
            if self.reads_in_a_row == READS_IN_A_ROW {
                self.reads_in_a_row = 0;
                tokio::task::yield_now().await;
            }
            let len = match self.socket.try_read(&mut self.wire) {
                Ok(len) => len,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.reads_in_a_row = 0;
                    match timeout(idle, self.socket.readable()).await {
                        Ok(Ok(())) => continue,
                        Ok(Err(error)) => return Err(Ended::Io(error.kind())),
                        Err(_) => return Err(Ended::Idle),
                    }
                }
                Err(error) => return Err(Ended::Io(error.kind())),
            };
            if len == 0 {
                return Err(self.end_of_stream());
            }
            self.reads_in_a_row += 1;
            self.counters.bytes_in.fetch_add(len as u64, Relaxed);
            // frames before the broken one are still handed out
            if let Err(ended) = self.decrypt(len) {
                self.failed = Some(ended);
            }
            if self.tls.lock().wants_write() {
                woken();
            }
        }
    }

    fn end_of_stream(&self) -> Ended {
        if self.assembler.is_inside_a_frame() {
            Ended::Truncated
        } else {
            Ended::Closed
        }
    }

    /// Decrypts the first `len` bytes of `wire` into frames.
    fn decrypt(&mut self, len: usize) -> Result<(), Ended> {
        let mut wire = &self.wire[..len];
        let mut tls = self.tls.lock();
        loop {
            let state = tls
                .process_new_packets()
                .map_err(|error| Ended::Tls(error.to_string()))?;
            let mut left = state.plaintext_bytes_to_read();
            while left > 0 {
                let mut plain = tls.reader();
                let mut chunk = plain.fill_buf().map_err(|error| Ended::Io(error.kind()))?;
                let chunk_len = chunk.len();
                while !chunk.is_empty() {
                    if let Some(frame) = self.assembler.feed(&mut chunk)? {
                        self.counters.frames_in.fetch_add(1, Relaxed);
                        self.ready.push_back(frame);
                        self.frame_began = None;
                    }
                }
                plain.consume(chunk_len);
                left = left.saturating_sub(chunk_len);
            }
            if state.peer_has_closed() && self.ready.is_empty() {
                return Err(self.end_of_stream());
            }
            if wire.is_empty() {
                break;
            }
            feed(&mut tls, &mut wire)?;
        }
        drop(tls);
        if self.assembler.is_inside_a_frame() {
            self.frame_began.get_or_insert_with(Instant::now);
        }
        Ok(())
    }
}

/// Gives `tls` as much of `wire`, which is not empty, as it holds at once: whole records, and the beginning of one. It would
/// shrink its buffer each time that it was left with nothing, and grow it again.
fn feed(tls: &mut Connection, wire: &mut &[u8]) -> Result<(), Ended> {
    let all = wire.len();
    while !wire.is_empty() {
        match tls.read_tls(&mut Pieces(wire)) {
            // Behind the end of the session, which says nothing.
            Ok(0) => *wire = &[],
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::InvalidData && wire.len() < all => break,
            Err(error) => return Err(Ended::Io(error.kind())),
        }
    }
    Ok(())
}

/// Bytes that are copied piece by piece.
struct Pieces<'a, 'b>(&'a mut &'b [u8]);

impl Read for Pieces<'_, '_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let (now, rest) = self.0.split_at(self.0.len().min(buf.len()));
        for (to, from) in buf.chunks_mut(PIECE_LEN).zip(now.chunks(PIECE_LEN)) {
            to[..from.len()].copy_from_slice(from);
        }
        *self.0 = rest;
        Ok(now.len())
    }
}

/// A socket as `io::Write`, for TLS to write its records to.
struct Records<'a> {
    socket: &'a OwnedWriteHalf,
    counters: &'a PeerCounters,
}

impl Write for Records<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let len = self.socket.try_write_vectored(slices)?;
        self.counters.bytes_out.fetch_add(len as u64, Relaxed);
        Ok(len)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl FrameWriter {
    /// Sends frames in one write; one that is longer than a write's bound in several.
    pub(crate) async fn send(
        &mut self,
        frames: &[Outgoing],
        acknowledged: u64,
        patience: Duration,
    ) -> Result<(), Ended> {
        let now = Instant::now();
        self.staged.clear();
        for frame in frames {
            self.staged
                .extend_from_slice(&frame.header(acknowledged, now));
            self.append(&frame.body, patience).await?;
            self.append(&frame.payload, patience).await?;
        }
        self.seal_staged()?;
        self.flush(patience).await
    }

    /// The same without waiting: what the system does not take now stays.
    pub(crate) fn send_now(
        &mut self,
        frames: &[Outgoing],
        acknowledged: u64,
    ) -> Result<Sent, Ended> {
        let now = Instant::now();
        self.staged.clear();
        for frame in frames {
            self.staged
                .extend_from_slice(&frame.header(acknowledged, now));
            for part in [&frame.body, &frame.payload] {
                if part.len() <= COPIED_LEN_MAX {
                    self.staged.extend_from_slice(part);
                } else {
                    self.seal_staged()?;
                    self.seal(part)?;
                }
            }
        }
        self.seal_staged()?;
        match self.wire.write_records() {
            Ok(()) => Ok(Sent::All),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Sent::InPart),
            Err(error) => Err(Ended::Io(error.kind())),
        }
    }

    /// For [`Wire::say_goodbye`], whoever has the writer then.
    pub(crate) fn wire(&self) -> Wire {
        self.wire.clone()
    }

    async fn append(&mut self, part: &[u8], patience: Duration) -> Result<(), Ended> {
        if part.len() <= COPIED_LEN_MAX {
            self.staged.extend_from_slice(part);
            return Ok(());
        }
        self.seal_staged()?;
        let mut pieces = part.chunks(WRITE_LEN_MAX);
        if let Some(first) = pieces.next() {
            self.seal(first)?;
        }
        for piece in pieces {
            self.flush(patience).await?;
            self.seal(piece)?;
        }
        Ok(())
    }

    fn seal_staged(&mut self) -> Result<(), Ended> {
        let staged = std::mem::take(&mut self.staged);
        let sealed = self.seal(&staged);
        self.staged = staged;
        self.staged.clear();
        sealed
    }

    fn seal(&self, plain: &[u8]) -> Result<(), Ended> {
        if plain.is_empty() {
            return Ok(());
        }
        let pieces: Vec<IoSlice<'_>> = plain.chunks(PIECE_LEN).map(IoSlice::new).collect();
        let mut tls = self.wire.tls.lock();
        // without a limit of its buffer the session takes everything
        let taken = tls
            .writer()
            .write_vectored(&pieces)
            .map_err(|error| Ended::Io(error.kind()))?;
        if taken < plain.len() {
            return Err(Ended::Io(io::ErrorKind::WriteZero));
        }
        Ok(())
    }

    /// Hands everything that is encrypted to the system.
    pub(crate) async fn flush(&mut self, patience: Duration) -> Result<(), Ended> {
        loop {
            let outcome = self.wire.write_records();
            match outcome {
                Ok(()) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(Ended::Io(error.kind())),
            }
            match timeout(patience, self.wire.socket.writable()).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => return Err(Ended::Io(error.kind())),
                Err(_) => return Err(Ended::SlowReader),
            }
        }
    }

    /// As [`Wire::say_goodbye`].
    pub(crate) fn say_goodbye(&self) {
        self.wire.say_goodbye();
    }
}

impl Wire {
    fn write_records(&self) -> io::Result<()> {
        let mut records = Records {
            socket: &self.socket,
            counters: &self.counters,
        };
        let mut tls = self.tls.lock();
        while tls.wants_write() {
            if tls.write_tls(&mut records)? == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
        }
        Ok(())
    }

    /// Tells the peer that nothing more comes, as far as that is possible without waiting.
    pub(crate) fn say_goodbye(&self) {
        self.tls.lock().send_close_notify();
        // a peer that takes nothing learns it from the socket
        _ = self.write_records();
    }
}
