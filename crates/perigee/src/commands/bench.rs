//! `perigee bench`: a few honest figures of a directory beside those of another, in one run.

use super::JsonArg;
use crate::human::{self, Align, Table};
use crate::mounts;
use crate::output::Report;
use clap::Args;
use perigee_proto::admin::Failure;
use serde::Serialize;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Bytes of one request, as large as FUSE has them.
const BLOCK_BYTES: usize = 1 << 20;
/// Bytes of one small write.
const SMALL_BYTES: usize = 4096;
/// Synced small writes that are timed.
const SYNCED_WRITES: u64 = 200;

/// Measure a mount against the disk beneath.
///
/// Writes and reads one file, and makes, looks at and removes many small ones, first in DIR, then in
/// the directory of --against; everything is removed again.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  perigee bench                              the first mount here
  perigee bench /mnt/perigee --against /tmp --size 1G --files 5000")]
pub struct Bench {
    /// A directory in a mount [default: the first mount of Perigee]
    dir: Option<PathBuf>,
    /// A directory to compare with [default: the directory of the mount's node]
    #[arg(long, value_name = "DIR")]
    against: Option<PathBuf>,
    /// Size of the file
    #[arg(long, default_value = "256M", value_parser = parse_file_size)]
    size: u64,
    /// How many small files
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    files: u64,
    #[command(flatten)]
    json: JsonArg,
}

/// One figure of both directories; more is better, whatever the unit.
#[derive(Debug, Serialize)]
struct Row {
    name: &'static str,
    unit: &'static str,
    here: f64,
    against: f64,
    ratio: f64,
}

/// One figure of one directory.
struct Figure {
    name: &'static str,
    unit: &'static str,
    value: f64,
}

impl Bench {
    /// Measures both directories.
    pub fn run(self) -> Result<Report, Failure> {
        let (dir, against) = self.directories()?;
        let here = measure(&dir, self.size, self.files)?;
        let there = measure(&against, self.size, self.files)?;
        let rows: Vec<Row> = here
            .into_iter()
            .zip(there)
            .map(|(here, there)| Row {
                name: here.name,
                unit: here.unit,
                here: here.value,
                against: there.value,
                ratio: here.value / there.value,
            })
            .collect();
        Report::either(self.json.json, &rows, || text(&rows, &dir, &against))
    }

    fn directories(&self) -> Result<(PathBuf, PathBuf), Failure> {
        let dir = match &self.dir {
            Some(dir) => dir.clone(),
            None => first_mount()?,
        };
        let against = match &self.against {
            Some(against) => against.clone(),
            None => {
                mounts::resolve(&dir)
                    .map_err(|failure| {
                        failure.hint("name the directory to compare with: --against DIR")
                    })?
                    .data_dir
            }
        };
        Ok((dir, against))
    }
}

fn first_mount() -> Result<PathBuf, Failure> {
    let mount = mounts::table()?
        .into_iter()
        .find(|mount| mount.data_dir().is_some());
    mount.map(|mount| mount.mountpoint).ok_or_else(|| {
        Failure::new(
            "cannot choose what to measure",
            "there is no mount of Perigee here",
        )
        .hint("`perigee mount M`, or name two directories: perigee bench DIR --against DIR")
    })
}

/// A directory of our own that is removed in the end, whatever happens.
struct Scratch {
    path: PathBuf,
}

impl Scratch {
    fn make(dir: &Path) -> std::io::Result<Self> {
        let path = dir.join(format!(".perigee-bench-{}", std::process::id()));
        fs::create_dir(&path)?;
        Ok(Self { path })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // what cannot be removed is seen by the user: it has a telling name
        let _ = fs::remove_dir_all(&self.path);
    }
}

fn measure(dir: &Path, size: u64, files: u64) -> Result<Vec<Figure>, Failure> {
    let run = || {
        let scratch = Scratch::make(dir)?;
        let mut figures = large_file(&scratch.path.join("large"), size)?;
        figures.push(synced_writes(&scratch.path.join("synced"))?);
        figures.extend(small_files(&scratch.path.join("small"), files)?);
        Ok(figures)
    };
    run().map_err(|error: std::io::Error| {
        Failure::new(format!("cannot measure `{}`", dir.display()), error)
    })
}

fn large_file(path: &Path, size: u64) -> std::io::Result<Vec<Figure>> {
    // not zeros: a file system may store those for nothing
    let block: Vec<u8> = (0..BLOCK_BYTES)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8)
        .collect();
    let begun = Instant::now();
    let mut file = File::options()
        .create_new(true)
        .read(true)
        .write(true)
        .open(path)?;
    let mut left = size;
    while left > 0 {
        let len = left.min(BLOCK_BYTES as u64) as usize;
        file.write_all(&block[..len])?;
        left -= len as u64;
    }
    file.sync_all()?;
    let write = begun.elapsed();
    file.seek(SeekFrom::Start(0))?;
    let mut buffer = vec![0; BLOCK_BYTES];
    let begun = Instant::now();
    while file.read(&mut buffer)? > 0 {}
    let read = begun.elapsed();
    let speed = |elapsed: Duration| size as f64 / f64::from(1 << 20) / elapsed.as_secs_f64();
    Ok(vec![
        Figure {
            name: "write, then fsync",
            unit: "MiB/s",
            value: speed(write),
        },
        Figure {
            name: "read, just written",
            unit: "MiB/s",
            value: speed(read),
        },
    ])
}

fn synced_writes(path: &Path) -> std::io::Result<Figure> {
    let file = File::options().create_new(true).write(true).open(path)?;
    let begun = Instant::now();
    for i in 0..SYNCED_WRITES {
        file.write_all_at(&[i as u8; SMALL_BYTES], i * SMALL_BYTES as u64)?;
        file.sync_data()?;
    }
    Ok(Figure {
        name: "4 KiB write + fdatasync",
        unit: "1/s",
        value: rate(SYNCED_WRITES, begun),
    })
}

fn small_files(dir: &Path, files: u64) -> std::io::Result<Vec<Figure>> {
    fs::create_dir(dir)?;
    let paths: Vec<PathBuf> = (0..files).map(|i| dir.join(format!("file-{i}"))).collect();
    let mut figures = Vec::new();
    let mut each = |name, work: &dyn Fn(&PathBuf) -> std::io::Result<()>| {
        let begun = Instant::now();
        paths.iter().try_for_each(work)?;
        figures.push(Figure {
            name,
            unit: "1/s",
            value: rate(files, begun),
        });
        std::io::Result::Ok(())
    };
    each("create with 4 KiB", &|path| {
        fs::write(path, [7; SMALL_BYTES])
    })?;
    each("stat", &|path| fs::metadata(path).map(drop))?;
    each("open + read + close", &|path| fs::read(path).map(drop))?;
    each("unlink", &|path| fs::remove_file(path))?;
    Ok(figures)
}

fn rate(count: u64, begun: Instant) -> f64 {
    count as f64 / begun.elapsed().as_secs_f64()
}

fn text(rows: &[Row], dir: &Path, against: &Path) -> String {
    let mut table = Table::new(&[
        ("FIGURE", Align::Left),
        ("HERE", Align::Right),
        ("AGAINST", Align::Right),
        ("UNIT", Align::Left),
        ("RATIO", Align::Right),
    ]);
    for row in rows {
        table.row(vec![
            row.name.to_owned(),
            human::count(row.here as u64),
            human::count(row.against as u64),
            row.unit.to_owned(),
            format!("{:.2}", row.ratio),
        ]);
    }
    format!(
        "here {}, against {}; more is better\n\n{}",
        dir.display(),
        against.display(),
        table.render(0)
    )
}

fn parse_file_size(text: &str) -> Result<u64, String> {
    match human::parse_size(text)? {
        0 => Err("an empty file measures nothing".to_owned()),
        size => Ok(size),
    }
}
