//! Merging of messages, measured as its source did (An and Sung, "Efficient I/O Merging Scheme for Distributed File
//! Systems", Symmetry 15(2), 2023, section 5): many files of 4 KiB, written to one server and to two and read from one,
//! with nothing merged, with fixed watermarks, and as Perigee does it.
//!
//! The client and the servers are hosts of their own, and each packet between them takes its time. The client's host stores
//! nothing: each call crosses the network. A row with one thread shows what merging costs where nothing is to be
//! merged.

mod report;

pub use report::{store, table};

use crate::target::Target;
use perigee_net::Merging;
use perigee_testbed::delay::Wire;
use perigee_testbed::{Call, CheckError, Checked, Cluster, ensure, pattern};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A benchmark that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(14_400);
/// Two servers, and a client that stores nothing: copies lie on the servers alone.
const NODES: u32 = 3;
const SERVER: u32 = 1;
const CLIENT: u32 = 3;
const BYTES: usize = 4_096;

/// How much is measured.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Files of each row; a tenth of them where one thread works.
    pub files: usize,
    /// Threads of the client.
    pub threads: usize,
    /// Rounds; each measures every row once in each way.
    pub rounds: u32,
    /// From one host to another and back.
    pub round_trip: Duration,
    /// The ways to merge.
    pub ways: Vec<Merging>,
}

impl Default for Settings {
    fn default() -> Self {
        let fixed = (2..=8).map(Merging::Fixed);
        Self {
            files: 10_000,
            threads: 16,
            rounds: 5,
            round_trip: Duration::from_millis(1),
            ways: [Merging::Off, Merging::Adaptive]
                .into_iter()
                .chain(fixed)
                .collect(),
        }
    }
}

/// What the client does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Job {
    /// Makes files on one server.
    WriteOne,
    /// On two, which keep a copy each.
    WriteTwo,
    /// Reads files that a server has made.
    ReadOne,
    /// As [`Job::WriteOne`], by one thread.
    WriteAlone,
    /// As [`Job::ReadOne`], by one thread.
    ReadAlone,
}

impl Job {
    /// In the order of the table.
    pub const ALL: [Self; 5] = [
        Self::WriteOne,
        Self::WriteTwo,
        Self::ReadOne,
        Self::WriteAlone,
        Self::ReadAlone,
    ];

    /// Its name in files.
    #[must_use]
    pub const fn key(self) -> &'static str {
        match self {
            Self::WriteOne => "write_one_server",
            Self::WriteTwo => "write_two_servers",
            Self::ReadOne => "read",
            Self::WriteAlone => "write_one_thread",
            Self::ReadAlone => "read_one_thread",
        }
    }

    /// Its name for people.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Self::WriteOne => "write 4 KiB files, one server",
            Self::WriteTwo => "write 4 KiB files, two servers",
            Self::ReadOne => "read 4 KiB files",
            Self::WriteAlone => "write 4 KiB files, one thread",
            Self::ReadAlone => "read 4 KiB files, one thread",
        }
    }

    const fn copies(self) -> u32 {
        match self {
            Self::WriteTwo => 2,
            _ => 1,
        }
    }

    const fn is_alone(self) -> bool {
        matches!(self, Self::WriteAlone | Self::ReadAlone)
    }

    const fn reads(self) -> bool {
        matches!(self, Self::ReadOne | Self::ReadAlone)
    }
}

/// What one row came to in one way.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    /// Files a second.
    pub rate: f64,
    /// CPU time of a file, of all nodes and the benchmark.
    pub cpu: Duration,
    /// What the client's node counted meanwhile.
    pub sent: Sent,
    /// Where its time went.
    pub parts: Parts,
}

/// Where the time of a file went, microseconds of one thread each.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Parts {
    /// The program, and its host as long as no call of it is under way.
    pub host: f64,
    /// Calls and answers have waited for their turn.
    pub queued: f64,
    /// The server has worked on calls.
    pub served: f64,
    /// The rest of the calls' time: they were on the wire, or were encrypted, or nobody had a processor for them.
    pub wire: f64,
}

/// What a node has sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sent {
    /// Calls and answers.
    pub messages: u64,
    /// Writes that they left in.
    pub writes: u64,
    /// Messages that left together with others.
    pub merged: u64,
    /// How many waited whenever something left: class `i` from `2^i` to below `2^(i+1)`.
    pub queue: [u64; 12],
    /// How long messages waited before, microseconds.
    pub waited: u64,
    /// How long its calls took, microseconds.
    pub calls_took: u64,
    /// How long calls of others took it, microseconds.
    pub serving_took: u64,
}

impl Sent {
    fn since(mut self, before: Self) -> Self {
        self.messages -= before.messages;
        self.writes -= before.writes;
        self.merged -= before.merged;
        self.waited -= before.waited;
        self.calls_took -= before.calls_took;
        self.serving_took -= before.serving_took;
        for (now, before) in self.queue.iter_mut().zip(before.queue) {
            *now -= before;
        }
        self
    }
}

/// All samples.
pub type Series = BTreeMap<Job, BTreeMap<usize, Vec<Sample>>>;

/// What was measured.
#[derive(Debug)]
pub struct Outcome {
    /// By job, and by the number of the way among [`Settings::ways`].
    pub series: Series,
    /// How late the network's packets were.
    pub late: String,
}

/// Runs all; `tell` hears of each row before it begins.
///
/// Errors: the first call that fails, or content that is not what was written.
pub fn run(settings: &Settings, mut tell: impl FnMut(&str)) -> Checked<Outcome> {
    let wire = Wire::of_round_trip(settings.round_trip);
    let mut field = Field {
        cluster: Cluster::start_far_apart_with(NODES, LIMIT, wire, &[CLIENT])?,
        points: BTreeMap::new(),
        made: 0,
    };
    let mut series = Series::new();
    for round in 1..=settings.rounds {
        let ways = settings.ways.len();
        for turn in 0..ways {
            // Who comes first changes.
            let way = (round as usize + turn) % ways;
            let merging = settings.ways[way];
            tell(&format!(
                "round {round} of {}: merging = {merging}",
                settings.rounds
            ));
            field.restart(merging)?;
            for job in Job::ALL {
                let sample = field.measure(settings, job);
                let sample = sample.map_err(|error| error.during(job.title()))?;
                let of_job = series.entry(job).or_default();
                of_job.entry(way).or_default().push(sample);
            }
        }
    }
    let late = field.cluster.links()?.lateness()?;
    Ok(Outcome {
        series,
        late: format!("{:?} on the average, {:?} at worst", late.mean, late.worst),
    })
}

struct Field {
    cluster: Cluster,
    points: BTreeMap<u32, PathBuf>,
    made: u32,
}

impl Field {
    /// Starts all nodes anew, so that they merge so.
    fn restart(&mut self, merging: Merging) -> Checked {
        self.cluster.down()?;
        for node in 1..=NODES {
            let file = self.cluster.dir().join(format!("node-{node}/node.toml"));
            let what = || format!("change {}", file.display());
            let text = fs::read_to_string(&file).call(what)?;
            let lines = text.lines().filter(|line| !line.starts_with("merging = "));
            let mut changed: String = lines.flat_map(|line| [line, "\n"]).collect();
            changed += &format!("merging = \"{merging}\"\n");
            fs::write(&file, changed).call(what)?;
        }
        self.cluster.up()?;
        self.cluster.settle()?;
        for node in [CLIENT, SERVER] {
            let point = self.cluster.mount(node)?;
            self.points.insert(node, point);
        }
        Ok(())
    }

    fn on(&self, node: u32, name: &str) -> PathBuf {
        let point = self.points.get(&node);
        point.map_or_else(PathBuf::new, |point| point.join(name))
    }

    /// A directory of the server, which stays there.
    fn directory(&mut self, copies: u32) -> Checked<String> {
        self.made += 1;
        let name = format!("d{}", self.made);
        let path = self.on(SERVER, &name);
        fs::create_dir(&path).call(|| format!("mkdir {}", path.display()))?;
        let (place, copies) = (path.to_string_lossy(), format!("copies={copies}"));
        let words = ["policy", "set", &place, &copies, "migration=off"];
        let set = self.cluster.command(&words)?;
        ensure!(set.status.success(), "policy: {}", set.stderr);
        let owner = self.cluster.owner(&path)?;
        ensure!(owner == SERVER, "node {owner} owns {name}");
        self.cluster.settle()?;
        Ok(name)
    }

    fn measure(&mut self, settings: &Settings, job: Job) -> Checked<Sample> {
        let (files, threads) = match job.is_alone() {
            true => (settings.files / 10, 1),
            false => (settings.files, settings.threads),
        };
        let name = self.directory(job.copies())?;
        let (near, far) = (self.on(SERVER, &name), self.on(CLIENT, &name));
        for thread in 0..threads {
            let path = place(&near, thread, threads);
            fs::create_dir(&path).call(|| format!("mkdir {}", path.display()))?;
        }
        if job.reads() {
            by_threads(files, 4, |number| {
                write(&place(&near, number, threads), number)
            })?;
        }
        let target = Target {
            label: "perigee".to_owned(),
            directory: far.clone(),
            one_copy: None,
            daemons: self.cluster.pids(),
        };
        target.settle();
        let before = [self.sent(CLIENT)?, self.sent(SERVER)?];
        let meter = target.meter();
        if job.reads() {
            by_threads(files, threads, |number| {
                read(&place(&far, number, threads), number)
            })?;
        } else {
            by_threads(files, threads, |number| {
                write(&place(&far, number, threads), number)
            })?;
        }
        let figure = meter.stop().rate(files as f64, files as u64);
        let sent = self.sent(CLIENT)?.since(before[0]);
        let served = self.sent(SERVER)?.since(before[1]);
        let mut there = 0;
        for thread in 0..threads {
            let listed = fs::read_dir(place(&near, thread, threads));
            there += listed.call(|| "list".to_owned())?.count();
        }
        ensure!(there == files, "{there} of {files} files are there");
        fs::remove_dir_all(&near).call(|| format!("remove {}", near.display()))?;
        Ok(Sample {
            rate: figure.value,
            cpu: figure.cpu,
            sent,
            parts: parts(figure.value / threads as f64, files, (sent, served)),
        })
    }

    /// What a node has sent.
    fn sent(&mut self, node: u32) -> Checked<Sent> {
        let net = self.cluster.net_of(node)?;
        let wrong = || CheckError::violated(format!("`status --json` says of the network: {net}"));
        let number = |key: &str| net[key].as_u64().ok_or_else(wrong);
        let mut queue = [0; 12];
        let classes = net["queue_lengths"].as_array().ok_or_else(wrong)?;
        for (class, count) in queue.iter_mut().zip(classes) {
            *class = count.as_u64().ok_or_else(wrong)?;
        }
        Ok(Sent {
            messages: number("messages_sent")?,
            writes: number("frames_sent")?,
            merged: number("messages_merged")?,
            queue,
            waited: number("waited_us")?,
            calls_took: number("calls_took_us")?,
            serving_took: number("serving_took_us")?,
        })
    }
}

/// `rate`: files a second of one thread.
fn parts(rate: f64, files: usize, (client, server): (Sent, Sent)) -> Parts {
    let of_file = |us: u64| us as f64 / files as f64;
    let calls = of_file(client.calls_took);
    let queued = of_file(client.waited + server.waited);
    let served = of_file(server.serving_took);
    Parts {
        host: 1e6 / rate - calls,
        queued,
        served,
        wire: calls - queued - served,
    }
}

/// Each thread does its share: the numbers that it has as remainder.
fn by_threads(files: usize, threads: usize, each: impl Fn(usize) -> Checked + Sync) -> Checked {
    std::thread::scope(|scope| {
        let each = &each;
        let share = |first| move || (first..files).step_by(threads).try_for_each(each);
        let all: Vec<_> = (0..threads)
            .map(|first| scope.spawn(share(first)))
            .collect();
        all.into_iter().try_for_each(|thread| {
            let ended = thread.join();
            ended.map_err(|_| CheckError::violated("a thread panicked"))?
        })
    })
}

/// The directory of the thread that works on a file: each has its own, as in the source (the benchmark smallfile).
fn place(directory: &Path, number: usize, threads: usize) -> PathBuf {
    directory.join(format!("t{}", number % threads))
}

fn content(number: usize) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    pattern::fill(number as u64, 0, &mut bytes);
    bytes
}

fn write(directory: &Path, number: usize) -> Checked {
    let path = directory.join(format!("f{number:06}"));
    let what = || format!("write {}", path.display());
    let mut file = File::create_new(&path).call(what)?;
    file.write_all(&content(number)).call(what)
}

fn read(directory: &Path, number: usize) -> Checked {
    let path = directory.join(format!("f{number:06}"));
    let what = || format!("read {}", path.display());
    let mut seen = [0; BYTES];
    File::open(&path)
        .call(what)?
        .read_exact(&mut seen)
        .call(what)?;
    ensure!(
        seen == content(number),
        "{} has other content",
        path.display()
    );
    Ok(())
}
