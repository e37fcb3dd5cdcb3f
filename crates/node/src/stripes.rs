//! What this node knows of the striped files that its mounts have open.
//!
//! It may be older than what is so: whoever writes or reads by it hears that, and asks again ([`perigee_meta::stripe`]).

use parking_lot::RwLock;
use perigee_meta::stripe::Cuts;
use perigee_meta::stripe::job::Known;
use perigee_meta::{Attr, Touched};
use perigee_types::{ContainerId, InodeId, Span, Tick};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

/// Where more files are known, those that no mount has open are forgotten.
const FILES_MAX: usize = 4_096;
/// A file's owner hears so often, at least, that bytes of it are being replaced, for the time that the file shows.
const CLAIM_EACH: Span = Span::from_millis(1_000);

#[derive(Debug, Default)]
struct File {
    known: Option<Known>,
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
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Stripes {
    /// There is a striped file: most nodes have none, and look no further.
    any: AtomicBool,
    state: RwLock<State>,
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
            let State { files, columns } = &mut *state;
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

    /// What a file's owner has said of it.
    pub(crate) fn know(&self, known: &Known) {
        let mut state = self.state.write();
        let Some(file) = state.files.get_mut(&known.inode) else {
            return;
        };
        // An answer may have been under way for longer than another one.
        let older = |before: &Known| known.striping.cuts < before.striping.cuts;
        if !file.known.as_ref().is_some_and(older) && file.known.as_ref() != Some(known) {
            file.known = Some(known.clone());
            for column in &known.columns {
                state.columns.insert(*column, known.inode);
            }
        }
    }

    /// What is known of a file.
    pub(crate) fn known(&self, inode: InodeId) -> Option<Known> {
        self.state.read().files.get(&inode)?.known.clone()
    }

    /// The cuts that are known of the file of a column, or of which this is the own inode.
    pub(crate) fn cuts_of(&self, column: InodeId) -> Option<Cuts> {
        let state = self.state.read();
        let of = state.columns.get(&column).unwrap_or(&column);
        let known = state.files.get(of)?.known.as_ref()?;
        Some(known.striping.cuts)
    }

    /// A container has another owner, who may not have what the one before said of its files.
    pub(crate) fn owner_changed(&self, container: ContainerId) {
        if self.any.load(Ordering::Acquire) {
            let mut state = self.state.write();
            let files = state.files.iter_mut();
            for (_, file) in files.filter(|(inode, _)| inode.container() == container) {
                file.known = None;
                file.claimed = None;
            }
        }
    }

    /// A program begins to write.
    pub(crate) fn begin_write(&self, inode: InodeId, now: Tick) -> Begin {
        let state = self.state.read();
        let file = state.files.get(&inode);
        let lately = |at: Tick| now.since(at) < CLAIM_EACH;
        Begin {
            known: file.and_then(|file| file.known.clone()),
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

    /// Whether a file's owner has not heard of the last write; it is about to.
    pub(crate) fn take_unclaimed(&self, inode: InodeId) -> bool {
        let mut state = self.state.write();
        let file = state.files.get_mut(&inode);
        file.is_some_and(|file| std::mem::take(&mut file.unclaimed))
    }

    /// A file and its columns, as far as they are known.
    pub(crate) fn all_of(&self, inode: InodeId) -> Vec<InodeId> {
        let known = match self.any.load(Ordering::Acquire) {
            true => self.known(inode),
            false => None,
        };
        let columns = known.map(|known| known.columns).unwrap_or_default();
        std::iter::once(inode).chain(columns).collect()
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
