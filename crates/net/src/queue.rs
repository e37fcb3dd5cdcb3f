//! The queue in front of one connection: by priority, bounded by bytes, emptied by one at a time ([`crate::outlet`]).
//!
//! A more urgent frame overtakes the others, but once in [`TURNS`] frames the least urgent class that waits has its turn,
//! so that no class starves. What waits when the writer comes back leaves in one write ([`Merging`]), up to
//! [`WRITE_LEN_MAX`] bytes; a longer frame leaves alone, so that an urgent frame never waits for more than one other.

use bytes::Bytes;
use parking_lot::Mutex;
use perigee_proto::Priority;
use std::collections::VecDeque;
use std::time::{Duration, Instant};
use tokio::sync::Notify;

use crate::budget::Charge;
use crate::frame::{HEADER_LEN, Header, Kind, content_checksum, rank};
use crate::limits::Merging;
use crate::outlet::{Left, Outlet};

/// Bytes of merged frames in one write: at this length a system call's fixed cost is below a hundredth of the copying
/// (PHYSICS: about 1 µs against 100 µs), and the buffer still fits a core's second-level cache.
pub(crate) const WRITE_LEN_MAX: usize = 256 << 10;
/// Beyond so many bytes of waiting control frames no pong is added: a peer that sends pings and reads nothing costs no
/// memory, and one that is busy gets other bytes as a sign of life.
const PONG_BEHIND_MAX: usize = 64 << 10;
/// A longer frame is left to the connection's task: to encrypt it takes longer than to wake that.
const NOW_LEN_MAX: usize = 32 << 10;
/// One frame in so many comes from the least urgent class.
const TURNS: u32 = 16;

/// A frame to be sent. Cloning it shares body and payload.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) kind: Kind,
    pub(crate) flags: u8,
    pub(crate) priority: Priority,
    pub(crate) method: u16,
    pub(crate) id: u64,
    pub(crate) deadline: Option<Instant>,
    pub(crate) body: Bytes,
    pub(crate) payload: Bytes,
    content_checksum: u32,
    /// What it holds of the peer's budget until it is sent.
    pub(crate) charge: Option<Charge>,
    /// When it was queued first.
    queued: Option<Instant>,
}

impl Outgoing {
    pub(crate) fn new(kind: Kind, priority: Priority, method: u16, id: u64) -> Self {
        Self {
            kind,
            flags: 0,
            priority,
            method,
            id,
            deadline: None,
            body: Bytes::new(),
            payload: Bytes::new(),
            content_checksum: 0,
            charge: None,
            queued: None,
        }
    }

    pub(crate) fn with_content(mut self, body: Bytes, payload: Bytes) -> Self {
        self.content_checksum = content_checksum(&body, &payload);
        self.body = body;
        self.payload = payload;
        self
    }

    /// The same frame once more; the charge stays with the first.
    pub(crate) fn again(&self) -> Self {
        Self {
            body: self.body.clone(),
            payload: self.payload.clone(),
            charge: None,
            queued: None,
            ..*self
        }
    }

    /// How long it has waited.
    pub(crate) fn waited(&self, now: Instant) -> Duration {
        self.queued.map_or(Duration::ZERO, |queued| {
            now.saturating_duration_since(queued)
        })
    }

    pub(crate) fn len(&self) -> usize {
        HEADER_LEN + self.body.len() + self.payload.len()
    }

    /// The header's bytes. Lengths were held against the limits when the frame was made.
    pub(crate) fn header(&self, acknowledged: u64, now: Instant) -> [u8; HEADER_LEN] {
        let left = self.deadline.map_or(Duration::ZERO, |deadline| {
            deadline.saturating_duration_since(now)
        });
        Header {
            kind: self.kind,
            flags: self.flags,
            priority: self.priority,
            method: self.method,
            id: self.id,
            acknowledged,
            // rounded up: a call with time left must not look late
            deadline_ms: u32::try_from(left.as_micros().div_ceil(1000)).unwrap_or(u32::MAX),
            body_len: self.body.len() as u32,
            payload_len: self.payload.len() as u32,
        }
        .encode(self.content_checksum)
    }
}

/// Who is to write a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Haste {
    /// The connection's task, when it comes to it: others may leave together with it.
    Company,
    /// This thread, unless something else waits or is being written: nobody is about to queue another one.
    Now,
}

/// What the writer shall do.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// Frames were taken, out of so many that waited.
    Frames { waiting: usize },
    /// Nothing waits.
    Nothing,
    /// Frames wait for company until then.
    Until(Instant),
}

#[derive(Debug)]
pub(crate) struct SendQueue {
    inner: Mutex<Inner>,
    bytes_max: usize,
    /// Something may be taken.
    ready: Notify,
    /// Something was taken.
    room: Notify,
    outlet: Outlet,
}

#[derive(Debug, Default)]
struct Inner {
    classes: [VecDeque<Outgoing>; 4],
    bytes: [usize; 4],
    frames: usize,
    /// Since when something waits.
    since: Option<Instant>,
    turn: u32,
}

impl SendQueue {
    /// A queue with at most `bytes_max` bytes of each priority.
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self {
            inner: Mutex::default(),
            bytes_max,
            ready: Notify::new(),
            room: Notify::new(),
            outlet: Outlet::default(),
        }
    }

    /// Where what is queued leaves.
    pub(crate) const fn outlet(&self) -> &Outlet {
        &self.outlet
    }

    pub(crate) fn bytes(&self) -> usize {
        self.inner.lock().bytes.iter().sum()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.inner.lock().frames == 0
    }

    /// Whether what waits is little enough for whoever queued it to write.
    pub(crate) fn is_short(&self) -> bool {
        self.bytes() <= NOW_LEN_MAX
    }

    /// Queues a frame whose bytes are bounded elsewhere.
    pub(crate) fn push(&self, frame: Outgoing, haste: Haste) {
        let mut inner = self.inner.lock();
        let haste = inner.haste(&frame, haste);
        inner.push(frame);
        drop(inner);
        self.see_off(haste);
    }

    /// Sees to it that what was queued is written.
    fn see_off(&self, haste: Haste) {
        let left = match haste {
            Haste::Now => self.outlet.write_now(self),
            Haste::Company => Left::No,
        };
        if left == Left::No {
            self.ready.notify_one();
        }
    }

    /// Queues the answer to a ping, unless much waits before it.
    pub(crate) fn push_pong(&self, id: u64, note: Bytes) {
        let mut inner = self.inner.lock();
        if inner.bytes[rank(Priority::Control)] > PONG_BEHIND_MAX {
            return;
        }
        let pong = Outgoing::new(Kind::Pong, Priority::Control, 0, id);
        inner.push(pong.with_content(note, Bytes::new()));
        drop(inner);
        self.ready.notify_one();
    }

    /// Queues a frame if its priority has room, or nothing of it waits; gives it back otherwise.
    #[expect(
        clippy::result_large_err,
        reason = "its one caller keeps what comes back where it was"
    )]
    fn try_push(&self, frame: Outgoing, haste: Haste) -> Result<(), Outgoing> {
        let mut inner = self.inner.lock();
        let used = inner.bytes[rank(frame.priority)];
        if used > 0 && used + frame.len() > self.bytes_max {
            return Err(frame);
        }
        let haste = inner.haste(&frame, haste);
        inner.push(frame);
        drop(inner);
        self.see_off(haste);
        Ok(())
    }

    /// Queues a cast, in the place of the oldest casts of its priority if need be. Returns how many casts were dropped;
    /// the new one is among them when calls fill the queue.
    pub(crate) fn push_cast(&self, frame: Outgoing) -> u64 {
        let class = rank(frame.priority);
        let mut inner = self.inner.lock();
        let mut dropped = 0;
        while inner.bytes[class] > 0 && inner.bytes[class] + frame.len() > self.bytes_max {
            if !inner.drop_oldest_cast(class) {
                return dropped + 1;
            }
            dropped += 1;
        }
        inner.push(frame);
        drop(inner);
        self.ready.notify_one();
        dropped
    }

    /// Drops every cast. Returns how many.
    pub(crate) fn drop_casts(&self) -> u64 {
        let mut inner = self.inner.lock();
        let before = inner.frames;
        inner.retain(|frame| frame.kind != Kind::Cast);
        (before - inner.frames) as u64
    }

    /// Puts frames back in front, keeping their order.
    pub(crate) fn push_front(&self, frames: impl DoubleEndedIterator<Item = Outgoing>) {
        let mut inner = self.inner.lock();
        for frame in frames.rev() {
            let class = rank(frame.priority);
            inner.bytes[class] += frame.len();
            inner.frames += 1;
            inner.since.get_or_insert_with(Instant::now);
            inner.classes[class].push_front(frame);
        }
        drop(inner);
        self.ready.notify_one();
    }

    /// Takes a call back that has not been sent. False when it is not here.
    pub(crate) fn withdraw(&self, priority: Priority, id: u64) -> bool {
        let class = rank(priority);
        let mut inner = self.inner.lock();
        let place = inner.classes[class]
            .iter()
            .position(|frame| frame.kind == Kind::Call && frame.id == id);
        let taken = place.and_then(|place| inner.take_at(class, place));
        drop(inner);
        if taken.is_some() {
            self.room.notify_waiters();
        }
        taken.is_some()
    }

    /// Drops what belongs to one connection (answers, pings) and everything else that `keep` does not want.
    pub(crate) fn retain(&self, keep: impl FnMut(&Outgoing) -> bool) {
        self.inner.lock().retain(keep);
        self.room.notify_waiters();
    }

    /// Queues a frame when its priority has room.
    ///
    /// # Cancel safety
    /// Dropping the future drops the frame.
    pub(crate) async fn push_when_room(&self, mut frame: Outgoing, haste: Haste) {
        loop {
            let room = self.room.notified();
            tokio::pin!(room);
            // from here on no room that is made is missed
            room.as_mut().enable();
            match self.try_push(frame, haste) {
                Ok(()) => return,
                Err(back) => frame = back,
            }
            room.await;
        }
    }

    /// Returns when something waits; may return early.
    pub(crate) async fn ready(&self) {
        self.ready.notified().await;
    }

    /// Wakes the writer without a frame.
    pub(crate) fn wake(&self) {
        self.ready.notify_one();
    }

    /// Moves frames for one write into `out`.
    pub(crate) fn take(
        &self,
        merging: Merging,
        watermark_wait: Duration,
        now: Instant,
        out: &mut Vec<Outgoing>,
    ) -> Taken {
        let mut inner = self.inner.lock();
        let waiting = inner.frames;
        if waiting == 0 {
            return Taken::Nothing;
        }
        let count_max = match merging {
            Merging::Off => 1,
            Merging::Adaptive => usize::MAX,
            Merging::Fixed(watermark) => {
                let until = inner.since.unwrap_or(now) + watermark_wait;
                if waiting < watermark && now < until {
                    return Taken::Until(until);
                }
                watermark.max(1)
            }
        };
        inner.take(count_max, out);
        inner.since = (inner.frames > 0).then_some(now);
        drop(inner);
        self.room.notify_waiters();
        Taken::Frames { waiting }
    }
}

impl Inner {
    /// Who is to write a frame that is about to be queued.
    fn haste(&self, frame: &Outgoing, wanted: Haste) -> Haste {
        if self.frames == 0 && frame.len() <= NOW_LEN_MAX {
            wanted
        } else {
            Haste::Company
        }
    }

    fn push(&mut self, mut frame: Outgoing) {
        let class = rank(frame.priority);
        self.bytes[class] += frame.len();
        self.frames += 1;
        let now = Instant::now();
        self.since.get_or_insert(now);
        frame.queued.get_or_insert(now);
        self.classes[class].push_back(frame);
    }

    fn take_at(&mut self, class: usize, place: usize) -> Option<Outgoing> {
        let frame = self.classes[class].remove(place)?;
        self.bytes[class] -= frame.len();
        self.frames -= 1;
        Some(frame)
    }

    fn drop_oldest_cast(&mut self, class: usize) -> bool {
        let place = self.classes[class]
            .iter()
            .position(|frame| frame.kind == Kind::Cast);
        place.is_some_and(|place| self.take_at(class, place).is_some())
    }

    fn retain(&mut self, mut keep: impl FnMut(&Outgoing) -> bool) {
        for class in 0..self.classes.len() {
            self.classes[class].retain(&mut keep);
            self.bytes[class] = self.classes[class].iter().map(Outgoing::len).sum();
        }
        self.frames = self.classes.iter().map(VecDeque::len).sum();
        if self.frames == 0 {
            self.since = None;
        }
    }

    /// The class whose turn it is.
    fn next_class(&self) -> Option<usize> {
        let mut waiting = (0..self.classes.len()).filter(|class| !self.classes[*class].is_empty());
        if self.turn % TURNS == TURNS - 1 {
            waiting.next_back()
        } else {
            waiting.next()
        }
    }

    fn take(&mut self, count_max: usize, out: &mut Vec<Outgoing>) {
        let mut bytes = 0;
        while out.len() < count_max
            && let Some(class) = self.next_class()
        {
            let len = self.classes[class].front().map_or(0, Outgoing::len);
            if !out.is_empty() && bytes + len > WRITE_LEN_MAX {
                return;
            }
            bytes += len;
            self.turn = self.turn.wrapping_add(1);
            out.extend(self.take_at(class, 0));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: Kind, priority: Priority, id: u64, payload_len: usize) -> Outgoing {
        Outgoing::new(kind, priority, 0, id)
            .with_content(Bytes::new(), Bytes::from(vec![0; payload_len]))
    }

    fn take(queue: &SendQueue, merging: Merging, now: Instant) -> (Taken, Vec<u64>) {
        let mut out = Vec::new();
        let taken = queue.take(merging, Duration::from_millis(1), now, &mut out);
        (taken, out.iter().map(|frame| frame.id).collect())
    }

    #[test]
    fn urgent_frames_overtake_and_no_class_starves() {
        let queue = SendQueue::new(1 << 20);
        for id in 0..40 {
            queue.push(frame(Kind::Cast, Priority::Meta, id, 0), Haste::Company);
        }
        queue.push(
            frame(Kind::Cast, Priority::Background, 100, 0),
            Haste::Company,
        );
        queue.push(frame(Kind::Cast, Priority::Control, 200, 0), Haste::Company);
        let (_, ids) = take(&queue, Merging::Adaptive, Instant::now());
        assert_eq!(ids[0], 200);
        assert_eq!(ids.iter().position(|id| *id == 100), Some(15));
        assert_eq!(ids.len(), 42);
    }

    #[test]
    fn a_long_frame_leaves_alone() {
        let queue = SendQueue::new(8 << 20);
        queue.push(
            frame(Kind::Call, Priority::Data, 1, 1 << 20),
            Haste::Company,
        );
        queue.push(frame(Kind::Call, Priority::Data, 2, 10), Haste::Company);
        queue.push(
            frame(Kind::Call, Priority::Data, 3, 1 << 20),
            Haste::Company,
        );
        let now = Instant::now();
        assert_eq!(
            take(&queue, Merging::Adaptive, now),
            (Taken::Frames { waiting: 3 }, vec![1])
        );
        queue.push(frame(Kind::Call, Priority::Control, 4, 10), Haste::Company);
        assert_eq!(
            take(&queue, Merging::Adaptive, now),
            (Taken::Frames { waiting: 3 }, vec![4, 2])
        );
        assert_eq!(
            take(&queue, Merging::Adaptive, now),
            (Taken::Frames { waiting: 1 }, vec![3])
        );
        assert_eq!(
            take(&queue, Merging::Adaptive, now),
            (Taken::Nothing, vec![])
        );
    }

    #[test]
    fn the_watermark_waits_for_its_number_or_its_time() {
        let queue = SendQueue::new(1 << 20);
        queue.push(frame(Kind::Call, Priority::Meta, 1, 0), Haste::Company);
        queue.push(frame(Kind::Call, Priority::Meta, 2, 0), Haste::Company);
        let early = Instant::now();
        let (taken, ids) = take(&queue, Merging::Fixed(3), early - Duration::from_secs(1));
        assert!(matches!(taken, Taken::Until(_)) && ids.is_empty());
        let late = early + Duration::from_millis(2);
        assert_eq!(take(&queue, Merging::Fixed(3), late).1, [1, 2]);
        for id in 3..8 {
            queue.push(frame(Kind::Call, Priority::Meta, id, 0), Haste::Company);
        }
        assert_eq!(take(&queue, Merging::Fixed(3), early).1, [3, 4, 5]);
    }

    #[test]
    fn without_merging_each_frame_leaves_alone() {
        let queue = SendQueue::new(1 << 20);
        queue.push(frame(Kind::Call, Priority::Meta, 1, 0), Haste::Company);
        queue.push(frame(Kind::Call, Priority::Meta, 2, 0), Haste::Company);
        assert_eq!(take(&queue, Merging::Off, Instant::now()).1, [1]);
        assert_eq!(take(&queue, Merging::Off, Instant::now()).1, [2]);
    }

    #[test]
    fn a_full_queue_refuses_calls_and_drops_the_oldest_casts_of_that_priority() {
        let queue = SendQueue::new(3 * HEADER_LEN);
        assert!(
            queue
                .try_push(frame(Kind::Call, Priority::Meta, 1, 0), Haste::Company)
                .is_ok()
        );
        assert_eq!(queue.push_cast(frame(Kind::Cast, Priority::Meta, 2, 0)), 0);
        assert_eq!(queue.push_cast(frame(Kind::Cast, Priority::Meta, 3, 0)), 0);
        assert!(
            queue
                .try_push(frame(Kind::Call, Priority::Meta, 4, 0), Haste::Company)
                .is_err()
        );
        assert!(
            queue
                .try_push(frame(Kind::Call, Priority::Control, 5, 0), Haste::Company)
                .is_ok()
        );
        assert_eq!(queue.push_cast(frame(Kind::Cast, Priority::Meta, 6, 0)), 1);
        assert_eq!(
            take(&queue, Merging::Adaptive, Instant::now()).1,
            [5, 1, 3, 6]
        );
        assert_eq!(queue.bytes(), 0);
    }

    #[test]
    fn pongs_do_not_pile_up() {
        let queue = SendQueue::new(8 << 20);
        for id in 0..100_000 {
            queue.push_pong(id, Bytes::new());
        }
        assert!(queue.bytes() <= PONG_BEHIND_MAX + HEADER_LEN);
    }

    #[test]
    fn a_withdrawn_call_frees_its_room() {
        let queue = SendQueue::new(HEADER_LEN);
        assert!(
            queue
                .try_push(frame(Kind::Call, Priority::Meta, 1, 0), Haste::Company)
                .is_ok()
        );
        assert!(queue.withdraw(Priority::Meta, 1));
        assert!(!queue.withdraw(Priority::Meta, 1));
        assert!(
            queue
                .try_push(frame(Kind::Call, Priority::Meta, 2, 0), Haste::Company)
                .is_ok()
        );
    }

    #[test]
    fn repeats_come_first_and_in_order() {
        let queue = SendQueue::new(1 << 20);
        queue.push(frame(Kind::Call, Priority::Meta, 5, 0), Haste::Company);
        let repeats = [3, 4].map(|id| frame(Kind::Call, Priority::Meta, id, 0));
        queue.push_front(repeats.into_iter());
        assert_eq!(take(&queue, Merging::Adaptive, Instant::now()).1, [3, 4, 5]);
    }
}
