//! The calls that one lane has made and that have no answer yet.
//!
//! Invariant: a call leaves this table before its id falls below the watermark that later frames carry, and never comes
//! back; so the receiver may forget every id below the watermark.

use parking_lot::Mutex;
use perigee_proto::{Priority, Retry};
use std::collections::BTreeMap;
use std::time::Instant;
use tokio::sync::oneshot;

use crate::error::{CallError, ConnectError, Fault, Refusal};
use crate::frame::{FLAG_FAULT, FLAG_REFUSED, FLAG_REPEATED, Frame, Kind};
use crate::identity::PeerName;
use crate::queue::Outgoing;
use crate::service::{Answer, Call};

type Outcome = Result<Answer, CallError>;

#[derive(Debug, Default)]
pub(crate) struct Calls {
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    next_id: u64,
    open: BTreeMap<u64, Open>,
    closed: bool,
}

impl Default for Inner {
    fn default() -> Self {
        Self {
            next_id: 1,
            open: BTreeMap::new(),
            closed: false,
        }
    }
}

#[derive(Debug)]
struct Open {
    answer: oneshot::Sender<Outcome>,
    retry: Retry,
    sent: Sent,
    request: Outgoing,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sent {
    Never,
    /// To this incarnation of the peer.
    To(u64),
}

/// How far a call that is given up had come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    Unsent,
    Sent,
    Answered,
}

/// A call that has begun.
pub(crate) struct Begun {
    pub(crate) id: u64,
    pub(crate) frame: Outgoing,
    /// How many have no answer yet, this one among them.
    pub(crate) open: usize,
    pub(crate) answer: oneshot::Receiver<Outcome>,
}

impl Calls {
    pub(crate) fn begin(
        &self,
        call: Call,
        deadline: Instant,
        priority: Priority,
        retry: Retry,
    ) -> Result<Begun, CallError> {
        // the checksum of the content is made before the lock is taken
        let mut request = Outgoing::new(Kind::Call, priority, call.method, 0)
            .with_content(call.body, call.payload);
        request.deadline = Some(deadline);
        let (sender, answer) = oneshot::channel();
        let mut inner = self.inner.lock();
        if inner.closed {
            return Err(CallError::Closed);
        }
        let id = inner.next_id;
        inner.next_id += 1;
        request.id = id;
        let frame = request.again();
        let open = Open {
            answer: sender,
            retry,
            sent: Sent::Never,
            request,
        };
        inner.open.insert(id, open);
        let open = inner.open.len();
        Ok(Begun {
            id,
            frame,
            open,
            answer,
        })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many have no answer yet.
    pub(crate) fn len(&self) -> usize {
        self.inner.lock().open.len()
    }

    /// Every smaller id is done.
    pub(crate) fn watermark(&self) -> u64 {
        let inner = self.inner.lock();
        inner
            .open
            .first_key_value()
            .map_or(inner.next_id, |(id, _)| *id)
    }

    /// A call is about to be written. False when nobody waits for it any more.
    pub(crate) fn before_sending(&self, id: u64, incarnation: u64) -> bool {
        let mut inner = self.inner.lock();
        let Some(open) = inner.open.get_mut(&id) else {
            return false;
        };
        open.sent = Sent::To(incarnation);
        true
    }

    /// Hands an answer to its caller. One that nobody waits for is late, and of no use.
    pub(crate) fn on_answer(&self, frame: Frame) {
        let outcome = match frame.header.flags {
            FLAG_REFUSED => Err(CallError::Refused(Refusal {
                code: frame.header.method,
                detail: frame.body,
            })),
            FLAG_FAULT => Err(Fault::error(frame.header.method)),
            _ => Ok(Answer {
                body: frame.body,
                payload: frame.payload,
            }),
        };
        let open = self.inner.lock().open.remove(&frame.header.id);
        if let Some(open) = open {
            // the caller may have given up just now
            _ = open.answer.send(outcome);
        }
    }

    /// The caller waits no longer.
    pub(crate) fn abandon(&self, id: u64) -> Progress {
        match self.inner.lock().open.remove(&id) {
            None => Progress::Answered,
            Some(open) if open.sent == Sent::Never => Progress::Unsent,
            Some(_) => Progress::Sent,
        }
    }

    /// The connection is gone: calls that were sent and must not be repeated have an unknown outcome.
    pub(crate) fn on_lost(&self) {
        self.fail(CallError::Lost, |open| {
            open.sent != Sent::Never && open.retry == Retry::Never
        });
    }

    /// No connection can be opened: calls that are to be tried once fail, as they were not sent. Returns them, for the
    /// queue.
    pub(crate) fn on_unreachable(
        &self,
        peer: PeerName,
        cause: &ConnectError,
    ) -> Vec<(Priority, u64)> {
        let error = CallError::Unreachable {
            peer,
            cause: cause.clone(),
        };
        self.fail(error, |open| {
            open.sent == Sent::Never && open.retry == Retry::Never
        })
    }

    /// A new connection to `incarnation` of the peer: the calls to send again, in order. What an older incarnation may have
    /// run is not repeated: the answers that it kept are gone.
    pub(crate) fn on_connected(&self, incarnation: u64) -> Vec<Outgoing> {
        self.fail(
            CallError::Lost,
            |open| matches!(open.sent, Sent::To(to) if to != incarnation),
        );
        let inner = self.inner.lock();
        let sent = inner.open.values().filter(|open| open.sent != Sent::Never);
        sent.map(|open| {
            let mut frame = open.request.again();
            frame.flags = FLAG_REPEATED;
            frame
        })
        .collect()
    }

    /// Nothing more will come.
    pub(crate) fn close(&self) {
        self.inner.lock().closed = true;
        self.fail(CallError::Closed, |_| true);
    }

    fn fail(&self, error: CallError, which: impl Fn(&Open) -> bool) -> Vec<(Priority, u64)> {
        let mut inner = self.inner.lock();
        let failed: Vec<(Priority, u64)> = inner
            .open
            .iter()
            .filter(|(_, open)| which(open))
            .map(|(id, open)| (open.request.priority, *id))
            .collect();
        for (_, id) in &failed {
            if let Some(open) = inner.open.remove(id) {
                // the caller may have given up just now
                _ = open.answer.send(Err(error.clone()));
            }
        }
        failed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn begin(calls: &Calls, retry: Retry) -> Begun {
        let deadline = Instant::now() + Duration::from_secs(9);
        calls
            .begin(Call::default(), deadline, Priority::Meta, retry)
            .unwrap()
    }

    #[test]
    fn the_watermark_is_the_oldest_open_call() {
        let calls = Calls::default();
        assert_eq!(calls.watermark(), 1);
        let (first, second) = (begin(&calls, Retry::Same), begin(&calls, Retry::Same));
        assert_eq!(calls.watermark(), first.id);
        assert_eq!(calls.abandon(second.id), Progress::Unsent);
        assert_eq!(calls.watermark(), first.id);
        assert_eq!(calls.abandon(first.id), Progress::Unsent);
        assert_eq!(calls.watermark(), second.id + 1);
    }

    #[test]
    fn only_what_was_sent_to_the_same_process_is_repeated() {
        let calls = Calls::default();
        let mut sent = begin(&calls, Retry::Same);
        let unsent = begin(&calls, Retry::Same);
        let mut once = begin(&calls, Retry::Never);
        assert!(calls.before_sending(sent.id, 7));
        assert!(calls.before_sending(once.id, 7));
        calls.on_lost();
        assert_eq!(once.answer.try_recv(), Ok(Err(CallError::Lost)));
        let repeated = calls.on_connected(7);
        assert_eq!(repeated.len(), 1);
        assert_eq!(
            (repeated[0].id, repeated[0].flags),
            (sent.id, FLAG_REPEATED)
        );
        assert!(calls.on_connected(8).is_empty());
        assert_eq!(sent.answer.try_recv(), Ok(Err(CallError::Lost)));
        assert_eq!(calls.watermark(), unsent.id);
    }

    #[test]
    fn an_unreachable_peer_fails_calls_that_are_tried_once() {
        let calls = Calls::default();
        let mut once = begin(&calls, Retry::Never);
        let same = begin(&calls, Retry::Same);
        let failed = calls.on_unreachable(PeerName::Control, &ConnectError::Timeout);
        assert_eq!(failed, [(Priority::Meta, once.id)]);
        assert!(matches!(
            once.answer.try_recv(),
            Ok(Err(CallError::Unreachable {
                cause: ConnectError::Timeout,
                ..
            }))
        ));
        assert_eq!(calls.watermark(), same.id);
    }

    #[test]
    fn nothing_begins_after_the_end() {
        let calls = Calls::default();
        let mut open = begin(&calls, Retry::Same);
        calls.close();
        assert_eq!(open.answer.try_recv(), Ok(Err(CallError::Closed)));
        let late = calls.begin(Call::default(), Instant::now(), Priority::Meta, Retry::Same);
        assert_eq!(late.err(), Some(CallError::Closed));
    }
}
