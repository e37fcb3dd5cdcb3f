//! How much programs of this host do in each container, and how much of it this host answered by itself.
//!
//! What a call does for it is to add to two numbers; rates are made of them in the background, and when somebody asks.
//! What the kernel answers from its cache, or reads from or writes to a local file by itself (passthrough), is not counted here:
//! nobody waits for it.

use parking_lot::{Mutex, RwLock};
use perigee_proto::message::report::{self, Rates, Thousandths};
use perigee_replica::work::Done;
use perigee_types::ContainerId;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What was done so long ago counts 1/e of what is done now.
const MEAN: Duration = Duration::from_secs(60);
/// How often rates are made anew where nobody asks.
pub(crate) const SAMPLE: Duration = Duration::from_secs(1);

/// Who answered a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Served {
    /// This host, which asked nobody.
    Here,
    /// Another one was asked.
    Asked,
}

/// Each kind of call: [`Served`], and within it reads and changes.
const KINDS: usize = 4;

fn kind(served: Served, done: Done) -> usize {
    let served = match served {
        Served::Here => 0,
        Served::Asked => 2,
    };
    let done = match done {
        Done::Read => 0,
        Done::Change => 1,
    };
    served + done
}

#[derive(Debug, Default)]
struct Count {
    calls: AtomicU64,
    bytes: AtomicU64,
}

/// What is done in one container.
#[derive(Debug)]
pub(crate) struct Heat {
    counts: [Count; KINDS],
    lately: Mutex<Lately>,
}

#[derive(Debug)]
struct Lately {
    at: Instant,
    /// Calls and bytes until then, and in a second.
    seen: [(u64, u64); KINDS],
    rates: [(f64, f64); KINDS],
}

impl Heat {
    fn new(now: Instant) -> Self {
        let lately = Lately {
            at: now,
            seen: Default::default(),
            rates: Default::default(),
        };
        Self {
            counts: Default::default(),
            lately: Mutex::new(lately),
        }
    }

    /// A call of a program of this host was served, with so many bytes of content.
    pub(crate) fn note(&self, served: Served, done: Done, bytes: u64) {
        // Each number stands for itself: nothing is read because of what another one says.
        if let Some(count) = self.counts.get(kind(served, done)) {
            count.calls.fetch_add(1, Ordering::Relaxed);
            count.bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    fn sample(&self, now: Instant) -> [(f64, f64); KINDS] {
        let mut lately = self.lately.lock();
        let passed = now.saturating_duration_since(lately.at).as_secs_f64();
        if passed <= 0.0 {
            return lately.rates;
        }
        lately.at = now;
        let weight = 1.0 - (-passed / MEAN.as_secs_f64()).exp();
        let Lately { seen, rates, .. } = &mut *lately;
        for ((count, seen), rate) in self.counts.iter().zip(seen).zip(rates) {
            let calls = count.calls.load(Ordering::Relaxed);
            let bytes = count.bytes.load(Ordering::Relaxed);
            let each = |until: u64, before: u64| until.wrapping_sub(before) as f64 / passed;
            rate.0 += (each(calls, seen.0) - rate.0) * weight;
            rate.1 += (each(bytes, seen.1) - rate.1) * weight;
            *seen = (calls, bytes);
        }
        lately.rates
    }

    /// As people are told it.
    fn told(&self, now: Instant) -> report::Heat {
        let [here_read, here_write, asked_read, asked_write] = self.sample(now);
        let rates = |read: (f64, f64), write: (f64, f64)| Rates {
            reads_per_second: Thousandths::of(read.0),
            writes_per_second: Thousandths::of(write.0),
            read_bytes_per_second: read.1.round() as u64,
            written_bytes_per_second: write.1.round() as u64,
        };
        report::Heat {
            here: rates(here_read, here_write),
            asked: rates(asked_read, asked_write),
        }
    }
}

/// Of all containers that programs of this host have worked in, whoever keeps them.
#[derive(Debug, Default)]
pub(crate) struct Heats(RwLock<BTreeMap<ContainerId, Arc<Heat>>>);

impl Heats {
    /// That of one container. Who has it notes there without a lock.
    pub(crate) fn of(&self, id: ContainerId) -> Arc<Heat> {
        if let Some(heat) = self.0.read().get(&id) {
            return heat.clone();
        }
        let mut all = self.0.write();
        let new = || Arc::new(Heat::new(Instant::now()));
        all.entry(id).or_insert_with(new).clone()
    }

    /// Makes all rates anew.
    pub(crate) fn sample(&self, now: Instant) {
        self.0.read().values().for_each(|heat| _ = heat.sample(now));
    }

    /// Those of the containers in which anything was done lately.
    pub(crate) fn told(&self, now: Instant) -> Vec<(ContainerId, report::Heat)> {
        let all = self.0.read();
        let told = all.iter().map(|(id, heat)| (*id, heat.told(now)));
        told.filter(|(_, heat)| !heat.is_cold()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_steady_rate_is_told_as_it_is_and_forgotten_by_and_by() {
        let began = Instant::now();
        let heat = Heat::new(began);
        let mut now = began;
        for _ in 0..600 {
            now += SECOND;
            (0..50).for_each(|_| heat.note(Served::Here, Done::Read, 4096));
            (0..10).for_each(|_| heat.note(Served::Asked, Done::Change, 100));
            heat.sample(now);
        }
        let told = heat.told(now);
        assert_eq!(told.here.reads_per_second.0, 49_998, "0.05 less at most");
        assert!((999..=1_000).contains(&told.asked.written_bytes_per_second));
        assert_eq!(told.here.writes_per_second, Thousandths(0));
        let share = told.local_calls().map(|share| share.0);
        assert_eq!(share, Some(833), "50 of 60");
        let minute = heat.told(now + 60 * SECOND).here.reads_per_second.0;
        assert!((18_000..19_000).contains(&minute), "a third: {minute}");
        assert!(heat.told(now + 7_200 * SECOND).is_cold());
    }

    #[test]
    fn how_often_somebody_asks_changes_nothing() {
        let began = Instant::now();
        let (often, once) = (Heat::new(began), Heat::new(began));
        for step in 1..=1_000 {
            for heat in [&often, &once] {
                heat.note(Served::Here, Done::Change, 7);
            }
            often.sample(began + step * Duration::from_millis(20));
        }
        let at = began + 20 * SECOND;
        let (often, once) = (often.told(at), once.told(at));
        let [often, once] = [often, once].map(|told| told.here.writes_per_second.0);
        assert!(often.abs_diff(once) <= 2, "{often} {once}");
    }

    #[test]
    fn containers_in_which_nothing_is_done_are_not_told_of() {
        let heats = Heats::default();
        heats.of(ContainerId(1));
        heats.of(ContainerId(2)).note(Served::Asked, Done::Read, 0);
        let told = heats.told(Instant::now() + SECOND);
        let ids: Vec<u32> = told.iter().map(|(id, _)| id.0).collect();
        assert_eq!(ids, [2]);
    }
}
