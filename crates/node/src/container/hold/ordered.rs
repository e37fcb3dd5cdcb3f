//! The owner's word to a host that writes behind that a write is ordered, long before it is committed: over a long link to a
//! member that is most of the time which a program that closes the file would wait.

use super::super::Container;
use bytes::Bytes;
use perigee_proto::message::hold::WriteOrdered;
use perigee_types::{OpId, SessionId};
use std::sync::Arc;
use std::time::Duration;
use tracing::debug;

/// Writes that are carried out sooner are not worth another message.
const LONG: Duration = Duration::from_millis(5);
/// How long the word may take.
const CALL: Duration = Duration::from_millis(1_500);

/// A write whose program was answered before its owner had it.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct Name {
    pub(in super::super) session: SessionId,
    pub(in super::super) op: OpId,
}

impl Container {
    /// Waits for the end of a write that is in place and ordered. Tells its host so once, where that takes long.
    pub(in super::super) async fn told_meanwhile<T>(
        self: &Arc<Self>,
        write: Option<Name>,
        end: impl Future<Output = T>,
    ) -> T {
        let Some(Name { session, op }) = write else {
            return end.await;
        };
        tokio::pin!(end);
        if let Ok(ended) = tokio::time::timeout(LONG, &mut end).await {
            return ended;
        }
        let env = self.env.clone();
        self.env.runtime.spawn(async move {
            let word = WriteOrdered { session, op };
            let heard = env.ask(session.node(), &word, Bytes::new(), CALL).await;
            // Else it waits for the answer to the write.
            if let Err(error) = heard {
                debug!(%session, %op, %error, "a host does not hear that its write is ordered");
            }
        });
        end.await
    }
}
