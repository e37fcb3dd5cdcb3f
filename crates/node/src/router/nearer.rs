//! Reading a copy that is nearer than the owner's, under the owner's lease: this node's own, or that of a member (law 5).
//!
//! While a lease stands, nothing of the file changes before this node has heard of it. So bytes of a valid copy that were
//! asked for and have come under one and the same lease are those that the owner would have given.

use super::Router;
use crate::container::Failed;
use crate::env::Env;
use crate::sessions::ReadLease;
use bytes::Bytes;
use perigee_meta::stripe::Cuts;
use perigee_proto::message::file::{CopyAt, CopyRead, ReadCopy};
use perigee_types::{ByteRange, InodeId, SessionId, Span};
use std::sync::Arc;
use std::time::Duration;
use tracing::debug;

/// The longest that a member may take before the owner is asked instead.
const PATIENCE: Duration = Duration::from_millis(1_000);
/// One that took longer, or cannot be reached, is not asked for so long.
const SHUNNED: Span = Span::from_millis(10_000);
/// A lease that is about to end sooner is asked for anew while reads go on under it.
const RENEWED: Span = Span::from_millis(1_000);
/// For fewer bytes of its own copy a host does not renew a lease that has ended: the owner gives them with the next one.
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
        let lease = match env.sessions.read_lease(session, inode)? {
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
            _ => {
                let renewed = Self::renew(env, reading).await;
                let lease = env.sessions.renewed(session, inode, env.clock.now());
                match renewed {
                    Ok(()) => lease?,
                    Err(failed) => return Some(Err(failed)),
                }
            }
        };
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
