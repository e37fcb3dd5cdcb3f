//! The paper's Table 6: random writes into a file that another node made, first where nothing moves, then where it may, then
//! once more. The same writes each time, in parts of 64 MiB one after the other.

use super::field::{Done, Field, Migration, Sample};
use super::rewrite::write;
use super::{Samples, Settings, Side};
use crate::content::Content;
use perigee_testbed::{Call, Checked, ensure};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

const OWNER: u32 = 1;
const WRITER: u32 = 2;
/// All random writes go here before they go elsewhere: it is what moves as one.
const PART: u64 = 64 << 20;
const MIB: usize = 1 << 20;

pub(super) fn run(field: &mut Field, settings: &Settings, block: usize) -> Checked<Samples> {
    let name = field.directory(OWNER)?;
    field.set(&name, Migration::Off)?;
    let file = format!("{name}/f");
    write(&field.on(OWNER, &file), settings.file_bytes, 7)?;
    let mut samples = vec![(Side::Off, writes(field, settings, &file, block)?)];
    if field.moves() {
        field.set(&name, Migration::Adaptive)?;
        samples.push((Side::First, writes(field, settings, &file, block)?));
        samples.push((Side::Again, writes(field, settings, &file, block)?));
    }
    field.remove(&name)?;
    let own = field.directory(WRITER)?;
    field.set(&own, Migration::Off)?;
    let file = format!("{own}/f");
    write(&field.on(WRITER, &file), settings.file_bytes, 7)?;
    samples.push((Side::Own, writes(field, settings, &file, block)?));
    field.remove(&own)?;
    Ok(samples)
}

/// Writes through the writer's mount until the time is over, with the `fsync` at the end; then looks through the
/// owner's at what is there.
fn writes(field: &mut Field, settings: &Settings, file: &str, block: usize) -> Checked<Sample> {
    let path = field.on(WRITER, file);
    let mut random = Random::new(settings.file_bytes, block);
    let sample = field.measure(|_| {
        let calls = random.write(&path, settings.time)?;
        let unit = if block == 4 << 10 { block } else { MIB };
        Ok(Done {
            calls,
            amount: calls as f64 * block as f64 / unit as f64,
        })
    })?;
    random.verify(&field.on(OWNER, file))?;
    Ok(sample)
}

/// Writes at random places, which are remembered.
pub(super) struct Random {
    content: Content,
    file_bytes: u64,
    block: usize,
    places: Vec<u64>,
    /// What was written last, by place.
    written: BTreeMap<u64, usize>,
}

impl Random {
    pub(super) fn new(file_bytes: u64, block: usize) -> Self {
        let mut content = Content::new(block as u64);
        let part_bytes = PART.min(file_bytes);
        let blocks = part_bytes / block as u64;
        let parts = file_bytes / part_bytes;
        let places = (0..parts).flat_map(|part| {
            let order = content.order(blocks);
            order.into_iter().map(move |place| part * blocks + place)
        });
        Self {
            places: places.collect(),
            content,
            file_bytes,
            block,
            written: BTreeMap::new(),
        }
    }

    /// Writes for so long, syncs, and tells how many writes that were.
    fn write(&mut self, path: &Path, time: Duration) -> Checked<u64> {
        let what = || format!("write {}", path.display());
        let file = OpenOptions::new().write(true).open(path).call(what)?;
        let start = Instant::now();
        let mut calls = 0;
        while calls == 0 || start.elapsed() < time {
            self.write_one(&file, calls).call(what)?;
            calls += 1;
        }
        file.sync_all().call(what)?;
        Ok(calls)
    }

    /// The write with that number.
    pub(super) fn write_one(&mut self, file: &File, number: u64) -> std::io::Result<()> {
        let index = (number % self.places.len() as u64) as usize;
        let place = self.places[index];
        let (at, bytes) = self.content.next_with_place(self.block);
        file.write_all_at(bytes, place * self.block as u64)?;
        self.written.insert(place, at);
        Ok(())
    }

    /// Whether every place holds what was written there last.
    ///
    /// Errors: one does not; or the file cannot be read.
    pub(super) fn verify(&self, path: &Path) -> Checked {
        let what = || format!("read {}", path.display());
        let file = File::open(path).call(what)?;
        let mut piece = vec![0; MIB];
        for start in (0..self.file_bytes).step_by(MIB) {
            file.read_exact_at(&mut piece, start).call(what)?;
            let blocks = (MIB / self.block) as u64;
            let first = start / self.block as u64;
            for (place, at) in self.written.range(first..first + blocks) {
                let from = (place - first) as usize * self.block;
                let found = &piece[from..from + self.block];
                ensure!(
                    found == self.content.at(*at, self.block),
                    "{}: block {place} of {} bytes is not what was written last",
                    path.display(),
                    self.block
                );
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use perigee_testbed::leftover::Workspace;

    #[test]
    fn a_block_that_is_not_what_was_written_last_is_found() {
        let workspace = Workspace::new().unwrap();
        let path = workspace.path().join("f");
        std::fs::write(&path, vec![0; 2 * MIB]).unwrap();
        let mut random = Random::new(2 * MIB as u64, 4_096);
        assert!(random.write(&path, Duration::from_millis(5)).unwrap() > 0);
        random.verify(&path).unwrap();
        let place = *random.written.first_key_value().unwrap().0;
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        file.write_all_at(&[0; 512], place * 4_096).unwrap();
        let error = random.verify(&path).unwrap_err().to_string();
        assert!(error.contains("not what was written last"), "{error}");
    }

    #[test]
    fn a_part_is_written_whole_before_the_next_one_begins() {
        let random = Random::new(2 * PART, MIB);
        let (first, second) = random.places.split_at(64);
        let is_all = |places: &[u64], range: std::ops::Range<u64>| {
            let mut places = places.to_vec();
            places.sort_unstable();
            places == range.collect::<Vec<_>>()
        };
        assert!(is_all(first, 0..64) && is_all(second, 64..128));
        assert!(!first.is_sorted());
        assert_eq!(Random::new(2 * PART, MIB).places, random.places);
    }
}
