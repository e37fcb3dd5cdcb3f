//! Which parts of local files have been changed, without seeing a write: by programs that write past the daemon, and
//! by stores through their maps.
//!
//! The kernel says of each folio (a run of pages of one file in its page cache) when it becomes dirty, at the
//! tracepoint `writeback:writeback_dirty_folio`. A BPF program there puts the inode and the first page of the folio into a
//! ring that this process maps, for inodes that are watched. A folio that is dirty already says nothing more, until it
//! has been written back. So whoever wants to know what has changed
//!
//! 1. takes what the log has ([`Watch::take`]),
//! 2. writes the file back, which makes folios clean and their maps read-only (`fdatasync`, or `sync_file_range`),
//! 3. and reads then what was taken.
//!
//! What is changed after step 2 is in the log again. Before a program gets hold of a file, a watch begins, and then the file
//! is written back once, for the same reason. In another order stores through maps get lost.
//!
//! It promises: a change that a program's call has made, or a store that it has made, before [`Watch::take`] is called is
//! in what that gives, or in what an earlier call gave that was not followed by steps 2 and 3 yet. It may give more: a
//! folio's length is not told, so everything up to which its first page's alignment lets it reach counts.
//! Where events were lost, it says so ([`Changed::Anything`]). It does not see what passes by the page cache: direct I/O.
//!
//! It says nothing of file systems that write nothing back ([`DirtyLog::tells_of`]): a watch there hears of no change at all.
//!
//! It takes root, and Linux 5.12 or later with tracepoints and BPF. Where they are not to be had, [`DirtyLog::open`] says
//! why. `perigee-store` may use it.

#![cfg_attr(
    test,
    allow(clippy::unwrap_used, reason = "a test stops where it is wrong")
)]

mod bpf;
mod ring;
mod tracepoint;

use bpf::Program;
use parking_lot::Mutex;
use perigee_types::ByteRange;
use std::collections::{BTreeSet, HashMap};
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

/// Why there is no log.
#[derive(Debug, thiserror::Error)]
pub enum Unavailable {
    /// The kernel has no such tracepoint, or keeps it from this process.
    #[error("cannot {what} of the tracepoint {}: {why}", tracepoint::NAME)]
    Tracepoint {
        /// What failed.
        what: &'static str,
        /// Why.
        #[source]
        why: io::Error,
    },
    /// What the tracepoint says is not of the known form.
    #[error(
        "the tracepoint {} says something else than known: {found}",
        tracepoint::NAME
    )]
    Format {
        /// What was found.
        found: String,
    },
    /// BPF is not there, or not for this process.
    #[error("BPF cannot be used: cannot {what}: {why}")]
    Bpf {
        /// What failed.
        what: &'static str,
        /// Why.
        #[source]
        why: io::Error,
    },
}

/// What has changed of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Changed {
    /// Nothing outside of these ranges: in order, disjoint, and perhaps beyond the file's end.
    Within(Vec<ByteRange>),
    /// Events were lost: whatever was not looked at since may have.
    Anything,
}

/// The kernel's log of folios that become dirty. One for a process is enough.
pub struct DirtyLog {
    program: Program,
    inner: Mutex<Inner>,
}

struct Inner {
    ring: ring::Ring,
    /// Events that were lost, when that was last looked at.
    lost: u64,
    watched: HashMap<u64, Pages>,
}

/// What was heard of one inode.
#[derive(Debug, Default)]
struct Pages {
    watches: u32,
    first: BTreeSet<u64>,
    lost: bool,
}

/// More folios of one file are not remembered one by one.
const FOLIOS_MAX: usize = 1 << 16;
/// A folio has at most so many pages, as a power of two (8 MiB).
const ORDER_MAX: u32 = 11;
const PAGE: u64 = 4_096;
/// The page that a probe writes: no file of another file system with the same number is likely to change there at that moment.
const PROBED: u64 = 54_321;

impl DirtyLog {
    /// Begins to listen; nothing is watched yet. `ring_bytes` is a power of two: room for a 24th of it in events that nobody
    /// has taken.
    ///
    /// # Errors
    /// [`Unavailable`].
    pub fn open(ring_bytes: u32) -> Result<Arc<Self>, Unavailable> {
        if bpf::page_bytes() != PAGE {
            return Err(Unavailable::Format {
                found: format!("pages of {} bytes", bpf::page_bytes()),
            });
        }
        let place = tracepoint::find()?;
        let program = Program::load(&place, ring_bytes)?;
        let ring = ring::Ring::map(program.ring(), ring_bytes).map_err(|why| Unavailable::Bpf {
            what: "map the ring",
            why,
        })?;
        Ok(Arc::new(Self {
            program,
            inner: Mutex::new(Inner {
                ring,
                lost: 0,
                watched: HashMap::new(),
            }),
        }))
    }

    /// Whether changes are told of files on the file system of `file`, an empty one: `write` writes a byte there at the given
    /// offset. A file system that writes nothing back, as one in memory (tmpfs), says nothing.
    ///
    /// # Errors
    /// Those of [`DirtyLog::watch`], and of the write.
    pub fn tells_of(
        self: &Arc<Self>,
        file: impl AsFd,
        write: impl FnOnce(u64) -> io::Result<()>,
    ) -> io::Result<bool> {
        let watch = self.watch(file)?;
        write(PROBED * PAGE)?;
        let page = ByteRange::with_len(PROBED * PAGE, PAGE);
        let probed = |range: &ByteRange| range.overlaps(page);
        Ok(match watch.take() {
            Changed::Within(ranges) => ranges.iter().any(probed),
            Changed::Anything => false,
        })
    }

    /// Watches a file from now on. What is dirty already says nothing: write it back once after this.
    ///
    /// # Errors
    /// What `fstat` says, and the kernel's refusal of the inode.
    pub fn watch(self: &Arc<Self>, file: impl AsFd) -> io::Result<Watch> {
        let inode = rustix::fs::fstat(file)?.st_ino;
        let mut inner = self.inner.lock();
        let pages = inner.watched.entry(inode).or_default();
        pages.watches += 1;
        if pages.watches == 1
            && let Err(error) = self.program.watch(inode)
        {
            inner.watched.remove(&inode);
            return Err(error);
        }
        Ok(Watch {
            log: Arc::clone(self),
            inode,
        })
    }
}

impl std::fmt::Debug for DirtyLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DirtyLog").finish_non_exhaustive()
    }
}

impl Inner {
    fn drain(&mut self, program: &Program) -> io::Result<()> {
        let watched = &mut self.watched;
        self.ring.consume(|event| {
            // Of one that is not watched any more it may still say something.
            if let Some(pages) = watched.get_mut(&event.inode) {
                pages.first.insert(event.page);
                if pages.first.len() > FOLIOS_MAX {
                    pages.first.clear();
                    pages.lost = true;
                }
            }
        });
        let lost = program.lost();
        if !matches!(lost, Ok(lost) if lost == self.lost) {
            self.watched
                .values_mut()
                .for_each(|pages| pages.lost = true);
        }
        self.lost = lost?;
        Ok(())
    }
}

/// A file that is watched, until this is dropped.
#[derive(Debug)]
pub struct Watch {
    log: Arc<DirtyLog>,
    inode: u64,
}

impl Watch {
    /// Takes what has changed since the last call. Of two watches of one file, whoever asks first gets it.
    #[must_use]
    pub fn take(&self) -> Changed {
        let mut inner = self.log.inner.lock();
        let drained = inner.drain(&self.log.program);
        if let Err(error) = drained {
            tracing::warn!(%error, "the kernel does not say what has changed");
        }
        let Some(pages) = inner.watched.get_mut(&self.inode) else {
            return Changed::Anything;
        };
        let first = std::mem::take(&mut pages.first);
        match std::mem::take(&mut pages.lost) {
            true => Changed::Anything,
            false => Changed::Within(ranges(&first)),
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut inner = self.log.inner.lock();
        if let Some(pages) = inner.watched.get_mut(&self.inode) {
            pages.watches -= 1;
            if pages.watches == 0 {
                inner.watched.remove(&self.inode);
                self.log.program.forget(self.inode);
            }
        }
    }
}

/// All that folios with these first pages may have.
fn ranges(first: &BTreeSet<u64>) -> Vec<ByteRange> {
    let mut ranges: Vec<ByteRange> = Vec::new();
    for page in first {
        let order = page.trailing_zeros().min(ORDER_MAX);
        let (start, end) = (page * PAGE, (page + (1 << order)) * PAGE);
        match ranges.last_mut() {
            Some(last) if last.end >= start => last.end = last.end.max(end),
            _ => ranges.push(ByteRange::new(start, end)),
        }
    }
    ranges
}

#[cfg(test)]
mod tests;
