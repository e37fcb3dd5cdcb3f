//! A plain TCP connection between two hosts, over which bytes go from memory to memory.

use crate::pipe::{self, Way};
use perigee_testbed::links::{Links, address_of};
use perigee_testbed::{Call, Checked};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread::JoinHandle;

/// A connection, and the thread that has its other end.
#[derive(Debug)]
pub(super) struct Pipe {
    here: TcpStream,
    /// The other end, once more: the network between the two may be gone before they are.
    other: TcpStream,
    there: Option<JoinHandle<std::io::Result<()>>>,
}

impl Pipe {
    /// From one host to another.
    ///
    /// Errors: the system's.
    pub(super) fn between(links: &Links, here: u32, there: u32) -> Checked<Self> {
        let what = || "connect two hosts".to_owned();
        let listener = links.inside(there, || {
            TcpListener::bind((address_of(there), 0)).call(what)
        })?;
        let address = listener.local_addr().call(what)?;
        let connection = links.inside(here, || TcpStream::connect(address).call(what))?;
        let (other, _) = listener.accept().call(what)?;
        let mut served = other.try_clone().call(what)?;
        let there = std::thread::spawn(move || pipe::serve(&mut served));
        Ok(Self {
            here: connection,
            other,
            there: Some(there),
        })
    }

    /// Moves so many bytes; those that go up have arrived when it returns.
    pub(super) fn pass(&mut self, way: Way, bytes: u64) -> Checked {
        let what = || "move bytes between two hosts".to_owned();
        pipe::pass(&mut self.here, way, bytes).call(what)
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        // They may be gone already; the thread ends with its own.
        _ = self.here.shutdown(Shutdown::Both);
        _ = self.other.shutdown(Shutdown::Both);
        if let Some(thread) = self.there.take() {
            // It was cut off, and says so.
            _ = thread.join();
        }
    }
}
