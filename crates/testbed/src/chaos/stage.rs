//! What is going on: which nodes are struck, what each program is at and since when, and the first broken promise.

use super::HANG;
use crate::error::{CheckError, Checked};
use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Shared by the nemesis and all programs.
#[derive(Debug)]
pub struct Stage {
    scene: Mutex<Scene>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Scene {
    nodes: BTreeMap<u32, Seat>,
    /// Strikes that leave no room somewhere, now or a moment ago.
    scarce: bool,
    /// When the last such strike began or ended.
    scarce_at: Option<Instant>,
    over: bool,
    broken: Option<CheckError>,
}

#[derive(Debug, Default)]
struct Seat {
    /// Rises with each strike on this node: what was begun before and ended after may have failed rightly.
    strikes: u64,
    /// Its node has had to leave with work that was not synced, though no program was stopped for it.
    left: bool,
    struck: bool,
    doing: Option<(Instant, &'static str)>,
    /// The longest call that ended since the pauses were asked for, in which the node was not struck.
    longest: Duration,
}

/// A program's right to one step.
#[derive(Debug, Clone, Copy)]
pub struct Turn {
    node: u32,
    strikes: u64,
    /// There may have been no room when the step began: what asked for some then may be refused late.
    scarce: bool,
}

impl Turn {
    /// The strikes on the node when the step began.
    pub const fn strikes(self) -> u64 {
        self.strikes
    }
}

/// How a step that failed is to be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Excuse {
    /// Its node was struck.
    Struck,
    /// There is no room, and that is the strike.
    NoRoom,
    /// Its node slept before, or its disk or another one was full, and it may have lost work that was not synced: `fsync` tells
    /// so once for each file, `close`, and `msync`, with which a store into a map ends.
    Told,
    /// There is none: a promise is broken.
    None,
}

/// After a disk was full programs hear for so long of what it refused: at the next `fsync`.
const TELLS: Duration = Duration::from_secs(60);

impl Scene {
    fn tells_of_room(&self) -> bool {
        self.scarce || self.scarce_at.is_some_and(|at| at.elapsed() < TELLS)
    }
}

impl Stage {
    /// Nobody is struck.
    pub fn new(nodes: impl Iterator<Item = u32>) -> Self {
        Self {
            scene: Mutex::new(Scene {
                nodes: nodes.map(|id| (id, Seat::default())).collect(),
                ..Scene::default()
            }),
            changed: Condvar::new(),
        }
    }

    fn scene(&self) -> MutexGuard<'_, Scene> {
        self.scene.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the node may be used. `None`: the campaign is over.
    pub fn turn(&self, node: u32) -> Option<Turn> {
        let mut scene = self.scene();
        loop {
            if scene.over || scene.broken.is_some() {
                return None;
            }
            let scarce = scene.scarce;
            let seat = scene.nodes.entry(node).or_default();
            if !seat.struck {
                let strikes = seat.strikes;
                return Some(Turn {
                    node,
                    strikes,
                    scarce,
                });
            }
            scene = self
                .changed
                .wait(scene)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The strikes on a node up to now.
    pub fn strikes_on(&self, node: u32) -> u64 {
        self.scene().nodes.get(&node).map_or(0, |seat| seat.strikes)
    }

    /// Runs one call of a program, whose time counts.
    pub fn call<T>(&self, turn: Turn, what: &'static str, call: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        self.scene().nodes.entry(turn.node).or_default().doing = Some((began, what));
        let result = call();
        let mut scene = self.scene();
        let seat = scene.nodes.entry(turn.node).or_default();
        seat.doing = None;
        if !seat.struck && seat.strikes == turn.strikes {
            seat.longest = seat.longest.max(began.elapsed());
        }
        result
    }

    /// Why a step of this turn may have failed.
    pub fn excuse(&self, turn: Turn, call: &str, error: &std::io::Error) -> Excuse {
        let scene = self.scene();
        let seat = scene.nodes.get(&turn.node);
        let strikes = seat.map_or(0, |seat| seat.strikes);
        let loses = strikes > 0 || seat.is_some_and(|seat| seat.left);
        let tells = ["fsync", "store", "close"]
            .iter()
            .any(|word| call.starts_with(word));
        // Who reads needs no room.
        let is_full = error.kind() == std::io::ErrorKind::StorageFull && !call.starts_with("read");
        if strikes != turn.strikes {
            Excuse::Struck
        } else if tells
            && ((loses && error.raw_os_error() == Some(libc::EIO))
                || (scene.tells_of_room() && is_full))
        {
            Excuse::Told
        } else if (scene.scarce || turn.scarce) && is_full {
            Excuse::NoRoom
        } else {
            Excuse::None
        }
    }

    /// A program found a broken promise. The first one counts.
    pub fn broken(&self, error: CheckError) {
        self.scene().broken.get_or_insert(error);
        self.changed.notify_all();
    }

    /// Nodes are about to be struck.
    pub fn strike(&self, nodes: &[u32]) {
        let mut scene = self.scene();
        for node in nodes {
            let seat = scene.nodes.entry(*node).or_default();
            seat.struck = true;
            seat.strikes += 1;
        }
    }

    /// A node may have to leave with work of its programs that was not synced.
    pub fn leaves(&self, node: u32) {
        self.scene().nodes.entry(node).or_default().left = true;
    }

    /// Nodes can be used again.
    pub fn heal(&self, nodes: &[u32]) {
        let mut scene = self.scene();
        for node in nodes {
            scene.nodes.entry(*node).or_default().struck = false;
        }
        drop(scene);
        self.changed.notify_all();
    }

    /// Whether there may be no room.
    pub fn scarce(&self, scarce: bool) {
        let mut scene = self.scene();
        scene.scarce = scarce;
        scene.scarce_at = Some(Instant::now());
    }

    /// Whether what was answered early may be refused, since a disk may be full.
    pub fn may_refuse(&self) -> bool {
        self.scene().scarce_at.is_some()
    }

    /// Whether a program of a node may find that work is lost which it has not synced, though its node was not struck.
    pub fn has_left(&self, node: u32) -> bool {
        self.scene().nodes.get(&node).is_some_and(|seat| seat.left)
    }

    /// Waits, and looks at the programs meanwhile.
    ///
    /// Errors: a broken promise, or a call that hangs.
    pub fn watch(&self, time: Duration) -> Checked {
        let until = Instant::now() + time;
        loop {
            self.verdict()?;
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(Duration::from_millis(50)));
        }
    }

    /// What the programs have found.
    ///
    /// Errors: as [`Stage::watch`].
    pub fn verdict(&self) -> Checked {
        let mut scene = self.scene();
        if let Some(error) = scene.broken.take() {
            return Err(error);
        }
        for (node, seat) in &scene.nodes {
            if let Some((since, what)) = seat.doing
                && !seat.struck
                && since.elapsed() > HANG
            {
                return Err(CheckError::Deadline {
                    what: format!("{what} on n{node}, which is not struck"),
                    waited: since.elapsed(),
                });
            }
        }
        Ok(())
    }

    /// The longest call since this was asked last, of nodes that were not struck; calls that go on count.
    pub fn longest(&self) -> Duration {
        let mut scene = self.scene();
        let longest = scene.nodes.values_mut().map(|seat| {
            let now = match seat.doing {
                Some((since, _)) if !seat.struck => since.elapsed(),
                _ => Duration::ZERO,
            };
            std::mem::take(&mut seat.longest).max(now)
        });
        longest.max().unwrap_or_default()
    }

    /// The programs end after the step that each is at.
    pub fn end(&self) {
        self.scene().over = true;
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    #[test]
    fn only_a_strike_excuses() {
        let stage = Stage::new([1, 2].into_iter());
        let (one, two) = (stage.turn(1).unwrap(), stage.turn(2).unwrap());
        stage.strike(&[1]);
        assert_ne!(one.strikes(), stage.strikes_on(1), "the step began before");
        let full = io::Error::from(io::ErrorKind::StorageFull);
        assert_eq!(stage.excuse(one, "write", &full), Excuse::Struck);
        assert_eq!(stage.excuse(two, "write", &full), Excuse::None);
        stage.scarce(true);
        assert_eq!(stage.excuse(two, "write", &full), Excuse::NoRoom);
        assert_eq!(stage.excuse(two, "read", &full), Excuse::None);
        let other = io::Error::from(io::ErrorKind::NotConnected);
        assert_eq!(stage.excuse(two, "write", &other), Excuse::None);
        stage.heal(&[1]);
        assert_eq!(stage.excuse(one, "write", &other), Excuse::Struck);
        let again = stage.turn(1).unwrap();
        assert_eq!(stage.excuse(again, "write", &other), Excuse::None);
        let lost = io::Error::from_raw_os_error(libc::EIO);
        assert_eq!(stage.excuse(again, "write", &lost), Excuse::None);
        assert_eq!(stage.excuse(again, "fsync", &lost), Excuse::Told);
        assert_eq!(stage.excuse(two, "fsync", &lost), Excuse::None);
        assert_eq!(stage.excuse(two, "fsync", &full), Excuse::Told);
        stage.scarce(false);
        assert_eq!(stage.excuse(two, "fsync", &full), Excuse::Told);
        assert_eq!(stage.excuse(two, "write", &full), Excuse::None);
        stage.scarce(true);
        let late = stage.turn(2).unwrap();
        stage.scarce(false);
        assert_eq!(stage.excuse(late, "write", &full), Excuse::NoRoom);
        stage.leaves(2);
        assert_eq!(stage.excuse(two, "fsync", &lost), Excuse::Told);
        assert_eq!(stage.excuse(two, "write", &lost), Excuse::None);
    }

    #[test]
    fn the_first_broken_promise_ends_the_campaign() {
        let stage = Stage::new([1].into_iter());
        stage.broken(CheckError::violated("first"));
        stage.broken(CheckError::violated("second"));
        assert!(stage.turn(1).is_none());
        let found = stage.watch(Duration::from_secs(9)).unwrap_err();
        assert_eq!(found.to_string(), "first");
    }
}
