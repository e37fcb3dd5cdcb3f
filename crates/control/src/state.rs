//! The content of the store, what changes it, and the recent past.
//!
//! Changes are effects: applying one needs no judgement, so the log replays to the same state.

use perigee_cluster::{
    Compare, Event, KeyValue, LeaseNumber, Refusal, Revision, StoreError, Txn, Write,
};
use perigee_types::Span;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;

/// The most bytes of keys and values. Ten thousand nodes with a hundred containers each fit.
pub(crate) const STORE_LEN_MAX: usize = 128 << 20;
/// The most leases at a time.
pub(crate) const LEASES_MAX: usize = 65_536;
/// The most keys of one lease, which all end in one revision.
const LEASE_KEYS_MAX: usize = 4096;

/// What a frame of the log holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Record {
    /// Begins the state with which the file starts.
    Base { revision: Revision, next_lease: u64 },
    /// A part of that state: keys.
    Keys(Vec<StoredKey>),
    /// A part of that state: leases with their terms.
    Leases(Vec<(LeaseNumber, Span)>),
    /// Ends that state, and says how much it was.
    BaseEnd { keys: u64, leases: u64 },
    /// Changes that became durable together.
    Group(Vec<Change>),
}

/// A key as the base of a file has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StoredKey {
    pub key: String,
    pub value: Vec<u8>,
    pub revision: Revision,
    pub lease: Option<LeaseNumber>,
}

/// One effect on the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Change {
    /// A transaction. Deletes name only keys that exist.
    Commit {
        revision: Revision,
        writes: Vec<Write>,
    },
    /// A new lease.
    Granted { lease: LeaseNumber, ttl: Span },
    /// A lease ended; its keys went in `revision`, if it had any.
    Ended {
        lease: LeaseNumber,
        revision: Option<Revision>,
    },
}

/// A change that does not fit the state: the log was not written by this program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Misfit(pub &'static str);

#[derive(Debug, Clone)]
struct Stored {
    value: Vec<u8>,
    revision: Revision,
    lease: Option<LeaseNumber>,
}

#[derive(Debug, Clone)]
struct LeaseKeys {
    ttl: Span,
    keys: BTreeSet<String>,
}

/// The content of the store at one revision.
#[derive(Debug, Clone, Default)]
pub(crate) struct State {
    revision: Revision,
    keys: BTreeMap<String, Stored>,
    leases: BTreeMap<LeaseNumber, LeaseKeys>,
    next_lease: u64,
    len: usize,
}

impl State {
    /// An empty store, ready for the parts of a base.
    pub(crate) fn at(revision: Revision, next_lease: u64) -> Self {
        Self {
            revision,
            next_lease,
            ..Self::default()
        }
    }

    pub(crate) const fn revision(&self) -> Revision {
        self.revision
    }

    /// How many keys, leases, and bytes of keys and values there are.
    pub(crate) fn size(&self) -> (u64, u64, usize) {
        (self.keys.len() as u64, self.leases.len() as u64, self.len)
    }

    pub(crate) fn leases(&self) -> impl Iterator<Item = (LeaseNumber, Span)> {
        self.leases.iter().map(|(lease, held)| (*lease, held.ttl))
    }

    pub(crate) fn get(&self, key: &str) -> Option<KeyValue> {
        let stored = self.keys.get(key)?;
        Some(key_value(key, stored))
    }

    /// Keys under `prefix` that follow `after`, until their bytes reach `len_max`; then true.
    pub(crate) fn list(
        &self,
        prefix: &str,
        after: Option<&str>,
        len_max: usize,
    ) -> (Vec<KeyValue>, bool) {
        let from = match after {
            Some(after) if after >= prefix => Bound::Excluded(after),
            _ => Bound::Included(prefix),
        };
        let mut found = Vec::new();
        let mut len = 0;
        for (key, stored) in self.keys.range::<str, _>((from, Bound::Unbounded)) {
            if !key.starts_with(prefix) {
                break;
            }
            if len >= len_max {
                return (found, true);
            }
            len += key.len() + stored.value.len();
            found.push(key_value(key, stored));
        }
        (found, false)
    }

    /// The keys, in order.
    pub(crate) fn stored(&self) -> impl Iterator<Item = StoredKey> {
        self.keys.iter().map(|(key, stored)| StoredKey {
            key: key.clone(),
            value: stored.value.clone(),
            revision: stored.revision,
            lease: stored.lease,
        })
    }

    /// The state as records of a new file.
    pub(crate) fn base(&self) -> Vec<Record> {
        /// Bytes of keys and values in one record.
        const PART_LEN: usize = 1 << 20;
        let mut records = vec![Record::Base {
            revision: self.revision,
            next_lease: self.next_lease,
        }];
        let leases: Vec<_> = self.leases().collect();
        records.extend(
            leases
                .chunks(4096)
                .map(|part| Record::Leases(part.to_vec())),
        );
        let mut part = Vec::new();
        let mut len = 0;
        for stored in self.stored() {
            len += stored.key.len() + stored.value.len();
            part.push(stored);
            if len >= PART_LEN {
                records.push(Record::Keys(std::mem::take(&mut part)));
                len = 0;
            }
        }
        if !part.is_empty() {
            records.push(Record::Keys(part));
        }
        let (keys, leases, _) = self.size();
        records.push(Record::BaseEnd { keys, leases });
        records
    }

    pub(crate) fn restore_key(&mut self, stored: StoredKey) -> Result<(), Misfit> {
        if stored.revision > self.revision || self.keys.contains_key(&stored.key) {
            return Err(Misfit("a key that cannot be there"));
        }
        self.put(&stored.key, stored.value, stored.revision, stored.lease)
    }

    pub(crate) fn restore_lease(&mut self, lease: LeaseNumber, ttl: Span) -> Result<(), Misfit> {
        let keys = BTreeSet::new();
        match self.leases.insert(lease, LeaseKeys { ttl, keys }) {
            None => Ok(()),
            Some(_) => Err(Misfit("a lease that is there twice")),
        }
    }

    /// What a transaction would change; `None` when it holds and writes nothing.
    pub(crate) fn plan(&self, txn: &Txn) -> Result<Option<Change>, StoreError> {
        txn.check()?;
        let now = |key: &str| self.keys.get(key).map(|stored| stored.revision);
        let holds = |c: &Compare| now(&c.key) == c.revision;
        if !txn.compare.iter().all(holds) {
            let keys: BTreeSet<&str> = txn.compare.iter().map(|c| c.key.as_str()).collect();
            let current = keys.into_iter().filter_map(|key| self.get(key)).collect();
            return Err(StoreError::Conflict { current });
        }
        let mut grown = 0;
        let mut writes = Vec::with_capacity(txn.writes.len());
        for write in &txn.writes {
            match write {
                Write::Delete { key } if !self.keys.contains_key(key) => continue,
                Write::Delete { .. } => {}
                Write::Put { key, value, lease } => {
                    if let Some(lease) = *lease {
                        let held = self.leases.get(&lease);
                        let held = held.ok_or(Refusal::NoLease { lease })?;
                        if held.keys.len() >= LEASE_KEYS_MAX {
                            return Err(Refusal::Full.into());
                        }
                    }
                    grown += key.len() + value.len();
                }
            }
            writes.push(write.clone());
        }
        if grown > 0 && self.len + grown > STORE_LEN_MAX {
            return Err(Refusal::Full.into());
        }
        let revision = self.revision.next();
        Ok((!writes.is_empty()).then_some(Change::Commit { revision, writes }))
    }

    pub(crate) fn plan_grant(&self, ttl: Span) -> Result<Change, StoreError> {
        use perigee_cluster::store::{LEASE_TTL_MAX, LEASE_TTL_MIN};
        if !(LEASE_TTL_MIN..=LEASE_TTL_MAX).contains(&ttl) {
            return Err(Refusal::BadTerm { ttl }.into());
        }
        if self.leases.len() >= LEASES_MAX {
            return Err(Refusal::Full.into());
        }
        let lease = LeaseNumber(self.next_lease);
        Ok(Change::Granted { lease, ttl })
    }

    /// The end of a lease; `None` when it has ended before.
    pub(crate) fn plan_end(&self, lease: LeaseNumber) -> Option<Change> {
        let held = self.leases.get(&lease)?;
        let revision = (!held.keys.is_empty()).then(|| self.revision.next());
        Some(Change::Ended { lease, revision })
    }

    /// Does a change, and says what those who watch will see.
    pub(crate) fn apply(&mut self, change: Change) -> Result<Vec<Event>, Misfit> {
        match change {
            Change::Commit { revision, writes } => {
                self.advance(revision)?;
                let mut events = Vec::with_capacity(writes.len());
                for write in writes {
                    events.push(self.write(write, revision)?);
                }
                Ok(events)
            }
            Change::Granted { lease, ttl } => {
                if lease.0 != self.next_lease {
                    return Err(Misfit("a lease out of order"));
                }
                self.next_lease += 1;
                self.restore_lease(lease, ttl)?;
                Ok(Vec::new())
            }
            Change::Ended { lease, revision } => {
                let Some(held) = self.leases.get(&lease) else {
                    return Err(Misfit("the end of a lease that is not there"));
                };
                let keys: Vec<_> = held.keys.iter().cloned().collect();
                let mut events = Vec::with_capacity(keys.len());
                match revision {
                    Some(revision) => self.advance(revision)?,
                    None if keys.is_empty() => {}
                    None => return Err(Misfit("the end of a lease with keys but no revision")),
                }
                for key in keys {
                    events.push(self.write(Write::Delete { key }, self.revision)?);
                }
                self.leases.remove(&lease);
                Ok(events)
            }
        }
    }

    fn advance(&mut self, revision: Revision) -> Result<(), Misfit> {
        if revision != self.revision.next() {
            return Err(Misfit("a revision out of order"));
        }
        self.revision = revision;
        Ok(())
    }

    fn write(&mut self, write: Write, revision: Revision) -> Result<Event, Misfit> {
        match write {
            Write::Put { key, value, lease } => {
                self.remove(&key);
                self.put(&key, value.clone(), revision, lease)?;
                Ok(Event {
                    key,
                    value: Some(value),
                    revision,
                })
            }
            Write::Delete { key } => {
                if !self.remove(&key) {
                    return Err(Misfit("the delete of a key that is not there"));
                }
                Ok(Event {
                    key,
                    value: None,
                    revision,
                })
            }
        }
    }

    fn put(
        &mut self,
        key: &str,
        value: Vec<u8>,
        revision: Revision,
        lease: Option<LeaseNumber>,
    ) -> Result<(), Misfit> {
        if let Some(lease) = lease {
            let held = self.leases.get_mut(&lease);
            let held = held.ok_or(Misfit("a key of a lease that is not there"))?;
            held.keys.insert(key.to_owned());
        }
        self.len += key.len() + value.len();
        let stored = Stored {
            value,
            revision,
            lease,
        };
        self.keys.insert(key.to_owned(), stored);
        Ok(())
    }

    fn remove(&mut self, key: &str) -> bool {
        let Some(stored) = self.keys.remove(key) else {
            return false;
        };
        self.len -= key.len() + stored.value.len();
        if let Some(held) = stored.lease.and_then(|lease| self.leases.get_mut(&lease)) {
            held.keys.remove(key);
        }
        true
    }
}

fn key_value(key: &str, stored: &Stored) -> KeyValue {
    KeyValue {
        key: key.to_owned(),
        value: stored.value.clone(),
        revision: stored.revision,
    }
}

/// The recent past: the events of each revision, without a gap, up to the current one.
#[derive(Debug)]
pub(crate) struct History {
    /// The first revision that is here.
    oldest: Revision,
    revisions: VecDeque<Vec<Event>>,
    events: usize,
    len: usize,
    events_max: usize,
    len_max: usize,
}

impl History {
    /// No past before the revision after `now`.
    pub(crate) fn after(now: Revision, events_max: usize, len_max: usize) -> Self {
        Self {
            oldest: now.next(),
            revisions: VecDeque::new(),
            events: 0,
            len: 0,
            events_max,
            len_max,
        }
    }

    pub(crate) fn push(&mut self, events: Vec<Event>) {
        if events.is_empty() {
            return;
        }
        self.events += events.len();
        self.len += events.iter().map(event_len).sum::<usize>();
        self.revisions.push_back(events);
        // The newest stays whatever its size: else no watch could ever see it.
        while self.revisions.len() > 1 && (self.events > self.events_max || self.len > self.len_max)
        {
            if let Some(gone) = self.revisions.pop_front() {
                self.events -= gone.len();
                self.len -= gone.iter().map(event_len).sum::<usize>();
                self.oldest = self.oldest.next();
            }
        }
    }

    pub(crate) const fn oldest(&self) -> Revision {
        self.oldest
    }

    /// The events under `prefix` of revision `from` and later, whole revisions, until about `len_max`
    /// bytes; and the revision with which to go on. `None`: `from` is gone.
    pub(crate) fn since(
        &self,
        prefix: &str,
        from: Revision,
        len_max: usize,
    ) -> Option<(Vec<Event>, Revision)> {
        let skip = usize::try_from(from.0.checked_sub(self.oldest.0)?).ok()?;
        let mut found = Vec::new();
        let mut len = 0;
        let mut next = from;
        for events in self.revisions.iter().skip(skip) {
            if len >= len_max {
                break;
            }
            for event in events.iter().filter(|event| event.key.starts_with(prefix)) {
                len += event_len(event);
                found.push(event.clone());
            }
            next = next.next();
        }
        Some((found, next))
    }
}

fn event_len(event: &Event) -> usize {
    event.key.len() + event.value.as_ref().map_or(0, Vec::len)
}
