//! What goes wrong: at random, and aimed at hosts that have just prepared or decided something.

use super::Mark;
use super::world::{Event, Names};
use crate::chaos::JUMP_US;
use crate::clock::Drift;
use crate::network::Network;
use crate::numbered::{Dice, Kind, Numbered};
use crate::strike::{ControlStore, Strike, Way, number_lasting};
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

    /// Sets the network's lasting faults, which are strikes, too.
    pub(crate) fn spoil(net: &mut Network, rng: &mut Rng, numbered: &mut Numbered) {
        net.loss = [0, 0, 10, 50][rng.below(4) as usize];
        net.repeat = [0, 30, 200][rng.below(3) as usize];
        net.tail = [0, 0, 20, 80][rng.below(4) as usize];
        net.tail_us = [200_000, 2_000_000, 5_000_000][rng.below(3) as usize];
        net.base_us = [100, 500, 5_000][rng.below(3) as usize];
        number_lasting(net, numbered);
    }
}

impl Names {
    /// A strike, and the next one's time.
    pub(super) fn wreak(&mut self) {
        if self.calm {
            return;
        }
        let mut dice = self.numbered.by_clock();
        let rng = &mut dice.rng;
        let pause = self.chaos.pause_us / 4 + rng.below(self.chaos.pause_us * 2);
        self.after(pause, Event::Chaos);
        let strike = self.any_strike(rng);
        self.strike(&dice, strike);
    }

    fn any_strike(&self, rng: &mut Rng) -> Strike {
        let (host, other) = (self.any_host(rng), self.any_host(rng));
        if self.drift == Drift::Beyond && rng.chance(1, 6) {
            return Strike::ClockJumps(host, rng.below(JUMP_US));
        }
        match rng.below(16) {
            0..=2 => Strike::Kill(host),
            3 => Strike::KillAll,
            4 | 5 => Strike::CutOff(host, cut_from_store(rng)),
            6 | 7 if rng.chance(1, 2) => Strike::CutPair(host, other, Way::Both),
            6 | 7 => Strike::CutPair(host, other, Way::Out),
            8..=11 => Strike::Heal,
            12 => {
                let most = 20_000 + rng.below(300_000);
                let slow = self.hosts[host].slow_disk_us == 0;
                Strike::Slow(host, slow.then_some(most))
            }
            13 => Strike::FailWrite(host),
            14 => Strike::StoreAway(rng.below(6 * SECOND)),
            _ => Strike::Pause(host, rng.below(4 * SECOND)),
        }
    }

    fn any_host(&self, rng: &mut Rng) -> usize {
        rng.below(self.hosts.len() as u64) as usize
    }

    /// A host has taken a step of a transaction: a good moment.
    pub(super) fn aim_at_transaction(&mut self, host: usize) {
        if self.calm {
            return;
        }
        let mut dice = self.numbered.aimed();
        let rng = &mut dice.rng;
        if !rng.chance(self.chaos.aim, 1_000) {
            return;
        }
        let other = self.any_host(rng);
        let most = [2_000, 50_000][rng.below(2) as usize];
        let soon = rng.below(most);
        let strike = match rng.below(6) {
            0 | 1 => Strike::KillSoon(host, soon),
            2 => Strike::KillSoon(other, soon),
            3 => Strike::CutOff(host, cut_from_store(rng)),
            4 => Strike::CutPair(host, other, Way::Out),
            _ => Strike::Heal,
        };
        self.strike(&dice, strike);
    }

    /// An owner's chain has changed, and it has not begun the new epoch: a good moment to cut it off from its members.
    pub(super) fn aim_at_change(&mut self, owner: usize) {
        if self.calm {
            return;
        }
        let mut dice = self.numbered.at_change();
        if dice.rng.chance(self.chaos.aim, 1_000) {
            let store = cut_from_store(&mut dice.rng);
            self.strike(&dice, Strike::CutOff(owner, store));
        }
    }

    /// An owner begins a new epoch, and its own sessions keep names: others may change them while it is cut off.
    pub(super) fn aim_at_kept(&mut self, owner: usize) {
        if self.calm {
            return;
        }
        let mut dice = self.numbered.rare();
        if dice.rng.chance(1, 2) {
            let strike = Strike::CutOff(owner, ControlStore::CutOff);
            self.strike(&dice, strike);
        }
    }

    /// A lease is on its way to another host, which may not hear that it ends.
    pub(super) fn aim_at_lease(&mut self, host: usize, other: usize) {
        if self.calm {
            return;
        }
        let mut dice = self.numbered.aimed();
        if dice.rng.chance(3 * self.chaos.aim, 1_000) {
            self.strike(&dice, Strike::CutPair(host, other, Way::Out));
        }
    }

    /// Lets a strike take place, unless it is left out.
    fn strike(&mut self, dice: &Dice, strike: Strike) {
        let name = (Kind::Strike, dice.number);
        let what = || strike.to_string();
        if !self.numbered.takes_place(name, self.now, what) {
            return;
        }
        self.log(1_000 + dice.number, 0, || {
            format!("-- strike {}: {strike}", dice.number)
        });
        match strike {
            Strike::Kill(host) => self.kill(host),
            Strike::KillSoon(host, after) => {
                let life = self.hosts[host].incarnation;
                self.after(after, Event::Kill { host, life });
            }
            Strike::KillAll => (0..self.hosts.len()).for_each(|host| self.kill(host)),
            Strike::CutOff(host, store) => self.net.isolate(host, store),
            Strike::CutPair(a, b, way) => self.net.cut_pair(a, b, way),
            Strike::Heal => self.net.heal(),
            Strike::StoreAway(span) => {
                let until = self.now + span;
                for store in self.stores.values_mut() {
                    store.away_until = until;
                }
            }
            Strike::Pause(host, span) => self.pause(host, span),
            Strike::Slow(host, most) => self.hosts[host].slow_disk_us = most.unwrap_or(0),
            Strike::FailWrite(host) => self.hosts[host].fail_next_write = true,
            Strike::ClockJumps(host, span) => {
                self.note(Mark::ClockJump);
                self.hosts[host].clock.jump(span);
                if self.hosts[host].run.is_some() {
                    self.containers()
                        .into_iter()
                        .for_each(|container| self.wake(host, container));
                }
            }
            // The rest lasts, or is about bytes and joiners, of which this world has none.
            _ => {}
        }
    }

    fn pause(&mut self, host: usize, span: u64) {
        if self.hosts[host].run.is_some() {
            self.hosts[host].paused_until = self.now + span;
        }
    }
}

fn cut_from_store(rng: &mut Rng) -> ControlStore {
    match rng.below(3) {
        0 => ControlStore::CutOff,
        _ => ControlStore::Reached,
    }
}
