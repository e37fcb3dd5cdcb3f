//! The thread that carries packets from host to host.
#![expect(
    unsafe_code,
    reason = "no wrapper that the workspace has polls with nanoseconds, or makes a thread urgent"
)]

use super::packet::{self, PACKET_MAX};
use super::{Shared, Traffic};
use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::PipeReader;
use std::io::{Read as _, Write as _};
use std::net::Ipv4Addr;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Packets that are taken from one device before another one has its turn.
const TURN: usize = 32;
/// What may be on its way at once: a second at a quarter of a gigabyte. More is dropped, as by a network that has no room.
const HELD_MAX_BYTES: usize = 256 << 20;
/// How much earlier than it has to be a packet may arrive, so that the thread does not turn in circles for it.
const EARLY: Duration = Duration::from_micros(20);
/// Virtual machines wake a thread some tens of microseconds after its time. It is woken earlier by as much as was usual lately,
/// and waits for the rest awake; which is bounded here, since it costs a processor.
const WAKE_EARLIER_MAX: Duration = Duration::from_micros(60);
const WAKE_STEP: Duration = Duration::from_nanos(500);
/// More urgent than any program that is measured: a network does not wait for its hosts.
const PRIORITY: libc::c_int = 10;

/// A packet on its way.
#[derive(Debug)]
struct Flight {
    due: Instant,
    /// Packets that are due at once arrive in the order in which they were sent.
    sequence: u64,
    from: usize,
    to: usize,
    size: Traffic,
    bytes: Vec<u8>,
}

impl Flight {
    fn key(&self) -> (Instant, u64) {
        (self.due, self.sequence)
    }
}

/// The one that is due first is the greatest: a heap gives that one.
impl Ord for Flight {
    fn cmp(&self, other: &Self) -> Ordering {
        other.key().cmp(&self.key())
    }
}

impl PartialOrd for Flight {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Flight {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Flight {}

/// The thread's own.
#[derive(Debug)]
pub(super) struct Carrier {
    devices: Vec<File>,
    addresses: Vec<Ipv4Addr>,
    shared: Arc<Shared>,
    stopped: PipeReader,
    flights: BinaryHeap<Flight>,
    held_bytes: usize,
    sequence: u64,
    wake_earlier: Duration,
    room: Vec<u8>,
}

impl Carrier {
    pub(super) fn new(
        devices: Vec<File>,
        addresses: Vec<Ipv4Addr>,
        stopped: PipeReader,
        shared: Arc<Shared>,
    ) -> Self {
        Self {
            devices,
            addresses,
            shared,
            stopped,
            flights: BinaryHeap::new(),
            held_bytes: 0,
            sequence: 0,
            wake_earlier: Duration::ZERO,
            room: vec![0; PACKET_MAX],
        }
    }

    /// Carries until the other end of `stopped` is gone.
    pub(super) fn run(mut self) {
        make_urgent();
        let mut polled: Vec<libc::pollfd> = self
            .devices
            .iter()
            .map(AsRawFd::as_raw_fd)
            .chain([self.stopped.as_raw_fd()])
            .map(|fd| libc::pollfd {
                fd,
                events: libc::POLLIN,
                revents: 0,
            })
            .collect();
        loop {
            self.deliver(Instant::now());
            let wakes = self.wait(&mut polled);
            if let Wakes::ByTime(due) = wakes {
                self.learn(due);
            }
            // Before others are taken in: those that are due would wait for them.
            self.deliver(Instant::now());
            let (last, devices) = polled.split_last().expect("the pipe is the last");
            if last.revents != 0 {
                return;
            }
            for (host, _) in devices
                .iter()
                .enumerate()
                .filter(|(_, device)| device.revents != 0)
            {
                self.take(host);
            }
        }
    }

    /// Waits until a device has packets, or one is due.
    fn wait(&self, polled: &mut [libc::pollfd]) -> Wakes {
        let due = self.flights.peek().map(|flight| flight.due);
        let wait = due.map(|due| {
            let at = due.checked_sub(self.wake_earlier).unwrap_or(due);
            at.saturating_duration_since(Instant::now())
        });
        let time = wait.map(|wait| libc::timespec {
            tv_sec: libc::time_t::try_from(wait.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: wait.subsec_nanos().into(),
        });
        let place = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        let count = polled.len() as libc::nfds_t;
        // SAFETY: `polled` has `count` entries, `place` is none or a valid time, and no signal mask is given.
        let ready = unsafe { libc::ppoll(polled.as_mut_ptr(), count, place, std::ptr::null()) };
        if ready < 0 {
            // A signal: what the entries say is from the time before.
            for entry in polled {
                entry.revents = 0;
            }
        }
        match due {
            Some(due) if ready == 0 && wait != Some(Duration::ZERO) => Wakes::ByTime(due),
            _ => Wakes::Otherwise,
        }
    }

    /// Follows the median of how late the thread is woken.
    fn learn(&mut self, due: Instant) {
        self.wake_earlier = if Instant::now() > due {
            (self.wake_earlier + WAKE_STEP).min(WAKE_EARLIER_MAX)
        } else {
            self.wake_earlier.saturating_sub(WAKE_STEP)
        };
    }

    /// Takes what a host sends.
    fn take(&mut self, from: usize) {
        for _ in 0..TURN {
            let Some(mut device) = self.devices.get(from) else {
                return;
            };
            // Nothing more, for now; or the device is down.
            let Ok(length) = device.read(&mut self.room) else {
                return;
            };
            self.send(from, length);
        }
    }

    /// Sends what was taken on its way; nothing where it leads nowhere.
    fn send(&mut self, from: usize, length: usize) -> Option<()> {
        let given = self.room.get(..length)?;
        let seen = packet::look(given)?;
        let to = self
            .addresses
            .iter()
            .position(|address| *address == seen.to)?;
        let lane = self.shared.lane(from, to)?;
        if lane.cut.load(Relaxed) || self.held_bytes + length > HELD_MAX_BYTES {
            return None;
        }
        let due = lane.lane().send(Instant::now(), seen.size.bytes)?;
        self.sequence += 1;
        self.held_bytes += length;
        self.flights.push(Flight {
            due,
            sequence: self.sequence,
            from,
            to,
            size: seen.size,
            bytes: given.to_vec(),
        });
        Some(())
    }

    /// Gives their hosts what is due.
    fn deliver(&mut self, now: Instant) {
        while let Some(next) = self.flights.peek()
            && next.due <= now + EARLY
            && let Some(flight) = self.flights.pop()
        {
            self.held_bytes -= flight.bytes.len();
            let late = Instant::now().saturating_duration_since(flight.due);
            self.shared.on_late(late);
            self.arrive(&flight);
        }
    }

    fn arrive(&self, flight: &Flight) -> Option<()> {
        let lane = self.shared.lane(flight.from, flight.to)?;
        let mut device = self.devices.get(flight.to)?;
        // A host that takes no packet loses it, as it would from a wire.
        if !lane.cut.load(Relaxed) && device.write(&flight.bytes).is_ok() {
            lane.segments.fetch_add(flight.size.segments, Relaxed);
            lane.bytes.fetch_add(flight.size.bytes, Relaxed);
        }
        Some(())
    }
}

/// Why the thread woke.
#[derive(Debug, Clone, Copy)]
enum Wakes {
    /// A packet is due at that time.
    ByTime(Instant),
    /// There was something else to do, or no time to wait.
    Otherwise,
}

/// Without the right to it delays vary more, and [`super::Lateness`] says so.
fn make_urgent() {
    let wish = libc::sched_param {
        sched_priority: PRIORITY,
    };
    // SAFETY: `wish` is a valid parameter, and 0 is this thread.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const wish) };
    // SAFETY: takes a number of nanoseconds: timers of this thread are not gathered with others.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
}
