//! What is written, and where: random bytes at random places.

use perigee_testbed::pattern;
use perigee_types::Rng;

const MIB: usize = 1 << 20;
/// Random bytes that writes take their content from, at changing places: nothing may gain by equal blocks.
const POOL: usize = 4 * MIB;

/// A source of content and of places.
#[derive(Debug)]
pub(crate) struct Content {
    pool: Vec<u8>,
    rng: Rng,
}

impl Content {
    pub(crate) fn new(seed: u64) -> Self {
        let mut pool = vec![0; POOL];
        pattern::fill(77, 0, &mut pool);
        Self {
            pool,
            rng: Rng::new(seed),
        }
    }

    /// The next so many bytes.
    pub(crate) fn next(&mut self, bytes: usize) -> &[u8] {
        self.next_with_place(bytes).1
    }

    /// The same, and what [`Content::at`] gives them for.
    pub(crate) fn next_with_place(&mut self, bytes: usize) -> (usize, &[u8]) {
        let at = self.rng.below((POOL - bytes) as u64) as usize;
        (at, &self.pool[at..at + bytes])
    }

    /// What [`Content::next_with_place`] has given.
    pub(crate) fn at(&self, place: usize, bytes: usize) -> &[u8] {
        &self.pool[place..place + bytes]
    }

    /// The numbers below `count` in random order (Fisher and Yates).
    pub(crate) fn order(&mut self, count: u64) -> Vec<u64> {
        let mut order: Vec<u64> = (0..count).collect();
        for last in (1..order.len()).rev() {
            order.swap(last, self.rng.below(last as u64 + 1) as usize);
        }
        order
    }

    pub(crate) fn coin(&mut self) -> bool {
        self.rng.chance(1, 2)
    }
}
