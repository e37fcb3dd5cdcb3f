//! Hosts apart: a network namespace for each node, and links that can be cut. They are joined by a switch in one more
//! namespace, or by wires over which everything takes its time ([`crate::delay`]).
//!
//! A cut is silence, as from a cable: what is sent goes to a machine that is not there.

pub use crate::namespace::{ENTER, Own};

use crate::delay::{DelayNet, Lateness, Place, Traffic, Wire};
use crate::error::{CheckError, Checked};
use crate::namespace::Namespace;
use crate::netns;
use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::path::Path;

/// A machine that is not there.
const NOBODY: &str = "02:00:00:00:ff:ff";

/// Hosts, and the links between them.
#[derive(Debug)]
pub struct Links {
    way: Way,
    hosts: Vec<Namespace>,
}

/// What joins the hosts.
#[derive(Debug)]
enum Way {
    /// As fast as this machine.
    Switch {
        /// Where the switch is.
        _namespace: Namespace,
    },
    /// With a delay.
    Wires(DelayNet),
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
        Self::between(folder, &network_alone(hosts))
    }

    /// The same where the hosts, from the first on, have more than a network for themselves.
    ///
    /// Errors: those of [`Links::new`].
    pub fn between(folder: &Path, hosts: &[Own]) -> Checked<Self> {
        let switch = Namespace::new(folder, Own::Network)?;
        let hosts = namespaces(folder, hosts)?;
        switch.run("ip link add br0 type bridge && ip link set br0 up")?;
        for (host, namespace) in (1..).zip(&hosts) {
            let (pid, mac) = (namespace.pid(), mac_of(host));
            switch.run(&format!(
                "ip link add p{host} type veth peer name eth0 address {mac} netns {pid} && \
                 ip link set p{host} master br0 up"
            ))?;
        }
        let way = Way::Switch { _namespace: switch };
        let links = Self { way, hosts };
        for host in links.ids() {
            links.appear(host)?;
        }
        Ok(links)
    }

    /// The same with wires between them, each as long as `wire` says, over which packets are counted.
    ///
    /// Errors: this process is not root, or the system has no `ip`, `unshare`, `nsenter`, or no TUN devices.
    pub fn with_delay(folder: &Path, hosts: u32, wire: Wire) -> Checked<Self> {
        Self::with_delay_between(folder, &network_alone(hosts), wire)
    }

    /// The same where the hosts, from the first on, have more than a network for themselves.
    ///
    /// Errors: those of [`Links::with_delay`].
    pub fn with_delay_between(folder: &Path, hosts: &[Own], wire: Wire) -> Checked<Self> {
        let hosts = namespaces(folder, hosts)?;
        let place = |(host, namespace): (u32, &Namespace)| Place {
            address: address_of(host),
            namespace: namespace.place(),
        };
        let places: Vec<Place> = (1..).zip(&hosts).map(place).collect();
        let way = Way::Wires(DelayNet::between(&places, wire)?);
        let links = Self { way, hosts };
        for host in links.ids() {
            links.appear(host)?;
            // A burst that waits for its turn is no loss. Where the kernel's own choice paces its packets, as bbr does,
            // a short delay makes it slow; where there is no cubic it stays.
            links.of(host)?.run(
                "ip link set eth0 txqueuelen 10000 && \
                 { echo cubic > /proc/sys/net/ipv4/tcp_congestion_control; } 2> /dev/null || true",
            )?;
        }
        Ok(links)
    }

    /// Gives a host its address, and over a switch it hears all others from now on.
    ///
    /// Errors: there is no such host, or those of `ip`.
    pub fn appear(&self, host: u32) -> Checked {
        let address = address_of(host);
        let mut script = format!(
            "ip link set lo up && ip addr replace {address}/16 dev eth0 && ip link set eth0 up"
        );
        if let Way::Switch { .. } = self.way {
            for other in self.ids().filter(|other| *other != host) {
                // Writing to a string cannot fail.
                _ = write!(script, " && {}", neighbour(other, &mac_of(other)));
            }
        }
        self.of(host)?.run(&script)
    }

    /// Takes a host's address away: nobody answers there. What it has sent before arrives.
    ///
    /// Errors: there is no such host, or those of `ip`.
    pub fn vanish(&self, host: u32) -> Checked {
        self.of(host)?.run("ip addr flush dev eth0")
    }

    fn ids(&self) -> impl Iterator<Item = u32> + use<> {
        1..=self.hosts.len() as u32
    }

    pub(crate) fn of(&self, host: u32) -> Checked<&Namespace> {
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

    /// Runs on a host: sockets that are made there stay there.
    ///
    /// Errors: there is no such host, or what the closure says.
    pub fn inside<T: Send>(
        &self,
        host: u32,
        run: impl FnOnce() -> Checked<T> + Send,
    ) -> Checked<T> {
        netns::inside(&self.of(host)?.place(), run)
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
        match &self.way {
            Way::Wires(wires) => wires.set_cut(direction, true),
            Way::Switch { .. } => {
                let sender = self.of(direction.from)?;
                sender.run(&neighbour(direction.to, NOBODY))
            }
        }
    }

    /// One hears the other again.
    ///
    /// Errors: those of `ip`.
    pub fn mend(&self, direction: Direction) -> Checked {
        match &self.way {
            Way::Wires(wires) => wires.set_cut(direction, false),
            Way::Switch { .. } => {
                let sender = self.of(direction.from)?;
                sender.run(&neighbour(direction.to, &mac_of(direction.to)))
            }
        }
    }

    /// What is sent from now on between two hosts takes another way.
    ///
    /// Errors: they are joined by a switch; or there is no such host.
    pub fn reroute(&self, a: u32, b: u32, wire: Wire) -> Checked {
        let mut directions = both(a, b).into_iter();
        directions.try_for_each(|direction| self.reroute_one(direction, wire))
    }

    /// The same in one direction.
    ///
    /// Errors: those of [`Links::reroute`].
    pub fn reroute_one(&self, direction: Direction, wire: Wire) -> Checked {
        self.wires()?.set_wire(direction, wire)
    }

    /// What has arrived over so many directions.
    ///
    /// Errors: a switch counts nothing; or there is no such host.
    pub fn traffic(&self, directions: &[Direction]) -> Checked<Traffic> {
        let wires = self.wires()?;
        let all = directions.iter().map(|one| wires.traffic(*one));
        all.sum()
    }

    /// All directions between all hosts.
    pub fn everywhere(&self) -> Vec<Direction> {
        let ids = || self.ids();
        let pairs = ids().flat_map(|from| ids().map(move |to| Direction { from, to }));
        pairs.filter(|one| one.from != one.to).collect()
    }

    /// How late packets were up to now.
    ///
    /// Errors: a switch does not know.
    pub fn lateness(&self) -> Checked<Lateness> {
        Ok(self.wires()?.lateness())
    }

    fn wires(&self) -> Checked<&DelayNet> {
        match &self.way {
            Way::Wires(wires) => Ok(wires),
            Way::Switch { .. } => Err(CheckError::violated("a switch has no wires")),
        }
    }
}

fn network_alone(hosts: u32) -> Vec<Own> {
    (0..hosts).map(|_| Own::Network).collect()
}

fn namespaces(folder: &Path, hosts: &[Own]) -> Checked<Vec<Namespace>> {
    let made = hosts.iter().map(|own| Namespace::new(folder, *own));
    made.collect()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::leftover::Workspace;
    use crate::pattern;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::num::NonZeroU64;
    use std::thread;
    use std::time::{Duration, Instant};

    fn on<T: Send>(links: &Links, host: u32, run: impl FnOnce() -> T + Send) -> T {
        links.inside(host, || Ok(run())).unwrap()
    }

    fn hears(links: &Links, from: u32, to: u32) -> bool {
        let listener = on(links, to, || {
            TcpListener::bind((address_of(to), 0)).unwrap()
        });
        let address = listener.local_addr().unwrap();
        let connect = || TcpStream::connect_timeout(&address, Duration::from_millis(300));
        on(links, from, || connect().is_ok())
    }

    fn cuts_are_silence(links: &Links) {
        assert!(hears(links, 1, 2) && hears(links, 2, 3));
        // An answer goes the other way: either cut takes it.
        for direction in both(1, 2) {
            links.cut(direction).unwrap();
            assert!(!hears(links, 1, 2) && hears(links, 1, 3));
            links.mend(direction).unwrap();
            assert!(hears(links, 1, 2));
        }
        for direction in links.around(3) {
            links.cut(direction).unwrap();
        }
        assert!(hears(links, 1, 2) && !hears(links, 2, 3) && !hears(links, 3, 1));
    }

    fn workspace() -> Option<Workspace> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: network namespaces need root");
            return None;
        }
        Some(Workspace::new().unwrap())
    }

    fn wires(workspace: &Workspace, wire: Wire) -> Option<Links> {
        if !Path::new("/dev/net/tun").exists() {
            eprintln!("skipped: there is no /dev/net/tun");
            return None;
        }
        Some(Links::with_delay(workspace.path(), 3, wire).unwrap())
    }

    /// A connection between two hosts.
    fn connected(links: &Links, from: u32, to: u32) -> (TcpStream, TcpStream) {
        let listener = on(links, to, || {
            TcpListener::bind((address_of(to), 0)).unwrap()
        });
        let address = listener.local_addr().unwrap();
        let sender = on(links, from, || TcpStream::connect(address).unwrap());
        sender.set_nodelay(true).unwrap();
        let (receiver, _) = listener.accept().unwrap();
        receiver.set_nodelay(true).unwrap();
        (sender, receiver)
    }

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_cut_is_silence_in_its_direction_alone() {
        let Some(workspace) = workspace() else { return };
        cuts_are_silence(&Links::new(workspace.path(), 3).unwrap());
        let Some(links) = wires(&workspace, Wire::of_round_trip(MS)) else {
            return;
        };
        cuts_are_silence(&links);
    }

    #[test]
    fn an_answer_over_wires_takes_their_round_trip() {
        let Some(workspace) = workspace() else { return };
        let Some(links) = wires(&workspace, Wire::of_round_trip(10 * MS)) else {
            return;
        };
        let (mut here, mut there) = connected(&links, 1, 2);
        thread::spawn(move || {
            let mut byte = [0];
            while there.read_exact(&mut byte).is_ok() {
                there.write_all(&byte).unwrap();
            }
        });
        let mut times: Vec<Duration> = (0..40)
            .map(|_| {
                let start = Instant::now();
                here.write_all(&[1]).unwrap();
                here.read_exact(&mut [0]).unwrap();
                start.elapsed()
            })
            .collect();
        times.sort_unstable();
        // A busy machine makes some of them late, and none early.
        let (least, median) = (times[0], times[20]);
        println!(
            "round trip of 10 ms: {least:?}, median {median:?}; {:?}",
            links.lateness()
        );
        assert!(least > 99 * MS / 10, "{least:?}");
        assert!(median < 15 * MS, "{median:?}");
    }

    /// Sends so many MiB, checks them, and tells how long it took.
    fn stream(links: &Links, mib: usize) -> Duration {
        let (mut here, mut there) = connected(links, 1, 3);
        let before = links.traffic(&[Direction { from: 1, to: 3 }]).unwrap();
        // Made before: it would take longer than to send them.
        let mut blocks = vec![vec![0; 1 << 20]; 5];
        for (seed, block) in (0..).zip(&mut blocks) {
            pattern::fill(seed, 0, block);
        }
        let sent_blocks = blocks.clone();
        let start = Instant::now();
        let sender = thread::spawn(move || {
            for block in sent_blocks.iter().cycle().take(mib) {
                here.write_all(block).unwrap();
            }
        });
        let mut block = vec![0; 1 << 20];
        for (place, expected) in blocks.iter().cycle().take(mib).enumerate() {
            there.read_exact(&mut block).unwrap();
            assert!(block == *expected, "MiB {place} arrived as something else");
        }
        let took = start.elapsed();
        sender.join().unwrap();
        let seen = links.traffic(&[Direction { from: 1, to: 3 }]).unwrap() - before;
        let sent = (mib << 20) as u64;
        // 52 bytes of headers on 1,448 of content, and no more than a little that was sent twice.
        assert!(
            seen.bytes > sent + sent / 30 && seen.bytes < sent + sent / 15,
            "{seen:?}"
        );
        assert!(
            seen.segments >= sent / 1_448 && seen.segments < sent / 1_300,
            "{seen:?}"
        );
        took
    }

    #[test]
    fn wires_carry_every_byte_fast_and_count_it() {
        let Some(workspace) = workspace() else { return };
        let Some(links) = wires(&workspace, Wire::of_round_trip(MS)) else {
            return;
        };
        let took = stream(&links, 256);
        let rate = 256.0 / took.as_secs_f64();
        println!("{rate:.0} MiB/s over 1 ms; {:?}", links.lateness());
        // Here it is several hundred; a machine that does other things besides has less.
        assert!(rate > 50.0, "{rate} MiB/s");
        let nothing = links.traffic(&[Direction { from: 2, to: 3 }]).unwrap();
        assert_eq!(nothing, Traffic::default());
    }

    #[test]
    fn wires_with_a_rate_are_no_faster() {
        let Some(workspace) = workspace() else { return };
        let wire = Wire {
            one_way: MS,
            rate: NonZeroU64::new(20_000_000),
        };
        let Some(links) = wires(&workspace, wire) else {
            return;
        };
        let took = stream(&links, 8);
        assert!(took > Duration::from_millis(400), "{took:?}");
        assert!(took < Duration::from_secs(3), "{took:?}");
    }
}
