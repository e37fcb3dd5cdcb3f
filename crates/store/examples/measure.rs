//! Figures of the store on this machine: durable commits, and object I/O against plain files.
//!
//! `cargo run --release -p perigee-store --example measure [DIR]`. Each figure is the best and the
//! median of its rounds; object and plain rounds alternate, so that both meet the same noise.

use perigee_store::{Space, Store, StoreIdentity, WriteBatch, block_sums};
use perigee_types::{ContainerId, InodeId, InodeIndex, NodeId};
use std::error::Error;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

type Outcome<T> = Result<T, Box<dyn Error>>;

const C: ContainerId = ContainerId(1);
const MIB: usize = 1 << 20;
const FILE_LEN: usize = 256 * MIB;
const ROUNDS: usize = 7;
const COMMIT_TIME: Duration = Duration::from_secs(2);

fn main() -> Outcome<()> {
    let base = std::env::args().nth(1).unwrap_or_else(|| ".".to_owned());
    let dir = tempfile::tempdir_in(base)?;
    let identity = StoreIdentity {
        cluster: 1,
        node: NodeId(1),
    };
    let store = Store::create(&dir.path().join("store"), identity)?;
    for threads in [1, 16, 64] {
        commits(&store, threads);
    }
    sums();
    for unit in [4096, MIB] {
        objects(&store, dir.path(), unit)?;
    }
    syncs(&store, dir.path())?;
    store.close()?;
    Ok(())
}

/// Log-like records of 128 bytes, each waited for.
fn commits(store: &Arc<Store>, threads: usize) {
    let before = store.commits();
    let start = Instant::now();
    let done: u64 = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads as u64)
            .map(|thread| {
                scope.spawn(move || {
                    let mut count = 0u64;
                    while start.elapsed() < COMMIT_TIME {
                        let mut batch = WriteBatch::new();
                        let key = ((thread << 40) | count).to_be_bytes();
                        batch.put(Space::Log(C), &key, &[7; 128]);
                        if let Err(error) = store.commit(batch) {
                            eprintln!("commit: {error}");
                            break;
                        }
                        count += 1;
                    }
                    count
                })
            })
            .collect();
        workers.into_iter().map(|w| w.join().unwrap_or(0)).sum()
    });
    let seconds = start.elapsed().as_secs_f64();
    let groups = (store.commits() - before) as f64;
    println!(
        "durable submits, {threads:2} threads: {:8.0} /s in {:6.0} commits/s",
        done as f64 / seconds,
        groups / seconds
    );
}

/// Checksums alone, of data in the cache of the processor: block by block, and as the store does it.
fn sums() {
    let data: Vec<u8> = (0..MIB).map(|at| (at * 31 % 251) as u8).collect();
    let rate = |work: &dyn Fn() -> u64| {
        let mut best = 0.0f64;
        for _ in 0..200 {
            let start = Instant::now();
            std::hint::black_box(work());
            best = best.max(MIB as f64 / start.elapsed().as_secs_f64() / 1e9);
        }
        best
    };
    let single = rate(&|| {
        data.chunks(4096)
            .map(|b| u64::from(crc32c::crc32c(b)))
            .sum()
    });
    let rows = rate(&|| block_sums(&data).iter().map(|&sum| u64::from(sum)).sum());
    println!("checksums of 1 MiB: {single:6.2} GB/s block by block, {rows:6.2} in rows");
}

/// Sequential I/O in `unit` bytes over a file that is in the page cache.
fn objects(store: &Arc<Store>, dir: &Path, unit: usize) -> Outcome<()> {
    let object = store.object(InodeId::new(C, InodeIndex(unit as u64)))?;
    let file = plain_file(dir)?;
    let len = if unit == MIB { FILE_LEN } else { FILE_LEN / 4 };
    let data: Vec<u8> = (0..unit).map(|at| (at * 31 % 251) as u8).collect();
    let mut buf = vec![0; unit];
    let mut times: [Vec<f64>; 4] = Default::default();
    for round in 0..=ROUNDS {
        let offsets = || (0..len as u64).step_by(unit);
        let mut took = [0.0; 4];
        took[0] = timed(|| offsets().try_for_each(|at| file.write_all_at(&data, at)))?;
        took[1] = timed(|| offsets().try_for_each(|at| object.write(at, &data)))?;
        took[2] = timed(|| offsets().try_for_each(|at| file.read_exact_at(&mut buf, at)))?;
        took[3] = timed(|| offsets().try_for_each(|at| object.read(at, &mut buf).map(drop)))?;
        // The first round allocates.
        if round > 0 {
            for (all, one) in times.iter_mut().zip(took) {
                all.push(len as f64 / one / 1e9);
            }
        }
    }
    let names = ["pwrite", "Object::write", "pread", "Object::read"];
    for (name, rates) in names.iter().zip(&mut times) {
        rates.sort_by(f64::total_cmp);
        println!(
            "{:4} KiB {name:13}: {:6.2} GB/s median, {:6.2} best",
            unit >> 10,
            rates[ROUNDS / 2],
            rates[ROUNDS - 1]
        );
    }
    Ok(())
}

/// 4 KiB written and synced, over and over.
fn syncs(store: &Arc<Store>, dir: &Path) -> Outcome<()> {
    let object = store.object(InodeId::new(C, InodeIndex(2)))?;
    let file = plain_file(dir)?;
    let count = 300u32;
    let plain = timed(|| {
        (0..count).try_for_each(|at| {
            file.write_all_at(&[1; 4096], u64::from(at) * 4096)?;
            file.sync_data()
        })
    })?;
    let ours = timed(|| {
        (0..count).try_for_each(|at| {
            object.write(u64::from(at) * 4096, &[1; 4096])?;
            object.sync_wait()
        })
    })?;
    let rate = |seconds: f64| f64::from(count) / seconds;
    println!("4 KiB write + fdatasync: {:6.0} /s", rate(plain));
    println!("4 KiB write + Object::sync: {:6.0} /s", rate(ours));
    Ok(())
}

fn plain_file(dir: &Path) -> std::io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(true);
    options.open(dir.join("plain"))
}

fn timed<E: Error + 'static>(work: impl FnOnce() -> Result<(), E>) -> Outcome<f64> {
    let start = Instant::now();
    work()?;
    Ok(start.elapsed().as_secs_f64())
}
