//! A firewall that lets one port in: connections to it are carried into a network that has no link.

use crate::error::{Call, Checked};
use crate::netns;
use std::net::{Shutdown, SocketAddrV4, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::{io, mem};

/// Accepts in one network, and connects in another. Dropping it ends all connections.
#[derive(Debug)]
pub(super) struct Relay {
    shared: Arc<Shared>,
    accepting: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    listener: TcpListener,
    address: SocketAddrV4,
    inner: PathBuf,
    stopped: AtomicBool,
    connections: Mutex<Vec<Connection>>,
}

#[derive(Debug)]
struct Connection {
    outer: TcpStream,
    inner: TcpStream,
    carrying: JoinHandle<()>,
}

impl Relay {
    /// Whoever connects to `address` in the network that lies at `outer` is connected to the same in the one at `inner`.
    ///
    /// Errors: there are no such networks, or no such address.
    pub(super) fn start(outer: &Path, inner: &Path, address: SocketAddrV4) -> Checked<Self> {
        let what = || format!("let {address} through a firewall");
        let listener = netns::inside(outer, || TcpListener::bind(address).call(what))?;
        let shared = Arc::new(Shared {
            listener,
            address,
            inner: inner.to_owned(),
            stopped: AtomicBool::new(false),
            connections: Mutex::new(Vec::new()),
        });
        let accepting = Arc::clone(&shared);
        let accepting = thread::Builder::new()
            .name("firewall".to_owned())
            .spawn(move || accepting.accept())
            .call(what)?;
        Ok(Self {
            shared,
            accepting: Some(accepting),
        })
    }

    /// Ends all connections, at once for both sides.
    pub(super) fn hang_up(&self) {
        let connections = mem::take(&mut *self.shared.connections());
        for connection in &connections {
            // One that is over already has nothing to end.
            _ = connection.outer.shutdown(Shutdown::Both);
            _ = connection.inner.shutdown(Shutdown::Both);
        }
        for connection in connections {
            if connection.carrying.join().is_err() {
                crate::leftover::report("testbed: a thread of a firewall has panicked");
            }
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Relaxed);
        // Whoever waits in it for a connection wakes.
        _ = rustix::net::shutdown(&self.shared.listener, rustix::net::Shutdown::Both);
        if let Some(Err(_)) = self.accepting.take().map(JoinHandle::join) {
            crate::leftover::report("testbed: the thread of a firewall has panicked");
        }
        self.hang_up();
    }
}

impl Shared {
    /// Whoever panicked with them has changed nothing by halves.
    fn connections(&self) -> MutexGuard<'_, Vec<Connection>> {
        let all = self.connections.lock();
        all.unwrap_or_else(PoisonError::into_inner)
    }

    fn accept(&self) {
        for outer in self.listener.incoming() {
            if self.stopped.load(Relaxed) {
                return;
            }
            // Where nobody listens inside, the connection ends.
            let Ok(connection) = outer.call(String::new).and_then(|outer| self.carry(outer)) else {
                continue;
            };
            let mut connections = self.connections();
            connections.retain(|one| !one.carrying.is_finished());
            connections.push(connection);
        }
    }

    fn carry(&self, outer: TcpStream) -> Checked<Connection> {
        let what = || format!("connect to {} behind a firewall", self.address);
        let connect = || TcpStream::connect(self.address).call(what);
        let inner = netns::inside(&self.inner, connect)?;
        outer.set_nodelay(true).call(what)?;
        inner.set_nodelay(true).call(what)?;
        let ends = (outer.try_clone().call(what)?, inner.try_clone().call(what)?);
        let carry = move || {
            let (outer, inner) = ends;
            thread::scope(|scope| {
                scope.spawn(|| carry_one_way(&outer, &inner));
                carry_one_way(&inner, &outer);
            });
        };
        let carrying = thread::Builder::new().spawn(carry).call(what)?;
        Ok(Connection {
            outer,
            inner,
            carrying,
        })
    }
}

/// Carries what one says to the other until it says no more, which the other learns.
fn carry_one_way(mut from: &TcpStream, mut to: &TcpStream) {
    // A side that is gone says and takes no more: that is the end, too.
    if io::copy(&mut from, &mut to).is_err() {
        _ = from.shutdown(Shutdown::Both);
    }
    _ = to.shutdown(Shutdown::Write);
}
