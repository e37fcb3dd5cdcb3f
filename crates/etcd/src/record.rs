//! The record of one cluster within an etcd, which may serve several, and others beside them.
//!
//! ```text
//! /perigee/CLUSTER/about            what the record is: made first, and changed once when it is whole
//! /perigee/CLUSTER/state/KEY        the keys of the control store
//! /perigee/CLUSTER/marks/PROCESS    how far each control process was: see `memory`
//! ```

use crate::client::{Client, Repeat};
use crate::error::{CallError, OpenError};
use crate::place::Place;
use crate::store::EtcdControl;
use crate::tls::Credentials;
use crate::wire::{Blob, Compare, Delete, Op, Put, Range, Ranged, Txn, TxnDone, end_of};
use crate::{Memory, memory::Known};
use perigee_cluster::{Revision, StoreError};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::sync::Arc;

/// The format of records.
const FORMAT: u32 = 1;

/// Where in an etcd a cluster's record is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Root(String);

impl Root {
    pub(crate) fn of(cluster: u128) -> Self {
        Self(format!("/perigee/{cluster:032x}/"))
    }

    pub(crate) fn about(&self) -> String {
        format!("{}about", self.0)
    }

    /// The key of etcd for a key of the control store, which begins with `/`.
    pub(crate) fn state(&self, key: &str) -> Vec<u8> {
        format!("{}state{key}", self.0).into_bytes()
    }

    /// The key of the control store; `None` for what no control store wrote.
    pub(crate) fn key(&self, bytes: &[u8]) -> Option<String> {
        let rest = bytes.strip_prefix(self.0.as_bytes())?;
        let key = rest.strip_prefix(b"state")?;
        String::from_utf8(key.to_vec()).ok()
    }

    pub(crate) fn mark(&self, process: u128) -> String {
        format!("{}marks/{process:032x}", self.0)
    }

    fn marks(&self) -> Vec<u8> {
        format!("{}marks/", self.0).into_bytes()
    }
}

/// How much of a record is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Wholeness {
    /// It is being made; whoever makes it may have been cut off.
    Partial,
    /// All of it.
    Whole,
}

/// What a record says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct About {
    format: u32,
    offset: u64,
    state: Wholeness,
}

/// A record, as a process knows it from one start to the next.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The etcd.
    pub place: Place,
    /// What revisions count above etcd's own: the record's are above those of the store that it was copied from,
    /// whose watchers would else take newer states for older ones.
    pub offset: u64,
    /// Names this process among those that use the record.
    #[serde(with = "hex")]
    pub process: u128,
}

mod hex {
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(
        number: &u128,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&format!("{number:032x}"))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<u128, D::Error> {
        let text = String::deserialize(deserializer)?;
        u128::from_str_radix(&text, 16).map_err(serde::de::Error::custom)
    }
}

/// A record that is being made.
pub struct Founding {
    client: Arc<Client>,
    root: Root,
    offset: u64,
    etcd: u64,
    /// The revision of the description.
    about: u64,
}

impl std::fmt::Debug for Founding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Founding({})", self.client.place())
    }
}

impl Founding {
    /// Whether [`Founding::begin`] would begin now.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub async fn check(
        place: &Place,
        credentials: Option<&Credentials>,
        cluster: u128,
    ) -> Result<(), OpenError> {
        let client = client(place, credentials)?;
        let seen = look(&client, &Root::of(cluster)).await?;
        seen.check_unused(place)
    }

    /// Begins the record of `cluster`, whose revisions will be above `least`. What an earlier attempt left is removed;
    /// what a control process has used is not.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub async fn begin(
        place: &Place,
        credentials: Option<&Credentials>,
        cluster: u128,
        least: Revision,
    ) -> Result<Self, OpenError> {
        let client = Arc::new(client(place, credentials)?);
        let root = Root::of(cluster);
        let seen = look(&client, &root).await?;
        seen.check_unused(place)?;
        let offset = least.0.saturating_sub(seen.revision);
        let about = About {
            format: FORMAT,
            offset,
            state: Wholeness::Partial,
        };
        let everything = Delete {
            key: Blob(root.state("")),
            range_end: end_of(&root.state("")),
        };
        let txn = Txn {
            compare: vec![Compare::new(Blob(root.about().into()), seen.about)],
            success: vec![Op::Delete(everything), put_about(&root, &about, place)?],
            failure: Vec::new(),
        };
        let at = put(&client, &txn).await?;
        Ok(Self {
            client,
            root,
            offset,
            etcd: seen.etcd,
            about: at,
        })
    }

    /// The store, to be filled.
    #[must_use]
    pub fn store(&self) -> EtcdControl {
        EtcdControl::over(Arc::clone(&self.client), self.root.clone(), self.offset)
    }

    /// Ends the making: the record is whole. `memory`: the file for what `process` remembers of it.
    ///
    /// # Errors
    /// See [`OpenError`]. The record may be whole or not: begin anew.
    pub async fn finish(self, process: u128, memory: &Path) -> Result<Record, OpenError> {
        let place = self.client.place().clone();
        let about = About {
            format: FORMAT,
            offset: self.offset,
            state: Wholeness::Whole,
        };
        let txn = Txn {
            compare: vec![Compare::new(Blob(self.root.about().into()), self.about)],
            success: vec![put_about(&self.root, &about, &place)?],
            failure: Vec::new(),
        };
        let at = put(&self.client, &txn).await?;
        let known = Known {
            etcd: self.etcd,
            marked: 0,
            seen: at,
        };
        Memory::create(memory, known)?;
        Ok(Record {
            place,
            offset: self.offset,
            process,
        })
    }
}

impl Record {
    /// What a further process needs to use a record that is there. `memory`: the file for what it remembers of it.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub async fn find(
        place: &Place,
        credentials: Option<&Credentials>,
        cluster: u128,
        process: u128,
        memory: &Path,
    ) -> Result<Self, OpenError> {
        let client = client(place, credentials)?;
        let seen = look(&client, &Root::of(cluster)).await?;
        let about = seen
            .description
            .filter(|about| about.state == Wholeness::Whole);
        let Some(about) = about else {
            let place = place.to_string();
            return Err(OpenError::NoRecord { place });
        };
        let known = Known {
            etcd: seen.etcd,
            marked: 0,
            seen: seen.revision,
        };
        Memory::create(memory, known)?;
        Ok(Self {
            place: place.clone(),
            offset: about.offset,
            process,
        })
    }
}

fn client(place: &Place, credentials: Option<&Credentials>) -> Result<Client, OpenError> {
    let tls = crate::store::tls(place, credentials)?;
    Ok(Client::new(place.clone(), tls, None))
}

/// What there is of a record.
struct Seen {
    etcd: u64,
    revision: u64,
    /// The revision of the description; 0: there is none.
    about: u64,
    description: Option<About>,
    /// Whether a control process has left its mark.
    is_used: bool,
}

impl Seen {
    fn check_unused(&self, place: &Place) -> Result<(), OpenError> {
        if self.is_used {
            let place = place.to_string();
            return Err(OpenError::InUse { place });
        }
        Ok(())
    }
}

async fn look(client: &Client, root: &Root) -> Result<Seen, OpenError> {
    let place = || client.place().to_string();
    let one = Range {
        key: Blob(root.about().into()),
        ..Range::default()
    };
    let marks = Range {
        key: Blob(root.marks()),
        range_end: end_of(&root.marks()),
        limit: 1,
        keys_only: true,
        ..Range::default()
    };
    let txn = Txn {
        success: vec![Op::Range(one), Op::Range(marks)],
        ..Txn::default()
    };
    let found = client.call("/v3/kv/txn", &txn, Repeat::Harmless).await;
    let found: TxnDone = found.map_err(|error| silent(client, &error))?;
    let ranged = |at: usize| -> Option<&Ranged> {
        let done = found.responses.get(at)?;
        done.response_range.as_ref()
    };
    let entry = ranged(0).and_then(|ranged| ranged.kvs.first());
    let description = match entry {
        None => None,
        Some(entry) => {
            let read = serde_json::from_slice::<About>(&entry.value.0);
            let what = "its description cannot be read";
            Some(read.map_err(|_| OpenError::Damaged {
                place: place(),
                what,
            })?)
        }
    };
    if let Some(newer) = description.as_ref().filter(|about| about.format > FORMAT) {
        return Err(OpenError::NewerFormat {
            place: place(),
            found: newer.format,
            supported: FORMAT,
        });
    }
    Ok(Seen {
        etcd: found.header.cluster_id,
        revision: found.header.revision,
        about: entry.map_or(0, |entry| entry.mod_revision),
        description,
        is_used: ranged(1).is_some_and(|ranged| !ranged.kvs.is_empty()),
    })
}

fn put_about(root: &Root, about: &About, place: &Place) -> Result<Op, OpenError> {
    let value = serde_json::to_vec(about).map_err(|_| OpenError::Damaged {
        place: place.to_string(),
        what: "its description cannot be written",
    })?;
    Ok(Op::Put(Put {
        key: Blob(root.about().into()),
        value: Blob(value),
        lease: 0,
    }))
}

/// Does it; somebody else's change in between is a refusal.
async fn put(client: &Client, txn: &Txn) -> Result<u64, OpenError> {
    let put = client.call("/v3/kv/txn", txn, Repeat::Harmful).await;
    let put: TxnDone = put.map_err(|error| silent(client, &error))?;
    if put.succeeded {
        return Ok(put.header.revision);
    }
    Err(OpenError::Store {
        place: client.place().to_string(),
        source: StoreError::Conflict {
            current: Vec::new(),
        },
    })
}

fn silent(client: &Client, error: &CallError) -> OpenError {
    let place = client.place().to_string();
    match error {
        CallError::WentBack => OpenError::WentBack { place },
        CallError::NotSent(_) | CallError::Unknown(_) | CallError::Refused { .. } => {
            let why = error.to_string();
            OpenError::Silent { place, why }
        }
    }
}
