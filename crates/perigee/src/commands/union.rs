//! `perigee union`: directories of several hosts as one, with nothing but SSH.

use super::JsonArg;
use super::serve_union::PLAN_FILE;
use crate::admin_client::{ASK_TIME, ask, unexpected};
use crate::daemon::{HostLine, UnionPlan};
use crate::human::{self, Align, Table};
use crate::layout::{LOG_FILE, make_private_dir};
use crate::mounts::{self, Entries};
use crate::output::{Outcome, Progress, Report};
use clap::Args;
use perigee_proto::admin::{Answer, Failure, Reply, Request, UnionStatus, UnionWay};
use perigee_union::ssh::target;
use serde::Serialize;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Mount directories of several hosts as one, over SSH alone.
///
/// The other hosts need nothing but an SSH server: this program carries itself over, and leaves nothing behind. Where a name is
/// in several directories, the nearest is seen; directories of one name are one. docs/UNION.md says more.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  perigee union h1:/data h2:/data /mnt/u
  perigee union . bob@h1:results bob@h2:2222:results ~/all
  perigee union --hosts hosts.txt --partial /mnt/u     one directory on each line
  perigee union --everywhere h1:/d h2:/d h3:/d /tmp/u  on h1, h2 and h3, too
  perigee union --status /mnt/u
  perigee umount /mnt/u")]
pub struct Union {
    /// `[[user@]host[:port]:]directory` of each host, and last where to mount; `-` reads some from standard input
    #[arg(value_name = "[HOST:]DIR… MOUNTPOINT", required = true)]
    words: Vec<String>,
    /// A file with one directory on each line
    #[arg(long, value_name = "FILE")]
    hosts: Vec<PathBuf>,
    /// Leave out hosts that cannot be reached, now and later
    ///
    /// Without it, one that cannot be reached now is an error; and later, what may be on a host that is away is one
    /// (EIO), rather than not there.
    #[arg(long)]
    partial: bool,
    /// Mount on the other hosts, too, at the same place
    #[arg(long)]
    everywhere: bool,
    /// Let hosts keep this program, so that it need not be sent the next time
    #[arg(long)]
    keep: bool,
    /// Where new files go: here (this host, where it has a directory), path (the nearest host that has the directory),
    /// space (where most is free), or a host
    #[arg(long, value_name = "WHERE", default_value = "here")]
    create: String,
    /// How old what is known of other hosts' names and attributes may be, milliseconds
    #[arg(long, value_name = "MS", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(0..=3_600_000))]
    fresh: u32,
    /// Let no host connect to another one but through SSH
    #[arg(long)]
    ssh_only: bool,
    /// The SSH command, with options
    #[arg(short = 'e', long, value_name = "COMMAND", default_value = "ssh")]
    ssh: String,
    /// Mount options, with commas between them, as of `perigee mount`
    #[arg(short = 'o', value_name = "OPTIONS")]
    options: Vec<String>,
    /// Show the hosts of a union that is mounted
    #[arg(long, conflicts_with_all = ["hosts", "partial", "everywhere", "keep", "ssh_only"])]
    status: bool,
    #[command(flatten)]
    json: JsonArg,
}

/// What was done.
#[derive(Debug, Serialize)]
struct Summary {
    mount: PathBuf,
    hosts: Vec<HostLine>,
    elapsed_ms: u128,
}

impl Union {
    /// Starts it, or shows it.
    pub fn run(mut self) -> Result<Report, Failure> {
        let Some(mountpoint) = self.words.pop().map(PathBuf::from) else {
            return Err(Failure::new(
                "cannot make a union",
                "no mount point is named",
            ));
        };
        if self.status {
            return self.show(&mountpoint);
        }
        let begun = Instant::now();
        let plan = self.plan(&mountpoint)?;
        let hosts = start(&plan)?;
        let outcome = match hosts.iter().all(|line| line.why.is_none()) {
            true => Outcome::Done,
            false => Outcome::Degraded,
        };
        let summary = Summary {
            mount: plan.mountpoint,
            hosts,
            elapsed_ms: begun.elapsed().as_millis(),
        };
        let report = Report::either(self.json.json, &summary, || summary.text())?;
        Ok(report.outcome(outcome))
    }

    fn plan(&self, mountpoint: &Path) -> Result<UnionPlan, Failure> {
        let what = || format!("cannot make a union on `{}`", mountpoint.display());
        let mut targets = Vec::new();
        for file in &self.hosts {
            let text = std::fs::read_to_string(file).map_err(|error| {
                Failure::new(format!("cannot read `{}`", file.display()), error)
            })?;
            targets.extend(target::lines(&text).map(str::to_owned));
        }
        for word in &self.words {
            if word == "-" {
                let mut text = String::new();
                let read = std::io::stdin().read_to_string(&mut text);
                read.map_err(|error| Failure::new("cannot read standard input", error))?;
                targets.extend(target::lines(&text).map(str::to_owned));
            } else {
                targets.push(word.clone());
            }
        }
        if targets.is_empty() {
            return Err(Failure::new(what(), "it has no directories")
                .hint("perigee union HOST:DIR HOST:DIR MOUNTPOINT"));
        }
        if targets.len() > usize::from(u16::MAX) {
            return Err(Failure::new(what(), "it has too many directories"));
        }
        let plan = UnionPlan {
            mountpoint: mounts::check_mountpoint(mountpoint, Entries::Refuse)?,
            targets,
            ssh: self.ssh.split_whitespace().map(str::to_owned).collect(),
            partial: self.partial,
            keep: self.keep,
            everywhere: self.everywhere,
            direct: !self.ssh_only,
            fresh_ms: self.fresh,
            create: self.create.clone(),
            options: self.options.clone(),
        };
        crate::mount_options::Options::parse(&plan.options)?;
        let (places, _) = plan.resolve()?;
        for place in places.iter().filter(|place| place.host.is_none()) {
            for (_, directory) in &place.branches {
                check_apart(&plan.mountpoint, directory)?;
            }
        }
        Ok(plan)
    }

    fn show(&self, mountpoint: &Path) -> Result<Report, Failure> {
        let what = || format!("cannot show the union on `{}`", mountpoint.display());
        let full = mountpoint
            .canonicalize()
            .map_err(|error| Failure::new(what(), error))?;
        let table = mounts::table()?;
        let mount = table.iter().rev().find(|mount| mount.mountpoint == full);
        let dir = mount
            .and_then(mounts::Mount::data_dir)
            .ok_or_else(|| Failure::new(what(), "no union is mounted there"))?;
        let status = match ask(&dir, &Request::Union, ASK_TIME)? {
            Answer::Union(status) => status,
            other => return Err(unexpected(&other)),
        };
        let outcome = match status.hosts.iter().any(|host| host.away) {
            true => Outcome::Degraded,
            false => Outcome::Done,
        };
        let report = Report::either(self.json.json, &status, || text_of(&status))?;
        Ok(report.outcome(outcome))
    }
}

/// A mount within one of its own directories would find itself there.
fn check_apart(mountpoint: &Path, directory: &[u8]) -> Result<(), Failure> {
    use std::os::unix::ffi::OsStrExt;
    let directory = Path::new(std::ffi::OsStr::from_bytes(directory));
    let full = directory
        .canonicalize()
        .map_err(|error| Failure::new(format!("cannot open `{}`", directory.display()), error))?;
    if mountpoint.starts_with(&full) {
        return Err(Failure::new(
            format!("cannot mount on `{}`", mountpoint.display()),
            format!(
                "it lies in `{}`, which is to be a part of the union",
                full.display()
            ),
        )
        .hint("choose a mount point outside of it"));
    }
    Ok(())
}

/// A directory of its own for the process of a union.
fn make_dir() -> Result<PathBuf, Failure> {
    use std::hash::{BuildHasher, RandomState};
    let base = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let base = base
        .filter(|dir| dir.is_dir())
        .unwrap_or_else(std::env::temp_dir);
    let user = rustix::process::geteuid().as_raw();
    let number = RandomState::new().hash_one(std::process::id());
    let dir = base.join(format!("perigee-union-{user}-{number:016x}"));
    make_private_dir(&dir)?;
    Ok(dir)
}

/// Starts the process, and waits until the union is mounted.
fn start(plan: &UnionPlan) -> Result<Vec<HostLine>, Failure> {
    let what = || format!("cannot make a union on `{}`", plan.mountpoint.display());
    let fail = |error: std::io::Error| Failure::new(what(), error);
    let dir = make_dir()?;
    let text = serde_json::to_vec(plan).map_err(|error| Failure::new(what(), error))?;
    std::fs::write(dir.join(PLAN_FILE), text).map_err(fail)?;
    let log = File::options()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(dir.join(LOG_FILE));
    let mut child = Command::new(std::env::current_exe().map_err(fail)?)
        .args(["serve-union", "--dir"])
        .arg(&dir)
        .current_dir(std::env::current_dir().map_err(fail)?)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log.map_err(fail)?)
        .spawn()
        .map_err(fail)?;
    let ended = || Failure::new(what(), "its process ended before it was ready");
    let lines = BufReader::new(child.stdout.take().ok_or_else(ended)?).lines();
    let (mut hosts, mut progress) = (Vec::<HostLine>::new(), Progress::new());
    let many = plan.resolve()?.0.len() - 1;
    for line in lines {
        let line = line.map_err(fail)?;
        if let Ok(host) = serde_json::from_str::<HostLine>(&line) {
            hosts.push(host);
            let serve = hosts.iter().filter(|host| host.why.is_none()).count();
            progress.show(|| format!("{serve} of {} serve", human::plural(many, "host")));
            continue;
        }
        progress.clear();
        match serde_json::from_str::<Reply>(&line) {
            Ok(Reply::Ok(_)) => return Ok(hosts),
            Ok(Reply::Error(failure)) => {
                _ = child.wait();
                return Err(failure);
            }
            Err(_) => {}
        }
    }
    progress.clear();
    let log = std::fs::read_to_string(dir.join(LOG_FILE)).unwrap_or_default();
    let last = log.lines().last().map(str::to_owned);
    _ = std::fs::remove_dir_all(&dir);
    Err(match last {
        Some(last) => ended().hint(format!("its last word: {last}")),
        None => ended(),
    })
}

impl Summary {
    fn text(&self) -> String {
        let failed = self
            .hosts
            .iter()
            .filter_map(|line| Some((&line.host, line.why.as_ref()?)));
        let failed: Vec<String> = failed
            .map(|(host, why)| format!("left out {host}: {why}\n"))
            .collect();
        let serve = self.hosts.len() - failed.len();
        let elapsed = Duration::from_millis(u64::try_from(self.elapsed_ms).unwrap_or(u64::MAX));
        format!(
            "{}{} mounted on {} in {}\n",
            failed.concat(),
            human::plural(serve, "host"),
            self.mount.display(),
            human::time(elapsed)
        )
    }
}

fn text_of(status: &UnionStatus) -> String {
    let mut table = Table::new(&[
        ("HOST", Align::Left),
        ("STATE", Align::Left),
        ("REACHED", Align::Left),
        ("ROUND TRIP", Align::Right),
        ("DIRECTORIES", Align::Left),
    ]);
    for host in &status.hosts {
        let way = match host.way {
            UnionWay::Here => "",
            UnionWay::Direct => "directly",
            UnionWay::Ssh => "through SSH",
            UnionWay::Unknown => "not yet",
        };
        let trip = host
            .round_trip_us
            .map(|us| human::time(Duration::from_micros(us)));
        let directories: Vec<String> = host.directories.iter().map(ToString::to_string).collect();
        table.row(vec![
            host.name.clone(),
            if host.away { "away" } else { "up" }.to_owned(),
            way.to_owned(),
            trip.unwrap_or_default(),
            directories.join(" "),
        ]);
    }
    table.render(0)
}
