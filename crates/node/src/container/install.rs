//! Putting fetched bytes in place.
//!
//! The disk is written without the container's lock. Three locks keep others out of the way of a write that is
//! decided and not yet done, always taken in this order: the file's `still` (an owner's own writes), the container's
//! `installs` (a state that arrives whole), the container's state, and the file's `installing` (committed commands,
//! which are carried out under the container's lock and wait for the disk alone).

use super::in_place::{Asked, put_together};
use super::refill::{PAUSE_FULL, PIECE, piece};
use super::{After, Container, File, State, payload};
use bytes::Bytes;
use parking_lot::MutexGuard;
use perigee_meta::past::is_kept_file;
use perigee_proto::message::data::{Fetched as Got, Region};
use perigee_replica::{Carried, Fetch, FetchId, Fetched, Input, Role};
use perigee_store::StoreError;
use perigee_types::{ByteRange, Span, Version};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tracing::{debug, error, warn};

/// For how long a disk may refuse bytes for want of room while it says that it has plenty.
const LIES_MAX: Span = Span::from_millis(2_000);

/// How a round of fetches went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Round {
    /// All of it is in place, held, or on its way by other means.
    Complete,
    /// Something has to be asked for again.
    Failed,
}

/// Bytes that could not be put in place: that has been told of.
struct NotInstalled;

/// What became of an answer.
pub(super) struct Taken {
    /// What the source did not have.
    pub(super) left: Vec<Asked>,
    /// Of that, what it has and cannot read.
    pub(super) unreadable: BTreeSet<FetchId>,
    pub(super) round: Round,
}

/// Bytes that arrived.
pub(super) struct Arrived {
    fetch: Fetch,
    bytes: Bytes,
    as_of: Version,
}

impl Arrived {
    /// What was asked for.
    fn asked(&self) -> ByteRange {
        piece(self.fetch.range)
    }

    /// What is settled by it. A short answer ends where the file ends: what lies beyond is settled with it.
    fn covered(&self) -> ByteRange {
        if (self.bytes.len() as u64) < self.asked().len() {
            self.fetch.range
        } else {
            self.asked()
        }
    }

    /// Where its bytes belong.
    fn place(&self) -> ByteRange {
        ByteRange::with_len(self.fetch.range.start, self.bytes.len() as u64)
    }
}

/// Bytes that wait for their record are copied up to this length, so that they do not keep a whole answer.
const HELD_COPY_MAX: usize = 64 << 10;

/// So many bytes of log behind a record whose bytes cannot be put in place are too many: all nodes keep more than that.
const STUCK_BYTES: u64 = 24 << 20;

/// What does not travel.
static ZEROS: [u8; PIECE as usize] = [0; PIECE as usize];

impl Container {
    /// Takes in an answer.
    pub(super) async fn take_in(
        self: &Arc<Self>,
        asked: Vec<Asked>,
        got: Got,
        payload: Bytes,
    ) -> Taken {
        let me = self.clone();
        let (sender, receiver) = tokio::sync::oneshot::channel();
        self.env.runtime.spawn_blocking(move || {
            // Whoever asked may have gone: then nobody wants to know.
            _ = sender.send(me.take_in_now(asked, &got, &payload));
        });
        receiver.await.unwrap_or(Taken {
            left: Vec::new(),
            unreadable: BTreeSet::new(),
            round: Round::Failed,
        })
    }

    fn take_in_now(self: &Arc<Self>, asked: Vec<Asked>, got: &Got, payload: &Bytes) -> Taken {
        let mut taken = Taken {
            left: Vec::new(),
            unreadable: BTreeSet::new(),
            round: Round::Complete,
        };
        if got.regions.len() != asked.len() {
            warn!(container = %self.id, "answer to a fetch has another number of regions");
            taken.left = asked;
            taken.round = Round::Failed;
            return taken;
        }
        let now = std::time::Instant::now();
        self.env.pace.add(payload.len() as u64, now);
        let mut at = 0usize;
        let mut answers = asked.into_iter().zip(&got.regions);
        for (asked, (region, as_of)) in answers.by_ref() {
            let fetch = asked.fetch;
            let bytes = match region {
                Region::Beside { len, same } => {
                    let own = asked.in_place.as_ref();
                    let sent = payload.get(at..).unwrap_or_default();
                    let lens = (*len, piece(fetch.range).len());
                    let whole = own.and_then(|own| put_together(own, lens, same, sent));
                    let Some(whole) = whole else {
                        warn!(container = %self.id, "answer to a fetch tells of bytes that are not in place");
                        taken.left.push(asked);
                        taken.round = Round::Failed;
                        break;
                    };
                    at += whole.sent;
                    let arrived = Arrived {
                        fetch,
                        bytes: whole.bytes,
                        as_of: *as_of,
                    };
                    if self.arrived(arrived) == Round::Failed {
                        taken.round = Round::Failed;
                    }
                    continue;
                }
                Region::Bytes { len } => {
                    let len = usize::try_from(*len).unwrap_or(usize::MAX);
                    let sent = at.checked_add(len).and_then(|end| payload.get(at..end));
                    at = at.saturating_add(len);
                    sent.map(|sent| payload.slice_ref(sent))
                }
                Region::Zeros { len } => {
                    let len = usize::try_from(*len).unwrap_or(usize::MAX);
                    ZEROS.get(..len).map(Bytes::from_static)
                }
                Region::Gone => {
                    // Its removal is on the way in the log.
                    self.state.lock().pull.on_fetch_failed(fetch.id);
                    continue;
                }
                Region::Missing => {
                    taken.left.push(asked);
                    continue;
                }
                // It was not asked for; its bytes stand in the way of the next ones.
                Region::Older { len } => {
                    let len = usize::try_from(*len).unwrap_or(usize::MAX);
                    at = at.saturating_add(len);
                    taken.left.push(asked);
                    continue;
                }
                Region::Unreadable => {
                    taken.unreadable.insert(fetch.id);
                    taken.left.push(asked);
                    continue;
                }
                Region::Lost { part } => {
                    self.nobody_has(&fetch, *part, *as_of);
                    continue;
                }
            };
            let Some(bytes) = bytes else {
                warn!(container = %self.id, "answer to a fetch has not the bytes that it tells of");
                taken.left.push(asked);
                taken.round = Round::Failed;
                continue;
            };
            let arrived = Arrived {
                fetch,
                bytes,
                as_of: *as_of,
            };
            if self.arrived(arrived) == Round::Failed {
                taken.round = Round::Failed;
            }
        }
        // Of an answer that is not what it says, nothing more can be told apart.
        taken.left.extend(answers.map(|(asked, _)| asked));
        taken
    }

    /// Installs fetched bytes, now or when the log has what they are as of. Blocks on the disk.
    fn arrived(self: &Arc<Self>, mut arrived: Arrived) -> Round {
        let id = arrived.fetch.id;
        let file = match self.file(arrived.fetch.inode) {
            Ok(file) => file,
            Err(error) => {
                match error {
                    StoreError::Removed { .. } => debug!(%error, "fetched bytes dropped"),
                    error => error!(%error, "no object to install bytes in"),
                }
                self.state.lock().pull.on_fetch_failed(id);
                return Round::Failed;
            }
        };
        let _still = file.still.write();
        let _installs = self.installs.read();
        let mut st = self.state.lock();
        // Also at an owner: what it has held since it was a member may be of a record that never was.
        let holds = st.chain.holds(arrived.as_of);
        let decided = st
            .pull
            .on_fetched(id, arrived.covered(), arrived.as_of, holds);
        let (inode, parts) = match decided {
            Fetched::Install { inode, parts } => (inode, parts),
            Fetched::Hold => {
                if arrived.bytes.len() <= HELD_COPY_MAX {
                    // Without the rest of the answer that it came with.
                    arrived.bytes = Bytes::copy_from_slice(&arrived.bytes);
                }
                st.held.insert(id, arrived);
                return Round::Complete;
            }
            Fetched::Drop => return Round::Complete,
        };
        match self.install_parts(st, &file, &arrived, &parts) {
            Ok(()) => {
                let mut st = self.state.lock();
                st.pull.on_installed(id);
                self.note_healed(&mut st, inode);
                if is_kept_file(inode) {
                    self.release_held(&mut st);
                }
                Round::Complete
            }
            Err(NotInstalled) => {
                self.state.lock().pull.on_fetch_failed(id);
                Round::Failed
            }
        }
    }

    /// Writes the parts that were decided under the lock, and sees to what a disk without room means.
    fn install_parts(
        self: &Arc<Self>,
        mut st: MutexGuard<'_, State>,
        file: &File,
        arrived: &Arrived,
        parts: &[ByteRange],
    ) -> Result<(), NotInstalled> {
        let inode = arrived.fetch.inode;
        let prepared = self.prepare_install(&mut st, file, arrived, parts);
        let installing = file.installing.lock();
        drop(st);
        let installed = prepared.and_then(|()| install(file, arrived, parts));
        drop(installing);
        if let Err(error) = &installed {
            self.store_refused(error);
        }
        // Asked without the lock, since it asks the disk.
        let lies = matches!(installed, Err(StoreError::NoSpace)) && self.has_plenty_of_room();
        let mut st = self.state.lock();
        st.unsettled.insert(inode);
        let Err(error) = installed else {
            st.full_at = None;
            st.lies_since = None;
            return Ok(());
        };
        let now = self.env.clock.now();
        if lies {
            // It may have been full a moment ago; one that goes on so is not to be relied on.
            let since = *st.lies_since.get_or_insert(now);
            if since + LIES_MAX <= now {
                drop(st);
                self.disk_fails(&error);
            }
            return Err(NotInstalled);
        }
        if let StoreError::NoSpace = error {
            self.held.notify_one();
            // Said once: it is tried again and again.
            if st.full_at.replace(now).is_some() {
                return Err(NotInstalled);
            }
        }
        error!(container = %self.id, %inode, %error, "bytes not installed");
        Err(NotInstalled)
    }

    /// Puts in place what a committed record carries. What finds no room is tried again later. Blocks on the disk.
    fn install_carried(self: &Arc<Self>, carried: Carried) {
        let Carried {
            inode,
            range,
            version,
        } = carried;
        let file = match self.file(inode) {
            Ok(file) => file,
            // The record of that is on the way.
            Err(StoreError::Removed { .. }) => {
                return self.state.lock().pull.on_carried_lost(&carried);
            }
            Err(error) => {
                error!(container = %self.id, %inode, %error, "no object to put a record's bytes in");
                return self.install_later(vec![carried]);
            }
        };
        let _still = file.still.write();
        let _installs = self.installs.read();
        let mut st = self.state.lock();
        st.note_committed_to_pull();
        let parts = st.pull.carried_parts(&carried);
        // What is there by other means, too, goes to the disk before its record may be trimmed.
        st.unsettled.insert(inode);
        if parts.is_empty() {
            self.note_healed(&mut st, inode);
            if st.pull.carried_from().is_some_and(|seq| seq <= version.seq) {
                self.leave_if_stuck(st, version);
            }
            return;
        }
        let record = st.chain.entries(version.seq, version.seq).next();
        let record = record.filter(|entry| entry.version == version);
        let found = record.map(|entry| payload::content(&entry.payload, inode, range));
        let Some(Ok(Some(bytes))) = found else {
            error!(container = %self.id, %inode, %range, %version, "the bytes of a record are not in the log");
            st.pull.on_carried_lost(&carried);
            return self.refill.notify_one();
        };
        let as_of = st.chain.committed_version();
        let fetch = Fetch {
            id: FetchId(0),
            inode,
            range,
            needed: version,
        };
        let arrived = Arrived {
            fetch,
            bytes,
            as_of,
        };
        let installed = self.install_parts(st, &file, &arrived, &parts);
        let mut st = self.state.lock();
        match installed {
            Ok(()) => {
                st.pull.on_carried_installed(inode, parts, as_of);
                self.note_healed(&mut st, inode);
            }
            Err(NotInstalled) => {
                self.leave_if_stuck(st, version);
                let part = |range| Carried { range, ..carried };
                self.install_later(parts.into_iter().map(part).collect());
            }
        }
    }

    /// Bytes of a record that find no place here for so long hold up its log, and soon the next owner's would not have it any
    /// more: this node is no member to rely on then.
    fn leave_if_stuck(self: &Arc<Self>, mut st: MutexGuard<'_, State>, version: Version) {
        if st.chain.bytes_from(version.seq) <= STUCK_BYTES || matches!(st.role, Role::Outside) {
            return;
        }
        error!(container = %self.id, %version, "the bytes of a record found no place for long: this node leaves the container");
        // It comes back when there is room.
        self.lost_records.store(true, Ordering::Relaxed);
        let mut after = After::default();
        self.step_locked(&mut st, Input::PersistFailed, &mut after);
        drop(st);
        after.run();
    }

    /// Tries again in a while.
    fn install_later(self: &Arc<Self>, carried: Vec<Carried>) {
        let me = self.clone();
        self.env.runtime.spawn(async move {
            tokio::time::sleep(PAUSE_FULL).await;
            let mut st = me.state.lock();
            for carried in carried {
                st.pull.on_carried_failed(carried);
            }
            me.release_held(&mut st);
        });
    }

    /// The map that decided to fetch may know of more that is missing than the object, which ends earlier when its
    /// record of a cut was truncated: the object learns it first.
    fn prepare_install(
        &self,
        st: &mut State,
        file: &File,
        arrived: &Arrived,
        parts: &[ByteRange],
    ) -> Result<(), StoreError> {
        let len = file.object.len()?;
        for part in parts {
            let end = part.end.min(arrived.place().end.max(len));
            let mut known = perigee_replica::RegionMap::new();
            known.invalidate(
                ByteRange::new(part.start, end.max(part.start)),
                arrived.as_of,
            );
            for (lacking, _) in file.object.invalid_in(*part) {
                known.drop_range(lacking);
            }
            for (unknown, _) in known.iter() {
                file.object
                    .invalidate_in(&mut st.marks, unknown, arrived.as_of)?;
            }
        }
        Ok(())
    }

    /// Installs bytes that were held until their record was committed, or came in it.
    pub(super) fn release_held(self: &Arc<Self>, st: &mut State) {
        let mut arrived = Vec::new();
        if !st.held.is_empty() {
            let chain = &st.chain;
            let decided = st.pull.decidable(|version| chain.holds(version));
            let held = decided.into_iter().filter_map(|id| st.held.remove(&id));
            arrived.extend(held);
        }
        let carried = match st.role {
            // Nobody relies on what is here, and it may be about to be replaced.
            Role::Outside => Vec::new(),
            _ => st.pull.take_carried(),
        };
        if arrived.is_empty() && carried.is_empty() {
            return;
        }
        let me = self.clone();
        self.env.runtime.spawn_blocking(move || {
            for arrived in arrived {
                me.arrived(arrived);
            }
            for carried in carried {
                me.install_carried(carried);
            }
            me.progress.notify_waiters();
            // What they did not make valid has to be asked for again.
            me.refill.notify_one();
        });
    }
}

impl State {
    /// What is put in place is as of the last record that is committed here.
    pub(super) fn note_committed_to_pull(&mut self) {
        self.pull.note_committed(self.chain.committed_version());
    }
}

/// Writes the parts that were decided.
fn install(file: &File, arrived: &Arrived, parts: &[ByteRange]) -> Result<(), StoreError> {
    let place = arrived.place();
    for part in parts {
        if let Some(data) = part.intersect(place) {
            let from = (data.start - place.start) as usize;
            let slice = &arrived.bytes[from..from + data.len() as usize];
            file.object.install(data, slice, arrived.as_of, None)?;
        }
        // As of that record the file ended there: what this node has beyond it reads as zeros.
        let mut at = part.start.max(place.end);
        let end = part.end.min(file.object.len()?);
        while at < end {
            let zeros = ByteRange::new(at, end.min(at + PIECE));
            let content = vec![0; zeros.len() as usize];
            file.object.install(zeros, &content, arrived.as_of, None)?;
            at = zeros.end;
        }
    }
    Ok(())
}

/// Waits for a write to the file that was decided before, and lets none begin.
pub(super) fn hold_off(file: &File) -> parking_lot::MutexGuard<'_, ()> {
    file.installing.lock()
}
