//! Hosts that are reached by `ssh` alone: each has a network, mounts, a name, homes, a disk and an OpenSSH server of its
//! own, with keys made for the test.
//!
//! Host 0 is "here": commands are run on it, and it has no server. The others are `h1`, `h2` and so on, also in the
//! `~/.ssh/config` of each user of host 0, so that `ssh h2` works there without an option. Users log in as root or as
//! [`TESTER`]; either's key opens both accounts on every host. Process numbers of the others are their own, too.
//!
//! What a host has is below the workspace, but no host sees what is of another one, or anything else in the machine's
//! temporary folder. The rest of the machine's files all of them see.
//!
//! Read [`plan`] (what there shall be), [`equipment`] (what lies on a host's disk), [`relay`] (the firewall).

mod equipment;
mod plan;
mod relay;

pub(crate) use equipment::folder;
pub use plan::{Missing, Plan};

use crate::error::{Call, CheckError, Checked};
use crate::leftover::{Workspace, report};
use crate::links::{ENTER, Links, Own};
use crate::namespace::Namespace;
use crate::process::{self, Identity};
use crate::{mounts, netns, wait};
use equipment::Equipment;
use relay::Relay;
use rustix::process::Signal;
use std::ffi::OsStr;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The name of the user without privileges.
pub const TESTER: &str = "tester";
/// That user's number, and its group's.
pub const TESTER_ID: u32 = 4_711;
/// Where servers listen.
pub const SSH_PORT: u16 = 22;
/// So many hosts besides host 0 at most.
pub const HOSTS_MAX: u32 = 16;

const SSHD: &str = "/usr/sbin/sshd";
/// A server listens within this, on a busy machine too.
const START: Duration = Duration::from_secs(30);
/// A killed process is gone at once, unless it waits for a slow disk.
const DEATH: Duration = Duration::from_secs(20);
/// Where programs are looked for on a host.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Who runs a program, or logs in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum User {
    /// The superuser.
    Root,
    /// One without privileges: [`TESTER`].
    Tester,
}

impl User {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Root, Self::Tester];

    /// As the system calls it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Root => "root",
            Self::Tester => TESTER,
        }
    }

    /// The number of the user and of its group.
    #[must_use]
    pub fn id(self) -> u32 {
        match self {
            Self::Root => 0,
            Self::Tester => TESTER_ID,
        }
    }
}

/// Hosts with servers. Dropping it ends all that runs on them, and removes what they have.
#[derive(Debug)]
pub struct SshHosts {
    /// By number, host 0 first.
    hosts: Vec<Host>,
    links: Links,
    /// Dropped last: what runs in it must have ended.
    workspace: Workspace,
}

#[derive(Debug)]
struct Host {
    /// Where the network gives its name to.
    link: u32,
    equipment: Equipment,
    /// There where a firewall stands before it.
    hidden: Option<Hidden>,
    /// The server's process that listens.
    server: Vec<Identity>,
}

/// A host without any link, and the only way to it.
#[derive(Debug)]
struct Hidden {
    relay: Relay,
    namespace: Namespace,
}

impl SshHosts {
    /// Starts so many hosts, as far apart as processes of this machine, and none behind a firewall. [`Plan`] has more.
    ///
    /// Errors: those of [`Plan::start`].
    pub fn start(count: u32) -> Checked<Self> {
        Plan::of(count).start()
    }

    /// How many there are besides host 0, running or not.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.hosts.len() as u32 - 1
    }

    /// The network, for cuts, other delays, and what was sent; it has numbers of its own ([`SshHosts::link`]).
    #[must_use]
    pub fn links(&self) -> &Links {
        &self.links
    }

    /// The number that a host has for [`Links`].
    ///
    /// Errors: there is no such host.
    pub fn link(&self, host: u32) -> Checked<u32> {
        Ok(self.host(host)?.link)
    }

    /// As `ssh` knows a host.
    #[must_use]
    pub fn name(&self, host: u32) -> String {
        equipment::name_of(host)
    }

    /// Where a host is found; where there is a firewall, that is the firewall's.
    ///
    /// Errors: there is no such host.
    pub fn address(&self, host: u32) -> Checked<Ipv4Addr> {
        Ok(self.host(host)?.equipment.address)
    }

    /// What `ssh -F` of a user on host 0 is told; the same as the user's own `~/.ssh/config`.
    #[must_use]
    pub fn ssh_config(&self, user: User) -> PathBuf {
        equipment::client_config(&equipment::machine(self.workspace.path(), 0), user)
    }

    /// A host's disk: a directory of [`TESTER`], empty at first. It has the same name on the machine and on its host;
    /// other hosts do not see it.
    ///
    /// Errors: there is no such host.
    pub fn directory(&self, host: u32) -> Checked<PathBuf> {
        Ok(self.host(host)?.equipment.disk())
    }

    /// A user's home on a host, of which the same is true.
    ///
    /// Errors: there is no such host.
    pub fn home(&self, host: u32, user: User) -> Checked<PathBuf> {
        Ok(self.host(host)?.equipment.home(user))
    }

    /// What the server of a host has said.
    ///
    /// Errors: there is no such host, or those of reading.
    pub fn server_log(&self, host: u32) -> Checked<String> {
        let file = self.host(host)?.equipment.log();
        std::fs::read_to_string(&file).call(|| format!("read {}", file.display()))
    }

    /// A program to be run on a host as a user, in the root directory, with no more in its environment than a login has.
    ///
    /// On host 0 its process is the child itself. On others it has numbers of that host: the child only waits for it, and
    /// gives its outcome; of signals, only KILL reaches it.
    ///
    /// Errors: there is no such host.
    pub fn command(&self, host: u32, user: User, program: impl AsRef<OsStr>) -> Checked<Command> {
        let namespace = self.namespace(host)?;
        let id = user.id().to_string();
        let home = self.host(host)?.equipment.home(user);
        let mut command = Command::new(ENTER);
        command.args(namespace.entries()).args(["--", "setpriv"]);
        command.args(["--reuid", &id, "--regid", &id, "--clear-groups"]);
        if namespace.has_processes() {
            command.args(["--pdeathsig", "KILL"]);
        }
        command.arg("--").arg(program).env_clear().envs([
            ("HOME", home.as_os_str()),
            ("USER", user.name().as_ref()),
            ("LOGNAME", user.name().as_ref()),
            ("SHELL", equipment::SHELL.as_ref()),
            ("PATH", PATH.as_ref()),
        ]);
        Ok(command)
    }

    /// Runs on a host's network: sockets that are made there stay there.
    ///
    /// Errors: there is no such host, or what the closure says.
    pub fn inside<T: Send>(
        &self,
        host: u32,
        run: impl FnOnce() -> Checked<T> + Send,
    ) -> Checked<T> {
        netns::inside(&self.namespace(host)?.place(), run)
    }

    /// Where this process finds what a host calls `path`, in its mounts, too. Root cannot look into a FUSE mount of
    /// [`TESTER`]'s without `allow_other`.
    ///
    /// Errors: there is no such host, or `path` is relative.
    pub fn path_of(&self, host: u32, path: &Path) -> Checked<PathBuf> {
        let pid = self.namespace(host)?.pid();
        let below = path.strip_prefix("/").map_err(|_| {
            CheckError::violated(format!("{} is not an absolute path", path.display()))
        })?;
        Ok(PathBuf::from(format!("/proc/{pid}/root")).join(below))
    }

    /// What runs on a host besides its server's listening process: numbers as the machine counts, and command lines. The
    /// processes of a login are there until a moment after `ssh` has ended.
    ///
    /// Errors: there is no such host.
    pub fn processes(&self, host: u32) -> Checked<Vec<(i32, String)>> {
        let server = &self.host(host)?.server;
        let running = self.running(host)?.into_iter();
        let others = running.filter(|identity| !server.contains(identity));
        let pids = others.map(|identity| identity.pid);
        // One that only waits for a program on the host is none of the host's.
        let pids = pids.filter(|pid| process::program_of(*pid).as_deref() != Some(ENTER));
        Ok(pids.map(|pid| (pid, process::command_line(pid))).collect())
    }

    /// Shuts a host down: all its processes are killed, which ends their connections, and then nobody answers there.
    /// Files and mounts stay. For a host that falls silent at once, cut what is [`Links::around`] it.
    ///
    /// Errors: there is no such host, or a process that resists.
    pub fn stop(&mut self, host: u32) -> Checked {
        self.end(host)?;
        if let Some(hidden) = &self.host(host)?.hidden {
            hidden.relay.hang_up();
        }
        self.host_mut(host)?.server.clear();
        self.links.vanish(self.link(host)?)
    }

    /// Starts a host that was stopped, and waits until its server listens.
    ///
    /// Errors: it was not stopped, or its server does not start.
    pub fn restart(&mut self, host: u32) -> Checked {
        let running = self.running(host)?;
        crate::ensure!(running.is_empty(), "host {host} runs already");
        self.links.appear(self.link(host)?)?;
        self.serve(host)
    }

    fn host(&self, host: u32) -> Checked<&Host> {
        let found = self.hosts.get(host as usize);
        found.ok_or_else(|| no_host(host))
    }

    fn host_mut(&mut self, host: u32) -> Checked<&mut Host> {
        let found = self.hosts.get_mut(host as usize);
        found.ok_or_else(|| no_host(host))
    }

    /// Where its programs run: never on the machine itself.
    fn namespace(&self, host: u32) -> Checked<&Namespace> {
        let host = self.host(host)?;
        let namespace = match &host.hidden {
            Some(hidden) => &hidden.namespace,
            None => self.links.of(host.link)?,
        };
        namespace.ensure_apart(Own::Files)?;
        Ok(namespace)
    }

    /// All that runs there, its server included.
    fn running(&self, host: u32) -> Checked<Vec<Identity>> {
        let namespace = self.namespace(host)?;
        let mut all = process::in_network(&namespace.place())
            .call(|| format!("look for the processes of host {host}"))?;
        all.retain(|identity| !namespace.is_held_by(identity.pid));
        Ok(all)
    }

    /// Ends all that runs there.
    fn end(&self, host: u32) -> Checked {
        wait::until("the processes of a host are gone", DEATH, || {
            let running = self.running(host)?;
            for identity in &running {
                identity
                    .signal(Signal::KILL)
                    .call(|| format!("kill process {}", identity.pid))?;
            }
            Ok(running.is_empty().then_some(()))
        })
    }

    /// Gives a host what it has for itself, and starts its server.
    fn furnish(&self, host: u32) -> Checked {
        let namespace = self.namespace(host)?;
        let temporary = std::env::temp_dir();
        let theirs = mounts::of_others(namespace.pid(), &temporary)
            .call(|| format!("read the mount table of host {host}"))?;
        let equipment = &self.host(host)?.equipment;
        equipment.install(namespace, &temporary, &theirs)?;
        let mut reaches = self.command(host, User::Tester, "test")?;
        reaches.arg("-w").arg(self.directory(host)?);
        let reached = reaches.status().call(|| "look at a disk".to_owned())?;
        crate::ensure!(
            reached.success(),
            "{TESTER} cannot reach {}, where temporary files are",
            temporary.display()
        );
        Ok(())
    }

    /// Starts a host's server, and waits until it listens.
    fn serve(&mut self, host: u32) -> Checked {
        let equipment = &self.host(host)?.equipment;
        let (config, log) = (equipment.server_config(), equipment.log());
        let started = self
            .command(host, User::Root, SSHD)?
            .arg("-f")
            .arg(&config)
            .arg("-E")
            .arg(&log)
            .output()
            .call(|| format!("start {SSHD}"))?;
        let said = String::from_utf8_lossy(&started.stderr);
        crate::ensure!(started.status.success(), "{SSHD} does not start: {said}");
        let pid = self.namespace(host)?.pid();
        wait::until(
            "a server listens",
            START,
            || Ok(listens(pid)?.then_some(())),
        )
        .map_err(|error| error.followed_by(&self.server_log(host).unwrap_or_default()))?;
        let server = self.running(host)?;
        self.host_mut(host)?.server = server;
        Ok(())
    }
}

impl Drop for SshHosts {
    fn drop(&mut self) {
        // Those here first: they may wait for the others.
        for host in 0..self.hosts.len() as u32 {
            if let Err(error) = self.end(host) {
                report(&format!("testbed: host {host} is left behind: {error}"));
            }
        }
    }
}

fn no_host(host: u32) -> CheckError {
    CheckError::violated(format!("there is no host {host}"))
}

/// Whether a server listens in the network of a process, which is not disturbed.
fn listens(pid: i32) -> Checked<bool> {
    /// As the kernel shows the state of a socket that listens.
    const LISTEN: &str = "0A";
    let file = format!("/proc/{pid}/net/tcp");
    let table = std::fs::read_to_string(&file).call(|| format!("read {file}"))?;
    let port = format!(":{SSH_PORT:04X}");
    Ok(table.lines().any(|line| {
        let mut fields = line.split_ascii_whitespace().skip(1);
        let local = fields.next().is_some_and(|local| local.ends_with(&port));
        local && fields.nth(1) == Some(LISTEN)
    }))
}

/// Where a host's server listens.
fn endpoint(address: Ipv4Addr) -> SocketAddrV4 {
    SocketAddrV4::new(address, SSH_PORT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_runs_on_hosts_ends_with_their_folder() {
        let Some(hosts) = Plan::of(1).start_or_skip().unwrap() else {
            return;
        };
        let start = |host| {
            let mut sleep = hosts.command(host, User::Tester, "sleep").unwrap();
            sleep.arg("30").spawn().unwrap()
        };
        let mut started = [0, 1].map(start);
        for host in [0, 1] {
            // Who has not come there yet is not known to be the host's.
            wait::until("it runs on its host", Duration::from_secs(30), || {
                let sleeps = |(_, line): &(_, String)| line.starts_with("sleep");
                let running = hosts.processes(host)?;
                Ok(running.iter().any(sleeps).then_some(()))
            })
            .unwrap();
        }
        // As the next test does it when this one has been killed.
        hosts.workspace.stop().unwrap();
        for sleep in &mut started {
            assert!(!sleep.wait().unwrap().success());
        }
        assert!(hosts.processes(0).is_err() && hosts.processes(1).is_err());
    }
}
