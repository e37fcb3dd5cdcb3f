//! What goes wrong: at random, and aimed at hosts that have just prepared or decided something.

use super::world::{Event, Names};
use crate::network::Network;
use crate::world::SECOND;
use perigee_types::Rng;

/// What a seed's sessions are fond of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taste {
    /// Nothing.
    Even,
    /// Directories.
    Directories,
}

/// What a seed draws.
#[derive(Debug)]
pub struct Chaos {
    /// The sessions' taste.
    pub taste: Taste,
    /// How long it lasts.
    pub length_us: u64,
    /// The mean pause between two strikes.
    pub pause_us: u64,
    /// In 1,000: how often a step of a transaction draws a strike.
    pub aim: u64,
    /// The longest pause of a session.
    pub think_us: u64,
}

impl Chaos {
    /// Drawn from the seed.
    pub fn new(rng: &mut Rng) -> Self {
        Self {
            taste: [Taste::Even, Taste::Even, Taste::Directories][rng.below(3) as usize],
            length_us: (8 + rng.below(10)) * SECOND,
            pause_us: [600_000, 1_500_000, 4_000_000][rng.below(3) as usize],
            aim: [0, 20, 60][rng.below(3) as usize],
            think_us: [30_000, 150_000, 500_000][rng.below(3) as usize],
        }
    }

    /// Sets the network's lasting faults.
    pub fn spoil(net: &mut Network, rng: &mut Rng) {
        net.loss = [0, 0, 10, 50][rng.below(4) as usize];
        net.repeat = [0, 30, 200][rng.below(3) as usize];
        net.tail = [0, 0, 20, 80][rng.below(4) as usize];
        net.tail_us = [200_000, 2_000_000, 5_000_000][rng.below(3) as usize];
        net.base_us = [100, 500, 5_000][rng.below(3) as usize];
    }
}

impl Names {
    /// A strike, and the next one's time.
    pub(super) fn wreak(&mut self) {
        if self.calm {
            return;
        }
        let pause = self.chaos.pause_us / 4 + self.rng.below(self.chaos.pause_us * 2);
        self.after(pause, Event::Chaos);
        let count = self.hosts.len() as u64;
        let host = self.rng.below(count) as usize;
        let other = self.rng.below(count) as usize;
        match self.rng.below(16) {
            0..=2 => self.kill(host),
            3 => (0..self.hosts.len()).for_each(|host| self.kill(host)),
            4 | 5 => self.isolate(host),
            6 | 7 => {
                self.net.cut[host][other] = true;
                self.net.cut[other][host] = self.rng.chance(1, 2);
                self.log(51, host, || format!("and n{} are cut", other + 1));
            }
            8..=11 => self.net.heal(),
            12 => {
                let slow = self.hosts[host].slow_disk_us == 0;
                let most = 20_000 + self.rng.below(300_000);
                self.hosts[host].slow_disk_us = if slow { most } else { 0 };
            }
            13 => self.hosts[host].fail_next_write = true,
            14 => {
                let until = self.now + self.rng.below(6 * SECOND);
                for store in self.stores.values_mut() {
                    store.away_until = until;
                }
            }
            _ => {
                if self.hosts[host].run.is_some() {
                    self.hosts[host].paused_until = self.now + self.rng.below(4 * SECOND);
                    self.log(52, host, || "is paused".into());
                }
            }
        }
    }

    fn isolate(&mut self, host: usize) {
        self.log(50, host, || "is cut off".into());
        for other in 0..self.hosts.len() {
            self.net.cut[host][other] = true;
            self.net.cut[other][host] = true;
        }
        self.net.store_cut[host] = self.rng.chance(1, 3);
    }

    /// A host has taken a step of a transaction: a good moment.
    pub(super) fn aim_at_transaction(&mut self, host: usize) {
        if self.calm || !self.rng.chance(self.chaos.aim, 1_000) {
            return;
        }
        let other = self.rng.below(self.hosts.len() as u64) as usize;
        let life = self.hosts[host].incarnation;
        let most = [2_000, 50_000][self.rng.below(2) as usize];
        let soon = self.rng.below(most);
        match self.rng.below(6) {
            0 | 1 => self.after(soon, Event::Kill { host, life }),
            2 => {
                let life = self.hosts[other].incarnation;
                self.after(soon, Event::Kill { host: other, life });
            }
            3 => self.isolate(host),
            4 => self.net.cut[host][other] = true,
            _ => self.net.heal(),
        }
    }
}
