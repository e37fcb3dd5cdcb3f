//! A host with two stores, one near and one far: which of them serves it, and what that is worth (the experiment of PERFUSE,
//! section V: 96 ms to the far one). Beside it, plain TCP streams from memory to memory. And the map of four sites, a
//! minute after it was begun and a minute after routes have changed.
//!
//! All processes are on one machine; the links are carried by this process ([`perigee_testbed::delay`]).

mod map;
mod report;
mod tcp;

pub use map::Map;
pub use report::{store, table};

use crate::content::Content;
use crate::large::{self, MIB};
use crate::pipe::Way;
use crate::target::{Figure, Target};
use perigee_testbed::delay::Wire;
use perigee_testbed::{Call, Checked, Cluster, ensure};
use std::collections::BTreeMap;
use std::fs;
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tcp::Pipe;

/// A benchmark that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(3_600);
/// Until who writes for a host is the store that is near to it.
const CHOSEN: Duration = Duration::from_secs(120);
/// Until nodes know where they are, and all have heard of it.
const FOUND: Duration = Duration::from_secs(30);
const FAR: u32 = 1;
const NEAR: u32 = 2;
const CLIENT: u32 = 3;
/// Bytes a second of a link of a million bits a second.
const MBIT: u64 = 125_000;

/// How much is measured.
#[derive(Debug, Clone)]
pub struct Settings {
    /// MiB of a file.
    pub mib: u64,
    /// Rounds; each measures every row once.
    pub rounds: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self { mib: 16, rounds: 5 }
    }
}

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Row {
    /// Bytes from the near host, by TCP.
    NearDown,
    /// Bytes from the far host.
    FarDown,
    /// A file that both stores have, and the far one owns.
    ReadChosen,
    /// A file that the far one alone has.
    ReadFar,
    /// Bytes to the near host, by TCP.
    NearUp,
    /// Bytes to the far host.
    FarUp,
    /// A new file, in a directory that both keep; the far one owned it when the client began to work there.
    WriteChosen,
    /// A new file, in a directory that the far one alone keeps.
    WriteFar,
}

impl Row {
    /// In the order of the table.
    pub const ALL: [Self; 8] = [
        Self::NearDown,
        Self::FarDown,
        Self::ReadChosen,
        Self::ReadFar,
        Self::NearUp,
        Self::FarUp,
        Self::WriteChosen,
        Self::WriteFar,
    ];

    /// Its name for people.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Self::NearDown => "TCP from the near host",
            Self::FarDown => "TCP from the far host",
            Self::ReadChosen => "read, both have it",
            Self::ReadFar => "read, the far one has it",
            Self::NearUp => "TCP to the near host",
            Self::FarUp => "TCP to the far host",
            Self::WriteChosen => "write, both keep it",
            Self::WriteFar => "write, the far one keeps it",
        }
    }

    /// Its name in files.
    #[must_use]
    pub const fn key(self) -> &'static str {
        match self {
            Self::NearDown => "tcp_near_down",
            Self::FarDown => "tcp_far_down",
            Self::ReadChosen => "read_chosen",
            Self::ReadFar => "read_far",
            Self::NearUp => "tcp_near_up",
            Self::FarUp => "tcp_far_up",
            Self::WriteChosen => "write_chosen",
            Self::WriteFar => "write_far",
        }
    }

    /// The same from or to the far store alone.
    #[must_use]
    pub const fn far(self) -> Self {
        match self {
            Self::NearDown | Self::FarDown => Self::FarDown,
            Self::ReadChosen | Self::ReadFar => Self::ReadFar,
            Self::NearUp | Self::FarUp => Self::FarUp,
            Self::WriteChosen | Self::WriteFar => Self::WriteFar,
        }
    }

    /// The plain stream over the near link the same way.
    #[must_use]
    pub const fn stream(self) -> Self {
        match self {
            Self::NearDown | Self::FarDown | Self::ReadChosen | Self::ReadFar => Self::NearDown,
            Self::NearUp | Self::FarUp | Self::WriteChosen | Self::WriteFar => Self::NearUp,
        }
    }
}

/// All figures, in seconds, by round.
pub type Series = BTreeMap<Row, Vec<Figure>>;

/// A wire of so many million bits a second.
fn wire(mbit: u64, round_trip: Duration) -> Wire {
    Wire {
        rate: NonZeroU64::new(mbit * MBIT),
        ..Wire::of_round_trip(round_trip)
    }
}

/// Runs all; `tell` hears of each row before it begins.
///
/// Errors: the first call that fails, content that is not what was written, or a store that was not chosen.
pub fn run(settings: &Settings, mut tell: impl FnMut(&str)) -> Checked<Series> {
    let mut field = Field::set(settings)?;
    let mut series = Series::new();
    for round in 1..=settings.rounds {
        for row in Row::ALL {
            tell(&format!(
                "round {round} of {}: {}",
                settings.rounds,
                row.title()
            ));
            let figure = field.measure(row);
            let figure = figure.map_err(|error| error.during(row.title()))?;
            series.entry(row).or_default().push(figure);
        }
    }
    Ok(series)
}

struct Field {
    cluster: Cluster,
    /// The client's mount, and the far host's.
    client: PathBuf,
    far: PathBuf,
    pipes: [Pipe; 2],
    target: Target,
    content: Content,
    mib: u64,
    made: u32,
}

/// Both stores keep it, and the far one owns it.
const SHARED: &str = "shared";
/// Both stores keep it, and it goes to who is near to the client.
const OWN: &str = "own";
/// The far store keeps it alone.
const ALONE: &str = "alone";

impl Field {
    fn set(settings: &Settings) -> Checked<Self> {
        let short = Wire::of_round_trip(Duration::from_micros(150));
        let mut cluster = Cluster::start_far_apart_with(3, LIMIT, short, &[CLIENT])?;
        let links = cluster.links()?;
        links.reroute(CLIENT, NEAR, wire(1_000, Duration::from_millis(2)))?;
        links.reroute(CLIENT, FAR, wire(200, Duration::from_millis(96)))?;
        links.reroute(NEAR, FAR, wire(1_000, Duration::from_millis(95)))?;
        let pipes = [
            Pipe::between(links, CLIENT, NEAR)?,
            Pipe::between(links, CLIENT, FAR)?,
        ];
        let (client, far) = (cluster.mount(CLIENT)?, cluster.mount(FAR)?);
        std::thread::sleep(FOUND);
        for (name, settings) in [
            (SHARED, ["copies=2", "migration=off"]),
            (ALONE, ["copies=1", "migration=off"]),
            (OWN, ["copies=2", "migration=adaptive"]),
        ] {
            let directory = far.join(name);
            fs::create_dir(&directory).call(|| format!("mkdir {}", directory.display()))?;
            let place = directory.to_string_lossy().into_owned();
            let [copies, migration] = settings;
            let set = cluster.command(&["policy", "set", &place, copies, migration])?;
            ensure!(set.status.success(), "policy: {}", set.stderr);
        }
        for name in [SHARED, ALONE, OWN] {
            let found = cluster.owner(&far.join(name))?;
            ensure!(found == FAR, "node {found} owns `{name}`");
        }
        cluster.settle()?;
        let began = Instant::now();
        while cluster.owner(&far.join(OWN))? != NEAR {
            ensure!(began.elapsed() < CHOSEN, "`{OWN}` stays with the far store");
            let file = client.join(OWN).join("work");
            fs::write(&file, [0; 4_096]).call(|| format!("write {}", file.display()))?;
        }
        let target = Target {
            label: "perigee".to_owned(),
            directory: client.clone(),
            one_copy: None,
            daemons: cluster.pids(),
        };
        Ok(Self {
            cluster,
            client,
            far,
            pipes,
            target,
            content: Content::new(3),
            mib: settings.mib,
            made: 0,
        })
    }

    fn measure(&mut self, row: Row) -> Checked<Figure> {
        match row {
            Row::NearDown => self.pass(0, Way::Down),
            Row::FarDown => self.pass(1, Way::Down),
            Row::NearUp => self.pass(0, Way::Up),
            Row::FarUp => self.pass(1, Way::Up),
            Row::ReadChosen => self.read(SHARED),
            Row::ReadFar => self.read(ALONE),
            Row::WriteChosen => self.write(OWN),
            Row::WriteFar => self.write(ALONE),
        }
    }

    fn pass(&mut self, pipe: usize, way: Way) -> Checked<Figure> {
        self.target.settle();
        let bytes = self.mib * MIB as u64;
        let meter = self.target.meter();
        self.pipes[pipe].pass(way, bytes)?;
        Ok(meter.stop().time(self.mib))
    }

    fn name(&mut self) -> String {
        self.made += 1;
        format!("f{}", self.made)
    }

    /// A file that the client has not seen.
    fn read(&mut self, directory: &str) -> Checked<Figure> {
        let name = self.name();
        let [made, read] = [&self.far, &self.client].map(|root| root.join(directory).join(&name));
        let (file, places) = large::make(&mut self.content, &made, self.mib)?;
        file.sync_all()
            .call(|| format!("sync {}", made.display()))?;
        drop(file);
        self.target.settle();
        let meter = self.target.meter();
        large::read(&read, self.mib)?;
        let figure = meter.stop().time(self.mib);
        large::check(&self.content, &read, &places)?;
        fs::remove_file(&made).call(|| format!("remove {}", made.display()))?;
        Ok(figure)
    }

    /// A new file, until its last byte is at the owner.
    fn write(&mut self, directory: &str) -> Checked<Figure> {
        let name = self.name();
        let [made, seen] = [&self.client, &self.far].map(|root| root.join(directory).join(&name));
        let target = self.target.clone();
        target.settle();
        let meter = target.meter();
        let (file, places) = large::make(&mut self.content, &made, self.mib)?;
        drop(file);
        let figure = meter.stop().time(self.mib);
        large::check(&self.content, &seen, &places)?;
        fs::remove_file(&made).call(|| format!("remove {}", made.display()))?;
        self.cluster.settle()?;
        Ok(figure)
    }
}
