//! Which parts of a file's content are kept.

use perigee_types::{ByteRange, InodeIndex, Mutation};
use std::collections::BTreeMap;

use crate::error::Refusal;
use crate::key::Key;
use crate::record::corrupt;
use perigee_types::ContainerId;

/// Content is kept in pieces of this length, at multiples of it: a piece costs a read, a write and later a transfer, so
/// that small writes in one place cost one of them; larger ones would copy more that does not change.
pub const UNIT: u64 = 64 << 10;
/// Units of one row: those of 64 MiB.
const UNITS_PER_CHUNK: u64 = 1_024;
const WORDS: usize = (UNITS_PER_CHUNK / 64) as usize;

/// A set of units of one file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Units {
    chunks: BTreeMap<u64, [u64; WORDS]>,
}

/// The numbers of the units that a range touches.
#[must_use]
pub fn units_of(range: ByteRange) -> std::ops::Range<u64> {
    if range.is_empty() {
        return 0..0;
    }
    range.start / UNIT..range.end.div_ceil(UNIT)
}

impl Units {
    /// Whether it has a unit.
    #[must_use]
    pub fn has(&self, unit: u64) -> bool {
        let (chunk, word, bit) = place(unit);
        self.chunks
            .get(&chunk)
            .is_some_and(|words| words[word] & bit != 0)
    }

    /// Adds a unit; says whether it is new.
    pub fn add(&mut self, unit: u64) -> bool {
        let (chunk, word, bit) = place(unit);
        let words = self.chunks.entry(chunk).or_insert([0; WORDS]);
        let new = words[word] & bit == 0;
        words[word] |= bit;
        new
    }

    /// How many units it has.
    #[must_use]
    pub fn count(&self) -> u64 {
        let words = self.chunks.values().flatten();
        words.map(|word| u64::from(word.count_ones())).sum()
    }

    /// All units, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        self.chunks.iter().flat_map(|(chunk, words)| {
            (0..UNITS_PER_CHUNK)
                .filter(move |at| words[(at / 64) as usize] & (1 << (at % 64)) != 0)
                .map(move |at| chunk * UNITS_PER_CHUNK + at)
        })
    }

    /// The row of the chunk that a unit is of, in the state of the file that has them.
    #[must_use]
    pub fn row(&self, file: InodeIndex, unit: u64) -> Mutation {
        let (chunk, ..) = place(unit);
        let words = self.chunks.get(&chunk);
        Mutation {
            key: Key::KeptUnits(file, chunk).encode(),
            value: words.map(|words| words.iter().flat_map(|word| word.to_le_bytes()).collect()),
        }
    }

    /// Adds what a row has.
    ///
    /// Errors: [`Refusal::Corrupt`] when it is no such row.
    pub fn add_row(
        &mut self,
        container: ContainerId,
        key: &[u8],
        value: &[u8],
    ) -> Result<(), Refusal> {
        let Some(Key::KeptUnits(_, chunk)) = Key::decode(key) else {
            return Err(corrupt(container, key, "not the key of kept units"));
        };
        let (words, []) = value.as_chunks::<8>() else {
            return Err(corrupt(container, key, "not a row of kept units"));
        };
        if words.len() != WORDS || chunk > u64::MAX / UNITS_PER_CHUNK / UNIT {
            return Err(corrupt(container, key, "not a row of kept units"));
        }
        let mine = self.chunks.entry(chunk).or_insert([0; WORDS]);
        for (mine, word) in mine.iter_mut().zip(words) {
            *mine |= u64::from_le_bytes(*word);
        }
        Ok(())
    }
}

/// The number of the row that has a unit.
#[must_use]
pub const fn chunk_row(unit: u64) -> u64 {
    unit / UNITS_PER_CHUNK
}

fn place(unit: u64) -> (u64, usize, u64) {
    let at = unit % UNITS_PER_CHUNK;
    (chunk_row(unit), (at / 64) as usize, 1 << (at % 64))
}
