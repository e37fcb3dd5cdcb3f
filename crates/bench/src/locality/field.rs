//! The cluster that is measured: nodes apart, a mount of each, and what happens between them.

use super::Settings;
use crate::target::Target;
use perigee_testbed::delay::{Lateness, Traffic, Wire};
use perigee_testbed::links::Direction;
use perigee_testbed::{Call, CheckError, Checked, Cluster, ensure};
use std::path::PathBuf;
use std::time::Duration;

/// A benchmark that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(7_200);
/// Copies of everything, where there are as many nodes.
const COPIES: u32 = 3;
/// Nodes ask for the policy of a directory again after this.
const HEEDED: Duration = Duration::from_millis(2_100);

/// Whether the ownership of a directory moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Migration {
    Off,
    Adaptive,
}

impl Migration {
    const fn setting(self) -> &'static str {
        match self {
            Self::Off => "migration=off",
            Self::Adaptive => "migration=adaptive",
        }
    }
}

/// What some calls came to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    /// In the job's unit.
    pub value: f64,
    /// How many calls.
    pub calls: u64,
    /// CPU time of a call, of all nodes and the benchmark.
    pub cpu: Duration,
    /// Messages between all nodes meanwhile, by their own count.
    pub messages: u64,
    /// What arrived over the network meanwhile.
    pub traffic: Traffic,
}

impl Sample {
    /// What slices of one job came to together. Their values are as many to a call a second as each other's.
    pub(super) fn whole(slices: &[Self]) -> Self {
        let calls: u64 = slices.iter().map(|slice| slice.calls).sum();
        let seconds = |slice: &Self| slice.calls as f64 / slice.value.max(f64::MIN_POSITIVE);
        let cpu: f64 = slices
            .iter()
            .map(|slice| slice.cpu.as_secs_f64() * slice.calls as f64)
            .sum();
        Self {
            value: calls as f64
                / slices
                    .iter()
                    .map(seconds)
                    .sum::<f64>()
                    .max(f64::MIN_POSITIVE),
            calls,
            cpu: Duration::from_secs_f64(cpu / calls.max(1) as f64),
            messages: slices.iter().map(|slice| slice.messages).sum(),
            traffic: slices.iter().map(|slice| slice.traffic).sum(),
        }
    }
}

/// What a job did.
#[derive(Debug, Clone, Copy)]
pub(super) struct Done {
    pub(super) calls: u64,
    /// As the job's unit counts.
    pub(super) amount: f64,
}

/// The nodes.
#[derive(Debug)]
pub(super) struct Field {
    cluster: Cluster,
    target: Target,
    points: Vec<PathBuf>,
    copies: u32,
    moves: bool,
    made: u32,
    seeds: u64,
}

/// Files that are written with seeds that follow each other.
const SEEDS: u64 = 1_000;

impl Field {
    pub(super) fn new(settings: &Settings, wire: Wire) -> Checked<Self> {
        let mut cluster = Cluster::start_far_apart(settings.nodes, LIMIT, wire)?;
        let points = (1..=settings.nodes)
            .map(|node| cluster.mount(node))
            .collect::<Checked<Vec<_>>>()?;
        let target = Target {
            label: "perigee".to_owned(),
            directory: cluster.path().to_owned(),
            one_copy: None,
            daemons: cluster.pids(),
        };
        let mut field = Self {
            cluster,
            target,
            points,
            copies: COPIES.min(settings.nodes),
            moves: true,
            made: 0,
            seeds: 0,
        };
        let probe = field.directory(1)?;
        field.moves = field.policy(&probe, Migration::Off.setting()).is_ok();
        field.remove(&probe)?;
        if field.moves {
            // What is measured is in directories below; the root stays with who made it.
            field.policy("", Migration::Off.setting())?;
        }
        Ok(field)
    }

    /// The first of some seeds for content that nothing was written with before: what is written again as it is counts as
    /// unchanged where the kernel writes it past the daemon, and goes nowhere.
    pub(super) fn seed(&mut self) -> u64 {
        self.seeds += SEEDS;
        self.seeds
    }

    /// Whether this version has a policy for whether ownership moves.
    pub(super) fn moves(&self) -> bool {
        self.moves
    }

    /// A path as one node has it.
    pub(super) fn on(&self, node: u32, name: &str) -> PathBuf {
        let point = (node as usize)
            .checked_sub(1)
            .and_then(|at| self.points.get(at));
        point.map_or_else(PathBuf::new, |point| point.join(name))
    }

    /// A directory that a node made and owns, a container by itself: nothing else moves with it.
    pub(super) fn directory(&mut self, node: u32) -> Checked<String> {
        self.made += 1;
        let name = format!("d{}", self.made);
        let path = self.on(node, &name);
        std::fs::create_dir(&path).call(|| format!("mkdir {}", path.display()))?;
        let copies = format!("copies={}", self.copies);
        let place = path.to_string_lossy().into_owned();
        self.command(&["policy", "set", &place, &copies])?;
        let owner = self.cluster.owner(&path)?;
        ensure!(
            owner == node,
            "node {node} made {name}, and node {owner} owns it"
        );
        // Members that have yet to come would be paid for by the first row.
        self.cluster.settle()?;
        Ok(name)
    }

    /// Says whether the ownership of a directory moves, where the version has a policy for it.
    pub(super) fn set(&mut self, name: &str, migration: Migration) -> Checked {
        if !self.moves {
            ensure!(migration == Migration::Off, "this version moves nothing");
            return Ok(());
        }
        self.policy(name, migration.setting())?;
        std::thread::sleep(HEEDED);
        Ok(())
    }

    fn policy(&mut self, name: &str, setting: &str) -> Checked {
        let place = self.on(1, name).to_string_lossy().into_owned();
        self.command(&["policy", "set", &place, setting])
    }

    fn command(&mut self, words: &[&str]) -> Checked {
        let ended = self.cluster.command(words)?;
        if ended.status.success() {
            return Ok(());
        }
        Err(CheckError::Command {
            command: format!("perigee {}", words.join(" ")),
            status: ended.status,
            stderr: ended.stderr,
        })
    }

    /// Removes a directory through its owner's mount: from elsewhere each name would take its time.
    pub(super) fn remove(&mut self, name: &str) -> Checked {
        let owner = self.cluster.owner(&self.on(1, name))?;
        let path = self.on(owner, name);
        std::fs::remove_dir_all(&path).call(|| format!("remove {}", path.display()))
    }

    /// Waits until the nodes have done what they do in the background.
    pub(super) fn settle(&self) {
        self.target.settle();
    }

    /// Does a piece of work, and tells what it took. What is to count is synced at its end.
    pub(super) fn measure(&mut self, work: impl FnOnce(&Self) -> Checked<Done>) -> Checked<Sample> {
        self.settle();
        self.measure_at_once(work)
    }

    /// The same without waiting for what nodes do in the background.
    pub(super) fn measure_at_once(
        &mut self,
        work: impl FnOnce(&Self) -> Checked<Done>,
    ) -> Checked<Sample> {
        let messages = self.cluster.messages_sent()?;
        let everywhere = self.cluster.links()?.everywhere();
        let traffic = self.cluster.links()?.traffic(&everywhere)?;
        let meter = self.target.meter();
        let done = work(self)?;
        let spent = meter.stop();
        let traffic = self.cluster.links()?.traffic(&everywhere)? - traffic;
        let messages = self.cluster.messages_sent()?.saturating_sub(messages);
        let figure = spent.rate(done.amount, done.calls);
        Ok(Sample {
            value: figure.value,
            calls: done.calls,
            cpu: figure.cpu,
            messages,
            traffic,
        })
    }

    /// What has arrived at a host and from it.
    pub(super) fn traffic_around(&self, node: u32) -> Checked<Traffic> {
        let links = self.cluster.links()?;
        links.traffic(&links.around(node))
    }

    /// Cuts a host off until what is returned is dropped.
    pub(super) fn cut_off(&self, node: u32) -> Checked<CutOff<'_>> {
        self.cut(self.cluster.links()?.around(node))
    }

    /// The same with every host.
    pub(super) fn cut_all(&self) -> Checked<CutOff<'_>> {
        self.cut(self.cluster.links()?.everywhere())
    }

    fn cut(&self, directions: Vec<Direction>) -> Checked<CutOff<'_>> {
        let cut = CutOff {
            field: self,
            directions,
        };
        for direction in &cut.directions {
            self.cluster.links()?.cut(*direction)?;
        }
        Ok(cut)
    }

    /// How late the network's packets were.
    pub(super) fn late(&self) -> Checked<Lateness> {
        self.cluster.links()?.lateness()
    }
}

/// Hosts that hear nobody.
#[derive(Debug)]
pub(super) struct CutOff<'a> {
    field: &'a Field,
    directions: Vec<Direction>,
}

impl Drop for CutOff<'_> {
    fn drop(&mut self) {
        for direction in &self.directions {
            if let Ok(links) = self.field.cluster.links() {
                // Wires that are there can be mended.
                _ = links.mend(*direction);
            }
        }
    }
}
