//! A cluster whose record is in real etcd processes: programs go on whatever becomes of them.
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

use perigee_testbed::etcd::{self, Etcd};
use perigee_testbed::process::Identity;
use perigee_testbed::{Cluster, program, wait};
use rustix::process::Signal;
use serde_json::Value;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(60);
/// Longer than any lease between nodes, and than a sign of life.
const LONG: Duration = Duration::from_secs(6);

/// A cluster of three that has moved to an etcd of `members`, and mounts on its first two nodes.
struct Moved {
    cluster: Cluster,
    etcd: Etcd,
    here: PathBuf,
    there: PathBuf,
}

impl Moved {
    fn new(members: usize) -> Self {
        let etcd = Etcd::start(members).unwrap();
        let mut cluster = Cluster::start(3).unwrap();
        let (here, there) = (cluster.mount(1).unwrap(), cluster.mount(2).unwrap());
        fs::write(here.join("before"), "before").unwrap();
        let place = etcd.place();
        // Programs write and read beside the move.
        let busy = Busy::start(&here, &there);
        let moved = cluster.perigee(&["control", "move", &place, "--json"]);
        let moved: Value = serde_json::from_str(&moved.unwrap()).unwrap();
        busy.end();
        assert_eq!(moved["control"], place);
        assert!(moved["keys"].as_u64() > Some(10), "{moved}");
        let mut made = Self {
            cluster,
            etcd,
            here,
            there,
        };
        made.until_control_is("up");
        let status = made.status();
        assert_eq!(status["control"]["kept"], place);
        assert_eq!(fs::read(made.there.join("before")).unwrap(), b"before");
        made
    }

    fn status(&mut self) -> Value {
        let ended = self.cluster.on_this(&["status", "--json", "--node", "1"]);
        serde_json::from_str(&ended.unwrap().stdout).unwrap()
    }

    fn until_control_is(&mut self, state: &str) {
        let what = format!("the control store is {state}");
        let mut last = Value::Null;
        let waited = wait::until(&what, LIMIT, || {
            last = self.status()["control"].clone();
            Ok((last["state"] == state).then_some(()))
        });
        assert!(waited.is_ok(), "{waited:?}: {last}");
    }

    fn json(&mut self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.cluster.perigee(arguments).unwrap()).unwrap()
    }

    /// Kills the control process that is in `dir`.
    fn kill_control(&self, dir: &Path) {
        let pid = fs::read_to_string(dir.join("control/pid")).unwrap();
        let pid = pid.split_whitespace().next().unwrap().parse().unwrap();
        let process = Identity::of(pid).unwrap();
        process.signal(Signal::KILL).unwrap();
        // One that is not quite dead is taken for one that serves, by whoever starts what does not run.
        wait::until("the process is dead", LIMIT, || {
            Ok((!process.lives()).then_some(()))
        })
        .unwrap();
    }

    /// Writes, reads, makes and syncs on both mounts for `time`, none of which takes long.
    fn go_on(&self, time: Duration) {
        let busy = Busy::start(&self.here, &self.there);
        std::thread::sleep(time);
        busy.end();
    }

    /// A node dies, and another one owns what it owned: that takes the control store. Then it comes back.
    fn chains_change(&mut self) {
        self.chains_do_without_a_node();
        self.cluster.up().unwrap();
        self.cluster.settle().unwrap();
    }

    fn chains_do_without_a_node(&mut self) {
        let epochs = |status: &Value| -> Vec<u64> {
            let containers = status["containers"].as_array().unwrap().iter();
            containers
                .map(|one| one["epoch"].as_u64().unwrap())
                .collect()
        };
        let before = epochs(&self.status());
        self.cluster.kill(3, Signal::KILL).unwrap();
        wait::until("every chain has done without it", LIMIT, || {
            let after = epochs(&self.status());
            let all = before
                .iter()
                .zip(&after)
                .all(|(before, after)| after > before);
            Ok(all.then_some(()))
        })
        .unwrap();
    }
}

/// Programs on two mounts, until they are told to end.
struct Busy {
    stop: std::sync::mpsc::Sender<()>,
    worker: std::thread::JoinHandle<(u32, Duration)>,
}

impl Busy {
    fn start(here: &Path, there: &Path) -> Self {
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let (here, there) = (here.to_path_buf(), there.to_path_buf());
        let worker = std::thread::spawn(move || {
            let (mut rounds, mut longest) = (0, Duration::ZERO);
            while stopped.recv_timeout(Duration::from_millis(20))
                == Err(std::sync::mpsc::RecvTimeoutError::Timeout)
            {
                let began = Instant::now();
                let text = format!("round {rounds}");
                for (own, other) in [(&here, &there), (&there, &here)] {
                    let name = format!("of-{}", rounds % 8);
                    fs::write(own.join(&name), &text).unwrap();
                    File::open(own.join(&name)).unwrap().sync_all().unwrap();
                    assert_eq!(fs::read_to_string(other.join(&name)).unwrap(), text);
                    fs::remove_file(other.join(&name)).unwrap();
                }
                longest = longest.max(began.elapsed());
                rounds += 1;
            }
            (rounds, longest)
        });
        Self { stop, worker }
    }

    fn end(self) {
        drop(self.stop);
        let (rounds, longest) = self.worker.join().unwrap();
        assert!(rounds > 0, "nothing was done");
        assert!(longest < Duration::from_secs(2), "a round took {longest:?}");
    }
}

#[test]
fn programs_go_on_while_etcd_is_away_and_chains_change_when_it_is_back() {
    let name = "programs_go_on_while_etcd_is_away_and_chains_change_when_it_is_back";
    let Some(_alone) = program::alone() else {
        return;
    };
    if !etcd::is_here(name) {
        return;
    }
    let mut moved = Moved::new(1);
    moved.chains_change();
    moved.etcd.kill_all().unwrap();
    moved.go_on(LONG);
    moved.until_control_is("away");
    // The process that serves it starts, too, while etcd is away.
    moved.kill_control(&moved.cluster.dir());
    moved.go_on(Duration::from_secs(1));
    moved.cluster.perigee(&["up"]).unwrap();
    moved.etcd.restart_all().unwrap();
    moved.until_control_is("up");
    moved.chains_change();
    moved.go_on(Duration::from_secs(1));
}

#[test]
fn one_of_three_etcds_is_as_good_as_all() {
    let Some(_alone) = program::alone() else {
        return;
    };
    if !etcd::is_here("one_of_three_etcds_is_as_good_as_all") {
        return;
    }
    let mut moved = Moved::new(3);
    // The one that is asked first.
    moved.etcd.kill(0).unwrap();
    moved.until_control_is("up");
    moved.chains_change();
    // Two of three are none.
    moved.etcd.kill(1).unwrap();
    moved.go_on(LONG);
    moved.until_control_is("away");
    moved.etcd.restart_all().unwrap();
    moved.until_control_is("up");
    moved.chains_change();
}

#[test]
fn an_etcd_that_was_put_back_is_refused_and_programs_go_on() {
    let Some(_alone) = program::alone() else {
        return;
    };
    if !etcd::is_here("an_etcd_that_was_put_back_is_refused_and_programs_go_on") {
        return;
    }
    let mut moved = Moved::new(1);
    moved.etcd.kill_all().unwrap();
    moved.etcd.back_up().unwrap();
    moved.etcd.restart_all().unwrap();
    moved.until_control_is("up");
    moved.chains_change();
    moved.etcd.kill_all().unwrap();
    moved.etcd.set_aside().unwrap();
    moved.etcd.put_back().unwrap();
    moved.etcd.restart_all().unwrap();
    moved.until_control_is("went_back");
    moved.go_on(LONG);
    let ended = moved.cluster.on_this(&["token"]).unwrap();
    assert!(!ended.status.success());
    assert!(
        ended.stderr.contains("lost what it acknowledged"),
        "{}",
        ended.stderr
    );
    let doctor = moved.cluster.on_this(&["doctor"]).unwrap();
    assert!(
        doctor.stdout.contains("put back to an older state"),
        "{}",
        doctor.stdout
    );
    moved.etcd.kill_all().unwrap();
    moved.etcd.bring_back().unwrap();
    moved.etcd.restart_all().unwrap();
    moved.until_control_is("up");
    moved.chains_change();
}

#[test]
fn any_of_the_processes_that_serve_the_record_will_do() {
    let Some(_alone) = program::alone() else {
        return;
    };
    if !etcd::is_here("any_of_the_processes_that_serve_the_record_will_do") {
        return;
    }
    let mut moved = Moved::new(1);
    // What is another machine to all commands, with a node of its own.
    let elsewhere = moved.cluster.path().join("elsewhere");
    let (file, there) = (elsewhere.with_extension("control"), elsewhere.clone());
    let (file, there) = (file.to_str().unwrap(), there.to_str().unwrap());
    let token = moved.json(&["token", "--json"])["token"].clone();
    let join = [
        "join",
        token.as_str().unwrap(),
        "--listen",
        "127.0.0.1:0",
        "--name",
        "far",
    ];
    let at = ["--dir", there];
    let on = |all: &[&str]| {
        all.iter()
            .chain(&at)
            .map(|word| (*word).to_owned())
            .collect()
    };
    let join: Vec<String> = on(&join);
    assert!(moved.cluster.command(&join).unwrap().status.success());
    moved.cluster.perigee(&["control", "export", file]).unwrap();
    let import: Vec<String> = on(&[
        "control",
        "import",
        file,
        "--listen",
        "127.0.0.1:0",
        "--json",
    ]);
    let imported = moved.cluster.command(&import).unwrap();
    assert!(imported.status.success(), "{}", imported.stderr);
    let imported: Value = serde_json::from_str(&imported.stdout).unwrap();
    let first = moved.status()["control"]["address"].clone();
    assert_ne!(imported["address"], first);

    // Nodes learn of it by themselves, a moment later.
    for node in ["1", "2", "3"] {
        wait::until("the node knows of both processes", LIMIT, || {
            let ended = moved
                .cluster
                .on_this(&["status", "--json", "--node", node])?;
            let status: Value = serde_json::from_str(&ended.stdout).unwrap();
            let known = status["control"]["known"].as_array().unwrap().len();
            Ok((known == 2).then_some(()))
        })
        .unwrap();
    }
    moved.kill_control(&moved.cluster.dir());
    wait::until("the other process is asked", LIMIT, || {
        let control = moved.status()["control"].clone();
        let is = control["state"] == "up" && control["address"] == imported["address"];
        Ok(is.then_some(()))
    })
    .unwrap();
    moved.chains_do_without_a_node();
    // A node that starts knows of the other process, and joins go there.
    moved.kill_control(&elsewhere);
    let up: Vec<String> = on(&["up"]);
    assert!(moved.cluster.command(&up).unwrap().status.success());
    moved.until_control_is("up");
    let token = moved.json(&["token", "--json"])["token"].clone();
    assert!(token.is_string());
    moved.cluster.up().unwrap();
    moved.until_control_is("up");
    moved.go_on(Duration::from_secs(1));
    moved.kill_control(&elsewhere);
    moved.until_control_is("up");
    moved.go_on(Duration::from_secs(1));
    // The first one is cut off from etcd: it is reached, and of no use while there is the other one.
    let dir = moved.cluster.dir();
    moved.kill_control(&dir);
    let record = dir.join("control/etcd.json");
    let known = fs::read_to_string(&record).unwrap();
    let cut_off = known.replace(&moved.etcd.place(), "etcd://127.0.0.1:1");
    fs::write(&record, cut_off).unwrap();
    moved.cluster.up().unwrap();
    assert!(moved.cluster.command(&up).unwrap().status.success());
    wait::until("the one that is of use is asked", LIMIT, || {
        let control = moved.status()["control"].clone();
        let is = control["state"] == "up" && control["address"] == imported["address"];
        Ok(is.then_some(()))
    })
    .unwrap();
}

#[test]
fn a_cluster_is_made_on_etcd() {
    let Some(_alone) = program::alone() else {
        return;
    };
    if !etcd::is_here("a_cluster_is_made_on_etcd") {
        return;
    }
    let mut etcd = Etcd::start(1).unwrap();
    // For its folder, in which nothing is left behind.
    let mut cluster = Cluster::start(1).unwrap();
    let (first, second) = (cluster.path().join("first"), cluster.path().join("second"));
    let (first, second) = (first.to_str().unwrap(), second.to_str().unwrap());
    let place = etcd.place();
    let listen = ["--listen", "127.0.0.1:0", "--listen-control", "127.0.0.1:0"];
    let init = ["init", "--control", &place, "--name", "a", "--dir", first];
    let init: Vec<&str> = init.iter().chain(&listen).copied().collect();
    // A cluster that did not come to be leaves nothing.
    etcd.kill(0).unwrap();
    let refused = cluster.command(&init).unwrap();
    assert!(!refused.status.success());
    assert!(
        refused.stderr.contains("does not answer as an etcd"),
        "{}",
        refused.stderr
    );
    etcd.restart(0).unwrap();
    let made = cluster.command(&init).unwrap();
    assert!(made.status.success(), "{}", made.stderr);
    let token = cluster.command(&["token", "--dir", first]).unwrap().stdout;
    let join = [
        "join",
        token.trim(),
        "--listen",
        "127.0.0.1:0",
        "--name",
        "b",
        "--dir",
        second,
    ];
    let joined = cluster.command(&join).unwrap();
    assert!(joined.status.success(), "{}", joined.stderr);
    let status = cluster
        .command(&["status", "--json", "--dir", second])
        .unwrap();
    let status: Value = serde_json::from_str(&status.stdout).unwrap();
    assert_eq!(status["control"]["kept"], place);
    assert_eq!(status["nodes"].as_array().unwrap().len(), 2);
    for dir in [second, first] {
        let down = cluster.command(&["down", "--dir", dir]).unwrap();
        assert!(down.status.success(), "{}", down.stderr);
    }
    for dir in [first, second] {
        let up = cluster.command(&["up", "--dir", dir]).unwrap();
        assert!(up.status.success(), "{}", up.stderr);
    }
}
