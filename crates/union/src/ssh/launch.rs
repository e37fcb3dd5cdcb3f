//! A member on another host, started over SSH.
//!
//! The system's `ssh` does it, with the user's configuration, agent, jump hosts and known hosts. The far shell runs one line
//! that takes the program from its standard input where the host does not keep it, and becomes it. The program's file is
//! removed as soon as it runs, so nothing stays behind however it ends.

use super::carry::Program;
use super::target::Host;
use crate::channel::{Channel, Event, Side};
use std::hash::{BuildHasher, RandomState};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStderr, Command};
use tokio::sync::mpsc;
use tokio::time::timeout;

/// Begins each line that is meant for the starter; whatever else a far shell writes is passed over.
pub const MARK: &str = "perigee-union:";
/// How long a host may take from the first packet to a member that speaks, without the time of sending the program.
const LIMIT: Duration = Duration::from_secs(20);
/// How long the program may take to arrive.
const SENDING: Duration = Duration::from_secs(300);
/// What a far shell may write before, bytes.
const NOISE_MAX: u64 = 256 << 10;
/// What of `ssh`'s own words is kept, bytes.
const WORDS_MAX: usize = 2_048;
/// Events of a channel that wait.
const EVENTS: usize = 64;

/// How members are started.
#[derive(Debug, Clone)]
pub struct Launcher {
    /// `ssh` and options for it.
    pub ssh: Vec<String>,
    /// What is carried.
    pub program: Program,
    /// Hosts keep the program for the next time.
    pub keep: bool,
}

/// A member that speaks.
pub struct Launched {
    /// `ssh`; killed when dropped.
    pub child: Child,
    /// The connection to it.
    pub channel: Arc<Channel>,
    /// What it says.
    pub events: mpsc::Receiver<Event>,
}

/// Why there is none, as one sentence without its subject.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NotLaunched(pub String);

fn because(why: impl std::fmt::Display) -> NotLaunched {
    NotLaunched(why.to_string())
}

impl Launcher {
    /// What the far shell runs. It has no quotes of its own, so that any shell takes it.
    fn line(&self) -> String {
        let (name, len) = (&self.program.name, self.program.bytes.len());
        // Nobody can make the directory first: it is not known before, and one that is there is not taken.
        let number = RandomState::new().hash_one(name);
        let place = "${XDG_CACHE_HOME:-$HOME/.cache}/perigee";
        let run = match self.keep {
            true => format!(
                "mkdir -p \"{place}/{name}\" && mv \"$d/perigee\" \"$k\" && rmdir \"$d\" && exec \"$k\" serve-union"
            ),
            false => "exec \"$d/perigee\" serve-union --remove \"$d\"".to_owned(),
        };
        format!(
            "exec sh -c 'umask 077; k=\"{place}/{name}/perigee\"; \
             if [ -x \"$k\" ]; then exec \"$k\" serve-union; fi; \
             d=; for t in \"${{TMPDIR:-/tmp}}\" \"$HOME\" /var/tmp /dev/shm; do \
             d=\"$t/.perigee-{number:016x}\"; mkdir \"$d\" 2>/dev/null || {{ d=; continue; }}; \
             echo \"#!/bin/sh\" > \"$d/t\"; chmod 700 \"$d/t\"; \"$d/t\" 2>/dev/null && break; \
             rm -rf \"$d\"; d=; done; \
             if [ -z \"$d\" ]; then echo \"{MARK} no directory lets programs run\"; exit 1; fi; \
             rm -f \"$d/t\"; echo \"{MARK} need $(uname -sm)\"; \
             head -c {len} > \"$d/perigee\"; chmod 700 \"$d/perigee\"; \
             if e=$(\"$d/perigee\" --version 2>&1); then {run}; fi; \
             rm -rf \"$d\"; echo \"{MARK} it does not run there: $e\" | head -n 1; exit 1'"
        )
    }

    /// Starts a member, and returns once it speaks.
    ///
    /// # Errors
    /// Why not, for a person.
    pub async fn start(&self, host: &Host) -> Result<Launched, NotLaunched> {
        let mut child = self.spawn(host)?;
        let words = child
            .stderr
            .take()
            .map(|stderr| tokio::spawn(last_words(stderr)));
        match self.greet(&mut child).await {
            Ok((channel, events)) => Ok(Launched {
                child,
                channel,
                events,
            }),
            Err(why) => {
                _ = child.start_kill();
                let said = match words {
                    Some(words) => timeout(Duration::from_secs(1), words).await,
                    None => return Err(why),
                };
                let said = said.ok().and_then(Result::ok).unwrap_or_default();
                Err(if said.is_empty() { why } else { because(said) })
            }
        }
    }

    fn spawn(&self, host: &Host) -> Result<Child, NotLaunched> {
        let (program, options) = self
            .ssh
            .split_first()
            .ok_or_else(|| because("no ssh is named"))?;
        // The shell makes it deaf to the terminal's signals, which are meant for the command in front.
        let mut command = Command::new("sh");
        command.args(["-c", "trap '' HUP INT QUIT; exec \"$0\" \"$@\"", program]);
        command
            .args(options)
            .args(["-T", "-e", "none", "-o", "ClearAllForwardings=yes"]);
        command.args(["-o", "ConnectTimeout=10"]);
        if let Some(port) = host.port {
            command.args(["-p", &port.to_string()]);
        }
        command.arg("--").arg(&host.name).arg(self.line());
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command.kill_on_drop(true);
        command
            .spawn()
            .map_err(|error| because(format!("`{program}` does not start: {error}")))
    }

    async fn greet(
        &self,
        child: &mut Child,
    ) -> Result<(Arc<Channel>, mpsc::Receiver<Event>), NotLaunched> {
        let ended = || because("ssh ended");
        let mut stdin = child.stdin.take().ok_or_else(ended)?;
        let mut stdout = BufReader::with_capacity(64 << 10, child.stdout.take().ok_or_else(ended)?);
        let first = timeout(LIMIT, next_word(&mut stdout)).await;
        let mut word = first.map_err(|_| because("no answer in time"))??;
        if let Some(system) = word.strip_prefix("need ") {
            if system != self.program.runs_on {
                return Err(because(format!(
                    "the host is {system}, and this program runs on {}",
                    self.program.runs_on
                )));
            }
            let sent = timeout(SENDING, async {
                stdin.write_all(&self.program.bytes).await?;
                stdin.flush().await
            });
            match sent.await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => {
                    return Err(because(format!("the program could not be sent: {error}")));
                }
                Err(_) => return Err(because("the program did not arrive in time")),
            }
            let next = timeout(SENDING, next_word(&mut stdout)).await;
            word = next.map_err(|_| because("the program did not start in time"))??;
        }
        if word != "speaks" {
            return Err(because(word));
        }
        let (events, heard) = mpsc::channel(EVENTS);
        Ok((Channel::start(Side::Starter, stdout, stdin, events), heard))
    }
}

/// The next line that begins with [`MARK`].
async fn next_word(from: &mut (impl AsyncBufRead + Unpin)) -> Result<String, NotLaunched> {
    let mut read = 0;
    loop {
        let mut line = Vec::new();
        let mut bounded = (&mut *from).take(NOISE_MAX);
        match bounded.read_until(b'\n', &mut line).await {
            Ok(0) => return Err(because("the connection ended before the program started")),
            Ok(len) => read += len as u64,
            Err(error) => return Err(because(error)),
        }
        let line = String::from_utf8_lossy(&line);
        if let Some(word) = line.trim_end().strip_prefix(MARK) {
            return Ok(word.trim_start().to_owned());
        }
        if read >= NOISE_MAX {
            return Err(because("its shell writes without end"));
        }
    }
}

/// The last line that is not empty of what `ssh` says.
async fn last_words(mut stderr: ChildStderr) -> String {
    let mut said = Vec::new();
    let mut piece = [0; 512];
    while let Ok(len @ 1..) = stderr.read(&mut piece).await {
        said.extend_from_slice(&piece[..len]);
        let over = said.len().saturating_sub(WORDS_MAX);
        said.drain(..over);
    }
    let text = String::from_utf8_lossy(&said);
    let mut lines = text
        .lines()
        .rev()
        .map(str::trim)
        .filter(|line| !line.is_empty());
    lines.next().unwrap_or_default().to_owned()
}
