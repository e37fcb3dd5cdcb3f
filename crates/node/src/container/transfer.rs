//! A container's whole state on its way to a node that joins.

use super::drive::Stored;
use super::uncertain::Uncertain;
use super::{Container, Elsewhere, Failed, State};
use bytes::Bytes;
use perigee_meta::{Key, Kind};
use perigee_proto::message::data::{StatePage, StateRows};
use perigee_replica::Input;
use perigee_store::{Snapshot, Space, StoreError, WriteBatch};
use perigee_types::{ByteRange, ContainerId, Errno, InodeId, NodeId, Tick, Version};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tracing::{error, info, warn};

/// Rows of one page; with their sizes' bound a page stays far below a frame's limit.
const PAGE_ROWS: usize = 2_000;
/// Bytes of one page.
const PAGE_BYTES: usize = 512 << 10;
/// A snapshot that nobody asks about for so long is dropped.
const SNAPSHOT_IDLE_MICROS: u64 = 60_000_000;
/// Set in the local space while a transfer replaces the state.
pub(super) const RECEIVING: &[u8] = b"receiving";

struct Open {
    snapshot: Arc<Snapshot>,
    base: Version,
    used: Tick,
}

/// The snapshots that joining nodes read from.
#[derive(Default)]
pub(super) struct Snapshots {
    next: u64,
    open: BTreeMap<u64, Open>,
}

impl Container {
    /// Gives a joining node the next page of a snapshot.
    pub(crate) fn state_page(&self, request: &StatePage) -> Result<StateRows, Failed> {
        let now = self.env.clock.now();
        Self::reign(&self.state.lock(), now)?;
        let (number, snapshot, base) = self.open_snapshot(request.snapshot, now)?;
        let from = match &request.after {
            Some(key) => {
                let mut from = key.clone();
                from.push(0);
                from
            }
            None => Vec::new(),
        };
        let rows = snapshot
            .scan(Space::State(self.id), &from, None, PAGE_ROWS)
            .map_err(|error| self.store_refused(&error))?;
        let full = rows.len() == PAGE_ROWS;
        let mut page = Vec::new();
        let mut bytes = 0;
        let mut cut = false;
        for (key, value) in rows {
            bytes += key.len() + value.len();
            page.push((key.to_vec(), value.to_vec()));
            if bytes >= PAGE_BYTES {
                cut = true;
                break;
            }
        }
        let last = !full && !cut;
        if last {
            self.snapshots.lock().open.remove(&number);
        }
        Ok(StateRows {
            snapshot: number,
            base,
            rows: page,
            last,
        })
    }

    fn open_snapshot(
        &self,
        number: Option<u64>,
        now: Tick,
    ) -> Result<(u64, Arc<Snapshot>, Version), Failed> {
        let mut snapshots = self.snapshots.lock();
        snapshots
            .open
            .retain(|_, open| now.since(open.used).as_micros() < SNAPSHOT_IDLE_MICROS);
        if let Some(number) = number {
            let open = snapshots.open.get_mut(&number).ok_or(Elsewhere::NotReady)?;
            open.used = now;
            return Ok((number, open.snapshot.clone(), open.base));
        }
        let snapshot = Arc::new(
            self.env
                .store
                .snapshot()
                .map_err(|error| self.store_refused(&error))?,
        );
        let base = match snapshot.get(Space::Local(self.id), super::drive::HARD) {
            Ok(Some(bytes)) => {
                let stored: Stored = perigee_proto::decode(&bytes).map_err(|_| Errno::EIO)?;
                stored.applied
            }
            Ok(None) => return Err(Elsewhere::NotReady.into()),
            Err(error) => return Err(self.store_refused(&error).into()),
        };
        snapshots.next += 1;
        let number = snapshots.next;
        snapshots.open.insert(
            number,
            Open {
                snapshot: snapshot.clone(),
                base,
                used: now,
            },
        );
        Ok((number, snapshot, base))
    }

    /// Begins to fetch the state from the owner, unless that is under way.
    pub(super) fn receive_state(self: &Arc<Self>, st: &mut State, from: NodeId) {
        if std::mem::replace(&mut st.receiving, true) {
            return;
        }
        let me = self.clone();
        self.env.runtime.spawn(async move {
            let mut replaced = Replaced::Nothing;
            let received = me.fetch_state(from, &mut replaced).await;
            if let (Err(error), Replaced::APart) = (&received, replaced) {
                warn!(container = %me.id, %from, %error, "a part of the state was received, and no more");
                return me.leave_torn();
            }
            me.state.lock().receiving = false;
            match received {
                Ok(base) => {
                    info!(container = %me.id, %from, %base, "state received");
                    me.step(Input::StateInstalled { base });
                    me.refill.notify_one();
                }
                Err(error) => {
                    warn!(container = %me.id, %from, %error, "state not received");
                    me.step(Input::StateFailed);
                }
            }
        });
    }

    /// What the disk has is no state and no log any more, and the process must not go on with what it knows of them: this
    /// node leaves the container, and joins it again with nothing, as after a restart.
    fn leave_torn(self: &Arc<Self>) {
        self.env.torn.lock().insert(self.id);
        self.step(Input::PersistFailed);
    }

    async fn fetch_state(
        self: &Arc<Self>,
        from: NodeId,
        replaced: &mut Replaced,
    ) -> Result<Version, String> {
        let mut request = StatePage {
            container: self.id,
            snapshot: None,
            after: None,
        };
        let mut files: BTreeMap<InodeId, u64> = BTreeMap::new();
        let mut batch = WriteBatch::default();
        batch.put(Space::Local(self.id), RECEIVING, &[1]);
        batch.delete_range(Space::State(self.id), &[], None);
        batch.delete_range(Space::Log(self.id), &[], None);
        loop {
            let page = self
                .env
                .ask(from, &request, Bytes::new(), Duration::from_secs(10))
                .await
                .map_err(|error| error.to_string())?
                .0;
            if !self.state.lock().chain.accepts_state(page.base) {
                return Err("it is not wanted any more".to_owned());
            }
            for (key, value) in &page.rows {
                if let Some((inode, size)) = file_of(self.id, key, value) {
                    files.insert(inode, size);
                }
                batch.put(Space::State(self.id), key, value);
            }
            request.snapshot = Some(page.snapshot);
            request.after = page
                .rows
                .last()
                .map(|(key, _)| key.clone())
                .or(request.after);
            *replaced = Replaced::APart;
            if page.last {
                self.finish_receiving(std::mem::take(&mut batch), page.base, &files)
                    .await?;
                return Ok(page.base);
            }
            self.put_on_disk(std::mem::take(&mut batch)).await?;
        }
    }

    /// The last rows are here: they become the state, and every file's bytes are to be fetched.
    async fn finish_receiving(
        self: &Arc<Self>,
        mut batch: WriteBatch,
        base: Version,
        files: &BTreeMap<InodeId, u64>,
    ) -> Result<(), String> {
        let keep: BTreeSet<InodeId> = files.keys().copied().collect();
        let installs = self.installs.write();
        self.env
            .store
            .retain_objects(self.id, &keep)
            .map_err(|error| error.to_string())?;
        for (inode, size) in files {
            let file = self.file(*inode).map_err(|error| error.to_string())?;
            file.object
                .resize(*size)
                .map_err(|error| error.to_string())?;
            file.object
                .spoil_in(&mut batch, ByteRange::new(0, *size), base)
                .map_err(|error| error.to_string())?;
        }
        let promised = {
            let mut st = self.state.lock();
            st.applied = base;
            st.extracted = base.seq;
            st.synced = base.seq;
            st.unapplied.clear();
            st.overlay.clear(base.seq);
            st.distrusted_through = base.seq;
            st.uncertain = Uncertain::default();
            st.held.clear();
            st.marks = WriteBatch::default();
            st.pull
                .on_state_installed(base, files.iter().map(|(inode, size)| (*inode, *size)));
            st.complete = false;
            st.chain.promised()
        };
        drop(installs);
        let stored = Stored {
            promised,
            complete: false,
            committed: base.seq,
            base,
            applied: base,
            data_done: base.seq,
        };
        batch.put(
            Space::Local(self.id),
            super::drive::HARD,
            &perigee_proto::encode(&stored),
        );
        batch.delete(Space::Local(self.id), RECEIVING);
        self.put_on_disk(batch).await
    }

    async fn put_on_disk(&self, batch: WriteBatch) -> Result<(), String> {
        let (sender, receiver) = tokio::sync::oneshot::channel::<Result<(), StoreError>>();
        // The receiver waits below; it is gone only when this task is.
        self.env
            .store
            .submit(batch, Box::new(move |result| _ = sender.send(result)));
        match receiver.await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err("the store was closed".to_owned()),
        }
    }
}

/// What of the state and the log on the disk was replaced by what came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Replaced {
    Nothing,
    APart,
}

/// A regular file with content, if this row is its record: the inode, and its length.
fn file_of(container: ContainerId, key: &[u8], value: &[u8]) -> Option<(InodeId, u64)> {
    let Some(Key::Inode(index)) = Key::decode(key) else {
        return None;
    };
    let inode = InodeId::new(container, index);
    match perigee_meta::stored_attr(inode, value) {
        Ok(attr) if attr.kind == Kind::File && attr.size > 0 => Some((inode, attr.size)),
        Ok(_) => None,
        Err(error) => {
            error!(%inode, %error, "received inode record is unreadable");
            None
        }
    }
}
