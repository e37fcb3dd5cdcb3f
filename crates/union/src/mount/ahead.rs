//! Reading ahead: whoever reads a far file in order finds the next bytes here.
//!
//! The kernel reads ahead itself, but for mounts of ordinary users by no more than 128 KiB, which fills no link that takes
//! its time. The window doubles with each read that goes on where one ended, up to what 1 Gbit/s carries in 130 ms.

use bytes::{Bytes, BytesMut};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use perigee_types::Errno;
use std::collections::VecDeque;

/// The first window, bytes.
const WINDOW_MIN: u64 = 256 << 10;
/// The largest one.
const WINDOW_MAX: u64 = 16 << 20;
/// The largest piece that is asked for at once.
const PIECE_MAX: u64 = 1 << 20;
/// The smallest one.
const PIECE_MIN: u64 = 128 << 10;
/// Kernels send requests of one reader out of order: what is so far behind is still at hand, and a read that begins so far
/// after the last one goes on from it.
const SLACK: u64 = 1 << 20;

/// Bytes that are on their way, or here.
pub type Coming = Shared<BoxFuture<'static, Result<Bytes, Errno>>>;

struct Piece {
    start: u64,
    end: u64,
    bytes: Coming,
}

/// What one open file reads ahead.
#[derive(Default)]
pub struct Ahead {
    /// Where the last read ended.
    next: u64,
    window: u64,
    pieces: VecDeque<Piece>,
    /// Of which content they are.
    content: u64,
}

/// Pieces that together hold what is read.
pub struct Plan {
    start: u64,
    end: u64,
    pieces: Vec<(u64, Coming)>,
}

impl Ahead {
    /// Plans a read of `len` bytes of a file that is `size` long and has this `content`; `fetch` begins to fetch bytes. `None`: it does not go on
    /// where one ended, and is to be done by itself.
    pub fn plan(
        &mut self,
        (offset, len): (u64, u64),
        (size, content): (u64, u64),
        mut fetch: impl FnMut(u64, u32) -> BoxFuture<'static, Result<Bytes, Errno>>,
    ) -> Option<Plan> {
        if content != self.content {
            self.pieces.clear();
            self.content = content;
        }
        let end = offset.saturating_add(len).min(size);
        let held_from = self.pieces.front().map_or(u64::MAX, |piece| piece.start);
        let goes_on = offset + SLACK >= self.next && offset <= self.next + SLACK;
        let is_held = offset >= held_from && offset <= self.held_to();
        if offset >= end || !(goes_on || is_held) {
            self.drop_all();
            self.next = offset.saturating_add(len);
            return None;
        }
        if !is_held && !self.pieces.is_empty() && offset < held_from {
            // A request that was overtaken by the next one.
            return None;
        }
        if offset >= self.next || self.window == 0 {
            self.window = (self.window * 2).clamp(WINDOW_MIN, WINDOW_MAX);
        }
        self.next = self.next.max(end);
        let wanted = end.saturating_add(self.window).min(size);
        let mut from = self.pieces.back().map_or(offset, |piece| piece.end);
        let piece_len = (self.window / 4).clamp(PIECE_MIN, PIECE_MAX);
        // Half a window of room before more is asked for, so that it is asked for in large pieces.
        while from < end || (from < wanted && wanted - from >= piece_len.min(size - from)) {
            let to = (from + piece_len).min(size);
            let bytes = fetch(from, (to - from) as u32).shared();
            self.pieces.push_back(Piece {
                start: from,
                end: to,
                bytes,
            });
            from = to;
        }
        let pieces = self
            .pieces
            .iter()
            .filter(|p| p.end > offset && p.start < end);
        let plan = Plan {
            start: offset,
            end,
            pieces: pieces.map(|p| (p.start, p.bytes.clone())).collect(),
        };
        let behind = offset.saturating_sub(SLACK);
        while self.pieces.front().is_some_and(|piece| piece.end <= behind) {
            self.pieces.pop_front();
        }
        Some(plan)
    }

    fn held_to(&self) -> u64 {
        self.pieces.back().map_or(0, |piece| piece.end)
    }

    /// What was read ahead is no longer what the file holds.
    pub fn drop_all(&mut self) {
        self.pieces.clear();
        self.window = 0;
    }
}

impl Plan {
    /// Waits for the bytes; fewer where the file has become shorter.
    ///
    /// # Errors
    /// What a fetch met.
    pub async fn bytes(self) -> Result<Bytes, Errno> {
        let mut all = BytesMut::new();
        let many = self.pieces.len() > 1;
        for (start, coming) in self.pieces {
            let bytes = coming.await?;
            let from = self.start.saturating_sub(start).min(bytes.len() as u64) as usize;
            let to = (self.end - start).min(bytes.len() as u64) as usize;
            let part = bytes.slice(from.min(to)..to);
            if !many {
                return Ok(part);
            }
            // After a gap nothing can follow.
            if start > self.start + all.len() as u64 {
                break;
            }
            all.extend_from_slice(&part);
        }
        Ok(all.freeze())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    fn byte(at: u64) -> u8 {
        (at % 251) as u8
    }

    /// Every read gives the file's bytes, whatever the order; in order, few are fetched twice.
    #[tokio::test]
    async fn reads_in_any_order_give_what_is_there() {
        let size = 20 << 20;
        let fetched = Arc::new(Mutex::new(0_u64));
        let mut ahead = Ahead::default();
        let mut offsets: Vec<u64> = (0..size / 131_072).map(|n| n * 131_072).collect();
        // Kernels turn neighbours round.
        for pair in offsets.chunks_mut(5) {
            pair.reverse();
        }
        offsets.extend([7, 5 << 20, 1_000_003, size - 10, size + 5]);
        let in_order = offsets.len() - 5;
        for (at, offset) in offsets.into_iter().enumerate() {
            let count = Arc::clone(&fetched);
            let fetch = |from: u64, len: u32| -> BoxFuture<'static, Result<Bytes, Errno>> {
                *count.lock().expect("whole") += u64::from(len);
                async move { Ok((from..from + u64::from(len)).map(byte).collect()) }.boxed()
            };
            let want: Vec<u8> = (offset..(offset + 131_072).min(size)).map(byte).collect();
            if let Some(plan) = ahead.plan((offset, 131_072), (size, 1), fetch) {
                assert_eq!(plan.bytes().await.expect("bytes"), want, "at {offset}");
            } else {
                assert!(at >= in_order || at < 5, "{offset} goes on");
            }
        }
        let fetched = *fetched.lock().expect("whole");
        assert!(
            fetched <= size + (size >> 1),
            "{fetched} bytes were fetched of {size}"
        );
    }

    #[tokio::test]
    async fn nothing_is_given_that_was_fetched_before_a_change() {
        let mut ahead = Ahead::default();
        for content in [1_u8, 2, 3] {
            for offset in [0, 131_072] {
                let fetch = |_: u64, len: u32| -> BoxFuture<'static, Result<Bytes, Errno>> {
                    async move { Ok(vec![content; len as usize].into()) }.boxed()
                };
                let plan = ahead.plan((offset, 131_072), (1 << 20, u64::from(content)), fetch);
                let Some(plan) = plan else { continue };
                let bytes = plan.bytes().await.expect("bytes");
                assert!(
                    bytes.iter().all(|byte| *byte == content),
                    "{content} at {offset}"
                );
            }
        }
    }

    #[test]
    fn whoever_reads_here_and_there_fetches_nothing_ahead() {
        let mut ahead = Ahead::default();
        let mut fetched = 0;
        for offset in [90 << 20, 3 << 20, 50 << 20, 20 << 20] {
            let fetch = |_: u64, len: u32| -> BoxFuture<'static, Result<Bytes, Errno>> {
                fetched += len;
                async { Ok(Bytes::new()) }.boxed()
            };
            assert!(ahead.plan((offset, 4_096), (100 << 20, 1), fetch).is_none());
        }
        assert_eq!(fetched, 0);
    }
}
