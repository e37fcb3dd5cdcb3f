//! Between the log in memory and the disk: what is being written, what is durable, what may be dropped.

use super::{Answer, Chain, Part, Storage, Write, planted};
use crate::message::{ChainView, Entry, LogWrite, Output, PersistId};
use perigee_types::{Seq, Version};

impl Chain {
    pub(super) fn on_persisted(&mut self, id: PersistId, out: &mut Vec<Output>) {
        let mut answer = None;
        while let Some(write) = self.writes.front()
            && write.id <= id
        {
            self.durable = self.durable.max(write.through);
            self.promised_durable = self.promised_durable.max(write.promised);
            if write.completes && self.storage == Storage::Completing {
                self.storage = Storage::Complete;
            }
            answer = write.answer.or(answer);
            self.writes.pop_front();
        }
        match self.part {
            Part::Follow(_) => {
                self.complete_storage(out);
                if let Some(answer) = answer {
                    self.acknowledge(answer, out);
                }
                self.follow_commit(out);
            }
            Part::Reign(_) => self.on_own_progress(out),
        }
    }

    /// Starts a write of what the log gained, and of `promised` if it rose.
    pub(super) fn persist(
        &mut self,
        truncate_from: Option<Seq>,
        answer: Option<Answer>,
        out: &mut Vec<Output>,
    ) {
        let from = self.written.next();
        let append: Vec<Entry> = self.log.range(from, self.log.last().seq).cloned().collect();
        self.written = self.log.last().seq;
        let in_writes = self
            .writes
            .back()
            .map_or(self.promised_durable, |w| w.promised);
        let mut promised = (self.promised > in_writes).then_some(self.promised);
        if planted!(self, PromiseNotPersisted) {
            promised = None;
        }
        let trim_through = self.trim();
        let complete = self.storage == Storage::Completing;
        self.last_write = PersistId(self.last_write.0 + 1);
        self.writes.push_back(Write {
            id: self.last_write,
            through: self.written,
            promised: self.promised,
            completes: complete,
            answer,
        });
        out.push(Output::Persist {
            id: self.last_write,
            write: LogWrite {
                truncate_from,
                append,
                promised,
                complete,
                view: self.unwritten_view(),
                committed: self.committed,
                trim_through,
            },
        });
    }

    /// The present view, where no write has it yet.
    fn unwritten_view(&mut self) -> Option<ChainView> {
        let view = self.view.as_ref()?;
        if view.epoch <= self.viewed || planted!(self, ViewNotWritten) {
            return None;
        }
        self.viewed = view.epoch;
        Some(view.clone())
    }

    /// Drops committed records beyond the window, if they are many; they must be applied, and their data synced.
    fn trim(&mut self) -> Option<Seq> {
        let keep = self.limits.retain_bytes;
        if self.log.bytes() <= keep + keep / 16 {
            return None;
        }
        let mut through = self.log.surplus(keep)?;
        if let Part::Reign(reign) = &self.part
            && let Some(behind) = reign.slowest_joiner()
        {
            let most = self.log.surplus(self.limits.retain_for_joiners_bytes);
            through = through.min(behind).max(most.unwrap_or(Seq::ZERO));
        }
        let through = through.min(self.handed).min(self.synced);
        (through > self.log.base().seq).then(|| {
            self.log.trim(through);
            through
        })
    }

    /// Removes the end of the log from `from` on. The caller persists this.
    pub(super) fn truncate(&mut self, from: Seq, out: &mut Vec<Output>) {
        let before = Seq(from.0.saturating_sub(1));
        let entries = self.log.truncate(from);
        self.written = self.written.min(before);
        self.durable = self.durable.min(before);
        self.acknowledged = self.acknowledged.min(before);
        self.found.seq = self.found.seq.min(before);
        if !planted!(self, DurableAfterTruncation) {
            for write in &mut self.writes {
                write.through = write.through.min(before);
            }
        }
        if !entries.is_empty() {
            let known = self.view.as_ref().map_or(self.promised, |v| v.epoch);
            let by = Version {
                epoch: known.max(self.promised),
                seq: Seq::ZERO,
            };
            let needed = by.max(self.log.last());
            self.data = Seq::ZERO;
            out.push(Output::Truncated { entries, needed });
        }
    }
}
