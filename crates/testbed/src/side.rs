//! One side of a check as a process of its own, spoken to by lines.
//!
//! POSIX locks belong to a process, and a writer that hangs must not hang the checker: both are
//! reasons for a process instead of a thread. The other end of the lines is `perigee-testbed child`.

use crate::error::{Call, CheckError, Checked};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// A running side.
#[derive(Debug)]
pub struct Side {
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
}

/// A line, or what came instead of one.
#[derive(Debug, PartialEq, Eq)]
pub enum Heard {
    /// A line.
    Line(String),
    /// Nothing within the time given.
    Silence,
    /// The side has ended.
    End,
}

impl Side {
    /// Starts `program child ARGUMENTS`.
    ///
    /// Errors: those of starting it.
    pub fn spawn(program: &Path, arguments: &[&str]) -> Checked<Self> {
        let mut child = Command::new(program)
            .arg("child")
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .call(|| format!("start {}", program.display()))?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let Some((input, output)) = pipes else {
            return Err(CheckError::violated("a child without its pipes"));
        };
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Ok(Self {
            child,
            input,
            lines,
        })
    }

    /// Sends one line.
    ///
    /// Errors: the side has ended.
    pub fn send(&mut self, line: &str) -> Checked {
        writeln!(self.input, "{line}").call(|| format!("send `{line}` to a side"))
    }

    /// The next line, waited for at most `limit`.
    #[must_use]
    pub fn hear(&self, limit: Duration) -> Heard {
        match self.lines.recv_timeout(limit) {
            Ok(line) => Heard::Line(line),
            Err(RecvTimeoutError::Timeout) => Heard::Silence,
            Err(RecvTimeoutError::Disconnected) => Heard::End,
        }
    }

    /// The next line, which has to come within `limit`.
    ///
    /// Errors: `Deadline`, or `Violated` when the side ended.
    pub fn answer(&self, what: &str, limit: Duration) -> Checked<String> {
        match self.hear(limit) {
            Heard::Line(line) => Ok(line),
            Heard::Silence => Err(CheckError::Deadline {
                what: what.to_owned(),
                waited: limit,
            }),
            Heard::End => Err(CheckError::violated(format!(
                "{what}: the side's process ended"
            ))),
        }
    }

    /// Sends a line and hears the answer.
    ///
    /// Errors: those of [`Side::send`] and [`Side::answer`].
    pub fn ask(&mut self, line: &str, limit: Duration) -> Checked<String> {
        self.send(line)?;
        self.answer(line, limit)
    }

    /// Kills the side, as a crash of the application would.
    pub fn kill(mut self) {
        self.end();
    }

    fn end(&mut self) {
        // Fails only for a process that has already ended.
        _ = self.child.kill();
        let start = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) && start.elapsed() < Duration::from_secs(10)
        {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        self.end();
    }
}

/// The child's end: prints one line at once.
///
/// Errors: the checker has gone.
pub fn say(line: &str) -> Checked {
    let mut output = std::io::stdout().lock();
    writeln!(output, "{line}")
        .and_then(|()| output.flush())
        .call(|| "speak to the checker".to_owned())
}
