//! Hosts that are reached by `ssh` alone are what tests of such programs take them for.
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

use perigee_testbed::leftover::Workspace;
use perigee_testbed::links::both;
use perigee_testbed::process::{self, Identity};
use perigee_testbed::ssh_hosts::{Plan, SSH_PORT, SshHosts, User};
use perigee_testbed::{Call, Checked, mounts, wait};
use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

const MS: Duration = Duration::from_millis(1);
/// What a machine that is there takes to answer, at most.
const ANSWER: Duration = Duration::from_secs(20);
/// After this long a host that does not answer is down.
const SILENCE: Duration = Duration::from_millis(500);
const OTHER_PORT: u16 = 7_000;

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// `ssh` from host 0.
fn ssh(hosts: &SshHosts, user: User, host: u32, command: &str) -> Output {
    let mut ssh = hosts.command(0, user, "ssh").unwrap();
    ssh.arg("-F").arg(hosts.ssh_config(user));
    ssh.args([&hosts.name(host), command]);
    ssh.output().unwrap()
}

fn sh(hosts: &SshHosts, host: u32, user: User, script: &str) -> String {
    let mut sh = hosts.command(host, user, "sh").unwrap();
    let ended = sh.args(["-c", script]).output().unwrap();
    assert!(ended.status.success(), "`{script}`: {ended:?}");
    said(&ended)
}

/// How long a connection takes; an error where there is none in time.
fn connect(hosts: &SshHosts, from: u32, to: u32, port: u16) -> Checked<Duration> {
    let address = (hosts.address(to)?, port).into();
    hosts.inside(from, || {
        let start = Instant::now();
        TcpStream::connect_timeout(&address, SILENCE).call(|| format!("connect to {address}"))?;
        Ok(start.elapsed())
    })
}

fn listen(hosts: &SshHosts, host: u32) -> TcpListener {
    let address = (hosts.address(host).unwrap(), OTHER_PORT);
    let listener = hosts.inside(host, || {
        TcpListener::bind(address).call(|| "listen".to_owned())
    });
    listener.unwrap()
}

fn nothing_runs_on(hosts: &SshHosts, host: u32) {
    let ended = wait::until("nothing runs on a host", ANSWER, || {
        Ok(hosts.processes(host)?.is_empty().then_some(()))
    });
    ended.unwrap_or_else(|error| panic!("{error}: {:?}", hosts.processes(host)));
}

#[test]
fn each_user_logs_in_to_every_host() {
    let plan = Plan::of(3).behind_firewall(3);
    let Some(hosts) = plan.start_or_skip().unwrap() else {
        return;
    };
    for user in User::ALL {
        for host in 1..=3 {
            let output = ssh(&hosts, user, host, "id -un; uname -n; pwd");
            let home = hosts.home(host, user).unwrap();
            let expected = format!("{}\nh{host}\n{}", user.name(), home.display());
            assert_eq!(said(&output), expected, "{output:?}");
        }
    }
    // Without an option, and as another user there.
    let there = sh(&hosts, 0, User::Tester, "ssh root@h2 id -un");
    assert_eq!(there, "root");
    let copied = "echo text > t && ssh h2 mkdir d && echo put t d/t | sftp -q -b - h2 > /dev/null && ssh h2 cat d/t";
    let copied = sh(&hosts, 0, User::Tester, &format!("cd && {copied}"));
    assert_eq!(copied, "text");
}

#[test]
fn a_host_behind_a_firewall_answers_ssh_and_nothing_else() {
    let plan = Plan::of(2).behind_firewall(2);
    let Some(hosts) = plan.start_or_skip().unwrap() else {
        return;
    };
    let _listeners = [1, 2].map(|host| listen(&hosts, host));
    connect(&hosts, 0, 1, OTHER_PORT).unwrap();
    connect(&hosts, 2, 2, OTHER_PORT).unwrap();
    connect(&hosts, 0, 2, OTHER_PORT).unwrap_err();
    connect(&hosts, 0, 2, SSH_PORT).unwrap();
    connect(&hosts, 1, 0, OTHER_PORT).unwrap_err();
    connect(&hosts, 2, 1, OTHER_PORT).unwrap_err();
    // Much, in both directions, with an end in each.
    let much = "head -c 5000000 /dev/urandom > m && ssh h2 'tee got' < m | cmp - m && ssh h2 'cat got' | cmp - m";
    sh(&hosts, 0, User::Tester, &format!("cd && {much}"));
    assert_eq!(ssh(&hosts, User::Root, 2, "exit 7").status.code(), Some(7));

    // Who is gone without a word is missed.
    let mut lost = hosts.command(0, User::Tester, "ssh").unwrap();
    let lost = lost.args(["h2", "echo in; exec cat"]).stdin(Stdio::piped());
    let mut lost = lost.stdout(Stdio::piped()).spawn().unwrap();
    let output = lost.stdout.as_mut().unwrap();
    output.read_exact(&mut [0; 3]).unwrap();
    assert!(!hosts.processes(2).unwrap().is_empty());
    lost.kill().unwrap();
    lost.wait().unwrap();
    nothing_runs_on(&hosts, 2);
}

#[test]
fn a_stopped_host_is_an_error_and_a_restarted_one_is_not() {
    let plan = Plan::of(2).behind_firewall(2);
    let Some(mut hosts) = plan.start_or_skip().unwrap() else {
        return;
    };
    for host in [1, 2] {
        let mut open = hosts.command(0, User::Tester, "ssh").unwrap();
        let mut open = open
            .args([&hosts.name(host), "echo in; cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut answer = [0; 3];
        let output = open.stdout.as_mut().unwrap();
        output.read_exact(&mut answer).unwrap();
        let running = hosts.processes(host).unwrap();
        let is_login = |(_, line): &(i32, String)| line == "sshd: tester@notty";
        assert!(running.iter().any(is_login), "{running:?}");
        hosts.stop(host).unwrap();
        // Who is connected learns it at once.
        assert_eq!(open.wait().unwrap().code(), Some(255));
        connect(&hosts, 0, host, SSH_PORT).unwrap_err();
        assert!(hosts.processes(host).unwrap().is_empty());
        let mut late = hosts.command(0, User::Tester, "ssh").unwrap();
        late.args(["-o", "ConnectTimeout=1", &hosts.name(host), "true"]);
        let late = late.output().unwrap();
        assert_eq!(late.status.code(), Some(255), "{late:?}");
        hosts.restart(host).unwrap();
        let again = ssh(&hosts, User::Tester, host, "true");
        assert!(again.status.success(), "{again:?}");
        hosts.restart(host).unwrap_err();
        nothing_runs_on(&hosts, host);
    }
}

#[test]
fn a_host_has_its_own_disk_processes_and_temporary_files() {
    let other_test = Workspace::new().unwrap();
    let point = other_test.path().join("mount");
    fs::create_dir(&point).unwrap();
    let mut mount = Command::new("mount");
    _ = mount.args(["-t", "tmpfs", "tmpfs"]).arg(&point).output();
    let Some(hosts) = Plan::of(2).start_or_skip().unwrap() else {
        return;
    };
    assert!(mounts::is_mounted(&point));
    for host in 0..=2 {
        let table = sh(&hosts, host, User::Root, "cat /proc/self/mountinfo");
        // It would go on there when the other test has ended.
        assert!(!table.contains(&*point.to_string_lossy()), "{table}");
    }
    let disk = |host| hosts.directory(host).unwrap();
    for host in 0..=2 {
        let place = disk(host).display().to_string();
        sh(
            &hosts,
            host,
            User::Tester,
            &format!("echo {host} > {place}/f && echo {host} > /tmp/f"),
        );
        assert_eq!(
            fs::read_to_string(disk(host).join("f")).unwrap(),
            format!("{host}\n")
        );
        let temporary = hosts.path_of(host, Path::new("/tmp/f")).unwrap();
        assert_eq!(fs::read_to_string(temporary).unwrap(), format!("{host}\n"));
        let other = disk((host + 1) % 3).display().to_string();
        sh(&hosts, host, User::Root, &format!("test ! -e {other}"));
    }
    hosts.path_of(1, Path::new("tmp")).unwrap_err();

    // It stays after its login, and it is seen; so is nobody of another host.
    let left = ssh(
        &hosts,
        User::Tester,
        1,
        "sleep 1000 > /dev/null 2>&1 < /dev/null & echo $!",
    );
    let number = said(&left);
    assert!(number.parse::<u32>().unwrap() < 1_000, "{left:?}");
    let running = wait::until("the login has ended", ANSWER, || {
        let running = hosts.processes(1)?;
        Ok((running.len() == 1).then_some(running))
    });
    assert_eq!(running.unwrap()[0].1, "sleep 1000");
    assert!(hosts.processes(2).unwrap().is_empty());
    let kill = |signal: &str| ssh(&hosts, User::Tester, 1, &format!("kill {signal} {number}"));
    assert!(kill("-TERM").status.success());
    // Not even a zombie.
    let gone = wait::until("it is gone", ANSWER, || {
        Ok((!kill("-0").status.success()).then_some(()))
    });
    gone.unwrap();
    nothing_runs_on(&hosts, 1);
}

#[test]
fn a_command_is_killed_as_the_child_is() {
    let Some(hosts) = Plan::of(1).start_or_skip().unwrap() else {
        return;
    };
    for (host, user) in [0, 1].into_iter().zip(User::ALL) {
        let mut sleep = hosts.command(host, user, "sleep").unwrap();
        let mut child = sleep.arg("1000").spawn().unwrap();
        wait::until("the program runs", ANSWER, || {
            let running = hosts.processes(host)?;
            Ok((running.len() == 1 && running[0].1 == "sleep 1000").then_some(()))
        })
        .unwrap();
        child.kill().unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(9));
        nothing_runs_on(&hosts, host);
    }
    let mut ended = hosts.command(1, User::Tester, "sh").unwrap();
    let ended = ended.args(["-c", "exit 7"]).status().unwrap();
    assert_eq!(ended.code(), Some(7));
}

#[test]
fn a_mount_of_each_user_is_there_for_later_commands_of_its_host_alone() {
    if !["/usr/bin/sshfs", "/usr/bin/fusermount3", "/dev/fuse"]
        .iter()
        .all(|path| Path::new(path).exists())
    {
        return eprintln!("skipped: there is no sshfs, or no FUSE");
    }
    let Some(hosts) = Plan::of(1).start_or_skip().unwrap() else {
        return;
    };
    let there = hosts.directory(1).unwrap();
    for user in User::ALL {
        let mount = hosts.home(0, user).unwrap().join("mount");
        let (name, at) = (user.name(), mount.display());
        let script = format!("mkdir {at} && sshfs h1:{} {at}", there.display());
        sh(&hosts, 0, user, &script);
        sh(&hosts, 0, user, &format!("echo {name} > {at}/{name}"));
        let written = there.join(name);
        assert_eq!(fs::read_to_string(&written).unwrap().trim(), name);
        // The test sees what is root's, and neither the machine nor another host has the mount.
        if user == User::Root {
            let seen = hosts.path_of(0, &mount).unwrap().join(name);
            assert_eq!(fs::read_to_string(seen).unwrap().trim(), name);
        }
        assert!(!mount.join(name).exists());
        assert_eq!(hosts.processes(0).unwrap().len(), 2, "sshfs and ssh");
        sh(&hosts, 0, user, &format!("fusermount3 -u {at}"));
        nothing_runs_on(&hosts, 0);
    }
}

#[test]
fn a_delay_is_seen_in_the_time_of_a_connection_and_a_cut_is_silence() {
    let near = |from, to| from + to == 1;
    let plan = Plan::of(2).behind_firewall(2);
    let plan = plan.one_way(|from, to| if near(from, to) { MS } else { 10 * MS });
    let Some(hosts) = plan.start_or_skip().unwrap() else {
        return;
    };
    let least = |from, to| {
        let times = (0..5).map(|_| connect(&hosts, from, to, SSH_PORT).unwrap());
        times.min().unwrap()
    };
    let (near, far) = (least(0, 1), least(0, 2));
    println!("{near:?} and {far:?}");
    assert!(near > 19 * MS / 10 && near < 15 * MS, "{near:?}");
    assert!(far > 199 * MS / 10 && far < 40 * MS, "{far:?}");
    let login = ssh(&hosts, User::Tester, 2, "id -un");
    assert_eq!(said(&login), "tester", "{login:?}");

    let [here, there] = [0, 1].map(|host| hosts.link(host).unwrap());
    let cut = both(here, there);
    hosts.links().cut(cut[0]).unwrap();
    connect(&hosts, 0, 1, SSH_PORT).unwrap_err();
    hosts.links().mend(cut[0]).unwrap();
    connect(&hosts, 0, 1, SSH_PORT).unwrap();
}

fn networks() -> BTreeSet<PathBuf> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let networks = entries.filter_map(|entry| fs::read_link(entry.path().join("ns/net")).ok());
    networks.collect()
}

fn named_networks() -> Vec<u8> {
    Command::new("ip").arg("netns").output().unwrap().stdout
}

#[test]
fn nothing_is_left_after_a_panic() {
    let named = named_networks();
    let mut seen = None;
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let hosts = Plan::of(2).behind_firewall(2).start_or_skip().unwrap()?;
        for host in [1, 2] {
            ssh(
                &hosts,
                User::Tester,
                host,
                "sleep 1000 > /dev/null 2>&1 < /dev/null &",
            );
        }
        let daemon = "setsid sleep 1000 > /dev/null 2>&1 < /dev/null &";
        sh(&hosts, 0, User::Tester, daemon);
        let mut running = Vec::new();
        for host in 0..=2 {
            let pids = hosts.processes(host).unwrap().into_iter();
            running.extend(pids.filter_map(|(pid, _)| Identity::of(pid)));
        }
        assert!(running.len() >= 3, "{running:?}");
        let network = |host| {
            let own = || fs::read_link("/proc/thread-self/ns/net").call(|| "look".to_owned());
            hosts.inside(host, own).unwrap()
        };
        let own: BTreeSet<PathBuf> = (0..=2).map(network).collect();
        assert!(own.is_subset(&networks()));
        seen = Some((running, own, hosts.home(0, User::Root).unwrap()));
        panic!("as a test that fails does");
        #[expect(unreachable_code, reason = "it gives the closure its type")]
        Some(())
    }));
    let Some((running, own, home)) = seen else {
        assert!(
            outcome.is_ok_and(|started| started.is_none()),
            "it has started nothing"
        );
        return;
    };
    assert!(outcome.is_err());
    assert!(running.iter().all(|identity| !identity.lives()));
    assert!(own.is_disjoint(&networks()));
    assert!(!home.exists());
    let folder = home.ancestors().nth(3).unwrap().to_string_lossy();
    assert!(process::mentioning(&folder).is_empty());
    assert_eq!(named_networks(), named);
}
