//! Ports of this machine, for what listens for programs of this machine, or where the user leaves the choice to us.
//!
//! All lie below the range from which the kernel gives ports to outgoing connections (32768 and up), so that a port is
//! likely still free at the next start.

use perigee_proto::admin::Failure;
use std::hash::{BuildHasher, RandomState};
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::ops::Range;

/// Of nodes. One whose port was taken while it was down gets another.
const NODES: Range<u16> = 20_000..30_000;
/// Of control stores, apart from the nodes': everybody has their address on disk, so nobody is to take the port of one
/// that is down.
const CONTROLS: Range<u16> = 30_000..32_000;
/// How many ports are tried.
const TRIES: u32 = 1000;

/// A loopback address with a port that nobody listens on, for a node.
///
/// Errors: a thousand ports are in use.
pub fn for_node() -> Result<SocketAddr, Failure> {
    free(NODES)
}

/// The same for a control store.
///
/// Errors: a thousand ports are in use.
pub fn for_control() -> Result<SocketAddr, Failure> {
    free(CONTROLS)
}

/// Whether a node's address is one that [`for_node`] chooses, and somebody listens there now.
pub fn is_chosen_and_taken(address: SocketAddr) -> bool {
    let chosen = address.ip() == Ipv4Addr::LOCALHOST && NODES.contains(&address.port());
    chosen && TcpListener::bind(address).is_err_and(|error| error.kind() == ErrorKind::AddrInUse)
}

/// Checks that nobody listens at an address that the user gave; port 0 leaves the port to us.
///
/// Errors: another program listens there; the address is not of this machine.
pub fn check_address(address: SocketAddr) -> Result<SocketAddr, Failure> {
    let what = format!("cannot listen on `{address}`");
    if address.port() == 0 {
        return Ok(SocketAddr::new(address.ip(), free(NODES)?.port()));
    }
    match TcpListener::bind(address) {
        Ok(_) => Ok(address),
        Err(error) if error.kind() == ErrorKind::AddrInUse => {
            Err(Failure::new(what, "another program listens there")
                .hint("choose another port; `ss -ltnp` shows which program it is"))
        }
        Err(error) => Err(Failure::new(what, error)
            .hint("the address is one of this machine; `ip address` lists them")),
    }
}

fn free(ports: Range<u16>) -> Result<SocketAddr, Failure> {
    for _ in 0..TRIES {
        let random = RandomState::new().hash_one(0);
        let port = ports.start + (random % u64::from(ports.end - ports.start)) as u16;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        if TcpListener::bind(address).is_ok() {
            return Ok(address);
        }
    }
    Err(Failure::new(
        "cannot find a free port",
        format!(
            "a thousand ports of 127.0.0.1 between {} and {} are in use",
            ports.start, ports.end
        ),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_ports_stay_below_the_ephemeral_range() {
        for _ in 0..20 {
            assert!(NODES.contains(&for_node().unwrap().port()));
            assert!(CONTROLS.contains(&for_control().unwrap().port()));
        }
        const { assert!(CONTROLS.end <= 32_768 && NODES.end <= CONTROLS.start) };
    }

    #[test]
    fn a_port_is_taken_while_somebody_listens_there_and_only_chosen_ones_count() {
        let address = for_node().unwrap();
        assert!(!is_chosen_and_taken(address));
        let listener = TcpListener::bind(address).unwrap();
        assert!(is_chosen_and_taken(address));
        drop(listener);
        let other = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        assert!(!is_chosen_and_taken(other.local_addr().unwrap()));
    }
}
