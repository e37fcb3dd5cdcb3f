//! Hosts apart: a network namespace for each node, joined by a switch in one more, and links that can be cut.
//!
//! A namespace lives as long as the process that holds it, and that one ends with the test: nothing has a name, and
//! nothing is left. A cut is silence, as from a cable: what is sent goes to a machine that is not there.

use crate::error::{Call, CheckError, Checked};
use std::fmt::Write as _;
use std::io::{BufRead, BufReader};
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// The program that runs others in a namespace.
pub const ENTER: &str = "nsenter";
/// A machine that is not there.
const NOBODY: &str = "02:00:00:00:ff:ff";

/// Hosts, and the links between them.
#[derive(Debug)]
pub struct Links {
    switch: Namespace,
    hosts: Vec<Namespace>,
}

/// Which of two hosts no longer hears the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Direction {
    /// Who sends.
    pub from: u32,
    /// Who hears nothing of it.
    pub to: u32,
}

impl Links {
    /// Makes so many hosts, numbered from 1, all linked. `folder` marks their processes.
    ///
    /// Errors: this process is not root, or the system has no `ip`, `unshare`, `nsenter`, or no bridges.
    pub fn new(folder: &Path, hosts: u32) -> Checked<Self> {
        let switch = Namespace::new(folder)?;
        let hosts: Vec<Namespace> = (0..hosts)
            .map(|_| Namespace::new(folder))
            .collect::<Checked<_>>()?;
        let links = Self { switch, hosts };
        links
            .switch
            .run("ip link add br0 type bridge && ip link set br0 up")?;
        for host in links.ids() {
            let (pid, mac) = (links.of(host)?.pid(), mac_of(host));
            links.switch.run(&format!(
                "ip link add p{host} type veth peer name eth0 address {mac} netns {pid} && \
                 ip link set p{host} master br0 up"
            ))?;
        }
        for host in links.ids() {
            let mut script = format!(
                "ip link set lo up && ip addr add {}/16 dev eth0 && ip link set eth0 up",
                address_of(host)
            );
            for other in links.ids().filter(|other| *other != host) {
                // Writing to a string cannot fail.
                _ = write!(script, " && {}", neighbour(other, &mac_of(other)));
            }
            links.of(host)?.run(&script)?;
        }
        Ok(links)
    }

    fn ids(&self) -> impl Iterator<Item = u32> + use<> {
        1..=self.hosts.len() as u32
    }

    fn of(&self, host: u32) -> Checked<&Namespace> {
        let found = (host as usize)
            .checked_sub(1)
            .and_then(|at| self.hosts.get(at));
        found.ok_or_else(|| CheckError::violated(format!("there is no host {host}")))
    }

    /// What `nsenter` is told to run something on a host.
    ///
    /// Errors: there is no such host.
    pub fn entry(&self, host: u32) -> Checked<String> {
        Ok(self.of(host)?.entry())
    }

    /// All that a host is cut off by.
    pub fn around(&self, host: u32) -> Vec<Direction> {
        let others = self.ids().filter(|other| *other != host);
        others.flat_map(|other| both(host, other)).collect()
    }

    /// From now on one hears nothing of the other.
    ///
    /// Errors: those of `ip`.
    pub fn cut(&self, direction: Direction) -> Checked {
        self.of(direction.from)?
            .run(&neighbour(direction.to, NOBODY))
    }

    /// One hears the other again.
    ///
    /// Errors: those of `ip`.
    pub fn mend(&self, direction: Direction) -> Checked {
        self.of(direction.from)?
            .run(&neighbour(direction.to, &mac_of(direction.to)))
    }
}

/// Neither of two hosts hears the other.
#[must_use]
pub fn both(a: u32, b: u32) -> [Direction; 2] {
    [Direction { from: a, to: b }, Direction { from: b, to: a }]
}

/// The address of a host.
#[must_use]
pub fn address_of(host: u32) -> Ipv4Addr {
    let [_, _, high, low] = host.to_be_bytes();
    Ipv4Addr::new(10, 77, high, low)
}

fn mac_of(host: u32) -> String {
    let [_, _, high, low] = host.to_be_bytes();
    format!("02:00:00:00:{high:02x}:{low:02x}")
}

/// Says to a host which machine has the address of another one.
fn neighbour(other: u32, mac: &str) -> String {
    let address = address_of(other);
    format!("ip neigh replace {address} lladdr {mac} dev eth0 nud permanent")
}

/// A network namespace of its own.
#[derive(Debug)]
struct Namespace {
    /// Ends when its input does, and so with this process.
    holder: Child,
}

impl Namespace {
    fn new(folder: &Path) -> Checked<Self> {
        let what = || "make a network namespace".to_owned();
        let mut holder = Command::new("unshare")
            .args(["--net", "sh", "-c", "echo made; read _"])
            .arg(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .call(what)?;
        let mut line = String::new();
        if let Some(output) = holder.stdout.take() {
            BufReader::new(output).read_line(&mut line).call(what)?;
        }
        let namespace = Self { holder };
        crate::ensure!(line == "made\n", "cannot make a network namespace");
        Ok(namespace)
    }

    fn pid(&self) -> u32 {
        self.holder.id()
    }

    fn entry(&self) -> String {
        format!("--net=/proc/{}/ns/net", self.pid())
    }

    fn run(&self, script: &str) -> Checked {
        let what = || format!("`{script}` in a network namespace");
        let mut command = Command::new(ENTER);
        command.args([&self.entry(), "sh", "-c", script]);
        let ended = command.output().call(what)?;
        let said = String::from_utf8_lossy(&ended.stderr);
        crate::ensure!(ended.status.success(), "{}: {said}", what());
        Ok(())
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // One that has ended already is only to be waited for.
        _ = self.holder.kill();
        _ = self.holder.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::leftover::Workspace;
    use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
    use std::fs::File;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;
    use std::thread;
    use std::time::Duration;

    /// Runs in the namespace of a host, on a thread of its own.
    fn on<T: Send>(links: &Links, host: u32, run: impl FnOnce() -> T + Send) -> T {
        let place = File::open(format!("/proc/{}/ns/net", links.of(host).unwrap().pid())).unwrap();
        thread::scope(|scope| {
            let there = scope.spawn(|| {
                let kind = Some(LinkNameSpaceType::Network);
                move_into_link_name_space(place.as_fd(), kind).unwrap();
                run()
            });
            there.join().unwrap()
        })
    }

    fn hears(links: &Links, from: u32, to: u32) -> bool {
        let listener = on(links, to, || {
            TcpListener::bind((address_of(to), 0)).unwrap()
        });
        let address = listener.local_addr().unwrap();
        let connect = || TcpStream::connect_timeout(&address, Duration::from_millis(300));
        on(links, from, || connect().is_ok())
    }

    #[test]
    fn a_cut_is_silence_in_its_direction_alone() {
        if !rustix::process::geteuid().is_root() {
            return eprintln!("skipped: network namespaces need root");
        }
        let workspace = Workspace::new().unwrap();
        let links = Links::new(workspace.path(), 3).unwrap();
        assert!(hears(&links, 1, 2) && hears(&links, 2, 3));
        // An answer goes the other way: either cut takes it.
        for direction in both(1, 2) {
            links.cut(direction).unwrap();
            assert!(!hears(&links, 1, 2) && hears(&links, 1, 3));
            links.mend(direction).unwrap();
            assert!(hears(&links, 1, 2));
        }
        for direction in links.around(3) {
            links.cut(direction).unwrap();
        }
        assert!(hears(&links, 1, 2) && !hears(&links, 2, 3) && !hears(&links, 3, 1));
    }
}
