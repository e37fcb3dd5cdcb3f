//! One large file: plain calls at one place at a time, as a program without tricks makes them.

use super::Figures;
use crate::content::Content;
use crate::{Figure, Row, Settings, Target};
use perigee_testbed::{Call, Checked, ensure};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Read,
    Write,
    Both,
}

pub(super) fn write_only(settings: &Settings, target: &Target, path: &Path) -> Checked<Figures> {
    let written = Job::new(settings, target, path).write_all()?;
    Ok(vec![(Row::SeqWriteOneCopy, written)])
}

pub(super) fn run(settings: &Settings, target: &Target, path: &Path) -> Checked<Figures> {
    let mut job = Job::new(settings, target, path);
    let mut figures = vec![(Row::SeqWrite, job.write_all()?)];
    target.drop_caches(settings.cold_rest)?;
    figures.push((Row::SeqReadCold, job.read_all()?));
    for (row, kind, block) in [
        (Row::RandWrite4k, Kind::Write, 4_096),
        (Row::RandWrite128k, Kind::Write, 131_072),
        (Row::RandRead4k, Kind::Read, 4_096),
        (Row::RandRead128k, Kind::Read, 131_072),
        (Row::Mixed128k, Kind::Both, 131_072),
    ] {
        if kind == Kind::Write {
            target.settle();
        } else {
            target.drop_caches(settings.cold_rest)?;
        }
        figures.push((row, job.random(kind, block)?));
    }
    Ok(figures)
}

struct Job<'a> {
    settings: &'a Settings,
    target: &'a Target,
    path: &'a Path,
    content: Content,
}

impl<'a> Job<'a> {
    fn new(settings: &'a Settings, target: &'a Target, path: &'a Path) -> Self {
        Self {
            settings,
            target,
            path,
            content: Content::new(1),
        }
    }

    fn write_all(&mut self) -> Checked<Figure> {
        let blocks = self.settings.file_bytes / MIB as u64;
        self.target.settle();
        let meter = self.target.meter();
        let file = File::create(self.path).call(|| "create the large file".to_owned())?;
        for block in 0..blocks {
            let content = self.content.next(MIB);
            file.write_all_at(content, block * MIB as u64)
                .call(|| "write".to_owned())?;
        }
        file.sync_all().call(|| "fsync".to_owned())?;
        drop(file);
        Ok(meter.stop().rate(blocks as f64, blocks))
    }

    fn read_all(&mut self) -> Checked<Figure> {
        let blocks = self.settings.file_bytes / MIB as u64;
        let mut buffer = vec![0; MIB];
        let meter = self.target.meter();
        let file = File::open(self.path).call(|| "open the large file".to_owned())?;
        for block in 0..blocks {
            file.read_exact_at(&mut buffer, block * MIB as u64)
                .call(|| "read".to_owned())?;
        }
        drop(file);
        Ok(meter.stop().rate(blocks as f64, blocks))
    }

    /// Calls at random blocks, each once before any comes again, until the time is over; what was
    /// written is synced within the time. Rows that begin cold end with the first pass at the latest: a
    /// second one would read from memory.
    fn random(&mut self, kind: Kind, block: usize) -> Checked<Figure> {
        let order = self.content.order(self.settings.file_bytes / block as u64);
        let passes = if kind == Kind::Write { usize::MAX } else { 1 };
        let mut places = order
            .iter()
            .cycle()
            .take(order.len().saturating_mul(passes));
        let mut buffer = vec![0; block];
        let mut calls = 0_u64;
        let meter = self.target.meter();
        let start = Instant::now();
        let file = OpenOptions::new()
            .read(true)
            .write(kind != Kind::Read)
            .open(self.path)
            .call(|| "open the large file".to_owned())?;
        while self.goes_on(start, calls)
            && let Some(place) = places.next()
        {
            let at = place * block as u64;
            let write = kind == Kind::Write || kind == Kind::Both && self.content.coin();
            if write {
                file.write_all_at(self.content.next(block), at)
                    .call(|| "write".to_owned())?;
            } else {
                file.read_exact_at(&mut buffer, at)
                    .call(|| "read".to_owned())?;
            }
            calls += 1;
        }
        if kind != Kind::Read {
            file.sync_all().call(|| "fsync".to_owned())?;
        }
        drop(file);
        let spent = meter.stop();
        ensure!(calls > 0, "not one call in {:?}", spent.wall);
        let amount = if block == 4_096 {
            1.0
        } else {
            block as f64 / MIB as f64
        };
        Ok(spent.rate(calls as f64 * amount, calls))
    }

    fn goes_on(&self, start: Instant, calls: u64) -> bool {
        // The clock is asked at every call: it costs 30 ns, the call a thousand.
        calls == 0 || start.elapsed() < self.settings.random.max(Duration::from_millis(1))
    }
}
