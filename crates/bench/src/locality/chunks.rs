//! The paper's Table 7: in clusters of several sizes each node writes blocks of 1 MiB at random places of the file that its
//! neighbour made, and the chunks are counted that belong to another node afterwards.
//!
//! A chunk belongs to who can write to it while it hears nobody: so it is counted by what a program sees. Only a part of each
//! chunk has bytes, since it is the number of chunks that matters.

use super::Settings;
use super::field::{Done, Field, Migration};
use super::rewrite::joined;
use crate::content::Content;
use perigee_testbed::delay::Wire;
use perigee_testbed::{Call, CheckError, Checked};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// What moves as one.
const CHUNK: u64 = 64 << 20;
/// Of each file. The paper has 64 for each node.
const CHUNKS: u64 = 8;
/// What is written of each chunk.
const USED_BLOCKS: u64 = 8;
/// Writes to a chunk before the next one's turn, as in the paper.
const STAY: u64 = 64;
const BLOCK: usize = 1 << 20;
/// How long it takes for each node; the paper has 7.5 s.
const TIME_PER_NODE: Duration = Duration::from_secs(1);
/// A write that has not returned by then waits for the network.
const WINDOW: Duration = Duration::from_millis(300);

/// What became of the chunks of a cluster.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Moved {
    /// Its nodes.
    pub nodes: u32,
    /// How long they wrote.
    pub time: Duration,
    /// Chunks that were written to.
    pub chunks: u64,
    /// Those that belong to who writes them.
    pub changed: u64,
    /// What all nodes wrote together, in MiB/s.
    pub rate: f64,
    /// What one write of 1 MiB cost in messages and in bytes over the network.
    pub messages_per_call: f64,
    /// As above.
    pub bytes_per_call: f64,
}

/// Runs a cluster of so many nodes.
///
/// Errors: the first call that fails.
pub(super) fn run(settings: &Settings, nodes: u32) -> Checked<Moved> {
    let settings = Settings { nodes, ..*settings };
    let mut field = Field::new(&settings, Wire::of_round_trip(settings.round_trip))?;
    let mut names = Vec::new();
    for node in 1..=nodes {
        let directory = field.directory(node)?;
        let migration = if field.moves() {
            Migration::Adaptive
        } else {
            Migration::Off
        };
        field.set(&directory, migration)?;
        let name = format!("{directory}/f");
        make(&field.on(node, &name))?;
        names.push(name);
    }
    // Each node has the file of the one before it.
    let neighbour = |node: u32, name: &String| field.on(node % nodes + 1, name);
    let paths: Vec<PathBuf> = (1..)
        .zip(&names)
        .map(|(node, name)| neighbour(node, name))
        .collect();
    let time = TIME_PER_NODE * nodes;
    let mut reached = Vec::new();
    let sample = field.measure(|_| {
        reached = by_each(&paths, |path| write_for(path, time))?;
        let calls: u64 = reached.iter().sum();
        Ok(Done {
            calls,
            amount: calls as f64,
        })
    })?;
    let touched = |calls: &u64| calls.div_ceil(STAY).min(CHUNKS);
    let own: Vec<(PathBuf, u64)> = paths.into_iter().zip(reached.iter().map(touched)).collect();
    let changed = count_own(&field, &own)?;
    Ok(Moved {
        nodes,
        time,
        chunks: own.iter().map(|(_, touched)| touched).sum(),
        changed,
        rate: sample.value,
        messages_per_call: sample.messages as f64 / sample.calls.max(1) as f64,
        bytes_per_call: sample.traffic.bytes as f64 / sample.calls.max(1) as f64,
    })
}

/// Runs something for each at once.
fn by_each<T: Sync, R: Send>(all: &[T], run: impl Fn(&T) -> Checked<R> + Sync) -> Checked<Vec<R>> {
    thread::scope(|scope| {
        let run = &run;
        let threads: Vec<_> = all
            .iter()
            .map(|one| scope.spawn(move || run(one)))
            .collect();
        threads.into_iter().map(joined).collect()
    })
}

fn open(path: &Path) -> Checked<File> {
    let opened = OpenOptions::new().write(true).open(path);
    opened.call(|| format!("open {}", path.display()))
}

fn make(path: &Path) -> Checked {
    let what = || format!("make {}", path.display());
    let file = File::create_new(path).call(what)?;
    let mut content = Content::new(3);
    for chunk in 0..CHUNKS {
        for block in 0..USED_BLOCKS {
            let at = chunk * CHUNK + block * BLOCK as u64;
            file.write_all_at(content.next(BLOCK), at).call(what)?;
        }
    }
    file.sync_all().call(what)
}

/// Writes chunk after chunk, each at random places, and syncs; tells how many writes that were.
fn write_for(path: &Path, time: Duration) -> Checked<u64> {
    let what = || format!("write {}", path.display());
    let (file, mut content) = (open(path)?, Content::new(5));
    let start = Instant::now();
    let mut calls = 0;
    while start.elapsed() < time {
        let order = content.order(USED_BLOCKS);
        for block in order {
            let chunk = calls / STAY % CHUNKS;
            let at = chunk * CHUNK + block * BLOCK as u64;
            file.write_all_at(content.next(BLOCK), at).call(what)?;
            calls += 1;
        }
    }
    file.sync_all().call(what)?;
    Ok(calls)
}

/// How many of the first chunks of each file its writer can write to by itself.
fn count_own(field: &Field, files: &[(PathBuf, u64)]) -> Checked<u64> {
    let open = |(path, count): &(PathBuf, u64)| Ok((open(path)?, *count));
    let open: Vec<(File, u64)> = files.iter().map(open).collect::<Checked<_>>()?;
    let mut chunks: Vec<(&File, u64)> = Vec::new();
    for (file, count) in &open {
        chunks.extend((0..*count).map(|chunk| (file, chunk)));
    }
    let write = |(file, chunk): &(&File, u64)| {
        file.write_all_at(&[7; 512], chunk * CHUNK)
            .call(|| "write to one's own".to_owned())
    };
    field.settle();
    // A right that was not used for a while is asked for again.
    by_each(&chunks, write)?;
    let cut = field.cut_all()?;
    let start = Instant::now();
    let timed = |chunk| write(chunk).map(|()| start.elapsed() < WINDOW);
    let timed = &timed;
    thread::scope(|scope| {
        let spawn = |chunk| scope.spawn(move || timed(chunk));
        let writers: Vec<_> = chunks.iter().map(spawn).collect();
        thread::sleep(WINDOW);
        drop(cut);
        let returned = writers
            .into_iter()
            .map(joined)
            .collect::<Checked<Vec<bool>>>()?;
        Ok::<_, CheckError>(returned.into_iter().filter(|returned| *returned).count() as u64)
    })
}
