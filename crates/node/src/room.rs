//! How much room is left on the disks of the nodes that follow this one's containers.
//!
//! A write is acknowledged before its bytes travel: an owner that did not count what its members can take would
//! acknowledge more than they can. The count is what a member last told, less what it still has to fetch, less what
//! writes here took since it was asked. Somebody else may fill that disk meanwhile: then an fsync says so.

use crate::container::Container;
use crate::env::Env;
use crate::usage::Usage;
use bytes::Bytes;
use parking_lot::Mutex;
use perigee_proto::message::data::{AskRoom, Room};
use perigee_store::StoreSpace;
use perigee_types::{ContainerId, NodeId, Span, Tick};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tracing::debug;

/// What is not counted may take so much: records on their way when a member answers, and the key-value store's growth.
const MARGIN: u64 = 16 << 20;
/// An answer that is older does not suffice to refuse a write.
const FRESH: Span = Span::from_millis(100);

/// How long a member may take to answer.
const ANSWER: Duration = Duration::from_millis(500);
/// Between two questions, at least and at most.
const PAUSE: Duration = Duration::from_millis(20);
const EVERY: Duration = Duration::from_secs(1);

/// Bytes that are yet to be fetched of a container, where a copy takes so many in all: what is a hole is not known before it comes.
pub(crate) fn at_most(missing: u64, content: Option<u64>) -> u64 {
    content.map_or(missing, |content| {
        missing.min(content.saturating_add(MARGIN))
    })
}

/// The disk under this node's store, whose space was just asked for.
pub(crate) fn of_this_node(env: &Env, space: &StoreSpace) -> Room {
    let containers = env.all_containers();
    let missing = containers.iter().map(|container| container.missing_bytes());
    Room {
        total: space.total,
        available: space.available,
        missing: missing.fold(0, u64::saturating_add),
        files: space.files,
        files_free: space.files_free,
    }
}

/// Asks the members of what this node owns how much room they have, now and then, and when a write needs to know.
pub(crate) async fn keep_asking(env: Arc<Env>) {
    let (env, rooms) = (&env, &env.rooms);
    // Until the disk was counted, holes count as content.
    _ = env.usage.bytes().await;
    loop {
        let mut members: BTreeMap<NodeId, u64> = BTreeMap::new();
        let containers = env.all_containers();
        rooms.contents.lock().look(&env.usage, &containers);
        for container in containers {
            let (nodes, unrecorded) = container.owed_to();
            for node in nodes {
                *members.entry(node).or_default() += unrecorded;
            }
        }
        rooms.keep(&members);
        let asks = members.into_iter().map(|(node, unrecorded)| {
            let asked = rooms.ask(node, unrecorded, env.clock.now());
            async move {
                match env.ask(node, &AskRoom, Bytes::new(), ANSWER).await {
                    Ok((room, _)) => rooms.told(node, asked, room),
                    // It counts as it last told, or is no member for long.
                    Err(error) => debug!(%node, %error, "room not told"),
                }
            }
        });
        futures_util::future::join_all(asks).await;
        tokio::time::sleep(PAUSE).await;
        // Without word it asks all the same.
        _ = tokio::time::timeout(EVERY, rooms.wanted.notified()).await;
    }
}

/// What the files of containers take on this node's disk: what was counted, and what was written to them since the count before, in
/// whose time the last one began.
#[derive(Debug, Default)]
struct Contents {
    ended: Option<Instant>,
    counted: BTreeMap<ContainerId, u64>,
    /// What is in no file of a container: nobody has counted whose it is.
    elsewhere: u64,
    /// What had been written to each when the last two counts were heard of.
    written: BTreeMap<ContainerId, [u64; 2]>,
}

impl Contents {
    /// Whether there is a new count.
    fn look(&mut self, usage: &Usage, containers: &[Arc<Container>]) {
        if usage.ended() == self.ended {
            return;
        }
        self.ended = usage.ended();
        self.counted = usage.containers();
        self.elsewhere = usage.elsewhere();
        for container in containers {
            self.heard(container.id, container.taken().0);
        }
    }

    fn heard(&mut self, container: ContainerId, written: u64) {
        let heard = self.written.entry(container).or_default();
        *heard = [heard[1], written];
    }

    /// Bytes that the files of a container take, at most; `None` before the first count. `written`: to them, ever; `missing`: what this
    /// node has yet to fetch itself.
    fn of(&self, container: ContainerId, (written, missing): (u64, u64)) -> Option<u64> {
        self.ended?;
        let [before, _] = self.written.get(&container).copied().unwrap_or_default();
        let counted = self.counted.get(&container).copied().unwrap_or(0);
        let here = counted.saturating_add(self.elsewhere);
        let since = written.saturating_sub(before);
        Some(here.saturating_add(since).saturating_add(missing))
    }
}

/// What the members told.
#[derive(Debug, Default)]
pub(crate) struct Rooms {
    members: Mutex<BTreeMap<NodeId, Member>>,
    contents: Mutex<Contents>,
    /// Somebody needs newer answers.
    wanted: Notify,
}

#[derive(Debug, Clone, Copy, Default)]
struct Member {
    told: Option<Told>,
    /// Bytes that writes here took, ever.
    taken: u64,
}

#[derive(Debug, Clone, Copy)]
struct Told {
    room: Room,
    asked: Asked,
}

/// A question, as of the moment when it was sent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asked {
    at: Tick,
    /// Bytes taken before, less those that had no record, so that the member could not know of them.
    counted: u64,
}

/// Whether members can take some bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// They can; the bytes are counted.
    Room,
    /// Perhaps not: their answers are old, and newer ones are on the way.
    Unsure,
    /// One of them cannot.
    Full,
}

impl Member {
    /// Bytes that it can take; `None` when it never told.
    fn left(&self) -> Option<u64> {
        let Told { room, asked } = self.told?;
        let taken_since = self.taken.saturating_sub(asked.counted);
        Some(
            room.left()
                .saturating_sub(taken_since.saturating_add(MARGIN)),
        )
    }
}

impl Rooms {
    /// Bytes that the files of a container take on this node's disk, at most; `None` before they were counted. `taken`: what was
    /// written to them, ever, and what this node has yet to fetch.
    pub(crate) fn content_of(&self, container: ContainerId, taken: (u64, u64)) -> Option<u64> {
        self.contents.lock().of(container, taken)
    }

    /// Counts `len` bytes that `members` will have to take, if they can. One that never told counts as one that can.
    pub(crate) fn take(&self, members: &[NodeId], len: u64, now: Tick) -> Verdict {
        let mut known = self.members.lock();
        let full = members.iter().filter_map(|node| known.get(node));
        let mut full = full.filter(|member| member.left().is_some_and(|left| left < len));
        let stale = |member: &Member| member.told.is_none_or(|told| told.asked.at + FRESH < now);
        if let Some(first) = full.next() {
            return if stale(first) || full.any(stale) {
                self.wanted.notify_one();
                Verdict::Unsure
            } else {
                Verdict::Full
            };
        }
        for node in members {
            known.entry(*node).or_default().taken += len;
        }
        Verdict::Room
    }

    /// A question goes to a member. `unrecorded`: bytes that were taken for it, and have no record yet.
    pub(crate) fn ask(&self, node: NodeId, unrecorded: u64, now: Tick) -> Asked {
        let taken = self.members.lock().entry(node).or_default().taken;
        Asked {
            at: now,
            counted: taken.saturating_sub(unrecorded),
        }
    }

    /// It answered.
    pub(crate) fn told(&self, node: NodeId, asked: Asked, room: Room) {
        let mut members = self.members.lock();
        members.entry(node).or_default().told = Some(Told { room, asked });
    }

    /// Only these are members of anything that this node owns.
    pub(crate) fn keep(&self, nodes: &BTreeMap<NodeId, u64>) {
        self.members
            .lock()
            .retain(|node, _| nodes.contains_key(node));
    }

    /// What is known of each member, in words, for the log.
    pub(crate) fn in_words(&self, now: Tick) -> String {
        let members = self.members.lock();
        let words = members.iter().map(|(node, member)| {
            let told = member
                .told
                .map(|told| now.since(told.asked.at).as_micros() / 1_000);
            let left = member.left();
            format!("{node}: {left:?} bytes left, told {told:?} ms ago")
        });
        words.collect::<Vec<_>>().join(", ")
    }

    /// The disk with the least room, as it was told.
    pub(crate) fn least(&self) -> Option<Room> {
        let members = self.members.lock();
        let told = members.values().filter_map(|member| member.told);
        told.map(|told| told.room).min_by_key(Room::left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const A: NodeId = NodeId(2);
    const B: NodeId = NodeId(3);

    fn room(available: u64, missing: u64) -> Room {
        Room {
            total: 100_000 * MIB,
            available,
            missing,
            files: 10,
            files_free: 5,
        }
    }

    #[test]
    fn what_is_written_beside_a_count_of_the_disk_is_not_left_out() {
        let one = ContainerId::ROOT;
        let mut contents = Contents::default();
        assert_eq!(contents.of(one, (10, 0)), None);
        contents.ended = Some(Instant::now());
        contents.heard(one, 10);
        assert_eq!(contents.of(one, (15, 0)), Some(15));
        // Begun after it was heard of the first: what had been written by then is in it.
        contents.counted = [(one, 14)].into();
        contents.heard(one, 16);
        assert_eq!(contents.of(one, (17, 0)), Some(14 + 7));
        contents.counted = [(one, 17)].into();
        contents.elsewhere = 100;
        contents.heard(one, 17);
        assert_eq!(contents.of(one, (18, 4)), Some(17 + 2 + 100 + 4));
    }

    #[test]
    fn holes_that_are_yet_to_come_take_no_room() {
        assert_eq!(at_most(7_000 * MIB, None), 7_000 * MIB);
        assert_eq!(at_most(7_000 * MIB, Some(100 * MIB)), 100 * MIB + MARGIN);
        assert_eq!(at_most(7 * MIB, Some(100 * MIB)), 7 * MIB);
    }

    #[test]
    fn what_members_cannot_take_is_refused_and_only_by_fresh_word() {
        let rooms = Rooms::default();
        let now = Tick(1_000_000);
        assert_eq!(
            rooms.take(&[A, B], 5_000 * MIB, now),
            Verdict::Room,
            "nobody told"
        );
        for (node, available) in [(A, 1_000 * MIB), (B, 100 * MIB)] {
            let asked = rooms.ask(node, 0, now);
            rooms.told(node, asked, room(available, 20 * MIB));
        }
        assert_eq!(rooms.take(&[A, B], 60 * MIB, now), Verdict::Room);
        assert_eq!(rooms.take(&[A, B], 5 * MIB, now), Verdict::Full);
        assert_eq!(rooms.take(&[A], 5 * MIB, now), Verdict::Room);
        let later = now + FRESH + FRESH;
        assert_eq!(rooms.take(&[A, B], 5 * MIB, later), Verdict::Unsure);
        // What was refused is not counted, and what was fetched is room no more.
        let asked = rooms.ask(B, 0, later);
        rooms.told(B, asked, room(20 * MIB, 0));
        assert_eq!(rooms.take(&[A, B], 4 * MIB, later), Verdict::Room);
        assert_eq!(rooms.take(&[A, B], MIB, later), Verdict::Full);
    }

    #[test]
    fn bytes_that_a_member_could_not_know_of_stay_counted() {
        let rooms = Rooms::default();
        let now = Tick(1_000_000);
        assert_eq!(rooms.take(&[A], 30 * MIB, now), Verdict::Room);
        let asked = rooms.ask(A, 10 * MIB, now);
        // Taken while the question is on its way.
        assert_eq!(rooms.take(&[A], 5 * MIB, now), Verdict::Room);
        rooms.told(A, asked, room(50 * MIB, 0));
        assert_eq!(
            rooms.take(&[A], 20 * MIB, now),
            Verdict::Full,
            "50 - 16 - 10 - 5"
        );
        assert_eq!(rooms.take(&[A], 19 * MIB, now), Verdict::Room);
    }

    #[test]
    fn the_least_room_is_that_of_a_member_of_today() {
        let rooms = Rooms::default();
        let now = Tick(0);
        for (node, available) in [(A, 70), (B, 30)] {
            let asked = rooms.ask(node, 0, now);
            rooms.told(node, asked, room(available, 0));
        }
        assert_eq!(rooms.least().map(|room| room.available), Some(30));
        rooms.keep(&BTreeMap::from([(A, 0)]));
        assert_eq!(rooms.least().map(|room| room.available), Some(70));
    }
}
