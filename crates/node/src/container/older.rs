//! Older content of other members, where an owner that started found its own spoiled: see
//! [`perigee_replica::Nobody::AskOlder`].

use super::install::Round;
use super::refill::{Without, piece};
use super::{Container, Failed, store_errno};
use bytes::Bytes;
use perigee_proto::message::data::{Fetch as Ask, Region};
use perigee_replica::{Fetch, NotGiven};
use perigee_types::{Batch, ByteRange, DataCommand, NodeId};
use std::sync::Arc;
use std::time::Duration;
use tracing::{debug, info};

/// How long one member may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// What a member has in place.
enum Given {
    Older(Bytes),
    Nothing,
    /// It did not answer, or something has changed: newer content may be found after all.
    NoAnswer,
}

impl Container {
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
            regions: vec![(fetch.inode, piece(fetch.range))],
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
        let file = self.file(inode).map_err(|error| store_errno(&error))?;
        let _still = file.still.write();
        let len = file.object.len().map_err(|error| store_errno(&error))?;
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
        let ordered = put.map_err(|error| store_errno(&error).into());
        let ordered = ordered.and_then(|()| {
            let mut batch = Batch::default();
            let command = |range: &ByteRange| DataCommand::Written {
                inode,
                range: *range,
            };
            batch.data.extend(written.iter().map(command));
            self.order(&mut st, now, &batch, true).map_err(Failed::from)
        });
        if ordered.is_err() {
            self.distrust_writes(&mut st, inode, &written);
        }
        st.unsettled.insert(inode);
        self.note_healed(&mut st, inode);
        ordered.map(|_| ())
    }
}
