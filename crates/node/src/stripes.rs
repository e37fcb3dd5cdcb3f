//! What this node knows of the striped files that its mounts have open.
//!
//! It may be older than what is so: whoever writes or reads by it hears that, and asks again ([`perigee_meta::stripe`]). Each session
//! goes by what it was told itself: one that has lost its locks is not told of the cut that keeps it out of columns.

use parking_lot::RwLock;
use perigee_meta::stripe::Cuts;
use perigee_meta::stripe::job::Known;
use perigee_meta::{Attr, Leftovers, Touched};
use perigee_types::{ContainerId, InodeId, SessionId, Span, Tick};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Where more files are known, those that no mount has open are forgotten.
const FILES_MAX: usize = 4_096;
/// A file's owner hears so often, at least, that bytes of it are being replaced, for the time that the file shows.
const CLAIM_EACH: Span = Span::from_millis(1_000);

#[derive(Debug, Default)]
struct File {
    known: BTreeMap<SessionId, Known>,
    /// When its owner last heard of a write of this host.
    claimed: Option<Tick>,
    /// It has not heard of the last one.
    unclaimed: bool,
}

#[derive(Debug, Default)]
struct State {
    files: HashMap<InodeId, File>,
    /// The files of columns.
    columns: HashMap<InodeId, InodeId>,
    /// How many things each session has under way at columns.
    at_work: HashMap<SessionId, usize>,
    /// Sessions that had no answer to something.
    unsure: BTreeSet<SessionId>,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Stripes {
    /// There is a striped file: most nodes have none, and look no further.
    any: AtomicBool,
    state: RwLock<State>,
}

/// Something of a session is under way at columns.
pub(crate) struct AtWork {
    stripes: Arc<Stripes>,
    session: SessionId,
}

impl Drop for AtWork {
    fn drop(&mut self) {
        let mut state = self.stripes.state.write();
        if let Some(left) = state.at_work.get_mut(&self.session) {
            *left -= 1;
            if *left == 0 {
                state.at_work.remove(&self.session);
            }
        }
    }
}

/// How a write begins.
#[derive(Debug, Clone)]
pub(crate) struct Begin {
    /// What is known of the file.
    pub(crate) known: Option<Known>,
    /// Its owner is to hear of it.
    pub(crate) claims: bool,
}

impl Stripes {
    /// A mount has opened or made a file. `is_open`: whether one has another file open.
    pub(crate) fn opened(&self, attr: &Attr, is_open: impl Fn(InodeId) -> bool) {
        if attr.layout.striping().is_none() {
            return;
        }
        let mut state = self.state.write();
        if state.files.len() >= FILES_MAX && !state.files.contains_key(&attr.inode) {
            let State { files, columns, .. } = &mut *state;
            files.retain(|inode, file| file.unclaimed || is_open(*inode));
            columns.retain(|_, of| files.contains_key(of));
        }
        state.files.entry(attr.inode).or_default();
        self.any.store(true, Ordering::Release);
    }

    /// Whether a file is a striped one.
    pub(crate) fn has(&self, inode: InodeId) -> bool {
        self.any.load(Ordering::Acquire) && self.state.read().files.contains_key(&inode)
    }

    /// What a file's owner has said of it to a session.
    pub(crate) fn know(&self, session: SessionId, known: &Known) {
        let mut state = self.state.write();
        let Some(file) = state.files.get_mut(&known.inode) else {
            return;
        };
        // An answer may have been under way for longer than another one.
        let older = |before: &Known| known.striping.cuts < before.striping.cuts;
        let before = file.known.get(&session);
        if !before.is_some_and(older) && before != Some(known) {
            file.known.insert(session, known.clone());
            for column in &known.columns {
                state.columns.insert(*column, known.inode);
            }
        }
    }

    /// What a session knows of a file.
    pub(crate) fn known(&self, session: SessionId, inode: InodeId) -> Option<Known> {
        let state = self.state.read();
        state.files.get(&inode)?.known.get(&session).cloned()
    }

    /// The cuts that a session knows of the file of a column, or of which this is the own inode.
    pub(crate) fn cuts_of(&self, session: SessionId, column: InodeId) -> Option<Cuts> {
        let state = self.state.read();
        let of = state.columns.get(&column).unwrap_or(&column);
        let known = state.files.get(of)?.known.get(&session)?;
        Some(known.striping.cuts)
    }

    /// A mount is gone. What it has not finished yet asks the owners of files, who refuse it.
    pub(crate) fn session_ended(&self, session: SessionId) -> Leftovers {
        if !self.any.load(Ordering::Acquire) {
            return Leftovers::None;
        }
        let mut state = self.state.write();
        for file in state.files.values_mut() {
            file.known.remove(&session);
        }
        let unsure = state.unsure.remove(&session);
        match unsure || state.at_work.contains_key(&session) {
            true => Leftovers::Perhaps,
            false => Leftovers::None,
        }
    }

    /// A call of a session to a column was given up: it may be carried out at any time.
    pub(crate) fn note_unsure(&self, session: SessionId) {
        self.state.write().unsure.insert(session);
    }

    /// A session has something to do at columns, until this is dropped.
    pub(crate) fn at_work(self: &Arc<Self>, session: SessionId) -> AtWork {
        *self.state.write().at_work.entry(session).or_default() += 1;
        AtWork {
            stripes: self.clone(),
            session,
        }
    }

    /// A container has another owner, who may not have what the one before said of its files.
    pub(crate) fn owner_changed(&self, container: ContainerId) {
        if self.any.load(Ordering::Acquire) {
            let mut state = self.state.write();
            let files = state.files.iter_mut();
            for (_, file) in files.filter(|(inode, _)| inode.container() == container) {
                file.known.clear();
                file.claimed = None;
            }
        }
    }

    /// A program begins to write.
    pub(crate) fn begin_write(&self, session: SessionId, inode: InodeId, now: Tick) -> Begin {
        let state = self.state.read();
        let file = state.files.get(&inode);
        let lately = |at: Tick| now.since(at) < CLAIM_EACH;
        Begin {
            known: file.and_then(|file| file.known.get(&session).cloned()),
            claims: !file.and_then(|file| file.claimed).is_some_and(lately),
        }
    }

    /// It has written.
    pub(crate) fn wrote(&self, inode: InodeId, claimed: bool, now: Tick) {
        if let Some(file) = self.state.write().files.get_mut(&inode) {
            file.unclaimed = !claimed;
            if claimed {
                file.claimed = Some(now);
            }
        }
    }

    /// A file's owner was to hear of the last write before this moment, and has or has not.
    pub(crate) fn told_owner(&self, inode: InodeId, told: bool, now: Tick) {
        if let Some(file) = self.state.write().files.get_mut(&inode) {
            match told {
                true => file.claimed = Some(now),
                false => file.unclaimed = true,
            }
        }
    }

    /// Whether a file's owner has not heard of the last write.
    pub(crate) fn is_unclaimed(&self, inode: InodeId) -> bool {
        self.any.load(Ordering::Acquire) && {
            let state = self.state.read();
            let file = state.files.get(&inode);
            file.is_some_and(|file| file.unclaimed)
        }
    }

    /// The same; it is about to hear of it.
    pub(crate) fn take_unclaimed(&self, inode: InodeId) -> bool {
        let mut state = self.state.write();
        let file = state.files.get_mut(&inode);
        file.is_some_and(|file| std::mem::take(&mut file.unclaimed))
    }

    /// A file and its columns, as far as they are known.
    pub(crate) fn all_of(&self, inode: InodeId) -> Vec<InodeId> {
        let mut all = vec![inode];
        if self.any.load(Ordering::Acquire) {
            let state = self.state.read();
            let file = state.files.get(&inode);
            let known = file.into_iter().flat_map(|file| file.known.values());
            // They are made once.
            let made = known
                .map(|known| &known.columns)
                .find(|columns| !columns.is_empty());
            all.extend(made.into_iter().flatten());
        }
        all
    }

    /// What mounts have to forget when this has changed: a column's change is one of its file, for them.
    pub(crate) fn shown(&self, touched: &[Touched]) -> Vec<Touched> {
        let mut shown = touched.to_vec();
        if self.any.load(Ordering::Acquire) {
            let state = self.state.read();
            for change in touched {
                if let Touched::Data(column) | Touched::Attr(column) = change
                    && let Some(of) = state.columns.get(column)
                {
                    shown.push(match change {
                        Touched::Data(_) => Touched::Data(*of),
                        _ => Touched::Attr(*of),
                    });
                }
            }
        }
        shown
    }

    /// The files with a column in a container.
    pub(crate) fn with_columns_in(&self, container: ContainerId) -> Vec<InodeId> {
        if !self.any.load(Ordering::Acquire) {
            return Vec::new();
        }
        let state = self.state.read();
        let of = state.columns.iter();
        of.filter(|(column, _)| column.container() == container)
            .map(|(_, of)| *of)
            .collect()
    }
}
