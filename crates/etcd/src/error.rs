//! What can go wrong between this process and etcd, apart from what a store answers.

use perigee_cluster::StoreError;
use std::path::PathBuf;

/// Why an etcd cannot be used as this cluster's control store.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// It cannot be asked.
    #[error("`{place}` does not answer as an etcd: {why}")]
    Silent {
        /// Where.
        place: String,
        /// What was seen last.
        why: String,
    },
    /// It has no record of this cluster: an empty etcd, another one, or one that was put back.
    #[error("`{place}` has no record of this cluster")]
    NoRecord {
        /// Where.
        place: String,
    },
    /// It has one, and nobody has said that it may go.
    #[error("`{place}` has a record of this cluster that is in use")]
    InUse {
        /// Where.
        place: String,
    },
    /// A later program wrote the record.
    #[error("the record in `{place}` has format {found}, this program reads up to {supported}")]
    NewerFormat {
        /// Where.
        place: String,
        /// Its format.
        found: u32,
        /// The last that is known here.
        supported: u32,
    },
    /// What is there cannot be read.
    #[error("the record in `{place}` is damaged: {what}")]
    Damaged {
        /// Where.
        place: String,
        /// What is wrong.
        what: &'static str,
    },
    /// It is older than what it has acknowledged.
    #[error(
        "`{place}` has lost what it acknowledged: it was put back to an older state, or is another etcd"
    )]
    WentBack {
        /// Where.
        place: String,
    },
    /// It did not do something.
    #[error("`{place}`: {source}")]
    Store {
        /// Where.
        place: String,
        /// What it said.
        #[source]
        source: StoreError,
    },
    /// A file that remembers it.
    #[error("cannot {action} `{}`: {source}", .file.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        file: PathBuf,
        /// What the system says.
        #[source]
        source: std::io::Error,
    },
    /// The certificate, the key, or the authority.
    #[error(transparent)]
    Credentials(#[from] crate::CredentialsError),
}

/// Why a call has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CallError {
    /// Nothing was done.
    #[error("not reached: {0}")]
    NotSent(String),
    /// It was done, or not.
    #[error("no answer: {0}")]
    Unknown(String),
    /// etcd says why it will not do it; nothing was done.
    #[error("{message}")]
    Refused {
        /// As gRPC counts.
        code: u32,
        /// As etcd says it.
        message: String,
    },
    /// This is not the etcd that is known here, or it lost what it had acknowledged.
    #[error("it has lost what it acknowledged")]
    WentBack,
}
