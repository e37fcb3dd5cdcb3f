//! Operations on names by many clients at four sites, as in GMount's experiment (Dun, Taura and Yonezawa, section 3.2).
//!
//! Every host has the mount, and threads of one process on it are its clients. Each client has a directory on each host, and
//! does its operations in those by turns: a part of them, which is the locality, on hosts of its own site. All clients begin
//! each kind of operation at one moment, and the rate is that of all of them until the last one is done.
//!
//! Read [`sites`] (who is where), [`sequence`] (who does what where), [`worker`] (the process on each host), [`crew`] (all
//! of these processes).

mod crew;
mod kind;
mod picture;
mod report;
mod sequence;
mod sites;
mod worker;

pub use kind::Kind;
pub use picture::draw;
pub use report::{store, table};
pub use worker::serve;

use super::ground::{self, POINT};
use crate::target::Target;
use crew::Crew;
use perigee_testbed::delay::Lateness;
use perigee_testbed::ssh_hosts::{Plan, SshHosts};
use perigee_testbed::{Call, Checked, ensure};
use sequence::{Share, Work};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::Path;
use std::time::Duration;

/// All kinds of one case; what takes longer hangs.
const LIMIT: Duration = Duration::from_secs(3_600);
/// Cases of one round, at most.
const CASES_MAX: u32 = 1_000;
/// How long members take to learn how far away each is.
const ACQUAINTANCE: Duration = Duration::from_secs(20);
/// What is known of names is forgotten within this.
const FORGETTING: Duration = Duration::from_millis(1_500);

/// How much is measured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// So many at once, with all of their operations at their own sites.
    pub clients: Vec<u32>,
    /// Hundredths of the operations that are at a client's own site; with the most clients.
    pub localities: Vec<u32>,
    /// Operations of each kind by each client, where all are at its own site.
    pub operations: u32,
    /// The same where localities are compared, since far ones take long.
    pub operations_far: u32,
    /// Where new files go, as `perigee union --create` is told.
    pub create: String,
    /// Rounds; each measures everything once.
    pub rounds: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            clients: vec![1, 2, 4, 8, 16, 32, 64],
            localities: vec![20, 40, 60, 80, 100],
            operations: 1_000,
            operations_far: 200,
            create: "path".to_owned(),
            rounds: 3,
        }
    }
}

impl Settings {
    /// How many clients there are where localities are compared.
    #[must_use]
    pub fn crowd(&self) -> u32 {
        self.clients.iter().copied().max().unwrap_or(1)
    }

    /// All cases in a round, each with names of its own.
    fn works(&self, round: u32) -> Vec<(Case, Work)> {
        let clients = self.clients.iter().copied().map(Case::Clients);
        let localities = self.localities.iter().copied().map(Case::Locality);
        let cases = (round * CASES_MAX..).zip(clients.chain(localities));
        cases
            .map(|(number, case)| {
                let share = self.share(case);
                (case, Work { number, share })
            })
            .collect()
    }

    fn share(&self, case: Case) -> Share {
        match case {
            Case::Clients(clients) => Share {
                clients,
                near: 100,
                operations: self.operations,
            },
            Case::Locality(near) => Share {
                clients: self.crowd(),
                near,
                operations: self.operations_far,
            },
        }
    }
}

/// What is varied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Case {
    /// So many clients, all of whose operations are at their own sites.
    Clients(u32),
    /// So many hundredths of the operations of most clients are at their own sites.
    Locality(u32),
}

/// Operations a second of all clients together, in the order of the rounds.
pub type Series = BTreeMap<(Kind, Case), Vec<f64>>;

/// What was measured.
#[derive(Debug)]
pub struct Outcome {
    /// The rates.
    pub series: Series,
    /// How late packets were.
    pub late: Lateness,
}

/// Runs all; `program` is this one, and `tell` hears of each part before it begins.
///
/// Errors: the first operation that fails.
pub fn run(settings: &Settings, program: &Path, mut tell: impl FnMut(&str)) -> Checked<Outcome> {
    let right = settings.localities.iter().all(|near| *near <= 100);
    ensure!(right, "a locality is of hundredths, 100 at most");
    let cases = settings.clients.len() + settings.localities.len();
    ensure!(cases < CASES_MAX as usize, "{cases} cases are too many");
    let hosts = Plan::of(sites::HOSTS).one_way(sites::one_way).start()?;
    let mut series = Series::new();
    for round in 1..=settings.rounds {
        let title = format!("round {round} of {}", settings.rounds);
        tell(&format!("{title}: mounting on {} hosts", sites::HOSTS + 1));
        ground::watched(&hosts, LIMIT, || {
            ground::mount_union(&hosts, &["--everywhere", "--create", &settings.create])
        })?;
        std::thread::sleep(ACQUAINTANCE);
        let mut crew = Crew::start(&hosts, program)?;
        let works = settings.works(round);
        for (case, work) in &works {
            let share = work.share;
            tell(&format!("{title}: {share}"));
            let rates = ground::watched(&hosts, LIMIT, || measure(&hosts, &mut crew, work));
            for (kind, rate) in rates.map_err(|error| error.during(&share.to_string()))? {
                series.entry((kind, *case)).or_default().push(rate);
            }
        }
        drop(crew);
        ground::unmount_union(&hosts)?;
        for (_, work) in &works {
            clear(&hosts, work)?;
        }
    }
    let late = hosts.links().lateness()?;
    Ok(Outcome { series, late })
}

/// All kinds once, of names that nobody has seen before.
fn measure(hosts: &SshHosts, crew: &mut Crew, work: &Work) -> Checked<Vec<(Kind, f64)>> {
    prepare(hosts, work)?;
    let target = Target {
        label: "union".to_owned(),
        directory: POINT.into(),
        one_copy: None,
        daemons: ground::pids(hosts)?,
    };
    std::thread::sleep(FORGETTING);
    let mut rates = Vec::new();
    for kind in Kind::ALL {
        target.settle();
        let rate = crew.perform(work, kind);
        rates.push((kind, rate.map_err(|error| error.during(kind.title()))?));
    }
    Ok(rates)
}

/// Makes the directories of all clients on all hosts, and the files that are there beforehand, on the hosts' disks.
fn prepare(hosts: &SshHosts, work: &Work) -> Checked {
    for kind in Kind::ALL.into_iter().filter(|kind| kind.is_first()) {
        for host in 1..=hosts.count() {
            let folder = hosts.directory(host)?.join(work.folder(kind));
            make_directory(&folder)?;
            for client in 0..work.share.clients {
                make_directory(&folder.join(sequence::directory(host, client)))?;
            }
        }
        if !kind.needs_files() {
            continue;
        }
        for client in 0..work.share.clients {
            for (number, host) in (0..).zip(work.hosts(kind, client)) {
                let path = hosts
                    .directory(host)?
                    .join(work.path(kind, client, host, number));
                File::create_new(&path).call(|| format!("make {}", path.display()))?;
            }
        }
    }
    Ok(())
}

/// Removes what is left of a round, on the hosts' disks: not before the union has ended, since whoever makes something next
/// may get its inode numbers.
fn clear(hosts: &SshHosts, work: &Work) -> Checked {
    for kind in Kind::ALL.into_iter().filter(|kind| kind.is_first()) {
        for host in 1..=hosts.count() {
            let folder = hosts.directory(host)?.join(work.folder(kind));
            fs::remove_dir_all(&folder).call(|| format!("remove {}", folder.display()))?;
        }
    }
    Ok(())
}

fn make_directory(path: &Path) -> Checked {
    fs::create_dir(path).call(|| format!("make {}", path.display()))
}
