//! Chunks of files that belong to the host that writes them ([`perigee_replica::chunk`]): rows, records, disk and network.
//!
//! The rows lie in the container's state. Of the owner `owner` knows who holds what, `give` gives chunks away, `call` calls their
//! holders and takes them back, `silent` knows who of these does not answer, `duty` takes back what nobody uses, and `taken`
//! takes what they send; `holder` writes in place and sends what it wrote. Reads, writes and looks at
//! attributes pass the holders of chunks at the owner ([`Container::pass_holders`]), before the container's lock is taken
//! for them.
//!
//! Who orders that a chunk is given away or taken back has the file's `still` alone: no write to it is half way then.

mod call;
mod duty;
mod give;
mod holder;
mod ordered;
mod owner;
mod silent;
mod taken;

pub(super) use give::Away;
pub(crate) use holder::AsHolder;
pub(super) use holder::Unsent;
pub(super) use ordered::Name;
pub(crate) use taken::is_well_formed;

use super::{Container, State};
use perigee_meta::{Attr, Key, Reply};
use perigee_replica::chunk::Manner;
use perigee_replica::{Chunk, Hold};
use perigee_types::{Batch, ContainerId, InodeId, Mutation, SessionId};
use tracing::error;

/// A change of a chunk's row.
struct RowChange {
    chunk: Chunk,
    hold: Option<Hold>,
}

/// The rows that a record changes.
fn rows_of(id: ContainerId, batch: &Batch) -> Vec<RowChange> {
    let mutations = batch.mutations.iter();
    mutations
        .filter_map(|mutation| {
            let chunk = chunk_of(id, &mutation.key)?;
            let hold = mutation.value.as_deref();
            Some(RowChange {
                chunk,
                hold: hold.and_then(|value| hold_of(chunk, value)),
            })
        })
        .collect()
}

/// The chunk whose row a key is.
fn chunk_of(id: ContainerId, key: &[u8]) -> Option<Chunk> {
    match Key::decode(key) {
        Some(Key::Hold(index, chunk)) => Some(Chunk {
            inode: InodeId::new(id, index),
            index: chunk,
        }),
        _ => None,
    }
}

/// What a row says. One that cannot be read is as none: nobody has a right by it.
fn hold_of(chunk: Chunk, value: &[u8]) -> Option<Hold> {
    let hold = perigee_proto::decode(value);
    hold.inspect_err(|malformed| {
        error!(inode = %chunk.inode, chunk = chunk.index, %malformed, "row of a held chunk unreadable");
    })
    .ok()
}

fn row(chunk: Chunk, hold: Option<Hold>) -> Mutation {
    Mutation {
        key: Key::Hold(chunk.inode.index(), chunk.index).encode(),
        value: hold.map(|hold| perigee_proto::encode(&hold).to_vec()),
    }
}

/// The attributes that a reply shows.
pub(crate) fn shown(reply: &Reply) -> impl Iterator<Item = &Attr> {
    let (one, many) = match reply {
        Reply::Attr(attr) | Reply::Entry(attr) | Reply::Created { attr, .. } => (Some(attr), None),
        Reply::Listing(rows) => (None, Some(rows)),
        _ => (None, None),
    };
    let many = many.into_iter().flatten();
    one.into_iter()
        .chain(many.filter_map(|row| row.attr.as_ref()))
}

impl State {
    /// Whether `session` may keep something of a file unasked: not where a part of it belongs to another one, nor where
    /// another one writes it past the daemon.
    pub(super) fn may_keep(&self, inode: InodeId, session: SessionId) -> bool {
        let mut rows = self.away.holds.of(inode);
        rows.all(|(_, hold)| hold.holder == session) && self.alone.may_keep(inode, session)
    }
}

/// What an answer says of a file that a program of the same session writes past the daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shows {
    /// What has a record, or waits for one.
    Recorded,
    /// That, and what the file is like now.
    Now,
}

/// What an operation has been past already: it need not look again.
#[derive(Debug, Default)]
pub(super) struct Passed {
    /// Chunks whose holders go on after they were asked.
    pub(super) chunks: Vec<Chunk>,
    /// Files of which it was taken in what programs wrote past the daemon.
    pub(super) files: Vec<InodeId>,
}

impl Container {
    /// Takes note of the rows that a committed record has changed, after its data commands.
    pub(super) fn rows_changed(&self, st: &mut State, batch: &Batch) {
        let rows = rows_of(self.id, batch);
        if rows.is_empty() {
            return;
        }
        for RowChange { chunk, hold } in rows {
            let is_here = |hold: &Hold| {
                hold.manner == Manner::InPlace && self.env.sessions.is_open(hold.holder)
            };
            let mine = hold.filter(is_here);
            // What a holder has written is the owner's word now, whether that has told it or not.
            self.env.sessions.changed(chunk.inode);
            let lost = st.unsent.on_row(chunk, mine);
            self.lose_held(st, lost);
        }
        self.held.notify_one();
        self.progress.notify_waiters();
    }

    /// Whether a record changes any row: then what came before it is to be applied first.
    pub(super) fn changes_rows(&self, batch: &Batch) -> bool {
        let mut keys = batch.mutations.iter().map(|mutation| &mutation.key);
        keys.any(|key| chunk_of(self.id, key).is_some())
    }
}
