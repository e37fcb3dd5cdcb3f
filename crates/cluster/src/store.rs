//! The control store: a small, strongly consistent, ordered map with revisions, as one trait.
//!
//! The semantics are those of etcd v3, so that it can stand in for the embedded engine: one revision
//! counter for the whole store, transactions that compare revisions of keys, leases that take their
//! keys along when they end, and watches that resume from a revision until history is compacted.

use perigee_types::Span;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::future::Future;
use std::pin::Pin;

/// A future on the heap, so that the trait needs no runtime and can be a trait object.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The longest key in bytes. Perigee's own have less than a hundred.
pub const KEY_LEN_MAX: usize = 512;
/// The longest value in bytes. Perigee's own have less than a thousand; 128 of them, as a conflict shows
/// them, fit the 16 MiB of a frame.
pub const VALUE_LEN_MAX: usize = 64 << 10;
/// The most compares and the most writes of one transaction; etcd's default is 128.
pub const TXN_OPS_MAX: usize = 128;
/// The most bytes of keys and values in one transaction: with what frames it, less than 1 MiB, and less
/// than the 1.5 MiB that etcd takes.
pub const TXN_LEN_MAX: usize = 768 << 10;
/// The shortest term of a lease. A shorter one would end between two renewals over a slow link.
pub const LEASE_TTL_MIN: Span = Span::from_millis(100);
/// The longest term of a lease: one day.
pub const LEASE_TTL_MAX: Span = Span::from_millis(24 * 3600 * 1000);

/// A state of the whole store: rises by one with each transaction that writes. 0 is the empty store.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Revision(pub u64);

impl Revision {
    /// The revision after this one: where a watch goes on after a list.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "r{}", self.0)
    }
}

/// A lease that the store granted; never reused.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct LeaseNumber(pub u64);

impl fmt::Display for LeaseNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "lease {}", self.0)
    }
}

/// A key with its value, and the revision that last wrote it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyValue {
    /// The key.
    pub key: String,
    /// Its value.
    pub value: Vec<u8>,
    /// The transaction that last put it.
    pub revision: Revision,
}

/// A condition of a transaction: the key was last put by this revision, or does not exist.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Compare {
    /// The key.
    pub key: String,
    /// The revision that it must have; `None`: it must not exist.
    pub revision: Option<Revision>,
}

/// An effect of a transaction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Write {
    /// Sets the key.
    Put {
        /// The key.
        key: String,
        /// Its new value.
        value: Vec<u8>,
        /// The key is deleted when this lease ends. `None` detaches it from an earlier one.
        lease: Option<LeaseNumber>,
    },
    /// Removes the key; nothing happens when it does not exist.
    Delete {
        /// The key.
        key: String,
    },
}

impl Write {
    /// The key that it changes.
    #[must_use]
    pub fn key(&self) -> &str {
        match self {
            Self::Put { key, .. } | Self::Delete { key } => key,
        }
    }
}

/// Writes that happen all together, and only when every compare holds. No key is written twice.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Txn {
    /// What must hold.
    pub compare: Vec<Compare>,
    /// What happens then.
    pub writes: Vec<Write>,
}

impl Txn {
    /// Adds the condition that `key` has `revision` (`None`: does not exist).
    #[must_use]
    pub fn when(mut self, key: impl Into<String>, revision: Option<Revision>) -> Self {
        let compare = Compare {
            key: key.into(),
            revision,
        };
        if !self.compare.contains(&compare) {
            self.compare.push(compare);
        }
        self
    }

    /// Adds a put that no lease ends.
    #[must_use]
    pub fn put(mut self, key: impl Into<String>, value: Vec<u8>) -> Self {
        self.writes.push(Write::Put {
            key: key.into(),
            value,
            lease: None,
        });
        self
    }

    /// Adds a put that ends with `lease`.
    #[must_use]
    pub fn put_leased(
        mut self,
        key: impl Into<String>,
        value: Vec<u8>,
        lease: LeaseNumber,
    ) -> Self {
        self.writes.push(Write::Put {
            key: key.into(),
            value,
            lease: Some(lease),
        });
        self
    }

    /// Adds a delete.
    #[must_use]
    pub fn delete(mut self, key: impl Into<String>) -> Self {
        self.writes.push(Write::Delete { key: key.into() });
        self
    }

    /// Holds it against the limits of this module. Every store does so before anything else.
    ///
    /// # Errors
    /// The first [`Refusal`] that applies.
    pub fn check(&self) -> Result<(), Refusal> {
        let ops = self.compare.len().max(self.writes.len());
        if ops > TXN_OPS_MAX {
            return Err(Refusal::TooManyOps {
                ops,
                max: TXN_OPS_MAX,
            });
        }
        let mut len = 0;
        for compare in &self.compare {
            check_key(&compare.key)?;
            len += compare.key.len();
        }
        let mut keys = std::collections::BTreeSet::new();
        for write in &self.writes {
            check_key(write.key())?;
            if !keys.insert(write.key()) {
                return Err(Refusal::WrittenTwice {
                    key: write.key().to_owned(),
                });
            }
            len += write.key().len();
            if let Write::Put { value, .. } = write {
                if value.len() > VALUE_LEN_MAX {
                    return Err(Refusal::TooLarge {
                        bytes: value.len(),
                        max: VALUE_LEN_MAX,
                    });
                }
                len += value.len();
            }
        }
        if len > TXN_LEN_MAX {
            return Err(Refusal::TooLarge {
                bytes: len,
                max: TXN_LEN_MAX,
            });
        }
        Ok(())
    }
}

/// Holds a key against the rules: begins with `/`, is not longer than [`KEY_LEN_MAX`], has no control
/// characters.
///
/// # Errors
/// [`Refusal::BadKey`].
pub fn check_key(key: &str) -> Result<(), Refusal> {
    let fits = key.starts_with('/') && key.len() <= KEY_LEN_MAX;
    if fits && !key.chars().any(char::is_control) {
        return Ok(());
    }
    Err(Refusal::BadKey {
        key: key.chars().take(64).collect(),
    })
}

/// What a successful transaction says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Committed {
    /// The revision that it made; the current one when it wrote nothing.
    pub revision: Revision,
}

/// A change of one key. The events of one transaction follow one another, with one revision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// The key.
    pub key: String,
    /// Its new value; `None` when it was deleted.
    pub value: Option<Vec<u8>>,
    /// The transaction that changed it.
    pub revision: Revision,
}

/// Why a store will never do what was asked, however often.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Refusal {
    /// The lease ended, or was never granted.
    #[error("{lease} does not exist (any more)")]
    NoLease {
        /// The lease that was named.
        lease: LeaseNumber,
    },
    /// A key breaks the rules of [`check_key`].
    #[error("`{key}` is not a key of the control store")]
    BadKey {
        /// Its beginning.
        key: String,
    },
    /// The transaction writes one key twice.
    #[error("key `{key}` is written twice in one transaction")]
    WrittenTwice {
        /// The key.
        key: String,
    },
    /// More bytes than one value or one transaction may have.
    #[error("{bytes} bytes are more than the {max} that fit")]
    TooLarge {
        /// What came.
        bytes: usize,
        /// What fits.
        max: usize,
    },
    /// More operations than one transaction may have.
    #[error("{ops} operations are more than the {max} of one transaction")]
    TooManyOps {
        /// What came.
        ops: usize,
        /// What fits.
        max: usize,
    },
    /// A lease's term is outside [`LEASE_TTL_MIN`] to [`LEASE_TTL_MAX`].
    #[error("a lease of {ttl} is outside the allowed terms")]
    BadTerm {
        /// The term that was asked for.
        ttl: Span,
    },
    /// The store is full (bytes, or number of leases).
    #[error("the control store is full")]
    Full,
    /// The caller's identity does not allow this.
    #[error("this node may not do that: it only mounts, or has left the cluster")]
    NotAllowed,
    /// The store does not understand the request.
    #[error("the control store does not understand the request")]
    Malformed,
}

/// Why a call of the control store gave no result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum StoreError {
    /// A compare did not hold. Nothing was written. Has those of the compared keys that exist, as
    /// they were at that moment.
    #[error("the control store holds something newer")]
    Conflict {
        /// The compared keys that exist.
        current: Vec<KeyValue>,
    },
    /// The transaction happened or did not happen: nobody knows. Read again before deciding.
    #[error("it is not known whether the control store did it")]
    Unknown,
    /// The store cannot be reached, or cannot work now. Nothing happened.
    #[error("the control store is away")]
    Unavailable,
    /// History before `oldest` is gone; list again.
    #[error("the control store has no history before {oldest}")]
    Compacted {
        /// The first revision that a watch can still begin with.
        oldest: Revision,
    },
    /// The store will not do this, however often it is asked. Nothing happened.
    #[error("the control store refused: {why}")]
    Refused {
        /// The reason.
        why: Refusal,
    },
    /// The store has lost what it had acknowledged: it was put back to an older state, or is another one. Nothing
    /// happened, and nothing may, for what it says would contradict what nodes have done since.
    #[error(
        "the control store has lost what it acknowledged: it was put back to an older state, or is another one"
    )]
    WentBack,
}

impl From<Refusal> for StoreError {
    fn from(why: Refusal) -> Self {
        Self::Refused { why }
    }
}

/// Why a watch ended. In both cases: list again, and watch from there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum WatchError {
    /// The store no longer follows this watch, or does not know the revision that it asks for (it was
    /// restored from an older state).
    #[error("the watch was lost")]
    Lost,
    /// The revision that comes next is no longer in the store's history.
    #[error("the control store has no history before {oldest}")]
    Compacted {
        /// The first revision that a watch can still begin with.
        oldest: Revision,
    },
}

/// A stream of the changes under a prefix: each exactly once, in order of revision, none left out.
pub trait Watch: Send {
    /// The next change. Waits for it, also across an absence of the store. After an error the watch
    /// has ended, and gives that error again.
    ///
    /// # Cancel safety
    /// Dropping the future loses no event.
    fn next(&mut self) -> BoxFuture<'_, Result<Event, WatchError>>;
}

/// The small, strongly consistent record of the cluster. Never on the data path.
///
/// Every read is of the latest committed state (linearizable), never of one that a crash could take
/// back. Futures may be dropped; a commit that was begun may then still happen.
pub trait ControlStore: Send + Sync {
    /// The key's value now.
    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<KeyValue>, StoreError>>;

    /// All keys that begin with `prefix`, in order, all as of the one revision that comes with them.
    fn list<'a>(
        &'a self,
        prefix: &'a str,
    ) -> BoxFuture<'a, Result<(Vec<KeyValue>, Revision), StoreError>>;

    /// Does the transaction if its compares hold. Success means: on disk.
    fn commit(&self, txn: Txn) -> BoxFuture<'_, Result<Committed, StoreError>>;

    /// Follows the changes under `prefix`, beginning with those of revision `from`. After a list at
    /// revision r, `from` is r + 1. What is wrong with it, the first [`Watch::next`] says.
    fn watch(&self, prefix: &str, from: Revision) -> Box<dyn Watch>;

    /// Grants a lease. It ends when its term passes without [`ControlStore::keep_alive`], by the store's
    /// clock, counted from the last renewal or the store's last start; its keys are then deleted. The term is `ttl`,
    /// or longer where the store has no terms that short (etcd's are of whole seconds, two at least).
    fn grant_lease(&self, ttl: Span) -> BoxFuture<'_, Result<LeaseNumber, StoreError>>;

    /// Renews a lease for its whole term, which is the answer. A holder counts from the moment when it
    /// sent the request. [`Refusal::NoLease`] when it has ended.
    fn keep_alive(&self, lease: LeaseNumber) -> BoxFuture<'_, Result<Span, StoreError>>;

    /// Ends a lease and deletes its keys, in one revision. Success too when it had ended before.
    fn revoke(&self, lease: LeaseNumber) -> BoxFuture<'_, Result<(), StoreError>>;
}
