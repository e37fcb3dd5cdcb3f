//! What each private file was, and which of that it may be: the book that the programs keep, and that is asked what was found.

use super::{BLOCK, Change, Shape, Whose, below, content_of};
use crate::ensure;
use crate::error::{Call, Checked};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::fs::File;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Steps of the trail.
const TRAIL: usize = 16;
/// Contents that are kept from before the last fsync.
const EARLIER: usize = 24;

/// The contents since the last fsync, that one first.
pub(super) type Moments = Vec<Vec<u8>>;

/// The book of all private files.
#[derive(Debug, Default)]
pub struct PrivateFiles(Mutex<BTreeMap<Whose, Page>>);

/// What the book has of a file.
#[derive(Debug, Default)]
struct Page {
    moments: Moments,
    /// Contents before the last fsync, the latest last, and what was done last: for whoever has to explain what was found.
    earlier: VecDeque<Vec<u8>>,
    trail: VecDeque<Step>,
}

/// One step of the trail, with the bytes that the file has after it.
#[derive(Debug, Clone, Copy)]
pub(super) enum Step {
    Recovered { len: usize },
    Begun { change: Change },
    Changed { len: usize },
    Synced,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Recovered { len } => write!(f, "found with {len}"),
            Self::Begun { change } => write!(f, "{change:?}"),
            Self::Changed { len } => write!(f, "has {len}"),
            Self::Synced => write!(f, "fsync"),
        }
    }
}

impl Page {
    fn remember(&mut self, step: Step) {
        if self.trail.len() == TRAIL {
            self.trail.pop_front();
        }
        self.trail.push_back(step);
    }

    fn becomes(&mut self, content: Vec<u8>) {
        self.earlier
            .append(&mut std::mem::take(&mut self.moments).into());
        let spare = self.earlier.len().saturating_sub(EARLIER);
        self.earlier.drain(..spare);
        self.moments.push(content);
    }

    fn trail(&self) -> String {
        let trail: Vec<String> = self.trail.iter().map(Step::to_string).collect();
        trail.join(", ")
    }

    /// What is known of content that was found, and is wrong.
    fn told(&self, found: &[u8]) -> String {
        let lengths: Vec<usize> = self.moments.iter().map(Vec::len).collect();
        let (len, traced, trail) = (found.len(), self.traced(found), self.trail());
        format!("{len} bytes of {lengths:?}; {traced}; before: {trail}")
    }

    /// What the blocks that were found are made of, where they are not the latest ones: which bytes of each are those of which
    /// content.
    fn traced(&self, found: &[u8]) -> String {
        let known = self.earlier.iter().map(|content| ("before", content));
        let known = known.chain(self.moments.iter().map(|content| ("moment", content)));
        let known: Vec<(&str, &Vec<u8>)> = known.collect();
        let latest = &self.moments[self.moments.len().saturating_sub(1)..];
        let mut said = Vec::new();
        for (number, block) in found.chunks(BLOCK).enumerate() {
            let at = number * BLOCK;
            if explain_block(latest, at, block) {
                continue;
            }
            said.push(format!("{at}: {}", made_of(&known, at, block)));
        }
        said.join("; ")
    }
}

/// The longest pieces of a block, from its beginning on, that are those of some content.
fn made_of(known: &[(&str, &Vec<u8>)], at: usize, block: &[u8]) -> String {
    let byte = |content: &Vec<u8>, offset: usize| content.get(at + offset).copied().unwrap_or(0);
    let mut pieces = Vec::new();
    let mut from = 0;
    while from < block.len() {
        let same = |content: &Vec<u8>| {
            let rest = from..block.len();
            rest.take_while(|offset| block[*offset] == byte(content, *offset))
                .count()
        };
        let best = known.iter().enumerate();
        let best = best.map(|(number, (what, content))| (same(content), number, *what));
        let (len, number, what) = best.max().unwrap_or((0, 0, "nothing"));
        let ends = from + len.max(1);
        pieces.push(match len {
            0 => format!("{from}..{ends} of none"),
            _ => format!("{from}..{ends} of {what} {number}/{}", known.len()),
        });
        from = ends;
        if pieces.len() == TRAIL {
            pieces.push("...".to_owned());
            break;
        }
    }
    pieces.join(" ")
}

impl PrivateFiles {
    fn book(&self) -> MutexGuard<'_, BTreeMap<Whose, Page>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a node's files, without content and durable.
    ///
    /// Errors: those of making them.
    pub fn make(&self, mount: &Path, node: u32) -> Checked {
        for shape in Shape::ALL {
            let whose = Whose { node, shape };
            let path = below(mount, whose);
            let made = File::create_new(&path).and_then(|file| {
                file.set_len(shape.begin())?;
                file.sync_all()
            });
            made.call(|| format!("make {}", path.display()))?;
            self.book().entry(whose).or_default().becomes(Vec::new());
        }
        Ok(())
    }

    pub(super) fn moments(&self, whose: Whose) -> Moments {
        let book = self.book();
        book.get(&whose)
            .map_or_else(Vec::new, |page| page.moments.clone())
    }

    pub(super) fn remember(&self, whose: Whose, step: Step) {
        self.book().entry(whose).or_default().remember(step);
    }

    /// What is known of content that was found.
    pub(super) fn told_of(&self, whose: Whose, found: &[u8]) -> String {
        let book = self.book();
        book.get(&whose)
            .map_or_else(String::new, |page| page.told(found))
    }

    /// It is about to become this.
    pub(super) fn begin(&self, whose: Whose, change: Change, content: Vec<u8>) {
        let mut book = self.book();
        let page = book.entry(whose).or_default();
        page.moments.push(content);
        page.remember(Step::Begun { change });
    }

    /// It is this, on every disk.
    pub(super) fn synced(&self, whose: Whose, content: Vec<u8>) {
        self.book().entry(whose).or_default().becomes(content);
    }

    /// Looks every file up through one mount, and gives how many have content that was synced.
    ///
    /// Errors: one is what it never was.
    pub fn verify(&self, mount: &Path) -> Checked<usize> {
        let files: Vec<Whose> = self.book().keys().copied().collect();
        let mut count = 0;
        for whose in files {
            let before = self.moments(whose);
            let path = below(mount, whose);
            let found = File::open(&path).and_then(|file| content_of(&file, whose.shape));
            let found = found.call(|| format!("read {}", path.display()))?;
            if let Err(error) = explain(&before, &found) {
                let book = self.book();
                // Otherwise its program went on meanwhile.
                if let Some(page) = book.get(&whose).filter(|page| page.moments == before) {
                    let told = page.told(&found);
                    return Err(error.during(&whose.to_string()).followed_by(&told));
                }
            }
            count += usize::from(before.first().is_some_and(|synced| !synced.is_empty()));
        }
        Ok(count)
    }
}

/// Whether each block is that of some moment, and the length between two: a change may be done in parts.
pub(super) fn explain(moments: &Moments, found: &[u8]) -> Checked {
    let lengths = || moments.iter().map(Vec::len);
    ensure!(
        lengths().min() <= Some(found.len()) && Some(found.len()) <= lengths().max(),
        "it has {} bytes; since the last fsync it had {:?}",
        found.len(),
        lengths().collect::<Vec<_>>()
    );
    for (number, block) in found.chunks(BLOCK).enumerate() {
        let at = number * BLOCK;
        ensure!(
            explain_block(moments, at, block),
            "the block at {at} is that of no moment since the last fsync"
        );
    }
    Ok(())
}

fn explain_block(moments: &[Vec<u8>], at: usize, block: &[u8]) -> bool {
    let was = |moment: &Vec<u8>| {
        let part = moment.get(at..).unwrap_or_default();
        let part = &part[..part.len().min(block.len())];
        block.starts_with(part) && block[part.len()..].iter().all(|byte| *byte == 0)
    };
    moments.iter().any(was)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_may_be_old_or_new_by_blocks_and_nothing_else() {
        let old = vec![1; 3 * BLOCK];
        let mut new = old.clone();
        Change::Write {
            at: 100,
            len: 6_000,
            seed: 3,
        }
        .apply(&mut new);
        let moments = vec![old.clone(), new.clone()];
        explain(&moments, &old).unwrap();
        explain(&moments, &new).unwrap();
        let mut torn = old.clone();
        torn[..BLOCK].copy_from_slice(&new[..BLOCK]);
        explain(&moments, &torn).unwrap();
        torn[BLOCK + 10] ^= 1;
        assert!(explain(&moments, &torn).is_err());
        assert!(explain(&moments, &old[..BLOCK]).is_err());
        assert!(explain(&vec![new.clone()], &old).is_err());
        // A length that came through without its bytes shows zeros.
        let mut longer = new.clone();
        Change::Write {
            at: 3 * BLOCK as u64,
            len: 50,
            seed: 4,
        }
        .apply(&mut longer);
        let mut empty = new.clone();
        empty.resize(longer.len(), 0);
        explain(&vec![new, longer], &empty).unwrap();
    }

    #[test]
    fn what_a_block_is_made_of_is_told() {
        let mut page = Page::default();
        page.becomes(vec![1; BLOCK]);
        page.becomes(vec![2; BLOCK]);
        page.moments.push(vec![3; BLOCK]);
        let mut found = vec![3; BLOCK];
        found[..100].fill(1);
        found[4_000] = 9;
        assert!(explain(&page.moments, &found).is_err());
        let said = page.traced(&found);
        let expected = "0: 0..100 of before 0/3 100..4000 of moment 2/3 4000..4001 of none 4001..4096 of moment 2/3";
        assert_eq!(said, expected);
    }
}
