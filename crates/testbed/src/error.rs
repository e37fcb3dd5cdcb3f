//! What a check reports, and the way an errno gets its context.

use std::io;
use std::process::ExitStatus;
use std::time::Duration;

/// Why a check did not pass.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// The file system broke a promise.
    #[error("{what}")]
    Violated {
        /// The promise, what was expected and what was seen.
        what: String,
    },
    /// A call failed that had to succeed.
    #[error("{what}: {source}")]
    Call {
        /// The call and its object.
        what: String,
        /// The errno it gave.
        source: io::Error,
    },
    /// A condition did not become true in time.
    #[error("{what}: not within {waited:?}")]
    Deadline {
        /// The condition.
        what: String,
        /// How long it was waited for.
        waited: Duration,
    },
    /// The check saw nothing that could have failed, so its success would mean nothing.
    #[error("the check proved nothing: {what}")]
    Vacuous {
        /// What was missing.
        what: String,
    },
    /// A command of the product or of the testbed ended badly.
    #[error("`{command}` ended with {status}: {stderr}")]
    Command {
        /// The command line.
        command: String,
        /// How it ended.
        status: ExitStatus,
        /// The end of its standard error.
        stderr: String,
    },
    /// A binary that the test needs is not built.
    #[error(
        "no `{name}` binary at {looked}\nhint: build it with `cargo build -p {name}`, or set {variable}"
    )]
    NotBuilt {
        /// The binary.
        name: &'static str,
        /// Where it was looked for.
        looked: String,
        /// The environment variable that names another place.
        variable: &'static str,
    },
}

/// The outcome of a check or of a step in it.
pub type Checked<T = ()> = Result<T, CheckError>;

impl CheckError {
    /// A broken promise in words.
    pub fn violated(what: impl Into<String>) -> Self {
        Self::Violated { what: what.into() }
    }

    /// The same error, told as part of `step`.
    #[must_use]
    pub fn during(self, step: &str) -> Self {
        self.reworded(|what| format!("{step}: {what}"))
    }

    /// The same error, with what was seen after it.
    #[must_use]
    pub fn followed_by(self, seen: &str) -> Self {
        self.reworded(|what| format!("{what} ({seen})"))
    }

    fn reworded(self, reword: impl FnOnce(String) -> String) -> Self {
        match self {
            Self::Violated { what } => Self::Violated { what: reword(what) },
            Self::Call { what, source } => Self::Call {
                what: reword(what),
                source,
            },
            Self::Deadline { what, waited } => Self::Deadline {
                what: reword(what),
                waited,
            },
            Self::Vacuous { what } => Self::Vacuous { what: reword(what) },
            same @ (Self::Command { .. } | Self::NotBuilt { .. }) => same,
        }
    }
}

/// Gives a failed call its context.
pub trait Call<T> {
    /// Turns the errno into [`CheckError::Call`], saying `what` was tried.
    fn call(self, what: impl FnOnce() -> String) -> Checked<T>;
}

impl<T, E: Into<io::Error>> Call<T> for Result<T, E> {
    fn call(self, what: impl FnOnce() -> String) -> Checked<T> {
        self.map_err(|source| CheckError::Call {
            what: what(),
            source: source.into(),
        })
    }
}

/// Returns [`CheckError::Violated`] with the formatted message unless the condition holds.
#[macro_export]
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err($crate::CheckError::Violated { what: format!($($message)+) });
        }
    };
}
