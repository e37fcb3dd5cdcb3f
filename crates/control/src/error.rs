//! What can go wrong with the engine and the control process, apart from what a store answers.

use std::io;
use std::path::PathBuf;

/// Why the engine cannot begin, or had to stop.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The directory has no control store. It is not made silently: an empty store would have
    /// forgotten every epoch.
    #[error("there is no control store in `{dir}`")]
    Missing {
        /// The directory.
        dir: String,
    },
    /// The directory has a control store already.
    #[error("there is a control store in `{dir}` already")]
    Exists {
        /// The directory.
        dir: String,
    },
    /// Another process has the directory open.
    #[error("another process uses the control store in `{dir}`")]
    Locked {
        /// The directory.
        dir: String,
    },
    /// A later program wrote the file.
    #[error("`{file}` has format {found}, this program reads up to {supported}")]
    NewerFormat {
        /// The file.
        file: String,
        /// Its format.
        found: u32,
        /// The last format that is known here.
        supported: u32,
    },
    /// The file is damaged where no crash can damage it. Nothing was skipped, nothing changed.
    #[error("`{file}` is damaged at byte {offset}: {what}")]
    Corrupt {
        /// The file.
        file: String,
        /// Where the damage begins.
        offset: u64,
        /// What is wrong there.
        what: &'static str,
    },
    /// The disk refused.
    #[error("cannot {action} `{file}`")]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        file: String,
        /// What the system says.
        #[source]
        source: io::Error,
    },
}

impl EngineError {
    /// An [`EngineError::Io`] in the making.
    pub(crate) fn io<'a>(
        action: &'static str,
        file: &'a str,
    ) -> impl FnOnce(io::Error) -> Self + use<'a> {
        move |source| Self::Io {
            action,
            file: file.to_owned(),
            source,
        }
    }
}

/// The text of a path, for messages.
pub(crate) fn shown(path: &std::path::Path) -> String {
    PathBuf::from(path).display().to_string()
}
