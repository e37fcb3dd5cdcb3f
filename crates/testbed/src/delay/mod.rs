//! Hosts apart by distance: packets between them arrive after a given time, and at no more than a given rate.
//!
//! Each host has a TUN device as its `eth0`, and a thread of this process carries packets from one to another. The
//! devices pass on pieces of up to 64 KiB that the kernel has yet to cut into segments (virtio headers), so that a
//! gigabyte takes some ten thousand calls, and any program runs on it unchanged. They end with the process. Linux has the same as
//! netem, which many machines lack.
//!
//! Read [`wire`] (when a packet arrives), [`packet`] (what is read of it), [`tun`] (the devices), [`carry`] (the thread).

mod carry;
mod packet;
mod tun;
mod wire;

pub use wire::Wire;

use crate::error::{Call, CheckError, Checked};
use crate::links::Direction;
use carry::Carrier;
use std::io::PipeWriter;
use std::iter::Sum;
use std::net::Ipv4Addr;
use std::ops::{Add, Sub};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use wire::Lane;

/// The name of a host's device.
const DEVICE: &str = "eth0";

/// What has arrived, seen as on a wire.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Packets of the size that a wire carries.
    pub segments: u64,
    /// Their bytes, with the headers from IP on.
    pub bytes: u64,
}

impl Add for Traffic {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self {
            segments: self.segments + other.segments,
            bytes: self.bytes + other.bytes,
        }
    }
}

impl Sum for Traffic {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), Add::add)
    }
}

impl Sub for Traffic {
    type Output = Self;
    /// What came since an earlier look.
    fn sub(self, earlier: Self) -> Self {
        Self {
            segments: self.segments.saturating_sub(earlier.segments),
            bytes: self.bytes.saturating_sub(earlier.bytes),
        }
    }
}

/// By how much packets were later than they had to be: how far a measurement can be trusted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Lateness {
    /// On the average.
    pub mean: Duration,
    /// At worst.
    pub worst: Duration,
}

/// A host that packets go to, by its address and where its namespace is.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub(crate) address: Ipv4Addr,
    pub(crate) namespace: PathBuf,
}

/// The network between some hosts, as long as it is kept.
#[derive(Debug)]
pub(crate) struct DelayNet {
    shared: Arc<Shared>,
    /// Dropped, it ends the thread.
    stop: Option<PipeWriter>,
    carrier: Option<JoinHandle<()>>,
}

/// What the thread and its handle share, for each direction between two hosts.
#[derive(Debug)]
struct Shared {
    hosts: usize,
    lanes: Vec<LaneState>,
    late_packets: AtomicU64,
    late_ns: AtomicU64,
    late_worst_ns: AtomicU64,
}

#[derive(Debug)]
struct LaneState {
    lane: Mutex<Lane>,
    cut: AtomicBool,
    segments: AtomicU64,
    bytes: AtomicU64,
}

impl Shared {
    fn new(hosts: usize, wire: Wire) -> Self {
        let lane = Lane::new(wire, Instant::now());
        let state = |_| LaneState {
            lane: Mutex::new(lane),
            cut: AtomicBool::new(false),
            segments: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        };
        Self {
            hosts,
            lanes: (0..hosts * hosts).map(state).collect(),
            late_packets: AtomicU64::new(0),
            late_ns: AtomicU64::new(0),
            late_worst_ns: AtomicU64::new(0),
        }
    }

    /// The lane between two hosts that are counted from 0.
    fn lane(&self, from: usize, to: usize) -> Option<&LaneState> {
        let inside = from < self.hosts && to < self.hosts;
        self.lanes.get(from * self.hosts + to).filter(|_| inside)
    }

    fn on_late(&self, late: Duration) {
        let late = u64::try_from(late.as_nanos()).unwrap_or(u64::MAX);
        self.late_packets.fetch_add(1, Relaxed);
        self.late_ns.fetch_add(late, Relaxed);
        self.late_worst_ns.fetch_max(late, Relaxed);
    }
}

impl LaneState {
    /// Whoever panicked with it has changed nothing by halves.
    fn lane(&self) -> MutexGuard<'_, Lane> {
        self.lane.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn traffic(&self) -> Traffic {
        Traffic {
            segments: self.segments.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
        }
    }
}

impl DelayNet {
    /// Makes a device in each namespace, and carries packets between them from now on.
    ///
    /// Errors: no right to, or the system has no TUN devices.
    pub(crate) fn between(places: &[Place], wire: Wire) -> Checked<Self> {
        let devices = places
            .iter()
            .map(|place| tun::open_in(&place.namespace, DEVICE))
            .collect::<Checked<Vec<_>>>()?;
        let what = || "start the delay network".to_owned();
        let (stopped, stop) = std::io::pipe().call(what)?;
        let shared = Arc::new(Shared::new(places.len(), wire));
        let addresses = places.iter().map(|place| place.address).collect();
        let carrier = Carrier::new(devices, addresses, stopped, Arc::clone(&shared));
        let thread = std::thread::Builder::new()
            .name("delay".to_owned())
            .spawn(move || carrier.run())
            .call(what)?;
        Ok(Self {
            shared,
            stop: Some(stop),
            carrier: Some(thread),
        })
    }

    fn lane(&self, direction: Direction) -> Checked<&LaneState> {
        let index = |host: u32| (host as usize).checked_sub(1);
        let (from, to) = (index(direction.from), index(direction.to));
        let found = from
            .zip(to)
            .and_then(|(from, to)| self.shared.lane(from, to));
        found.ok_or_else(|| CheckError::violated(format!("there is no link {direction:?}")))
    }

    /// From now on nothing arrives there, not even what is on its way; or things do again.
    ///
    /// Errors: there is no such link.
    pub(crate) fn set_cut(&self, direction: Direction, cut: bool) -> Checked {
        self.lane(direction)?.cut.store(cut, Relaxed);
        Ok(())
    }

    /// What is sent from now on goes over another wire.
    ///
    /// Errors: there is no such link.
    pub(crate) fn set_wire(&self, direction: Direction, wire: Wire) -> Checked {
        self.lane(direction)?.lane().set(wire);
        Ok(())
    }

    /// What has arrived in one direction.
    ///
    /// Errors: there is no such link.
    pub(crate) fn traffic(&self, direction: Direction) -> Checked<Traffic> {
        Ok(self.lane(direction)?.traffic())
    }

    pub(crate) fn lateness(&self) -> Lateness {
        let packets = self.shared.late_packets.load(Relaxed).max(1);
        Lateness {
            mean: Duration::from_nanos(self.shared.late_ns.load(Relaxed) / packets),
            worst: Duration::from_nanos(self.shared.late_worst_ns.load(Relaxed)),
        }
    }
}

impl Drop for DelayNet {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(Err(_)) = self.carrier.take().map(JoinHandle::join) {
            crate::leftover::report("testbed: the delay network's thread has panicked");
        }
    }
}
