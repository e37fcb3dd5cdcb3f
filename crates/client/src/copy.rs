//! Copying between files of a mount, a piece at a time.

use crate::Session;
use crate::backend::At;
use crate::fs::Done;
use perigee_types::limits::IO_LEN_MAX;
use perigee_types::{Errno, InodeId};
use std::sync::Arc;

/// A copy of a range of one file to another, a piece at a time.
pub(crate) struct Copy {
    pub(crate) session: Arc<Session>,
    pub(crate) source: (InodeId, u64),
    pub(crate) target: (InodeId, u64),
    pub(crate) left: u64,
    pub(crate) copied: u64,
}

impl Copy {
    pub(crate) fn step(mut self, done: Done<u64>) {
        if self.left == 0 {
            return done(Ok(self.copied));
        }
        let len = self.left.min(IO_LEN_MAX as u64) as u32;
        let session = self.session.clone();
        let (inode, offset) = self.source;
        session.backend.clone().read(
            session.id,
            inode,
            offset,
            len,
            Box::new(move |result| match result {
                Ok(bytes) if bytes.is_empty() => done(Ok(self.copied)),
                Ok(bytes) => {
                    let (target, at) = self.target;
                    let session = self.session.clone();
                    let len = bytes.len() as u64;
                    session.backend.clone().write(
                        session.id,
                        target,
                        At::Offset(at),
                        &bytes,
                        // The kernel has done what is due before it asked.
                        false,
                        Box::new(move |result| match result {
                            Ok(_) => {
                                self.source.1 += len;
                                self.target.1 += len;
                                self.left -= len;
                                self.copied += len;
                                self.step(done);
                            }
                            Err(errno) => self.stop(errno, done),
                        }),
                    );
                }
                Err(errno) => self.stop(errno, done),
            }),
        );
    }

    /// What was copied counts; only an error before the first byte is one.
    fn stop(self, errno: Errno, done: Done<u64>) {
        done(if self.copied > 0 {
            Ok(self.copied)
        } else {
            Err(errno)
        });
    }
}
