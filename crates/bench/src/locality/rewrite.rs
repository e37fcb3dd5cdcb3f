//! The paper's Table 4: files that one node made are rewritten by it alone, and by all nodes, one each.

use super::field::{Done, Field, Migration};
use super::{Samples, Settings, Side};
use crate::content::Content;
use perigee_testbed::{Call, CheckError, Checked};
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// As the paper has it.
const BLOCK: usize = 128 << 10;

pub(super) fn run(field: &mut Field, settings: &Settings) -> Checked<Samples> {
    let nodes: Vec<u32> = (1..=settings.nodes).collect();
    let shared = field.directory(1)?;
    field.set(&shared, Migration::Off)?;
    let file = |node: u32| format!("{shared}/f{node}");
    let from_first: Vec<_> = nodes.iter().map(|node| field.on(1, &file(*node))).collect();
    let from_each: Vec<_> = nodes
        .iter()
        .map(|node| field.on(*node, &file(*node)))
        .collect();
    write_all(&from_first, settings, field.seed())?;
    let mut samples = vec![
        (Side::Concentrated, rewrite(field, settings, &from_first)?),
        (Side::Off, rewrite(field, settings, &from_each)?),
    ];
    if field.moves() {
        field.set(&shared, Migration::Adaptive)?;
        samples.push((Side::First, rewrite(field, settings, &from_each)?));
        samples.push((Side::Again, rewrite(field, settings, &from_each)?));
    }
    field.remove(&shared)?;
    let own = nodes
        .iter()
        .map(|node| field.directory(*node))
        .collect::<Checked<Vec<_>>>()?;
    let own_files: Vec<_> = (1..)
        .zip(&own)
        .map(|(node, name)| field.on(node, name).join("f"))
        .collect();
    write_all(&own_files, settings, field.seed())?;
    samples.push((Side::Own, rewrite(field, settings, &own_files)?));
    for name in &own {
        field.remove(name)?;
    }
    Ok(samples)
}

/// What each writer reaches when there is one for each file, and all write at once.
fn rewrite(field: &mut Field, settings: &Settings, files: &[PathBuf]) -> Checked<super::Sample> {
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
