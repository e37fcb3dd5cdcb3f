//! An etcd of one or several real processes on loopback ports, with its data in a folder.

use crate::cluster::{CONTROL_HOST, Cluster};
use crate::error::{Call, CheckError, Checked};
use crate::leftover::Workspace;
use crate::{links, wait};
use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The name of the program.
pub const PROGRAM: &str = "etcd";
/// A process serves within this, on a busy machine too.
const START: Duration = Duration::from_secs(30);

/// Whether `etcd` is installed; where it is not, says that the test called `test` is skipped.
#[must_use]
pub fn is_here(test: &str) -> bool {
    let asked = Command::new(PROGRAM).arg("--version").output();
    if asked.is_ok_and(|answer| answer.status.success()) {
        return true;
    }
    crate::leftover::report(&format!(
        "{test} is skipped: there is no `{PROGRAM}` (on Debian: apt-get install etcd-server)"
    ));
    false
}

/// A member.
#[derive(Debug)]
struct Member {
    client: SocketAddr,
    peer: SocketAddr,
    /// Where it says in plain text how it is.
    health: SocketAddr,
    process: Option<Child>,
}

/// The certificates of an etcd that speaks TLS, as PEM files. Its certificate serves on both sides: etcd asks itself.
#[derive(Debug, Clone)]
pub struct Certificates {
    /// Signs everybody's.
    pub authority: PathBuf,
    /// The members'.
    pub certificate: PathBuf,
    /// The key of that.
    pub key: PathBuf,
}

/// An etcd. Dropping it ends its processes and removes its data.
#[derive(Debug)]
pub struct Etcd {
    members: Vec<Member>,
    tls: Option<Certificates>,
    /// The words before a command that is run on its host, where that is one of its own.
    host: Vec<String>,
    workspace: Workspace,
}

impl Etcd {
    /// Starts an etcd of so many members, and waits until each serves.
    ///
    /// Errors: a process that does not.
    pub fn start(members: usize) -> Checked<Self> {
        Self::start_as(members, None, Vec::new())
    }

    /// The same where `host` before a command runs it on another host.
    ///
    /// Errors: those of [`Etcd::start`].
    pub fn start_on(members: usize, host: Vec<String>) -> Checked<Self> {
        Self::start_as(members, None, host)
    }

    /// The same over TLS, for those alone who have a certificate of the same authority.
    ///
    /// Errors: those of [`Etcd::start`].
    pub fn start_secured(members: usize, certificates: Certificates) -> Checked<Self> {
        Self::start_as(members, Some(certificates), Vec::new())
    }

    fn start_as(members: usize, tls: Option<Certificates>, host: Vec<String>) -> Checked<Self> {
        let workspace = Workspace::new()?;
        let members = free_ports(members * 3)?
            .chunks_exact(3)
            .map(|ports| Member {
                client: ports[0],
                peer: ports[1],
                health: ports[2],
                process: None,
            })
            .collect();
        let mut etcd = Self {
            members,
            tls,
            host,
            workspace,
        };
        for at in 0..etcd.members.len() {
            etcd.spawn(at)?;
        }
        for at in 0..etcd.members.len() {
            etcd.wait_until_it_serves(at)?;
        }
        Ok(etcd)
    }

    /// How many members there are, running or not.
    #[must_use]
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Where it is, as users write it.
    #[must_use]
    pub fn place(&self) -> String {
        let hosts: Vec<String> = self.members.iter().map(|m| m.client.to_string()).collect();
        let scheme = if self.tls.is_some() { "etcds" } else { "etcd" };
        format!("{scheme}://{}", hosts.join(","))
    }

    /// Has it forget what was before a revision, as it counts.
    ///
    /// Errors: it does not.
    pub fn compact(&self, revision: u64) -> Checked {
        let body = format!("{{\"revision\":\"{revision}\",\"physical\":true}}");
        let question = format!(
            "POST /v3/kv/compaction HTTP/1.0\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let answer = ask(self.members[0].client, &question).call(|| "compact etcd".to_owned())?;
        crate::ensure!(answer.contains(" 200 "), "etcd does not compact: {answer}");
        Ok(())
    }

    /// Kills a member; its data stays.
    ///
    /// Errors: those of the signal.
    pub fn kill(&mut self, at: usize) -> Checked {
        if let Some(mut process) = self.members[at].process.take() {
            process
                .kill()
                .call(|| format!("kill member {at} of etcd"))?;
            process
                .wait()
                .call(|| format!("wait for member {at} of etcd"))?;
        }
        Ok(())
    }

    /// Kills all members.
    ///
    /// Errors: those of the signals.
    pub fn kill_all(&mut self) -> Checked {
        (0..self.len()).try_for_each(|at| self.kill(at))
    }

    /// Starts a member that does not run, and waits until it serves.
    ///
    /// Errors: it does not.
    pub fn restart(&mut self, at: usize) -> Checked {
        self.spawn(at)?;
        self.wait_until_it_serves(at)
    }

    /// Starts all that do not run, and waits until they serve.
    ///
    /// Errors: one does not.
    pub fn restart_all(&mut self) -> Checked {
        for at in 0..self.len() {
            self.spawn(at)?;
        }
        (0..self.len()).try_for_each(|at| self.wait_until_it_serves(at))
    }

    /// Copies the data of all members, which must not run.
    ///
    /// Errors: those of copying.
    pub fn back_up(&self) -> Checked {
        copy_tree(&self.data(), &self.workspace.path().join("backup"))
    }

    /// Puts back what [`Etcd::back_up`] has copied, in place of the data. No member may run.
    ///
    /// Errors: those of copying.
    pub fn put_back(&self) -> Checked {
        self.empty()?;
        copy_tree(&self.workspace.path().join("backup"), &self.data())
    }

    /// Puts the data of all members, which must not run, aside.
    ///
    /// Errors: those of renaming.
    pub fn set_aside(&self) -> Checked {
        let aside = self.workspace.path().join("aside");
        fs::rename(self.data(), aside).call(|| "put the data of etcd aside".to_owned())
    }

    /// Brings back what [`Etcd::set_aside`] has put there, in place of the data. No member may run.
    ///
    /// Errors: those of renaming.
    pub fn bring_back(&self) -> Checked {
        self.empty()?;
        let aside = self.workspace.path().join("aside");
        fs::rename(aside, self.data()).call(|| "bring the data of etcd back".to_owned())
    }

    /// Removes the data of all members, which must not run.
    ///
    /// Errors: those of removing.
    pub fn empty(&self) -> Checked {
        match fs::remove_dir_all(self.data()) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            removed => removed.call(|| "remove the data of etcd".to_owned()),
        }
    }

    fn data(&self) -> PathBuf {
        self.workspace.path().join("data")
    }

    fn spawn(&mut self, at: usize) -> Checked {
        if self.members[at].process.is_some() {
            return Ok(());
        }
        let url = |address: SocketAddr| format!("http://{address}");
        let all: Vec<String> = self
            .members
            .iter()
            .enumerate()
            .map(|(at, member)| format!("m{at}={}", url(member.peer)))
            .collect();
        let peer = url(self.members[at].peer);
        let client = match &self.tls {
            None => url(self.members[at].client),
            Some(_) => format!("https://{}", self.members[at].client),
        };
        let log = self.workspace.path().join(format!("m{at}.log"));
        let log = File::options().create(true).append(true).open(&log);
        let log = log.call(|| format!("make the log of member {at} of etcd"))?;
        fs::create_dir_all(self.data()).call(|| "make the folder of etcd".to_owned())?;
        let process = self
            .command(&[PROGRAM])
            .args(["--name", &format!("m{at}"), "--data-dir"])
            .arg(self.data().join(format!("m{at}")))
            .args([
                "--listen-client-urls",
                &client,
                "--advertise-client-urls",
                &client,
            ])
            .args([
                "--listen-peer-urls",
                &peer,
                "--initial-advertise-peer-urls",
                &peer,
            ])
            .args(["--initial-cluster", &all.join(","), "--logger", "zap"])
            .args(["--listen-metrics-urls", &url(self.members[at].health)])
            .args(self.tls_arguments())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn();
        self.members[at].process = Some(process.call(|| format!("start {PROGRAM}"))?);
        self.workspace.record()
    }

    fn command(&self, words: &[&str]) -> Command {
        let host = self.host.iter().map(String::as_str);
        let mut all = host.chain(words.iter().copied());
        let mut command = Command::new(all.next().unwrap_or(PROGRAM));
        command.args(all);
        command
    }

    fn tls_arguments(&self) -> Vec<String> {
        let Some(tls) = &self.tls else {
            return Vec::new();
        };
        let file = |path: &Path| path.to_string_lossy().into_owned();
        vec![
            "--client-cert-auth".to_owned(),
            format!("--trusted-ca-file={}", file(&tls.authority)),
            format!("--cert-file={}", file(&tls.certificate)),
            format!("--key-file={}", file(&tls.key)),
        ]
    }

    fn wait_until_it_serves(&self, at: usize) -> Checked {
        let health = format!("http://{}/health", self.members[at].health);
        wait::until("a member of etcd serves", START, || {
            Ok(self.is_healthy(&health).then_some(()))
        })
    }

    /// Whether a member serves, and knows a leader.
    fn is_healthy(&self, health: &str) -> bool {
        let asked = self
            .command(&["curl", "--silent", "--max-time", "2", health])
            .output();
        asked.is_ok_and(|answer| {
            String::from_utf8_lossy(&answer.stdout).contains("\"health\":\"true\"")
        })
    }
}

impl Cluster {
    /// Starts an etcd, on the control store's host where that is one of its own, and moves the record there.
    ///
    /// Errors: those of [`Etcd::start`], and of the move.
    pub fn move_to_etcd(&mut self, members: usize) -> Checked {
        let links = self.links.take();
        let host = match &links {
            None => Vec::new(),
            Some(links) => vec![links::ENTER.to_owned(), links.entry(CONTROL_HOST)?],
        };
        let etcd = Etcd::start_on(members, host)?;
        let place = etcd.place();
        let words = ["control", "move", &place];
        match &links {
            None => self.perigee(&words)?,
            Some(links) => self.on_host(links, CONTROL_HOST, &words)?,
        };
        self.links = links;
        self.etcd = Some(etcd);
        Ok(())
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        // The workspace ends what is left, and says so when it cannot.
        _ = self.kill_all();
    }
}

/// One question in plain text, and its answer.
fn ask(address: SocketAddr, question: &str) -> std::io::Result<String> {
    use std::io::{Read as _, Write as _};
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(1))?;
    stream.set_read_timeout(Some(Duration::from_secs(2)))?;
    stream.write_all(question.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// Ports that nobody listens on; below the range from which the kernel gives ports to outgoing connections, so that
/// they are still free after a restart.
fn free_ports(count: usize) -> Checked<Vec<SocketAddr>> {
    use std::hash::{BuildHasher, RandomState};
    let mut held = Vec::new();
    for _ in 0..1000 {
        let random = RandomState::new().hash_one(0);
        let port = 12_000 + (random % 8_000) as u16;
        if let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
            held.push(listener);
        }
        if held.len() == count {
            let addresses = held.iter().map(TcpListener::local_addr);
            return addresses
                .collect::<std::io::Result<_>>()
                .call(|| "ask for a port".to_owned());
        }
    }
    Err(CheckError::violated("no free ports for etcd"))
}

fn copy_tree(from: &Path, to: &Path) -> Checked {
    let made = Command::new("cp").arg("-a").arg(from).arg(to).status();
    let made = made.call(|| "copy the data of etcd".to_owned())?;
    crate::ensure!(made.success(), "the data of etcd cannot be copied: {made}");
    Ok(())
}
