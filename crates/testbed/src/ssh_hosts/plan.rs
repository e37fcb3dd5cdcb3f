//! What hosts there shall be, and whether they can be had on this machine.

use super::equipment::{self, Equipment, Keys};
use super::relay::Relay;
use super::{HOSTS_MAX, Hidden, Host, SSHD, SshHosts, endpoint};
use crate::delay::Wire;
use crate::error::{CheckError, Checked};
use crate::leftover::Workspace;
use crate::links::{Direction, ENTER, Links, Own, address_of};
use crate::namespace::Namespace;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Programs that hosts take.
const PROGRAMS: [&str; 8] = [
    "unshare",
    ENTER,
    "setpriv",
    "ip",
    "mount",
    "ssh",
    "ssh-keygen",
    SSHD,
];
/// Where they are looked for.
const PLACES: [&str; 6] = [
    "/usr/local/sbin",
    "/usr/local/bin",
    "/usr/sbin",
    "/usr/bin",
    "/sbin",
    "/bin",
];

/// Why hosts cannot be had here.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Missing {
    /// This process is not root.
    #[error("skipped: hosts with networks and mounts of their own need root")]
    Root,
    /// A program is not installed.
    #[error("skipped: there is no `{0}`")]
    Program(&'static str),
    /// The kernel gives no namespaces, or no bridge in one.
    #[error("skipped: no namespace with a bridge can be made: {0}")]
    Namespaces(String),
    /// Hosts that are some time apart take TUN devices.
    #[error("skipped: there is no /dev/net/tun")]
    Tun,
}

/// Hosts that shall be started.
#[derive(Debug, Clone)]
pub struct Plan {
    count: u32,
    hidden: BTreeSet<u32>,
    /// From one host to another.
    one_way: BTreeMap<(u32, u32), Duration>,
}

impl Plan {
    /// So many hosts besides host 0, as near as processes of this machine.
    #[must_use]
    pub fn of(count: u32) -> Self {
        Self {
            count,
            hidden: BTreeSet::new(),
            one_way: BTreeMap::new(),
        }
    }

    /// Puts a host behind a firewall: its server is reached, and nothing else of it; it reaches nobody. Host 0 cannot be.
    #[must_use]
    pub fn behind_firewall(mut self, host: u32) -> Self {
        self.hidden.insert(host);
        self
    }

    /// Puts hosts, host 0 among them, so far apart: `delay` says how long a packet takes from one to another.
    #[must_use]
    pub fn one_way(mut self, delay: impl Fn(u32, u32) -> Duration) -> Self {
        let all = || 0..=self.count;
        let pairs = all().flat_map(|from| all().map(move |to| (from, to)));
        let pairs = pairs.filter(|(from, to)| from != to);
        self.one_way = pairs
            .map(|(from, to)| ((from, to), delay(from, to)))
            .collect();
        self
    }

    /// What this machine lacks for it.
    #[must_use]
    pub fn missing(&self) -> Option<Missing> {
        if !rustix::process::geteuid().is_root() {
            return Some(Missing::Root);
        }
        let lacks = |program: &&str| !PLACES.iter().any(|at| Path::new(at).join(program).exists());
        if let Some(program) = PROGRAMS.into_iter().find(lacks) {
            return Some(Missing::Program(program));
        }
        if !self.one_way.is_empty() && !Path::new("/dev/net/tun").exists() {
            return Some(Missing::Tun);
        }
        let tried = Command::new("unshare")
            .args(Own::Processes.options())
            .args(["ip", "link", "add", "br0", "type", "bridge"])
            .output();
        match tried {
            Ok(ended) if ended.status.success() => None,
            Ok(ended) => Some(Missing::Namespaces(
                String::from_utf8_lossy(&ended.stderr).trim().to_owned(),
            )),
            Err(error) => Some(Missing::Namespaces(error.to_string())),
        }
    }

    /// Starts them, where this machine can; where it cannot, says so on standard error.
    ///
    /// Errors: those of [`Plan::start`].
    pub fn start_or_skip(&self) -> Checked<Option<SshHosts>> {
        if let Some(missing) = self.missing() {
            crate::leftover::report(&missing.to_string());
            return Ok(None);
        }
        self.start().map(Some)
    }

    /// Starts them, and waits until every server listens.
    ///
    /// Errors: what [`Plan::missing`] says; there are more than [`HOSTS_MAX`] or none; a host that is not among them shall be
    /// behind a firewall; [`super::TESTER`] cannot reach temporary files; a server does not start.
    pub fn start(&self) -> Checked<SshHosts> {
        if let Some(missing) = self.missing() {
            return Err(CheckError::violated(missing.to_string()));
        }
        let among = 1..=self.count;
        crate::ensure!(
            (1..=HOSTS_MAX).contains(&self.count)
                && self.hidden.iter().all(|host| among.contains(host)),
            "there cannot be such hosts: {self:?}"
        );
        let workspace = Workspace::new()?;
        let links = self.links(workspace.path())?;
        let keys = Keys::make(workspace.path(), self.count)?;
        let host = |host| self.host(host, &workspace, &links, &keys);
        let hosts = (0..=self.count).map(host).collect::<Checked<_>>()?;
        let mut all = SshHosts {
            hosts,
            links,
            workspace,
        };
        for host in 0..=self.count {
            all.furnish(host)?;
        }
        for host in 1..=self.count {
            all.serve(host)?;
        }
        Ok(all)
    }

    /// The network counts from 1: host 0 comes last there.
    fn link(&self, host: u32) -> u32 {
        if host == 0 { self.count + 1 } else { host }
    }

    fn links(&self, folder: &Path) -> Checked<Links> {
        let own = |host| match host {
            // What is before a firewall is a network and nothing else.
            host if self.hidden.contains(&host) => Own::Network,
            // Its programs are children of the test, which knows them by the machine's numbers.
            0 => Own::Files,
            _ => Own::Processes,
        };
        let owns: Vec<Own> = (1..=self.count).chain([0]).map(own).collect();
        if self.one_way.is_empty() {
            return Links::between(folder, &owns);
        }
        let links = Links::with_delay_between(folder, &owns, Wire::of_round_trip(Duration::ZERO))?;
        for ((from, to), one_way) in &self.one_way {
            let direction = Direction {
                from: self.link(*from),
                to: self.link(*to),
            };
            let wire = Wire {
                one_way: *one_way,
                rate: None,
            };
            links.reroute_one(direction, wire)?;
        }
        Ok(links)
    }

    fn host(&self, host: u32, workspace: &Workspace, links: &Links, keys: &Keys) -> Checked<Host> {
        let link = self.link(host);
        let address = address_of(link);
        let equipment = Equipment {
            host,
            address,
            folder: equipment::machine(workspace.path(), host),
        };
        equipment.make(keys)?;
        let hidden = if self.hidden.contains(&host) {
            let namespace = Namespace::new(workspace.path(), Own::Processes)?;
            namespace.run(&format!(
                "ip link set lo up && ip addr add {address}/32 dev lo"
            ))?;
            let outside = links.of(link)?.place();
            let relay = Relay::start(&outside, &namespace.place(), endpoint(address))?;
            Some(Hidden { relay, namespace })
        } else {
            None
        };
        Ok(Host {
            link,
            equipment,
            hidden,
            server: Vec::new(),
        })
    }
}
