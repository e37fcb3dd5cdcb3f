//! A large file that lies on another host, read and written in pieces of 1 MiB, beside one TLS stream over the same link.
//!
//! All processes are on one machine. Where the link is its loopback, nothing but processors and memory limits either side;
//! a link with a rate and a round trip is carried by this process, whose CPU time counts on both sides.

mod between;
mod report;
mod stream;

pub use between::Between;
pub use report::{store, table};
pub use stream::serve;

use crate::content::Content;
use crate::large::{self, MIB};
use crate::pipe::Way;
use crate::target::{Figure, Target};
use perigee_testbed::{Call, Checked, ensure};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;
use stream::Stream;

/// A benchmark that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(3_600);
const NODES: u32 = 3;
const CLIENT: u32 = 1;
const SERVER: u32 = 2;

/// How much is measured.
#[derive(Debug, Clone)]
pub struct Settings {
    /// What lies between the hosts, one after the other.
    pub between: Vec<Between>,
    /// MiB of the file.
    pub mib: u64,
    /// Rounds; each measures every row once.
    pub rounds: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            between: vec![
                Between::Loopback,
                Between::link(1_000, 1),
                Between::link(1_000, 20),
            ],
            mib: 512,
            rounds: 5,
        }
    }
}

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Row {
    /// A TLS stream from the other process.
    StreamDown,
    /// A file that another host has, which none of the reader's caches knows.
    Read,
    /// A TLS stream to the other process.
    StreamUp,
    /// A new file on another host, until its last byte is there.
    Write,
    /// The same with an `fsync`.
    WriteSynced,
}

impl Row {
    /// In the order of the table.
    pub const ALL: [Self; 5] = [
        Self::StreamDown,
        Self::Read,
        Self::StreamUp,
        Self::Write,
        Self::WriteSynced,
    ];

    /// Its name for people.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Self::StreamDown => "one TLS stream, received",
            Self::Read => "seq read 1 MiB, far",
            Self::StreamUp => "one TLS stream, sent",
            Self::Write => "seq write 1 MiB, far",
            Self::WriteSynced => "seq write 1 MiB + fsync, far",
        }
    }

    /// Its name in files.
    #[must_use]
    pub const fn key(self) -> &'static str {
        match self {
            Self::StreamDown => "stream_down",
            Self::Read => "seq_read",
            Self::StreamUp => "stream_up",
            Self::Write => "seq_write",
            Self::WriteSynced => "seq_write_fsync",
        }
    }

    /// The stream that goes the same way.
    #[must_use]
    pub const fn beside(self) -> Self {
        match self {
            Self::StreamDown | Self::Read => Self::StreamDown,
            Self::StreamUp | Self::Write | Self::WriteSynced => Self::StreamUp,
        }
    }
}

/// All figures, in MiB a second, by round.
pub type Series = BTreeMap<Row, Vec<Figure>>;

/// All figures, by what lay between the hosts.
pub type Outcome = Vec<(Between, Series)>;

/// Runs all; `program` is this one, and `tell` hears of each round before it begins.
///
/// Errors: the first call that fails, or content that is not what was written.
pub fn run(settings: &Settings, program: &Path, mut tell: impl FnMut(&str)) -> Checked<Outcome> {
    let all = settings.between.iter().map(|between| {
        let series = run_between(settings, *between, program, &mut tell);
        series.map(|series| (*between, series))
    });
    all.collect()
}

fn run_between(
    settings: &Settings,
    between: Between,
    program: &Path,
    tell: &mut impl FnMut(&str),
) -> Checked<Series> {
    let mut cluster = between.cluster(NODES, LIMIT)?;
    let (near, far) = (cluster.mount(SERVER)?, cluster.mount(CLIENT)?);
    let directory = near.join("d");
    fs::create_dir(&directory).call(|| format!("mkdir {}", directory.display()))?;
    let place = directory.to_string_lossy().into_owned();
    let set = cluster.command(&["policy", "set", &place, "copies=1", "migration=off"])?;
    ensure!(set.status.success(), "policy: {}", set.stderr);
    let owner = cluster.owner(&directory)?;
    ensure!(owner == SERVER, "node {owner} owns {place}");
    cluster.settle()?;
    let target = |daemons| Target {
        label: "perigee".to_owned(),
        directory: far.clone(),
        one_copy: None,
        daemons,
    };
    let mut stream = Stream::start(program, &cluster, between, CLIENT, SERVER)?;
    let mut field = Field {
        near: directory,
        far: far.join("d"),
        mib: settings.mib,
        mount: target(cluster.pids()),
        bare: target(vec![stream.pid()]),
        content: Content::new(3),
        made: 0,
    };
    let mut series = Series::new();
    for round in 1..=settings.rounds {
        tell(&format!(
            "{}: round {round} of {}",
            between.title(),
            settings.rounds
        ));
        for row in Row::ALL {
            let figure = field.measure(&mut stream, row);
            let figure = figure.map_err(|error| error.during(row.title()))?;
            series.entry(row).or_default().push(figure);
        }
    }
    Ok(series)
}

struct Field {
    near: PathBuf,
    far: PathBuf,
    mib: u64,
    mount: Target,
    bare: Target,
    content: Content,
    made: u32,
}

impl Field {
    fn measure(&mut self, stream: &mut Stream, row: Row) -> Checked<Figure> {
        match row {
            Row::StreamDown => self.pass(stream, Way::Down),
            Row::StreamUp => self.pass(stream, Way::Up),
            Row::Read => self.read(),
            Row::Write => self.write(false),
            Row::WriteSynced => self.write(true),
        }
    }

    fn pass(&self, stream: &mut Stream, way: Way) -> Checked<Figure> {
        self.mount.settle();
        let meter = self.bare.meter();
        stream.pass(way, self.mib * MIB as u64)?;
        Ok(meter.stop().rate(self.mib as f64, self.mib))
    }

    /// A name that no kernel has seen.
    fn name(&mut self) -> String {
        self.made += 1;
        format!("f{}", self.made)
    }

    fn read(&mut self) -> Checked<Figure> {
        let name = self.name();
        let (near, far) = (self.near.join(&name), self.far.join(&name));
        let (file, places) = large::make(&mut self.content, &near, self.mib)?;
        file.sync_all()
            .call(|| format!("sync {}", near.display()))?;
        drop(file);
        self.mount.settle();
        let meter = self.mount.meter();
        large::read(&far, self.mib)?;
        let figure = meter.stop().rate(self.mib as f64, self.mib);
        large::check(&self.content, &far, &places)?;
        fs::remove_file(&near).call(|| format!("remove {}", near.display()))?;
        Ok(figure)
    }

    fn write(&mut self, synced: bool) -> Checked<Figure> {
        let name = self.name();
        let (near, far) = (self.near.join(&name), self.far.join(&name));
        let mount = self.mount.clone();
        mount.settle();
        let meter = mount.meter();
        let (file, places) = large::make(&mut self.content, &far, self.mib)?;
        if synced {
            file.sync_all().call(|| format!("sync {}", far.display()))?;
        }
        drop(file);
        let figure = meter.stop().rate(self.mib as f64, self.mib);
        large::check(&self.content, &near, &places)?;
        fs::remove_file(&near).call(|| format!("remove {}", near.display()))?;
        Ok(figure)
    }
}
