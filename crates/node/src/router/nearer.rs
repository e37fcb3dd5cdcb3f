//! Reading a copy that is nearer than the owner's, under the owner's lease: this node's own, or that of a member (law 5).
//!
//! While a lease stands, nothing of the file changes before this node has heard of it. So bytes of a valid copy that were
//! asked for and have come under one and the same lease are those that the owner would have given.

use super::Router;
use crate::container::Failed;
use crate::env::Env;
use crate::sessions::ReadLease;
use bytes::Bytes;
use perigee_cluster::nearness::nearer_than_owner;
use perigee_meta::stripe::{Cuts, UNIT};
use perigee_proto::message::file::{CopyAt, CopyRead, ReadCopy};
use perigee_types::{ByteRange, InodeId, SessionId, Span, Tick};
use std::sync::Arc;
use std::time::Duration;
use tracing::debug;

/// The longest that a member may take before the owner is asked instead.
const PATIENCE: Duration = Duration::from_millis(1_000);
/// One that took longer, or cannot be reached, is not asked for so long.
const SHUNNED: Span = Span::from_millis(10_000);
/// Where no lease was given, or the copy was not as it had said, it is not asked for before bytes again for so long.
const REFUSED: Span = Span::from_millis(2_000);
/// A lease that is about to end sooner is asked for anew while reads go on under it.
const RENEWED: Span = Span::from_millis(1_000);
/// For fewer bytes a host does not ask for a lease to read a copy that is nearer: the owner gives them with the next one.
const WORTH_RENEWAL: u64 = 128 << 10;

/// A reader, and what it reads.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reading {
    pub(super) session: SessionId,
    pub(super) inode: InodeId,
    pub(super) range: ByteRange,
    /// The file is a part of a striped one, of which the reader knows so many.
    pub(super) cuts: Option<Cuts>,
}

impl Router {
    /// Reads another copy than the owner's, where the session may. `None`: the owner is to be asked; an error is the owner's.
    pub(super) async fn read_nearer(
        env: &Arc<Env>,
        reading: Reading,
    ) -> Option<Result<Bytes, Failed>> {
        let Reading { session, inode, .. } = reading;
        let now = env.clock.now();
        let Some(lease) = env.sessions.read_lease(session, inode) else {
            // The bytes of a first read that is large had better not come from afar.
            let worth_it = reading.range.len() >= WORTH_RENEWAL
                && !env.sessions.was_refused(session, inode, now)
                && Self::has_nearer(env, reading, now);
            if !worth_it {
                return None;
            }
            let read = Self::read_with_new_lease(env, reading).await;
            if read.is_none() {
                let until = env.clock.now() + REFUSED;
                env.sessions.note_refused(session, inode, until);
            }
            return read;
        };
        let lease = match lease {
            lease if now < lease.until => {
                if lease.until.since(now) < RENEWED
                    && env.sessions.renews(session, inode, lease.copy)
                {
                    let env = env.clone();
                    let runtime = env.runtime.clone();
                    runtime.spawn(async move {
                        // The next reader after the lease's end asks again, and is told.
                        if let Err(error) = Self::renew(&env, reading).await {
                            debug!(%inode, ?error, "a lease to read is not renewed yet");
                        }
                    });
                }
                lease
            }
            lease if lease.copy == CopyAt::Own && reading.range.len() < WORTH_RENEWAL => {
                return None;
            }
            _ => return Self::read_with_new_lease(env, reading).await,
        };
        Self::read_under(env, lease, reading).await
    }

    /// Whether another copy than the owner's is nearer to this node, as far as is known here.
    fn has_nearer(env: &Arc<Env>, reading: Reading, now: Tick) -> bool {
        let Reading {
            inode, range, cuts, ..
        } = reading;
        let directory = env.directory.read();
        // Beyond its first chunk a striped file is elsewhere, which the owner tells whoever reads there.
        if cuts.is_none() && range.end > UNIT && directory.stripes_files() {
            return false;
        }
        let container = directory.containers.get(&inode.container());
        let near =
            container.and_then(|known| nearer_than_owner(&directory, &known.record.chain, env.me));
        near.is_some_and(|node| !env.sessions.is_shunned(node, now))
    }

    async fn read_with_new_lease(
        env: &Arc<Env>,
        reading: Reading,
    ) -> Option<Result<Bytes, Failed>> {
        let Reading { session, inode, .. } = reading;
        let renewed = Self::renew(env, reading).await;
        let lease = env.sessions.renewed(session, inode, env.clock.now());
        match renewed {
            Ok(()) => Self::read_under(env, lease?, reading).await,
            Err(failed) => Some(Err(failed)),
        }
    }

    async fn read_under(
        env: &Arc<Env>,
        lease: ReadLease,
        reading: Reading,
    ) -> Option<Result<Bytes, Failed>> {
        let Reading { session, inode, .. } = reading;
        let bytes = Self::read_copy(env, lease.copy, reading).await?;
        let stands = |lease: ReadLease| {
            let known = |cuts| env.stripes.cuts_of(session, inode) == Some(cuts);
            env.sessions.stands(session, inode, lease, env.clock.now())
                && reading.cuts.is_none_or(known)
        };
        stands(lease).then_some(Ok(bytes))
    }

    /// Asks the owner for the lease once more, and for no bytes.
    async fn renew(env: &Arc<Env>, reading: Reading) -> Result<(), Failed> {
        let Reading {
            session,
            inode,
            range,
            cuts,
        } = reading;
        let nothing = ByteRange::with_len(range.start, 0);
        let asked = Self::read_elsewhere(env, session, inode, nothing, cuts);
        asked.await.map(drop)
    }

    async fn read_copy(env: &Arc<Env>, copy: CopyAt, reading: Reading) -> Option<Bytes> {
        let Reading {
            session,
            inode,
            range,
            ..
        } = reading;
        let (offset, len) = (range.start, range.len() as u32);
        match copy {
            CopyAt::Own => {
                let container = env.container(inode.container())?;
                let read = move || match container.holds_copy() {
                    true => container.read_copy(inode, offset, len),
                    false => None,
                };
                env.runtime.spawn_blocking(read).await.ok()?
            }
            CopyAt::Member { node, epoch } => {
                let request = ReadCopy {
                    inode,
                    offset,
                    len,
                    epoch,
                };
                match env.ask(node, &request, Bytes::new(), PATIENCE).await {
                    Ok((CopyRead::Valid, bytes)) => Some(bytes),
                    Ok((CopyRead::Not, _)) => {
                        env.sessions.forget_lease(session, inode);
                        None
                    }
                    Err(error) => {
                        debug!(%node, %inode, %error, "a nearer copy is not read");
                        env.sessions.shun(node, env.clock.now() + SHUNNED);
                        None
                    }
                }
            }
        }
    }
}
