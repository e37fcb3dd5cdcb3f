//! Locks of the file system in memory.

use parking_lot::Mutex;
use perigee_client::fs::{Done, FileLock, LockKind, Mode};
use perigee_types::{Errno, InodeId};

#[derive(Default)]
pub struct Locks {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    held: Vec<(InodeId, FileLock)>,
    waiting: Vec<Waiting>,
}

struct Waiting {
    request: u64,
    inode: InodeId,
    lock: FileLock,
    done: Done<()>,
}

impl State {
    fn conflict(&self, inode: InodeId, lock: &FileLock) -> Option<FileLock> {
        let clash = |held: &FileLock| {
            held.kind == lock.kind
                && held.owner != lock.owner
                && held.range.overlaps(lock.range)
                && (held.mode == Some(Mode::Exclusive) || lock.mode == Some(Mode::Exclusive))
        };
        self.held
            .iter()
            .find(|(at, held)| *at == inode && clash(held))
            .map(|(_, held)| *held)
    }

    /// Takes or drops without looking. What a lock of the same owner covers in part is cut.
    fn apply(&mut self, inode: InodeId, lock: FileLock) {
        let mut kept = Vec::new();
        for (at, held) in self.held.drain(..) {
            let same = at == inode && held.kind == lock.kind && held.owner == lock.owner;
            if !same || !held.range.overlaps(lock.range) {
                kept.push((at, held));
                continue;
            }
            let mut cut = |start, end| {
                if start < end {
                    let range = perigee_types::ByteRange::new(start, end);
                    kept.push((at, FileLock { range, ..held }));
                }
            };
            cut(held.range.start, lock.range.start);
            cut(lock.range.end, held.range.end);
        }
        self.held = kept;
        if lock.mode.is_some() {
            self.held.push((inode, lock));
        }
    }

    /// Requests that no longer have to wait.
    fn admit(&mut self) -> Vec<Done<()>> {
        let mut admitted = Vec::new();
        while let Some(at) = self
            .waiting
            .iter()
            .position(|waiting| self.conflict(waiting.inode, &waiting.lock).is_none())
        {
            let waiting = self.waiting.remove(at);
            self.apply(waiting.inode, waiting.lock);
            admitted.push(waiting.done);
        }
        admitted
    }
}

impl Locks {
    pub fn conflict(&self, inode: InodeId, lock: &FileLock) -> Option<FileLock> {
        self.state.lock().conflict(inode, lock)
    }

    pub fn set(&self, inode: InodeId, lock: FileLock, wait: bool, request: u64, done: Done<()>) {
        let mut state = self.state.lock();
        if lock.mode.is_some() && state.conflict(inode, &lock).is_some() {
            if wait {
                return state.waiting.push(Waiting {
                    request,
                    inode,
                    lock,
                    done,
                });
            }
            drop(state);
            return done(Err(Errno::EAGAIN));
        }
        state.apply(inode, lock);
        let admitted = state.admit();
        drop(state);
        done(Ok(()));
        admitted.into_iter().for_each(|done| done(Ok(())));
    }

    pub fn interrupt(&self, request: u64) {
        let mut state = self.state.lock();
        let Some(at) = state
            .waiting
            .iter()
            .position(|waiting| waiting.request == request)
        else {
            return;
        };
        let waiting = state.waiting.remove(at);
        drop(state);
        (waiting.done)(Err(Errno::EINTR));
    }

    pub fn drop_posix(&self, inode: InodeId, owner: u64) {
        self.drop_all(inode, LockKind::Posix, owner);
    }

    pub fn drop_flock(&self, inode: InodeId, owner: u64) {
        self.drop_all(inode, LockKind::Flock, owner);
    }

    fn drop_all(&self, inode: InodeId, kind: LockKind, owner: u64) {
        let mut state = self.state.lock();
        state
            .held
            .retain(|(at, held)| *at != inode || held.kind != kind || held.owner != owner);
        let admitted = state.admit();
        drop(state);
        admitted.into_iter().for_each(|done| done(Ok(())));
    }
}
