//! What an owner lacks and no member has: what is in place stays, another member's older content takes its place, or it is
//! lost. [`perigee_replica::Pull::on_nobody_has`] decides.

use super::in_place::Asked;
use super::install::Round;
use super::past::sum_of;
use super::refill::piece;
use super::{Container, Failed, State};
use bytes::Bytes;
use perigee_meta::past::{KeptSum, UNIT, is_kept_file, units_of};
use perigee_proto::message::data::{Fetch as Ask, Region};
use perigee_replica::{Fetch, Nobody, NotGiven, RegionMap, Role};
use perigee_store::StoreError;
use perigee_types::{Batch, ByteRange, DataCommand, InodeId, NodeId, Span, Version};
use std::sync::Arc;
use std::time::Duration;
use tracing::{debug, error, info};

/// What becomes of a fetch that no member could answer.
pub(super) enum Without {
    /// It is seen to, or is asked for at once in another way.
    Done,
    /// It is asked for again, after a pause.
    AskAgain,
    /// Members are asked for what they have in place.
    AskOlder,
}

/// How long a new owner that takes changes waits for those who repeat their writes, before it gives bytes up.
const REPEATS_WAIT: Span = Span::from_millis(1_000);
/// How long one member may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// Units of a checkpoint's file that are proven in one go; the rest of the range is asked for again.
const PROVEN_MAX: usize = 16;

/// What a member has in place.
enum Given {
    Older(Bytes),
    Nothing,
    /// It did not answer, or something has changed: newer content may be found after all.
    NoAnswer,
}

fn written(command: &DataCommand) -> Option<ByteRange> {
    match command {
        DataCommand::Written { range, .. } => Some(*range),
        _ => None,
    }
}

impl Container {
    /// Whether what nobody has may be given up. Another host whose write lost its owner half way brings it again, and nobody
    /// may have been shown the place without it.
    pub(super) fn may_do_without(&self, st: &State) -> bool {
        let repeats_are_here = st.changes_from.max(st.reigns_from) + REPEATS_WAIT;
        matches!(st.role, Role::Owner { .. }) && self.env.clock.now() >= repeats_are_here
    }

    /// No member has what this owner lacks.
    pub(super) fn do_without(&self, st: &mut State, fetch: &Fetch, why: NotGiven) -> Without {
        let inode = fetch.inode;
        if is_kept_file(inode) {
            match self.prove_kept(st, inode, fetch.range) {
                Ok(parts) if parts.is_empty() => {}
                Ok(parts) => {
                    return match self.revert(st, inode, parts) {
                        true => Without::Done,
                        false => Without::AskAgain,
                    };
                }
                Err(failed) => {
                    debug!(%inode, ?failed, "what is kept for a checkpoint is not looked at");
                    return Without::AskAgain;
                }
            }
        }
        let committed = st.chain.committed_version();
        let known = st.pull.lost(inode, fetch.range).is_some();
        // What a checkpoint's file has in place where its content is missing was never that content, at any member.
        let why = match why {
            NotGiven::NotHere if is_kept_file(inode) => NotGiven::NotEvenOlder,
            why => why,
        };
        let mut found = st.pull.on_nobody_has(inode, fetch.range, why, committed);
        if let Nobody::Keep(parts) = &found
            && is_kept_file(inode)
        {
            for part in parts {
                st.pull.on_corrupt(inode, *part, committed);
            }
            found = st.pull.on_nobody_has(inode, fetch.range, why, committed);
        }
        match found {
            Nobody::Keep(parts) => match self.revert(st, inode, parts) {
                true => Without::Done,
                false => Without::AskAgain,
            },
            Nobody::AskOlder => Without::AskOlder,
            Nobody::Lost(parts) => {
                // What was asked for once more is neither news nor damage that heals.
                if !known {
                    for part in parts {
                        self.mark_lost(st, inode, part, committed);
                    }
                    self.note_lost(st, inode);
                }
                Without::Done
            }
            // In smaller pieces, at once; of what reaches to the end of the file the first one comes first.
            Nobody::AskAgain if fetch.range.end < u64::MAX => Without::Done,
            Nobody::AskAgain => Without::AskAgain,
        }
    }

    /// The parts of a range of a checkpoint's file that are in place, or were until now in the file that it is about: what a
    /// unit is known by tells.
    fn prove_kept(
        &self,
        st: &State,
        inode: InodeId,
        range: ByteRange,
    ) -> Result<Vec<ByteRange>, Failed> {
        let refused = |error: &StoreError| Failed::from(self.store_refused(error));
        let file = self.file(inode).map_err(|error| refused(&error))?;
        let len = file.object.len().map_err(|error| refused(&error))?;
        let range = ByteRange::new(range.start.min(len), range.end.min(len));
        let mut proven = Vec::new();
        for unit in units_of(range) {
            if proven.len() == PROVEN_MAX {
                break;
            }
            let whole = ByteRange::new(unit * UNIT, ((unit + 1) * UNIT).min(len));
            let known = self.with_state(st, |view| {
                KeptSum::of_unit(self.id, view, (inode.index(), unit))
            })?;
            let Some(known) = known else { continue };
            let fits = |bytes: &Bytes| sum_of(bytes) == known.sum;
            let here = file.object.read_older(whole);
            let here = here.map_err(|error| refused(&error))?.filter(fits);
            if here.is_none() {
                let source = match self.file(InodeId::new(self.id, known.of)) {
                    Ok(source) => source.object.read_older(whole),
                    Err(error) => Err(error),
                };
                // Whatever is the matter with that file, it only is no help.
                let Some(bytes) = source.ok().flatten().filter(fits) else {
                    continue;
                };
                info!(container = %self.id, %inode, unit, "what a checkpoint has is still in the file itself");
                let wrote = file.object.write(whole.start, &bytes);
                wrote.map_err(|error| refused(&error))?;
            }
            proven.push(ByteRange::new(
                whole.start.max(range.start),
                whole.end.min(range.end),
            ));
        }
        Ok(proven)
    }

    /// What is in place becomes the content, by a record. False: it did not.
    fn revert(&self, st: &mut State, inode: InodeId, parts: Vec<ByteRange>) -> bool {
        let found = self.file(inode);
        let (file, len) = match found.and_then(|file| file.object.len().map(|len| (file, len))) {
            Ok(found) => found,
            Err(error) => {
                error!(%inode, %error, "object cannot be reverted");
                return false;
            }
        };
        let mut batch = Batch::default();
        let mut whole = true;
        // What records carry, and is not in place yet, is its content.
        let size = len.max(st.pull.carried_end(inode));
        if parts.iter().any(|part| part.end > size) {
            // Nothing is in place there: what another member has behind this end is cut off.
            batch.data.push(DataCommand::Resized { inode, size });
        }
        for part in parts {
            info!(container = %self.id, %inode, %part, "no member has these bytes: older ones stay");
            let rotten = match file.object.accept(part) {
                Ok(rotten) => rotten,
                Err(error) => {
                    error!(%inode, %part, %error, "region cannot be reverted");
                    whole = false;
                    continue;
                }
            };
            let mut taken = RegionMap::new();
            taken.invalidate(
                ByteRange::new(part.start, part.end.min(len)),
                Version::default(),
            );
            for &bad in &rotten {
                taken.drop_range(bad);
            }
            for (range, _) in taken.iter() {
                batch.data.push(DataCommand::Written { inode, range });
            }
            if !rotten.is_empty() {
                whole = false;
                self.spoilt(st, inode, &rotten);
            }
        }
        let replaced: Vec<ByteRange> = batch.data.iter().filter_map(written).collect();
        if let Err(failed) = self.lose_in_past(st, inode, &replaced) {
            debug!(%inode, ?failed, "not reverted: what checkpoints have of it is not seen to");
            return false;
        }
        if !batch.is_empty()
            && let Err(elsewhere) = self.order(st, self.env.clock.now(), batch, true)
        {
            debug!(%inode, %elsewhere, "the next owner reverts instead");
            return false;
        }
        whole
    }

    /// Asks the members for older content of what nobody has; the first that gives it makes it the content.
    pub(super) async fn ask_older(self: &Arc<Self>, sources: &[NodeId], fetch: Fetch) -> Round {
        let mut given = Given::Nothing;
        for source in sources {
            given = self.older_of(*source, &fetch).await;
            if !matches!(given, Given::Nothing) {
                break;
            }
        }
        let bytes = match given {
            Given::Older(bytes) => bytes,
            Given::Nothing => {
                let mut st = self.state.lock();
                st.pull.on_fetch_failed(fetch.id);
                let gone = self.may_do_without(&st)
                    && matches!(
                        self.do_without(&mut st, &fetch, NotGiven::NotEvenOlder),
                        Without::Done
                    );
                return if gone { Round::Complete } else { Round::Failed };
            }
            Given::NoAnswer => {
                self.state.lock().pull.on_fetch_failed(fetch.id);
                return Round::Failed;
            }
        };
        let me = self.clone();
        let taken = self.env.runtime.spawn_blocking(move || {
            me.state.lock().pull.on_fetch_failed(fetch.id);
            me.take_older(&fetch, &bytes)
        });
        match taken.await {
            Ok(Ok(())) => Round::Complete,
            Ok(Err(error)) => {
                debug!(container = %self.id, ?error, "older content not taken");
                Round::Failed
            }
            Err(_) => Round::Failed,
        }
    }

    async fn older_of(self: &Arc<Self>, source: NodeId, fetch: &Fetch) -> Given {
        let request = Ask {
            container: self.id,
            regions: vec![Asked::new(*fetch).wanted()],
            older: true,
        };
        let ask = self.env.ask(source, &request, Bytes::new(), PATIENCE);
        let answer = tokio::select! {
            answer = ask => answer,
            () = self.sources_changed.notified() => return Given::NoAnswer,
        };
        let (got, payload) = match answer {
            Ok(answer) => answer,
            Err(error) => {
                debug!(container = %self.id, %source, %error, "no answer about older content");
                return Given::NoAnswer;
            }
        };
        match got.regions.first() {
            Some((Region::Older { len }, _)) if *len == payload.len() as u64 => {
                Given::Older(payload)
            }
            Some((Region::Missing | Region::Unreadable, _)) => Given::Nothing,
            _ => Given::NoAnswer,
        }
    }

    /// Puts a member's older content where nothing is that could be the content, by a record. Blocks on the disk.
    fn take_older(self: &Arc<Self>, fetch: &Fetch, bytes: &[u8]) -> Result<(), Failed> {
        let inode = fetch.inode;
        let file = self
            .file(inode)
            .map_err(|error| self.store_refused(&error))?;
        let _still = file.still.write();
        let len = file
            .object
            .len()
            .map_err(|error| self.store_refused(&error))?;
        let mut st = self.state.lock();
        let now = self.env.clock.now();
        Self::reign(&st, now)?;
        let asked = piece(fetch.range);
        let mut written = Vec::new();
        let mut put = Ok(());
        for part in st.pull.spoiled(inode, asked) {
            let part = ByteRange::new(part.start, part.end.min(len));
            if part.is_empty() {
                continue;
            }
            // Behind its end a member's file reads as zeros.
            let mut content = vec![0; part.len() as usize];
            let from = (part.start - asked.start) as usize;
            let there = bytes.get(from..).unwrap_or_default();
            let count = there.len().min(content.len());
            content[..count].copy_from_slice(&there[..count]);
            info!(container = %self.id, %inode, %part, "no member has these bytes: an older copy of another one stays");
            self.note(&mut st, inode, part);
            written.push(part);
            put = file.object.write(part.start, &content);
            if put.is_err() {
                break;
            }
            st.pull.on_own_write(inode, part);
        }
        if written.is_empty() {
            return Ok(());
        }
        let ordered = put.map_err(|error| self.store_refused(&error).into());
        let ordered = ordered.and_then(|()| {
            let mut batch = Batch::default();
            let command = |range: &ByteRange| DataCommand::Written {
                inode,
                range: *range,
            };
            batch.data.extend(written.iter().map(command));
            self.order(&mut st, now, batch, true).map_err(Failed::from)
        });
        if ordered.is_err() {
            self.distrust_writes(&mut st, inode, &written);
        }
        st.unsettled.insert(inode);
        self.note_healed(&mut st, inode);
        ordered.map(|_| ())
    }
}
