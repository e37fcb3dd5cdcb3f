//! The processes of all hosts.

use super::kind::Kind;
use super::sequence::Work;
use super::sites;
use super::worker::{Answer, Task};
use perigee_testbed::ssh_hosts::{SshHosts, User};
use perigee_testbed::{Call, CheckError, Checked, ensure};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

/// What this program is told to be one of them.
const OPTION: &str = "--work";

/// One for each host; they end with it.
pub(super) struct Crew {
    workers: Vec<Worker>,
}

struct Worker {
    host: u32,
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Crew {
    /// Starts `program` on all hosts.
    ///
    /// Errors: those of starting it.
    pub(super) fn start(hosts: &SshHosts, program: &Path) -> Checked<Self> {
        let workers = (1..=hosts.count()).map(|host| Worker::start(hosts, host, program));
        Ok(Self {
            workers: workers.collect::<Checked<_>>()?,
        })
    }

    /// Has all clients do their operations of a kind, and gives how many a second all did until the last was done.
    ///
    /// Errors: the first operation that fails.
    pub(super) fn perform(&mut self, work: &Work, kind: Kind) -> Checked<f64> {
        let clients = |host| {
            let all = 0..work.share.clients;
            let there = all.filter(|client| sites::host_of(*client) == host);
            there.collect::<Vec<u32>>()
        };
        let workers = self.workers.iter_mut();
        let mut busy: Vec<&mut Worker> = workers
            .filter(|worker| !clients(worker.host).is_empty())
            .collect();
        for worker in &mut busy {
            let task = Task {
                work: *work,
                kind,
                clients: clients(worker.host),
            };
            let line = serde_json::to_string(&task).call(|| "write a task".to_owned())?;
            worker.send(&line)?;
        }
        for worker in &mut busy {
            let answer = worker.answer()?;
            ensure!(matches!(answer, Answer::Ready), "{answer:?}");
        }
        for worker in &mut busy {
            worker.send("go")?;
        }
        let (mut all, mut longest) = (0, 0.0_f64);
        let mut failure = None;
        for worker in &mut busy {
            match worker.answer()? {
                Answer::Done {
                    operations,
                    seconds,
                } => {
                    all += operations;
                    longest = longest.max(seconds);
                }
                // The others finish first: their answers are not to be taken for those to the next task.
                other => failure = failure.or(Some((worker.host, other))),
            }
        }
        match failure {
            None => Ok(all as f64 / longest.max(1e-9)),
            Some((host, answer)) => Err(CheckError::violated(format!("host {host}: {answer:?}"))),
        }
    }
}

impl Worker {
    fn start(hosts: &SshHosts, host: u32, program: &Path) -> Checked<Self> {
        let what = || format!("start the clients of host {host}");
        let mut process = hosts
            .command(host, User::Root, program)?
            .arg(OPTION)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .call(what)?;
        let (input, output) = (process.stdin.take(), process.stdout.take());
        let (Some(input), Some(output)) = (input, output) else {
            return Err(CheckError::violated(what()));
        };
        Ok(Self {
            host,
            process,
            input,
            output: BufReader::new(output),
        })
    }

    fn send(&mut self, line: &str) -> Checked {
        let sent = writeln!(self.input, "{line}").and_then(|()| self.input.flush());
        sent.call(|| format!("tell the clients of host {}", self.host))
    }

    fn answer(&mut self) -> Checked<Answer> {
        let what = || format!("hear the clients of host {}", self.host);
        let mut line = String::new();
        self.output.read_line(&mut line).call(what)?;
        ensure!(!line.is_empty(), "the clients of host {} ended", self.host);
        serde_json::from_str(&line).call(what)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It may have ended already; nothing else of it is wanted.
        _ = self.process.kill();
        _ = self.process.wait();
    }
}
