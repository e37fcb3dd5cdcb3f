//! Objects that are not the models: plain data under plain code.

use perigee_history::model::{lock, log, names, register};
use perigee_history::{Client, Model};
use perigee_types::Rng;
use std::collections::BTreeMap;

/// An object, with what its clients know of it.
pub trait Real: Default {
    /// What it is an example of.
    type Model: Model;

    fn model() -> Self::Model;

    /// What a client does next.
    fn draw(&mut self, client: Client, rng: &mut Rng) -> Op<Self>;

    /// Does it.
    fn act(&mut self, client: Client, op: &Op<Self>) -> Answer<Self>;

    /// The client hears of it.
    fn told(&mut self, _: Client, _: &Op<Self>, _: &Answer<Self>) {}

    /// Another answer.
    fn other(answer: &Answer<Self>, rng: &mut Rng) -> Answer<Self>;
}

pub type Op<R> = <<R as Real>::Model as Model>::Op;
pub type Answer<R> = <<R as Real>::Model as Model>::Answer;

#[derive(Default)]
pub struct TheRegisters {
    values: BTreeMap<u32, u64>,
    last: u64,
}

impl Real for TheRegisters {
    type Model = register::Registers;

    fn model() -> register::Registers {
        register::Registers
    }

    fn draw(&mut self, _: Client, rng: &mut Rng) -> register::Op {
        let key = rng.below(2) as u32;
        if rng.chance(1, 2) {
            return register::Op::Read(key);
        }
        self.last += 1;
        register::Op::Write(key, self.last)
    }

    fn act(&mut self, _: Client, op: &register::Op) -> register::Answer {
        match *op {
            register::Op::Read(key) => {
                register::Answer::Value(self.values.get(&key).copied().unwrap_or(0))
            }
            register::Op::Write(key, value) => {
                self.values.insert(key, value);
                register::Answer::Written
            }
        }
    }

    fn other(answer: &register::Answer, rng: &mut Rng) -> register::Answer {
        match answer {
            register::Answer::Value(value) => {
                register::Answer::Value((value + 1 + rng.below(3)) % 5)
            }
            register::Answer::Written => register::Answer::Value(9),
        }
    }
}

#[derive(Default)]
pub struct TheLog {
    rows: Vec<u64>,
    last: u64,
}

impl Real for TheLog {
    type Model = log::Log;

    fn model() -> log::Log {
        log::Log
    }

    fn draw(&mut self, _: Client, rng: &mut Rng) -> log::Op {
        if rng.chance(1, 3) {
            return log::Op::Read;
        }
        self.last += 1;
        log::Op::Append(self.last)
    }

    fn act(&mut self, _: Client, op: &log::Op) -> log::Answer {
        match op {
            log::Op::Read => log::Answer::All(self.rows.clone()),
            log::Op::Append(number) => {
                self.rows.push(*number);
                log::Answer::At(self.rows.len() - 1)
            }
        }
    }

    fn other(answer: &log::Answer, rng: &mut Rng) -> log::Answer {
        match answer {
            log::Answer::At(place) => log::Answer::At((place + 1 + rng.below(2) as usize) % 4),
            log::Answer::All(all) if all.len() > 1 && rng.chance(1, 2) => {
                let mut all = all.clone();
                all.swap(0, 1);
                log::Answer::All(all)
            }
            log::Answer::All(all) => {
                let mut all = all.clone();
                if all.pop().is_none() {
                    all.push(1);
                }
                log::Answer::All(all)
            }
        }
    }
}

#[derive(Default)]
pub struct TheLocks {
    holder: Option<Client>,
    count: u64,
    /// What each client that holds the lock does next, and the counter that it read.
    inside: BTreeMap<Client, Inside>,
}

#[derive(Clone, Copy)]
enum Inside {
    Reads,
    Writes(u64),
    Gives,
}

impl Real for TheLocks {
    type Model = lock::Locks;

    fn model() -> lock::Locks {
        lock::Locks
    }

    fn draw(&mut self, client: Client, _: &mut Rng) -> lock::Op {
        let act = match self.inside.get(&client) {
            None => lock::Act::Take,
            Some(Inside::Reads) => lock::Act::Read,
            Some(Inside::Writes(seen)) => lock::Act::Write(seen + 1),
            Some(Inside::Gives) => lock::Act::Give,
        };
        lock::Op {
            key: 1,
            by: client,
            act,
        }
    }

    fn act(&mut self, client: Client, op: &lock::Op) -> lock::Answer {
        match op.act {
            lock::Act::Take => match self.holder {
                Some(holder) if holder != client => lock::Answer::Busy,
                _ => {
                    self.holder = Some(client);
                    lock::Answer::Done
                }
            },
            lock::Act::Give => {
                self.holder = self.holder.filter(|holder| *holder != client);
                lock::Answer::Done
            }
            lock::Act::Read => lock::Answer::Value(self.count),
            lock::Act::Write(count) => {
                self.count = count;
                lock::Answer::Done
            }
        }
    }

    fn told(&mut self, client: Client, op: &lock::Op, answer: &lock::Answer) {
        match (op.act, answer) {
            (lock::Act::Take, lock::Answer::Done) => {
                self.inside.insert(client, Inside::Reads);
            }
            (lock::Act::Read, lock::Answer::Value(seen)) => {
                self.inside.insert(client, Inside::Writes(*seen));
            }
            (lock::Act::Write(_), _) => {
                self.inside.insert(client, Inside::Gives);
            }
            (lock::Act::Give, _) => {
                self.inside.remove(&client);
            }
            _ => {}
        }
    }

    fn other(answer: &lock::Answer, rng: &mut Rng) -> lock::Answer {
        match answer {
            lock::Answer::Done => lock::Answer::Busy,
            lock::Answer::Busy => lock::Answer::Done,
            lock::Answer::Value(value) => lock::Answer::Value((value + 1 + rng.below(2)) % 4),
        }
    }
}

const ROOT: names::Inode = 1;

pub struct TheNames {
    entries: BTreeMap<(names::Inode, Vec<u8>), names::Inode>,
    made: names::Inode,
}

impl Default for TheNames {
    fn default() -> Self {
        Self {
            entries: BTreeMap::new(),
            made: ROOT,
        }
    }
}

impl TheNames {
    fn has_names(&self, inode: names::Inode) -> bool {
        self.entries.keys().any(|(dir, _)| *dir == inode)
    }
}

fn key(place: &names::Place) -> (names::Inode, Vec<u8>) {
    (place.dir, place.name.clone())
}

impl Real for TheNames {
    type Model = names::Names;

    fn model() -> names::Names {
        names::Names { root: ROOT }
    }

    fn draw(&mut self, _: Client, rng: &mut Rng) -> names::Op {
        let mut place = || names::Place {
            dir: ROOT,
            name: vec![b'a' + rng.below(3) as u8],
        };
        let (one, two) = (place(), place());
        let how = [
            names::Move::Replace,
            names::Move::NoReplace,
            names::Move::Exchange,
        ];
        match rng.below(8) {
            0..=2 => {
                self.made += 1;
                // Now and then a second name of what is there.
                let inode = self.made - rng.below(2).min(self.made - ROOT - 1);
                names::Op::Add(one, inode)
            }
            3 => names::Op::Remove(one),
            4 | 5 => names::Op::Rename(one, two, how[rng.below(3) as usize]),
            _ => names::Op::Find(one),
        }
    }

    fn act(&mut self, _: Client, op: &names::Op) -> names::Answer {
        use names::Answer;
        match op {
            names::Op::Add(place, inode) => {
                if self.entries.contains_key(&key(place)) {
                    return Answer::Exists;
                }
                self.entries.insert(key(place), *inode);
                Answer::Done
            }
            names::Op::Remove(place) => match self.entries.get(&key(place)).copied() {
                None => Answer::Missing,
                Some(inode) if self.has_names(inode) => Answer::NotEmpty,
                Some(_) => {
                    self.entries.remove(&key(place));
                    Answer::Done
                }
            },
            names::Op::Rename(from, to, how) => {
                let Some(moved) = self.entries.get(&key(from)).copied() else {
                    return Answer::Missing;
                };
                let there = self.entries.get(&key(to)).copied();
                match how {
                    names::Move::NoReplace if there.is_some() => return Answer::Exists,
                    names::Move::Exchange => match there {
                        None => return Answer::Missing,
                        Some(there) => {
                            self.entries.insert(key(from), there);
                        }
                    },
                    _ if there == Some(moved) => return Answer::Done,
                    _ => {
                        self.entries.remove(&key(from));
                    }
                }
                self.entries.insert(key(to), moved);
                Answer::Done
            }
            names::Op::Find(place) => self
                .entries
                .get(&key(place))
                .map_or(Answer::Missing, |inode| Answer::Is(*inode)),
        }
    }

    fn other(answer: &names::Answer, rng: &mut Rng) -> names::Answer {
        use names::Answer;
        match answer {
            Answer::Is(inode) if rng.chance(1, 2) => Answer::Is(inode + 1),
            Answer::Missing => Answer::Is(ROOT + 1 + rng.below(3)),
            Answer::Is(_) | Answer::Exists | Answer::NotEmpty => Answer::Missing,
            Answer::Done if rng.chance(1, 2) => Answer::Exists,
            Answer::Done | Answer::DoneOrSame => Answer::Missing,
        }
    }
}
