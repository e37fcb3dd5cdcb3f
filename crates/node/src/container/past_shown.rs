//! What an owner shows of its checkpoints: rows and content as they were.

use super::refusals::NoRoom;
use super::sync::Settled;
use super::{Container, Elsewhere, Failed, State};
use bytes::{Bytes, BytesMut};
use perigee_meta::past::{KeptContent, PastView, UNIT, chunk_row, kept_content, units_of};
use perigee_meta::{Context, Op, Reply};
use perigee_types::{ByteRange, CheckpointId, Errno, InodeId};
use std::sync::Arc;

/// How often a read of a checkpoint is done again because of what was replaced meanwhile.
const READS_MAX: u32 = 100;

/// Where a part of a file's content as of a checkpoint is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Piece {
    range: ByteRange,
    file: InodeId,
}

impl Container {
    /// An operation that changes nothing, as of a checkpoint.
    pub(crate) fn query_past(&self, at: CheckpointId, op: &Op) -> Result<Reply, Failed> {
        if super::execute::changes(op) {
            return Err(Errno::EROFS.into());
        }
        let st = self.state.lock();
        Self::reign(&st, self.env.clock.now())?;
        if st.checkpoints.get(at).is_none() {
            return Err(Errno::ESTALE.into());
        }
        self.run_past(&st, at, op)
    }

    pub(super) fn run_past(&self, st: &State, at: CheckpointId, op: &Op) -> Result<Reply, Failed> {
        let context = Context {
            now: self.env.clock.wall(),
            ..Context::default()
        };
        self.with_state(st, |view| {
            let mut past = PastView::new(self.id, at, view);
            let ran = perigee_meta::execute(op, &context, &mut past);
            match past.refused {
                Some(refused) => Err(refused),
                None => ran.map(|outcome| outcome.reply),
            }
        })
    }

    /// A file's content as of a checkpoint; fewer bytes than asked for only at its end.
    pub(crate) async fn read_past(
        self: &Arc<Self>,
        inode: InodeId,
        at: CheckpointId,
        offset: u64,
        len: u32,
    ) -> Result<Bytes, Failed> {
        for _ in 0..READS_MAX {
            let pieces = self.pieces(inode, at, offset, len)?;
            for piece in &pieces {
                // What other hosts are shown is on every member.
                if !self.is_settled(piece.file, Settled::Safe)? {
                    let (file, no_room) = (piece.file, NoRoom::Outlasted);
                    self.settle_writes(file, Settled::Safe, no_room).await?;
                }
            }
            let (me, wanted) = (self.clone(), pieces.clone());
            let read = self
                .env
                .runtime
                .spawn_blocking(move || me.read_pieces(&wanted));
            let bytes = read.await.map_err(|_| Errno::EIO)??;
            // What was replaced meanwhile has been kept before.
            if self.pieces(inode, at, offset, len)? == pieces {
                return Ok(bytes);
            }
        }
        Err(Elsewhere::NotReady.into())
    }

    fn read_pieces(&self, pieces: &[Piece]) -> Result<Bytes, Failed> {
        let whole: u64 = pieces.iter().map(|piece| piece.range.len()).sum();
        let mut bytes = BytesMut::with_capacity(whole as usize);
        for piece in pieces {
            let len = piece.range.len() as u32;
            let read = self.read_object(piece.file, piece.range.start, len)?;
            bytes.extend_from_slice(&read);
            bytes.resize(bytes.len() + len as usize - read.len(), 0);
        }
        Ok(bytes.freeze())
    }

    /// Where the parts of a file's content as of a checkpoint are now.
    fn pieces(
        &self,
        inode: InodeId,
        at: CheckpointId,
        offset: u64,
        len: u32,
    ) -> Result<Vec<Piece>, Failed> {
        let st = self.state.lock();
        Self::reign(&st, self.env.clock.now())?;
        if st.checkpoints.get(at).is_none() {
            return Err(Errno::ESTALE.into());
        }
        let size = self.past_size(&st, inode, at)?;
        let end = offset.saturating_add(u64::from(len)).min(size);
        let range = ByteRange::new(offset.min(end), end);
        let units = units_of(range);
        if units.is_empty() {
            return Ok(Vec::new());
        }
        let chunks = chunk_row(units.start)..chunk_row(units.end - 1) + 1;
        let kept = self.with_state(&st, |view| {
            kept_content(self.id, view, (inode.index(), at), chunks)
        })?;
        let mut pieces: Vec<Piece> = Vec::new();
        for unit in units {
            let part = ByteRange::new(
                (unit * UNIT).max(range.start),
                ((unit + 1) * UNIT).min(range.end),
            );
            let file = self.file_of_unit(&st, inode, &kept, unit);
            match pieces.last_mut() {
                Some(last) if last.file == file => last.range.end = part.end,
                _ => pieces.push(Piece { range: part, file }),
            }
        }
        Ok(pieces)
    }

    /// The first of the checkpoints' files that has a unit, or the file itself.
    fn file_of_unit(&self, st: &State, inode: InodeId, kept: &[KeptContent], unit: u64) -> InodeId {
        let recorded = kept.iter().find(|content| content.units.has(unit));
        if let Some(content) = recorded {
            return InodeId::new(self.id, content.kept.file);
        }
        st.keeping.file_of(inode, unit).unwrap_or(inode)
    }
}
