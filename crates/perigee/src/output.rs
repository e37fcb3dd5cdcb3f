//! What a command leaves behind: text or JSON on standard output, an exit code, or one error.

use perigee_proto::admin::Failure;
use serde::Serialize;
use std::io::{ErrorKind, IsTerminal, Write};
use std::process::ExitCode;

/// How a command that did its work ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Exit code 0.
    Done,
    /// Exit code 1: it looked, and what it found does not work.
    Failed,
    /// Exit code 3: it works, but something is missing.
    Degraded,
}

/// The result of a command.
#[derive(Debug)]
pub struct Report {
    /// What standard output gets; ends with a line feed unless empty.
    pub text: String,
    /// How it ended.
    pub outcome: Outcome,
}

impl Report {
    /// Nothing to say.
    pub fn silent() -> Self {
        Self::text(String::new())
    }

    /// Done, with this to say.
    pub fn text(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            outcome: Outcome::Done,
        }
    }

    /// `value` as JSON where the user asked for it, else `text`.
    pub fn either<T: Serialize>(
        json: bool,
        value: &T,
        text: impl FnOnce() -> String,
    ) -> Result<Self, Failure> {
        if !json {
            return Ok(Self::text(text()));
        }
        let mut out = serde_json::to_string_pretty(value)
            .map_err(|error| Failure::new("cannot write JSON", error))?;
        out.push('\n');
        Ok(Self::text(out))
    }

    /// The same with another ending.
    pub fn outcome(mut self, outcome: Outcome) -> Self {
        self.outcome = outcome;
        self
    }
}

/// One line on a terminal that is written over and over; nothing where standard error is none.
pub struct Progress {
    terminal: bool,
    shown: bool,
}

impl Progress {
    /// Nothing shown yet.
    pub fn new() -> Self {
        Self {
            terminal: std::io::stderr().is_terminal(),
            shown: false,
        }
    }

    /// Shows the line in place of the last one.
    pub fn show(&mut self, line: impl FnOnce() -> String) {
        if self.terminal {
            self.write(&line());
            self.shown = true;
        }
    }

    /// Takes the line away.
    pub fn clear(&self) {
        if self.shown {
            self.write("");
        }
    }

    fn write(&self, line: &str) {
        // Whoever closed the terminal does not want to see.
        _ = write!(std::io::stderr(), "\r\x1b[K{line}");
    }
}

/// Writes the result and gives the exit code. A reader that went away (`| head`) is no error.
pub fn finish(result: Result<Report, Failure>) -> ExitCode {
    let report = match result {
        Ok(report) => report,
        Err(failure) => {
            print_failure(&failure);
            return ExitCode::from(1);
        }
    };
    if let Err(error) = write_out(&report.text)
        && error.kind() != ErrorKind::BrokenPipe
    {
        print_failure(&Failure::new("cannot write to standard output", error));
        return ExitCode::from(1);
    }
    match report.outcome {
        Outcome::Done => ExitCode::SUCCESS,
        Outcome::Failed => ExitCode::from(1),
        Outcome::Degraded => ExitCode::from(3),
    }
}

/// Writes to standard output at once.
pub fn write_out(text: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Writes a failure to standard error: one line, and a hint where there is one.
pub fn print_failure(failure: &Failure) {
    let mut text = format!("error: {failure}\n");
    if let Some(hint) = &failure.hint {
        text.push_str(&format!("hint: {hint}\n"));
    }
    // with standard error gone too, nobody is left to tell
    let _ = std::io::stderr().write_all(text.as_bytes());
}
