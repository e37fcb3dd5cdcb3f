//! Locks in five modes, by an ioctl on an open file ([`perigee_client::lock_ioctl`]).

use super::Call;
use crate::fuse::wire::{Body, IoctlRequest};
use perigee_client::fs::{Done, FileLock, LockKind};
use perigee_client::lock_ioctl::{COMMAND, LockCall, Waits};
use perigee_types::Errno;
use std::sync::Arc;

impl Call<'_> {
    /// Errors: ENOTTY for another ioctl, EINVAL for nonsense, and those of locks: EAGAIN, EINTR, EDEADLK, ENOLCK, EIO.
    pub(super) fn ioctl(self, request: &IoctlRequest<'_>) {
        let (unique, inode, reply) = (self.unique, self.inode, self.reply);
        if request.command != COMMAND {
            return reply.error(Errno::ENOTTY);
        }
        let called = LockCall::decode(request.data);
        let Some(call) = called.filter(|_| request.room as usize >= LockCall::BYTES) else {
            return reply.error(Errno::EINVAL);
        };
        let lock = FileLock {
            kind: LockKind::Service,
            owner: request.handle,
            range: call.range,
            mode: call.mode,
            pid: 0,
        };
        let wait = call.mode.is_some() && call.waits == Waits::Yes;
        if wait && !self.session.waiting.begin(unique) {
            return reply.error(Errno::EINTR);
        }
        let session = Arc::clone(self.session);
        let done: Done<()> = Box::new(move |result| {
            let body = result.map(|()| {
                let (kind, owner) = (lock.kind, lock.owner);
                let token = session.fs.lock_token(inode, kind, owner);
                let told = LockCall {
                    token: token.unwrap_or_default(),
                    ..call
                };
                Body::ioctl(0, &told.encode())
            });
            reply.body_or_error(body);
        });
        let session = Arc::clone(self.session);
        session.ask_lock(inode, lock, wait.then_some(unique), done);
    }
}
