//! Reads that were answered with fewer bytes than were asked for, until the programs that wait for them have looked.
//!
//! What such an answer lacks the kernel fills up with zeros, and a program looks at the end of the file only when it runs
//! again. Whoever tells the kernel of a longer file in between shows it zeros where bytes are; so that waits. All programs
//! that want the page are woken by one answer, and only the one whose read it was is named in it: of the others it is mostly
//! known that they asked for something of the file last, before the answer.

use super::crossing::mixed;
use super::threads::Doing;
use parking_lot::Mutex;
use perigee_types::InodeId;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// How long after its answer a program that does not run is waited for.
const TAKEN_IN_MAX: Duration = Duration::from_millis(250);
/// The same of one of which it cannot be told whether it runs.
const TAKEN_IN: Duration = Duration::from_millis(10);
/// Reads that are remembered.
const READS: usize = 64;
/// Requests whose threads are remembered.
const ASKED: usize = 64;

/// The reads of a mount.
#[derive(Debug)]
pub(super) struct ShortReads {
    reads: Mutex<VecDeque<Short>>,
    /// How many these are.
    count: AtomicUsize,
    /// What was asked for last, in the order of `next`: a thread in the low half, and in the other what its file is mixed to.
    asked: [AtomicU64; ASKED],
    next: AtomicUsize,
}

#[derive(Debug, Clone, Copy)]
struct Short {
    inode: InodeId,
    thread: u32,
    begun: Instant,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The answer is about to be given.
    Owed,
    Answered(Answered),
    /// And the thread has asked for something else since.
    Left(Answered),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Answered {
    at: Instant,
    /// How many requests had come.
    asked: usize,
}

/// Whether it is a thread whose read was answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Named {
    Yes,
    No,
}

/// Threads that are waited for.
#[derive(Debug)]
pub(super) struct Awaited {
    /// Reads that begin later are not.
    since: Instant,
    /// How long each had run at the first look.
    ran: Vec<(u32, u64)>,
}

impl Default for ShortReads {
    fn default() -> Self {
        Self {
            reads: Mutex::default(),
            count: AtomicUsize::new(0),
            asked: [const { AtomicU64::new(0) }; ASKED],
            next: AtomicUsize::new(0),
        }
    }
}

impl ShortReads {
    /// A read for a thread is about to be answered at `now`.
    pub(super) fn begins(&self, inode: InodeId, thread: u32, now: Instant) {
        let mut reads = self.reads.lock();
        drop_over(&mut reads, now);
        if reads.len() >= READS {
            let left = |read: &Short| matches!(read.state, State::Left(_));
            let given = |read: &Short| matches!(read.state, State::Answered(_));
            let least = reads.iter().position(left).or(reads.iter().position(given));
            _ = reads.remove(least.unwrap_or(0));
        }
        let state = State::Owed;
        reads.push_back(Short {
            inode,
            thread,
            begun: now,
            state,
        });
        self.count.store(reads.len(), Ordering::SeqCst);
    }

    /// It was answered at `now`.
    pub(super) fn answered(&self, inode: InodeId, thread: u32, now: Instant) {
        let asked = self.next.load(Ordering::Relaxed);
        let mut reads = self.reads.lock();
        let is_it = |read: &&mut Short| {
            read.inode == inode && read.thread == thread && read.state == State::Owed
        };
        if let Some(read) = reads.iter_mut().find(is_it) {
            read.state = State::Answered(Answered { at: now, asked });
        }
    }

    /// A thread asks for something of an inode at `now`: it has looked at what it was answered before. Zero stands for threads
    /// that the system does not tell apart here.
    pub(super) fn asks(&self, inode: InodeId, thread: u32, now: impl FnOnce() -> Instant) {
        if thread == 0 {
            return;
        }
        let at = self.next.fetch_add(1, Ordering::Relaxed) % ASKED;
        self.asked[at].store(asked(inode, thread), Ordering::Relaxed);
        if self.count.load(Ordering::SeqCst) == 0 {
            return;
        }
        let now = now();
        let mut reads = self.reads.lock();
        drop_over(&mut reads, now);
        self.count.store(reads.len(), Ordering::SeqCst);
        for read in reads.iter_mut().filter(|read| read.thread == thread) {
            if let State::Answered(answered) = read.state {
                read.state = State::Left(answered);
            }
        }
    }

    /// Whether a thread other than `but` may not have looked at such an answer about a file at `now`. `doing` tells what a thread
    /// does; those that are `awaited` are looked at again.
    pub(super) fn are_awaited(
        &self,
        inode: InodeId,
        but: u32,
        now: Instant,
        awaited: &mut Awaited,
        doing: impl Fn(u32) -> Doing,
    ) -> bool {
        if self.count.load(Ordering::SeqCst) == 0 {
            return false;
        }
        let awaits = |read: &&Short| {
            read.inode == inode && read.begun <= awaited.since && !read.is_over(now)
        };
        let of_file: Vec<Short> = self.reads.lock().iter().filter(awaits).copied().collect();
        let mut threads = Vec::new();
        let mut last = None;
        for read in &of_file {
            match read.state {
                State::Owed if read.thread != but || but == 0 => return true,
                State::Owed => {}
                State::Answered(answered) => {
                    threads.push((read.thread, answered, Named::Yes));
                    last = Some(answered);
                }
                State::Left(answered) => last = Some(answered),
            }
        }
        if let Some(answered) = last {
            let beside = self.who_asked(inode, answered.asked).into_iter();
            threads.extend(beside.map(|thread| (thread, answered, Named::No)));
        }
        threads.retain(|(thread, ..)| *thread != but || but == 0);
        let mut waits = false;
        for (thread, answered, named) in threads {
            let since = now.saturating_duration_since(answered.at);
            // Each of them: it is looked at from now on.
            waits |= !awaited.has_run(thread, since, named, &doing);
        }
        waits
    }

    /// Threads that asked for something of a file last, before so many requests had come.
    fn who_asked(&self, inode: InodeId, before: usize) -> Vec<u32> {
        let next = self.next.load(Ordering::Relaxed);
        let since = next.wrapping_sub(before);
        let (mut threads, mut found) = (Vec::new(), Vec::new());
        for back in 1..=ASKED {
            let one = self.asked[next.wrapping_sub(back) % ASKED].load(Ordering::Relaxed);
            let thread = one as u32;
            if thread == 0 || threads.contains(&thread) {
                continue;
            }
            threads.push(thread);
            if one == asked(inode, thread) && back > since {
                found.push(thread);
            }
        }
        found
    }
}

/// Drops the first reads, as far as nobody waits for them any more.
fn drop_over(reads: &mut VecDeque<Short>, now: Instant) {
    while reads.front().is_some_and(|read| read.is_over(now)) {
        reads.pop_front();
    }
}

fn asked(inode: InodeId, thread: u32) -> u64 {
    (mixed(inode) as u64) << 32 | u64::from(thread)
}

impl Short {
    fn is_over(&self, now: Instant) -> bool {
        match self.state {
            State::Owed => false,
            State::Answered(answered) | State::Left(answered) => {
                now.saturating_duration_since(answered.at) >= TAKEN_IN_MAX
            }
        }
    }
}

impl Awaited {
    /// It is waited from now on.
    pub(super) const fn since(since: Instant) -> Self {
        let ran = Vec::new();
        Self { since, ran }
    }

    /// Whether a thread has run since it was woken `since` ago, as far as can be told.
    fn has_run(
        &mut self,
        thread: u32,
        since: Duration,
        named: Named,
        doing: impl Fn(u32) -> Doing,
    ) -> bool {
        match (doing(thread), named) {
            (Doing::Sleeps, _) => true,
            // Who is woken is to run: another waits for something else, or for the one who is named.
            (Doing::Waits, Named::No) => true,
            (Doing::Waits, Named::Yes) | (Doing::Unknown, _) => since >= TAKEN_IN,
            (Doing::Runs(now), _) => match self.ran.iter().find(|(of, _)| *of == thread) {
                Some((_, first)) => now != *first || since >= TAKEN_IN_MAX,
                None => {
                    self.ran.push((thread, now));
                    since >= TAKEN_IN_MAX
                }
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: InodeId = InodeId(7);
    const OTHER: InodeId = InodeId(8);
    /// Threads that have read, and one that tells of a longer file.
    const READER: u32 = 11;
    const BESIDE: u32 = 12;
    const TELLS: u32 = 13;

    struct Looks {
        reads: ShortReads,
        awaited: Awaited,
        begun: Instant,
    }

    impl Looks {
        fn new() -> Self {
            let begun = Instant::now();
            Self {
                reads: ShortReads::default(),
                awaited: Awaited::since(begun),
                begun,
            }
        }

        fn waits(&mut self, after: Duration, doing: impl Fn(u32) -> Doing) -> bool {
            let now = self.begun + after;
            let awaited = &mut self.awaited;
            self.reads.are_awaited(FILE, TELLS, now, awaited, doing)
        }

        fn asks(&self, inode: InodeId, thread: u32) {
            self.reads.asks(inode, thread, || self.begun);
        }
    }

    const SOON: Duration = Duration::from_millis(1);

    #[test]
    fn an_answer_that_ends_early_is_waited_for_until_its_thread_has_run() {
        let mut looks = Looks::new();
        assert!(!looks.waits(SOON, |_| Doing::Runs(5)));
        looks.asks(FILE, READER);
        looks.reads.begins(FILE, READER, looks.begun);
        assert!(looks.waits(SOON, |_| Doing::Sleeps), "it was not given");
        looks.reads.answered(FILE, READER, looks.begun);
        assert!(looks.waits(SOON, |_| Doing::Runs(5)));
        assert!(looks.waits(SOON, |_| Doing::Runs(5)));
        assert!(!looks.waits(SOON, |_| Doing::Runs(6)), "it ran");
        assert!(!looks.waits(SOON, |_| Doing::Sleeps));
        assert!(looks.waits(SOON, |_| Doing::Unknown));
        assert!(!looks.waits(TAKEN_IN, |_| Doing::Unknown));
        assert!(!looks.waits(TAKEN_IN_MAX, |_| Doing::Runs(5)));
        looks.asks(OTHER, READER);
        assert!(!looks.waits(SOON, |_| Doing::Unknown), "it goes on");
    }

    #[test]
    fn who_waited_for_the_same_page_is_waited_for_and_nobody_else() {
        let mut looks = Looks::new();
        for (inode, thread) in [(FILE, READER), (FILE, BESIDE), (FILE, TELLS), (OTHER, 14)] {
            looks.asks(inode, thread);
        }
        looks.reads.begins(FILE, READER, looks.begun);
        looks.reads.answered(FILE, READER, looks.begun);
        let only = |thread| {
            move |of| match of == thread {
                true => Doing::Runs(5),
                false => Doing::Sleeps,
            }
        };
        assert!(looks.waits(SOON, only(BESIDE)));
        assert!(!looks.waits(SOON, only(14)));
        assert!(!looks.waits(SOON, only(TELLS)));
        looks.asks(OTHER, READER);
        assert!(looks.waits(SOON, only(BESIDE)), "another has gone on");
        assert!(!looks.waits(SOON, |_| Doing::Waits), "for a lock");
        looks.asks(FILE, 15);
        assert!(!looks.waits(SOON, only(15)), "it asked after that");
        looks.asks(OTHER, BESIDE);
        assert!(!looks.waits(SOON, only(BESIDE)));
    }

    #[test]
    fn who_begins_to_read_after_the_wait_began_is_not_waited_for() {
        let mut looks = Looks::new();
        let later = looks.begun + SOON;
        looks.asks(FILE, READER);
        looks.reads.begins(FILE, READER, later);
        assert!(!looks.waits(SOON, |_| Doing::Runs(5)));
        looks.awaited = Awaited::since(later);
        assert!(looks.waits(SOON, |_| Doing::Runs(5)));
        // Of threads that cannot be told apart none is taken for the one that tells.
        let reads = ShortReads::default();
        reads.begins(FILE, 0, looks.begun);
        reads.answered(FILE, 0, looks.begun);
        reads.asks(FILE, 0, || looks.begun);
        let awaited = &mut Awaited::since(later);
        assert!(reads.are_awaited(FILE, 0, later, awaited, |_| Doing::Unknown));
    }

    #[test]
    fn no_more_reads_are_remembered_than_there_is_room_for() {
        let reads = ShortReads::default();
        for number in 0..2 * READS as u64 {
            reads.begins(InodeId(100 + number), READER, Instant::now());
        }
        assert_eq!(reads.reads.lock().len(), READS);
    }
}
