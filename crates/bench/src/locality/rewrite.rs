//! The paper's Table 4: files that one node made are rewritten by it alone, and by all nodes, one each.

use super::field::{Done, Field, Migration};
use super::{Sample, Samples, Settings, Side};
use crate::content::Content;
use perigee_testbed::{Call, CheckError, Checked};
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// As the paper has it.
const BLOCK: usize = 128 << 10;

/// Parts of one sample of the sides that should come to much the same: these are measured by turns. As many as there
/// are sides at most.
const SLICES: usize = 4;

/// Some of the nodes' files, each as its writer has it.
struct Files {
    side: Side,
    paths: Vec<PathBuf>,
    slices: Vec<Sample>,
}

impl Files {
    const fn new(side: Side, paths: Vec<PathBuf>) -> Self {
        Self {
            side,
            paths,
            slices: Vec::new(),
        }
    }
}

pub(super) fn run(field: &mut Field, settings: &Settings) -> Checked<Samples> {
    let nodes: Vec<u32> = (1..=settings.nodes).collect();
    let by_first = |field: &Field, directory: &str| -> Vec<PathBuf> {
        let file = |node| field.on(1, &format!("{directory}/f{node}"));
        nodes.iter().map(file).collect()
    };
    let by_each = |field: &Field, directory: &str| -> Vec<PathBuf> {
        let file = |node: &u32| field.on(*node, &format!("{directory}/f{node}"));
        nodes.iter().map(file).collect()
    };
    let (fixed, moved) = (field.directory(1)?, field.directory(1)?);
    for directory in [&fixed, &moved] {
        field.set(directory, Migration::Off)?;
        write_all(&by_first(field, directory), settings, field.seed())?;
    }
    let elsewhere = by_each(field, &moved);
    let mut samples = vec![(Side::Off, rewrite(field, settings, &elsewhere)?)];
    let mut sides = vec![
        Files::new(Side::Concentrated, by_first(field, &fixed)),
        Files::new(Side::Control, by_first(field, &fixed)),
    ];
    if field.moves() {
        field.set(&moved, Migration::Adaptive)?;
        samples.push((Side::First, rewrite(field, settings, &elsewhere)?));
        sides.push(Files::new(Side::Again, elsewhere));
    }
    let own = nodes.iter().map(|node| field.directory(*node));
    let own = own.collect::<Checked<Vec<_>>>()?;
    let own_files: Vec<_> = (1..)
        .zip(&own)
        .map(|(node, name)| field.on(node, name).join("f"))
        .collect();
    write_all(&own_files, settings, field.seed())?;
    sides.push(Files::new(Side::Own, own_files));
    by_turns(field, settings, &mut sides)?;
    for side in sides {
        samples.push((side.side, Sample::whole(&side.slices)));
    }
    for name in own.iter().chain([&fixed, &moved]) {
        field.remove(name)?;
    }
    Ok(samples)
}

/// Each side a part at a time: what slows the machine down for some seconds must not decide, nor what a side leaves to the next.
fn by_turns(field: &mut Field, settings: &Settings, sides: &mut [Files]) -> Checked {
    for slice in 0..SLICES {
        for side in order(slice, sides.len()) {
            let Some(files) = sides.get_mut(side) else {
                continue;
            };
            let sample = rewrite(field, settings, &files.paths)?;
            files.slices.push(sample);
        }
    }
    Ok(())
}

/// The order of a slice: over as many slices as there are sides each comes once in each place, and, of an even number, once after
/// each other one (Williams, 1949).
fn order(slice: usize, sides: usize) -> Vec<usize> {
    let place = |at: usize| match at % 2 {
        0 => sides - at / 2,
        _ => at.div_ceil(2),
    };
    (0..sides).map(|at| (place(at) + slice) % sides).collect()
}

/// What each writer reaches when there is one for each file, and all write at once.
fn rewrite(field: &mut Field, settings: &Settings, files: &[PathBuf]) -> Checked<Sample> {
    let seed = field.seed();
    field.measure(|_| {
        write_all(files, settings, seed)?;
        let blocks = settings.rewrite_bytes / BLOCK as u64;
        Ok(Done {
            calls: blocks * files.len() as u64,
            amount: (settings.rewrite_bytes >> 20) as f64,
        })
    })
}

fn write_all(files: &[PathBuf], settings: &Settings, seed: u64) -> Checked {
    std::thread::scope(|scope| {
        let threads: Vec<_> = (seed..)
            .zip(files)
            .map(|(seed, path)| scope.spawn(move || write(path, settings.rewrite_bytes, seed)))
            .collect();
        threads.into_iter().try_for_each(joined)
    })
}

/// What a thread gave.
pub(super) fn joined<T>(thread: std::thread::ScopedJoinHandle<'_, Checked<T>>) -> Checked<T> {
    let ended = thread.join();
    ended.unwrap_or_else(|_| Err(CheckError::violated("a writer panicked")))
}

/// Writes a file from its beginning to its end, which it keeps where it is there, and syncs it.
pub(super) fn write(path: &Path, bytes: u64, seed: u64) -> Checked {
    let what = || format!("write {}", path.display());
    let opened = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .open(path);
    let file = opened.call(what)?;
    let mut content = Content::new(seed);
    for block in 0..bytes / BLOCK as u64 {
        file.write_all_at(content.next(BLOCK), block * BLOCK as u64)
            .call(what)?;
    }
    file.sync_all().call(what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn each_side_comes_once_in_each_place_and_once_after_each_other() {
        let orders: Vec<_> = (0..SLICES).map(|slice| order(slice, SLICES)).collect();
        let places = orders.iter().flat_map(|order| order.iter().enumerate());
        let places: BTreeSet<_> = places.collect();
        assert_eq!(places.len(), SLICES * SLICES);
        let pairs = orders.iter().flat_map(|order| order.windows(2));
        let pairs: BTreeSet<_> = pairs.collect();
        assert_eq!(pairs.len(), SLICES * (SLICES - 1));
    }
}
