//! What the network does to a message: cut, lose, repeat, delay. Reordering follows from delay.

use crate::strike::{ControlStore, Way};
use perigee_types::Rng;

/// The network's state, and the seed's taste in faults.
#[derive(Debug)]
pub struct Network {
    /// `cut[from][to]`.
    pub cut: Vec<Vec<bool>>,
    /// Cut from the control store.
    pub store_cut: Vec<bool>,
    /// In 1,000.
    pub loss: u64,
    /// In 1,000.
    pub repeat: u64,
    /// In 1,000: a message that takes up to `tail_us`.
    pub tail: u64,
    /// The longest delay.
    pub tail_us: u64,
    /// The shortest delay.
    pub base_us: u64,
}

impl Network {
    /// A network without faults.
    #[must_use]
    pub fn healthy(nodes: usize) -> Self {
        Self {
            cut: vec![vec![false; nodes]; nodes],
            store_cut: vec![false; nodes],
            loss: 0,
            repeat: 0,
            tail: 0,
            tail_us: 0,
            base_us: 200,
        }
    }

    /// Mends everything.
    pub fn heal(&mut self) {
        for row in &mut self.cut {
            row.fill(false);
        }
        self.store_cut.fill(false);
    }

    /// Cuts a host off from all others.
    pub(crate) fn isolate(&mut self, host: usize, store: ControlStore) {
        self.cut_one_way(host, Way::Both);
        self.store_cut[host] = store == ControlStore::CutOff;
    }

    /// Cuts a host's links to all others.
    pub(crate) fn cut_one_way(&mut self, host: usize, way: Way) {
        for other in 0..self.cut.len() {
            self.cut_pair(host, other, way);
        }
    }

    /// Cuts a link.
    pub(crate) fn cut_pair(&mut self, a: usize, b: usize, way: Way) {
        self.cut[a][b] |= way != Way::In;
        self.cut[b][a] |= way != Way::Out;
    }

    /// One delay.
    pub fn delay(&self, rng: &mut Rng) -> u64 {
        if rng.chance(self.tail, 1000) {
            // Heavy tail: half of these are below a sixteenth of the longest.
            let shift = rng.below(8);
            return self.base_us + rng.below((self.tail_us >> shift).max(1));
        }
        self.base_us + rng.below(self.base_us * 4)
    }

    /// When copies of a message arrive, as delays; none when it is lost.
    pub fn deliveries(&self, from: usize, to: usize, rng: &mut Rng) -> [Option<u64>; 2] {
        if self.cut[from][to] || rng.chance(self.loss, 1000) {
            return [None, None];
        }
        let second = rng
            .chance(self.repeat, 1000)
            .then(|| self.delay(rng) + self.base_us * 8);
        [Some(self.delay(rng)), second]
    }
}
