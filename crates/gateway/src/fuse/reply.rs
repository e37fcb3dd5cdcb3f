//! The answer that a request waits for: given once, whatever happens to the code that owes it.

use super::device::{Delivery, Device};
use super::errno;
use super::wire::Body;
use perigee_types::Errno;
use std::sync::Arc;
use tracing::warn;

/// Owed to one request. Dropped unanswered (a panic, a lost call-back), it answers EIO.
#[derive(Debug)]
pub(crate) struct Reply {
    device: Arc<Device>,
    unique: u64,
    state: State,
}

#[derive(Debug, PartialEq, Eq)]
enum State {
    Owed,
    Given,
}

impl Reply {
    pub(crate) fn new(device: &Arc<Device>, unique: u64) -> Self {
        Self {
            device: Arc::clone(device),
            unique,
            state: State::Owed,
        }
    }

    /// Success without anything to say.
    pub(crate) fn ok(self) {
        self.send(0, [&[], &[]]);
    }

    pub(crate) fn body(self, body: &Body) -> Delivery {
        self.send(0, [body.bytes(), &[]])
    }

    /// Success with these bytes, which are copied by the kernel only.
    pub(crate) fn data(self, data: &[u8]) {
        self.send(0, [data, &[]]);
    }

    pub(crate) fn error(self, error: Errno) {
        self.send(errno::number(error), [&[], &[]]);
    }

    /// The kernel shall not send this kind of request again, for any file.
    pub(crate) fn switch_off(self) {
        self.send(Errno::ENOSYS.code(), [&[], &[]]);
    }

    pub(crate) fn done(self, result: Result<(), Errno>) {
        match result {
            Ok(()) => self.ok(),
            Err(error) => self.error(error),
        }
    }

    pub(crate) fn body_or_error(self, result: Result<Body, Errno>) {
        match result {
            Ok(body) => {
                self.body(&body);
            }
            Err(error) => self.error(error),
        }
    }

    fn send(mut self, errno: i32, parts: [&[u8]; 2]) -> Delivery {
        self.state = State::Given;
        self.device
            .reply(self.unique, errno, parts)
            .unwrap_or_else(|error| {
                // The kernel refused the shape of the answer. The program would wait for ever.
                warn!(unique = self.unique, %error, "kernel refused a reply");
                _ = self
                    .device
                    .reply(self.unique, Errno::EIO.code(), [&[], &[]]);
                Delivery::Gone
            })
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if self.state == State::Owed {
            warn!(
                unique = self.unique,
                "request was dropped without an answer"
            );
            // There is nobody left to tell when this fails too.
            _ = self
                .device
                .reply(self.unique, Errno::EIO.code(), [&[], &[]]);
        }
    }
}
