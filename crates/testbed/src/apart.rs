//! Clusters with every node on a host of its own.

use crate::cluster::{COMMAND, Cluster, DEGRADED, run};
use crate::delay::Wire;
use crate::error::{Call, CheckError, Checked};
use crate::links::{self, Links, address_of};
use std::path::{Path, PathBuf};
use std::time::Duration;

impl Cluster {
    /// [`Cluster::start_prepared`] with every node on a host of its own, between which links can be cut; the control store
    /// is on the first. Takes root.
    ///
    /// Errors: those of [`Cluster::start_prepared`] and of [`Links::new`].
    pub fn start_apart(
        nodes: u32,
        limit: Duration,
        prepare: impl FnOnce(&Path) -> Checked,
    ) -> Checked<Self> {
        let links = |folder: &Path| Links::new(folder, nodes);
        Self::start_on(links, nodes, limit, prepare, &[])
    }

    /// The same with links over which everything takes its time, and is counted.
    ///
    /// Errors: those of [`Cluster::start_prepared`] and of [`Links::with_delay`].
    pub fn start_far_apart(nodes: u32, limit: Duration, wire: Wire) -> Checked<Self> {
        Self::start_far_apart_with(nodes, limit, wire, &[])
    }

    /// The same with hosts that store nothing. The first is none of them.
    ///
    /// Errors: those of [`Cluster::start_far_apart`].
    pub fn start_far_apart_with(
        nodes: u32,
        limit: Duration,
        wire: Wire,
        without_storage: &[u32],
    ) -> Checked<Self> {
        let links = |folder: &Path| Links::with_delay(folder, nodes, wire);
        Self::start_on(links, nodes, limit, |_| Ok(()), without_storage)
    }

    /// The same with links that take no time worth speaking of within each half of the hosts, and `round_trip` from one half to the
    /// other; once `prepare` has had [`Cluster::dir`] to itself.
    ///
    /// Errors: those of [`Cluster::start_prepared`] and of [`Links::with_delay`].
    pub fn start_at_two_sites(
        nodes: u32,
        limit: Duration,
        round_trip: Duration,
        prepare: impl FnOnce(&Path) -> Checked,
    ) -> Checked<Self> {
        let short = Wire::of_round_trip(Duration::from_micros(150));
        let links = |folder: &Path| Links::with_delay(folder, nodes, short);
        let cluster = Self::start_on(links, nodes, limit, prepare, &[])?;
        let half = nodes / 2;
        for a in 1..=half {
            for b in half + 1..=nodes {
                let links = cluster.links()?;
                links.reroute(a, b, Wire::of_round_trip(round_trip))?;
            }
        }
        Ok(cluster)
    }

    fn start_on(
        links: impl FnOnce(&Path) -> Checked<Links>,
        nodes: u32,
        limit: Duration,
        prepare: impl FnOnce(&Path) -> Checked,
        without_storage: &[u32],
    ) -> Checked<Self> {
        let mut cluster = Self::unstarted(nodes, limit)?;
        let links = links(cluster.path())?;
        prepare(&cluster.dir())?;
        for host in 1..=nodes {
            let stores = !without_storage.contains(&host);
            cluster.found(&links, host, if stores { &[] } else { &["--no-storage"] })?;
        }
        cluster.links = Some(links);
        cluster.up()?;
        cluster.settle()?;
        Ok(cluster)
    }

    /// How many messages the nodes have sent each other since they started, by their own count: calls, answers, and
    /// words that nobody answers. To ask makes some, too: two for each pair of nodes.
    ///
    /// Errors: a node does not answer, or its answer is not of the agreed form.
    pub fn messages_sent(&mut self) -> Checked<u64> {
        let mut all = 0;
        for host in 1..=self.size {
            let net = self.net_of(host)?;
            let sent = net["messages_sent"].as_u64();
            all += sent.ok_or_else(|| {
                CheckError::violated(format!("`status --json`: no messages: {net}"))
            })?;
        }
        Ok(all)
    }

    /// What the node of a host has counted of its network, as `status --json` says it.
    ///
    /// Errors: it does not answer.
    pub fn net_of(&mut self, host: u32) -> Checked<serde_json::Value> {
        let dir = self.machine(host).to_string_lossy().into_owned();
        let ended = self.command(&["status", "--json", "--dir", &dir])?;
        let value: Option<serde_json::Value> = serde_json::from_str(&ended.stdout).ok();
        value.map(|value| value["net"].clone()).ok_or_else(|| {
            let (said, error) = (&ended.stdout, &ended.stderr);
            CheckError::violated(format!("`status --json`: {said}{error}"))
        })
    }

    /// Makes the node of a host: the first one the cluster, too. Each host has a directory as a machine has, whose
    /// node lies in [`Cluster::dir`], so that commands there see all nodes.
    fn found(&mut self, links: &Links, host: u32, options: &[&str]) -> Checked {
        let (machine, data) = (self.machine(host), self.dir().join(format!("node-{host}")));
        for folder in [&machine, &data] {
            std::fs::create_dir_all(folder).call(|| format!("make {}", folder.display()))?;
        }
        link(&data, &machine.join("node-1"))?;
        let listen = format!("{}:7400", address_of(host));
        let name = format!("n{host}");
        if host == 1 {
            self.on_host(links, host, &["init", "--listen", &listen, "--name", &name])?;
            return link(&machine.join("control"), &self.dir().join("control"));
        }
        let token = self.on_host(links, 1, &["token", "--json"])?;
        let parsed: serde_json::Value = serde_json::from_str(&token).unwrap_or_default();
        let token = parsed["token"].as_str().unwrap_or_default().to_owned();
        crate::ensure!(!token.is_empty(), "`token --json` gave none");
        let join = ["join", &token, "--listen", &listen, "--name", &name];
        let join = [&join, options].concat();
        self.on_host(links, host, &join).map(drop)
    }

    /// The directory of a host.
    #[must_use]
    pub fn machine(&self, host: u32) -> PathBuf {
        self.path().join(format!("c-{host}"))
    }

    /// Runs `perigee ARGUMENTS --dir DIR` on a host, which has to succeed, and gives its standard output.
    pub(crate) fn on_host(
        &mut self,
        links: &Links,
        host: u32,
        arguments: &[&str],
    ) -> Checked<String> {
        self.commands += 1;
        let base = self.path().join(format!("command-{}", self.commands));
        let (entry, dir) = (links.entry(host)?, self.machine(host));
        let (program, dir) = (self.perigee.to_string_lossy(), dir.to_string_lossy());
        let mut all = vec![entry.as_str(), &program];
        all.extend(arguments);
        all.extend(["--dir", &dir]);
        let ended = run(Path::new(links::ENTER), &all, &base, COMMAND)?;
        self.workspace.record()?;
        if ended.status.success() || ended.status.code() == Some(DEGRADED) {
            return Ok(ended.stdout);
        }
        Err(CheckError::Command {
            command: format!("perigee {} on host {host}", arguments.join(" ")),
            status: ended.status,
            stderr: ended.stderr,
        })
    }
}

fn link(to: &Path, place: &Path) -> Checked {
    std::os::unix::fs::symlink(to, place).call(|| format!("link {}", place.display()))
}
