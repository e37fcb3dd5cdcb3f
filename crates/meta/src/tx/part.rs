//! A participant's side of a transaction that another container coordinates.

use super::lead::Vote;
use super::owner::{DOUBT, Step, Transactions, Verdict, When};
use super::{Conflict, Intent, abort, commit, locked_keys, prepare};
use crate::error::Refusal;
use crate::key::Key;
use crate::op::Touched;
use crate::planted;
use crate::record;
use crate::view::View;
use perigee_types::{Batch, ContainerId, InodeId, Tick, TxId};
use std::collections::BTreeSet;

impl Transactions {
    /// Votes about this container's part of a transaction, and locks its keys. Harmless to repeat.
    ///
    /// From here on, whoever owns the container keeps the locks, until it knows how the transaction ended.
    pub fn prepare(
        &mut self,
        now: Tick,
        view: &mut dyn View,
        intent: &Intent,
    ) -> Result<Step<Vote>, Refusal> {
        let no = Step {
            record: None,
            when: When::Now,
            say: Vote::No,
        };
        let wanted = locked_keys(intent);
        if self.held.conflicts(intent.tx, &wanted) {
            return Ok(no);
        }
        let unread = Intent {
            reads: Vec::new(),
            ..intent.clone()
        };
        let checked = if planted!(self, ReadsNotChecked) {
            &unread
        } else {
            intent
        };
        let record = match prepare(view, self.container, checked) {
            Ok(record) => record,
            Err(Conflict::Refused(refusal)) => return Err(refusal),
            Err(Conflict::Changed { .. } | Conflict::Locked { .. }) => return Ok(no),
        };
        if !planted!(self, PreparedNotLocked) {
            self.held.hold(intent.tx, wanted);
        }
        self.doubts.insert(intent.tx, now);
        let early = planted!(self, VoteBeforeReplicated);
        Ok(Step {
            record: Some(record),
            when: if early { When::Now } else { When::Replicated },
            say: Vote::Yes,
        })
    }

    /// What sessions must forget before this container's part is prepared: once it is, the others may show theirs.
    pub fn touched(&self, view: &mut dyn View, intent: &Intent) -> Result<Vec<Touched>, Refusal> {
        if planted!(self, PartRevokesNothing) {
            return Ok(Vec::new());
        }
        touched(view, self.container, &intent.batch)
    }

    /// Ends this container's part. Does nothing, and confirms, when it has ended before.
    ///
    /// Once the record is ordered: [`Self::ended`]. What it changes sessions have forgotten before it was prepared, and
    /// were not shown since.
    pub fn end(
        &self,
        view: &mut dyn View,
        tx: TxId,
        verdict: Verdict,
    ) -> Result<Step<()>, Refusal> {
        let batch = match verdict {
            Verdict::Commit => commit(view, self.container, tx)?,
            Verdict::Abort => abort(view, self.container, tx)?,
        };
        let early = planted!(self, EndedBeforeReplicated);
        Ok(Step {
            record: (!batch.is_empty()).then_some(batch),
            when: if early { When::Now } else { When::Replicated },
            say: (),
        })
    }

    /// The end of this container's part is ordered: its keys are free.
    pub fn ended(&mut self, tx: TxId) {
        self.release(tx);
    }

    /// Transactions that have been in doubt for long: their coordinators are to be asked.
    #[must_use]
    pub fn doubts(&self, now: Tick) -> Vec<TxId> {
        let old = |since: Tick| since == Tick(0) || now.since(since) > DOUBT;
        let doubts = self.doubts.iter().filter(|(_, since)| old(**since));
        doubts.map(|(tx, _)| *tx).collect()
    }
}

/// What a batch changes of what sessions may keep.
fn touched(
    view: &mut dyn View,
    container: ContainerId,
    batch: &Batch,
) -> Result<Vec<Touched>, Refusal> {
    let mut all = BTreeSet::new();
    for mutation in &batch.mutations {
        match Key::decode(&mutation.key) {
            Some(Key::Inode(index)) => {
                let inode = InodeId::new(container, index);
                all.insert(Touched::Attr(inode));
                if let Some(value) = &mutation.value
                    && record::decode_inode(container, &mutation.key, value)?.is_directory()
                {
                    all.insert(Touched::names(inode));
                }
            }
            Some(Key::Dentry(index, _)) => {
                let dir = InodeId::new(container, index);
                // An entry that is replaced keeps its name.
                let before = view.get(container, &mutation.key)?;
                let value = mutation.value.as_deref().or(before.as_deref());
                if let Some(value) = value {
                    let name = record::decode_dentry(container, &mutation.key, value)?.name;
                    all.insert(Touched::Name { dir, name });
                }
                all.insert(Touched::Listing(dir));
            }
            _ => {}
        }
    }
    let data = batch.data.iter();
    all.extend(data.map(|command| Touched::Data(command.inode())));
    Ok(all.into_iter().collect())
}
