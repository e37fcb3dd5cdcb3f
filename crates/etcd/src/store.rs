//! An etcd as a control store.

use crate::client::{Client, Guard, Repeat, code};
use crate::error::{CallError, OpenError};
use crate::memory::Memory;
use crate::place::{Place, Secrecy};
use crate::record::{Record, Root};
use crate::tls::{Credentials, CredentialsError};
use crate::watch::EtcdWatch;
use crate::wire::{
    Blob, Compare, Delete, Grant, LeaseId, Leased, Op, Put, Range, Ranged, Streamed, TxnDone,
    end_of,
};
use perigee_cluster::store::{LEASE_TTL_MAX, LEASE_TTL_MIN, TXN_OPS_MAX, check_key};
use perigee_cluster::{
    BoxFuture, Committed, ControlStore, KeyValue, LeaseNumber, Refusal, Revision, StoreError, Txn,
    Watch, Write,
};
use perigee_types::Span;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

/// Keys of one page of a list: 16 MiB of values at most.
const PAGE_KEYS: u64 = 256;
/// How often a list begins anew because the past that it reads was compacted meanwhile.
const LIST_ATTEMPTS: usize = 4;

/// A control store in an etcd. Clones share its connections.
#[derive(Clone)]
pub struct EtcdControl {
    client: Arc<Client>,
    root: Root,
    offset: u64,
}

impl fmt::Debug for EtcdControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EtcdControl({})", self.client.place())
    }
}

impl EtcdControl {
    /// The store of a record that this process has used before, or is the first to use. Asks nobody: an etcd that is
    /// away is [`StoreError::Unavailable`], and one that lost what it had acknowledged [`StoreError::WentBack`].
    ///
    /// # Errors
    /// The credentials cannot be used.
    pub fn open(
        record: &Record,
        credentials: Option<&Credentials>,
        cluster: u128,
        memory: Arc<Memory>,
    ) -> Result<Self, OpenError> {
        let root = Root::of(cluster);
        let guard = Guard {
            record: root.about(),
            mark: root.mark(record.process),
            memory,
        };
        let tls = tls(&record.place, credentials)?;
        let client = Client::new(record.place.clone(), tls, Some(guard));
        Ok(Self::over(Arc::new(client), root, record.offset))
    }

    pub(crate) fn over(client: Arc<Client>, root: Root, offset: u64) -> Self {
        Self {
            client,
            root,
            offset,
        }
    }

    /// Where the etcd is.
    #[must_use]
    pub fn place(&self) -> &Place {
        self.client.place()
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    pub(crate) fn root(&self) -> &Root {
        &self.root
    }

    pub(crate) fn shown(&self, raw: u64) -> Revision {
        Revision(raw.saturating_add(self.offset))
    }

    /// Etcd's number of a revision; `None`: the record is younger.
    pub(crate) fn raw(&self, shown: Revision) -> Option<u64> {
        shown.0.checked_sub(self.offset)
    }

    /// The current revision.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn revision(&self) -> Result<Revision, StoreError> {
        let now = self.now().await;
        now.map(|raw| self.shown(raw))
            .map_err(|error| read_error(&error))
    }

    pub(crate) async fn now(&self) -> Result<u64, CallError> {
        let range = Range {
            key: Blob(self.root.about().into()),
            keys_only: true,
            ..Range::default()
        };
        Ok(self.range(&range).await?.header.revision)
    }

    async fn range(&self, range: &Range) -> Result<Ranged, CallError> {
        let call = self.client.call("/v3/kv/range", range, Repeat::Harmless);
        let found: Ranged = call.await?;
        if let Some(guard) = self.client.guard() {
            guard.memory.see(found.header.revision);
        }
        Ok(found)
    }

    fn key_value(&self, found: crate::wire::KeyValue) -> Option<KeyValue> {
        Some(KeyValue {
            key: self.root.key(&found.key.0)?,
            value: found.value.0,
            revision: self.shown(found.mod_revision),
        })
    }

    async fn list_once(&self, prefix: &str) -> Result<Option<Listed>, StoreError> {
        let first = self.root.state(prefix);
        let range_end = end_of(&first);
        let mut range = Range {
            key: Blob(first),
            range_end,
            limit: PAGE_KEYS,
            ..Range::default()
        };
        let mut list = Vec::new();
        loop {
            let page = match self.range(&range).await {
                Ok(page) => page,
                Err(CallError::Refused { code, .. }) if code == code::OUT_OF_RANGE => {
                    return Ok(None);
                }
                Err(error) => return Err(read_error(&error)),
            };
            if range.revision == 0 {
                range.revision = page.header.revision;
            }
            if let Some(last) = page.kvs.last() {
                range.key = last.key.clone();
                range.key.0.push(0);
            }
            let more = page.more && !page.kvs.is_empty();
            let found = page.kvs.into_iter();
            list.extend(found.filter_map(|found| self.key_value(found)));
            if !more {
                return Ok(Some((list, self.shown(range.revision))));
            }
        }
    }

    fn plan(&self, txn: &Txn) -> Result<crate::wire::Txn, StoreError> {
        let mut plan = crate::wire::Txn::default();
        for compare in &txn.compare {
            let raw = match compare.revision {
                None => 0,
                // What this store cannot have written equals nothing.
                Some(shown) => self.raw(shown).filter(|raw| *raw > 0).unwrap_or(NEVER),
            };
            let key = Blob(self.root.state(&compare.key));
            plan.compare.push(Compare::new(key, raw));
        }
        let compared: BTreeSet<&str> = txn.compare.iter().map(|c| c.key.as_str()).collect();
        for key in compared {
            plan.failure.push(Op::Range(Range {
                key: Blob(self.root.state(key)),
                ..Range::default()
            }));
        }
        for write in &txn.writes {
            let key = Blob(self.root.state(write.key()));
            plan.success.push(match write {
                Write::Put { value, lease, .. } => Op::Put(Put {
                    key,
                    value: Blob(value.clone()),
                    lease: match lease {
                        Some(lease) => lease_id(*lease)?.id,
                        None => 0,
                    },
                }),
                Write::Delete { .. } => Op::Delete(Delete {
                    key,
                    range_end: Blob::default(),
                }),
            });
        }
        Ok(plan)
    }

    async fn do_commit(&self, txn: Txn) -> Result<Committed, StoreError> {
        txn.check()?;
        let mut plan = self.plan(&txn)?;
        let mark = self.client.guard().filter(|_| surely_writes(&txn));
        if let Some(guard) = mark {
            plan.success.push(Op::Put(Put {
                key: Blob(guard.mark.clone().into()),
                value: Blob::default(),
                lease: 0,
            }));
        }
        let call = self.client.call("/v3/kv/txn", &plan, Repeat::Harmful);
        let done: TxnDone = call.await.map_err(|error| txn_error(&error, &txn))?;
        if !done.succeeded {
            let ranges = done.responses.into_iter();
            let found = ranges.filter_map(|response| response.response_range);
            let found = found.flat_map(|ranged| ranged.kvs);
            let current = found.filter_map(|found| self.key_value(found)).collect();
            return Err(StoreError::Conflict { current });
        }
        let raw = done.header.revision;
        if let Some(guard) = self.client.guard() {
            guard.memory.see(raw);
        }
        if let Some(guard) = mark {
            guard.memory.mark(raw);
            let memory = Arc::clone(&guard.memory);
            // It waits for a sync. A panic there is reported by the panic hook.
            _ = tokio::task::spawn_blocking(move || memory.keep()).await;
        }
        let revision = self.shown(raw);
        Ok(Committed { revision })
    }
}

type Listed = (Vec<KeyValue>, Revision);

/// A revision that no key has.
const NEVER: u64 = i64::MAX as u64;

/// Whether a transaction makes a revision whenever it is done: then a mark goes along, else that would be one.
fn surely_writes(txn: &Txn) -> bool {
    let is_there = |key: &String| {
        let mut compares = txn.compare.iter();
        compares.any(|c| c.key == *key && c.revision.is_some())
    };
    let writes = |write: &Write| match write {
        Write::Put { .. } => true,
        Write::Delete { key } => is_there(key),
    };
    // One more operation has to fit.
    txn.writes.len() < TXN_OPS_MAX && txn.writes.iter().any(writes)
}

/// The configuration of connections to `place`.
pub(crate) fn tls(
    place: &Place,
    credentials: Option<&Credentials>,
) -> Result<Option<Arc<rustls::ClientConfig>>, CredentialsError> {
    match (place.secrecy(), credentials) {
        (Secrecy::Plain, _) => Ok(None),
        (Secrecy::Tls, None) => Err(CredentialsError::Missing),
        (Secrecy::Tls, Some(credentials)) => credentials.config().map(Some),
    }
}

/// Etcd's number of a lease; it gives none beyond 63 bits.
fn lease_id(lease: LeaseNumber) -> Result<LeaseId, Refusal> {
    let id = i64::try_from(lease.0).ok().filter(|id| *id > 0);
    let id = id.ok_or(Refusal::NoLease { lease })?;
    Ok(LeaseId { id })
}

/// For calls of which a repeat is harmless: an unknown outcome is no outcome.
fn read_error(error: &CallError) -> StoreError {
    match error {
        CallError::Unknown(_) => StoreError::Unavailable,
        other => write_error(other),
    }
}

fn write_error(error: &CallError) -> StoreError {
    match error {
        CallError::NotSent(_) => StoreError::Unavailable,
        CallError::Unknown(_) => StoreError::Unknown,
        CallError::WentBack => StoreError::WentBack,
        CallError::Refused { code, .. } => match *code {
            code::RESOURCE_EXHAUSTED => Refusal::Full.into(),
            code::PERMISSION_DENIED | code::UNAUTHENTICATED => Refusal::NotAllowed.into(),
            code::OUT_OF_RANGE => StoreError::Unavailable,
            _ => Refusal::Malformed.into(),
        },
    }
}

fn txn_error(error: &CallError, txn: &Txn) -> StoreError {
    let leases = txn.writes.iter().filter_map(|write| match write {
        Write::Put { lease, .. } => *lease,
        Write::Delete { .. } => None,
    });
    match (error, leases.min()) {
        (CallError::Refused { code, .. }, Some(lease)) if *code == code::NOT_FOUND => {
            Refusal::NoLease { lease }.into()
        }
        _ => write_error(error),
    }
}

impl ControlStore for EtcdControl {
    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Option<KeyValue>, StoreError>> {
        Box::pin(async move {
            check_key(key)?;
            let range = Range {
                key: Blob(self.root.state(key)),
                ..Range::default()
            };
            let found = self.range(&range).await;
            let found = found.map_err(|error| read_error(&error))?;
            let mut found = found.kvs.into_iter();
            Ok(found.find_map(|found| self.key_value(found)))
        })
    }

    fn list<'a>(&'a self, prefix: &'a str) -> BoxFuture<'a, Result<Listed, StoreError>> {
        Box::pin(async move {
            for _ in 0..LIST_ATTEMPTS {
                if let Some(listed) = self.list_once(prefix).await? {
                    return Ok(listed);
                }
            }
            Err(StoreError::Unavailable)
        })
    }

    fn commit(&self, txn: Txn) -> BoxFuture<'_, Result<Committed, StoreError>> {
        Box::pin(self.do_commit(txn))
    }

    fn watch(&self, prefix: &str, from: Revision) -> Box<dyn Watch> {
        Box::new(EtcdWatch::begin(self.clone(), prefix.to_owned(), from))
    }

    fn grant_lease(&self, ttl: Span) -> BoxFuture<'_, Result<LeaseNumber, StoreError>> {
        Box::pin(async move {
            if !(LEASE_TTL_MIN..=LEASE_TTL_MAX).contains(&ttl) {
                return Err(Refusal::BadTerm { ttl }.into());
            }
            // Never shorter than what was asked for: whoever looks for the holder counts on it.
            let grant = Grant {
                ttl: ttl.as_micros().div_ceil(1_000_000),
            };
            let call = self.client.call("/v3/lease/grant", &grant, Repeat::Harmful);
            let granted: Leased = call.await.map_err(|error| write_error(&error))?;
            let number = u64::try_from(granted.id).ok().filter(|id| *id > 0);
            number.map(LeaseNumber).ok_or(StoreError::Unknown)
        })
    }

    fn keep_alive(&self, lease: LeaseNumber) -> BoxFuture<'_, Result<Span, StoreError>> {
        Box::pin(async move {
            let no_lease = Refusal::NoLease { lease };
            let id = lease_id(lease)?;
            let path = "/v3/lease/keepalive";
            let call = self.client.call(path, &id, Repeat::Harmless);
            let renewed: Streamed<Leased> = call.await.map_err(|error| read_error(&error))?;
            match renewed {
                Streamed::Result(Leased { ttl: 0, .. }) => Err(no_lease.into()),
                Streamed::Result(renewed) => {
                    Ok(Span::from_millis(renewed.ttl.saturating_mul(1000)))
                }
                Streamed::Error(_) => Err(StoreError::Unavailable),
            }
        })
    }

    fn revoke(&self, lease: LeaseNumber) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async move {
            let Ok(id) = lease_id(lease) else {
                return Ok(());
            };
            let call = self.client.call("/v3/lease/revoke", &id, Repeat::Harmless);
            match call.await {
                Ok(Leased { .. }) => Ok(()),
                Err(CallError::Refused { code, .. }) if code == code::NOT_FOUND => Ok(()),
                Err(error) => Err(read_error(&error)),
            }
        })
    }
}
