//! `perigee union` on hosts that have nothing in common but SSH.
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

use perigee_testbed::checks::model;
use perigee_testbed::process::Identity;
use perigee_testbed::ssh_hosts::{Plan, SshHosts, User};
use perigee_testbed::{program, wait};
use rustix::process::Signal;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::MutexGuard;
use std::time::{Duration, Instant};

/// Where a union is mounted; every host has temporary files of its own.
const POINT: &str = "/tmp/u";
/// Whatever happens, programs hear of it within this.
const ANSWER: Duration = Duration::from_secs(5);
/// What a machine that is busy with other tests may take besides: 10 s, or as many as `PERIGEE_TEST_BUSY` says.
fn busy() -> Duration {
    let seconds = std::env::var("PERIGEE_TEST_BUSY").map(|text| text.parse());
    Duration::from_secs(seconds.unwrap_or(Ok(10)).unwrap())
}

/// A union that somebody on host 0 has mounted.
struct Union<'a> {
    hosts: &'a SshHosts,
    user: User,
}

fn run(hosts: &SshHosts, host: u32, user: User, words: &[&str]) -> Output {
    let mut command = hosts.command(host, user, words[0]).unwrap();
    command.args(&words[1..]).output().unwrap()
}

fn sh(hosts: &SshHosts, host: u32, user: User, script: &str) -> String {
    let ended = run(hosts, host, user, &["timeout", "60", "sh", "-c", script]);
    assert!(ended.status.success(), "`{script}`: {ended:?}");
    String::from_utf8_lossy(&ended.stdout).trim().to_owned()
}

/// `perigee` on host 0. Where it was built may be hidden from hosts.
fn perigee(hosts: &SshHosts, user: User, words: &[&str]) -> Output {
    let program = hosts.home(0, user).unwrap().join("perigee-to-test");
    if !program.exists() {
        fs::copy(program::perigee().unwrap(), &program).unwrap();
    }
    let mut command = hosts.command(0, user, program).unwrap();
    command.args(words).output().unwrap()
}

/// Hosts for a test that runs by itself; none where this machine lacks something, which is said.
fn hosts_of(plan: &Plan) -> Option<(SshHosts, MutexGuard<'static, ()>)> {
    let alone = program::alone()?;
    let hosts = plan.start_or_skip().unwrap()?;
    Some((hosts, alone))
}

/// `host:directory` of each.
fn targets(hosts: &SshHosts, which: impl IntoIterator<Item = u32>) -> Vec<String> {
    let target = |host| {
        let directory = hosts.directory(host).unwrap();
        format!("{}:{}", hosts.name(host), directory.display())
    };
    which.into_iter().map(target).collect()
}

fn union_of<'a>(
    hosts: &'a SshHosts,
    user: User,
    options: &[&str],
    targets: &[String],
) -> (Union<'a>, Output) {
    sh(hosts, 0, user, &format!("mkdir -p {POINT}"));
    let mut words = vec!["union"];
    words.extend(options);
    words.extend(targets.iter().map(String::as_str));
    words.push(POINT);
    let output = perigee(hosts, user, &words);
    (Union { hosts, user }, output)
}

impl Union<'_> {
    fn sh(&self, script: &str) -> String {
        sh(self.hosts, 0, self.user, &format!("cd {POINT} && {script}"))
    }

    /// What a program gets, and how long it takes.
    fn timed(&self, script: &str) -> (Output, Duration) {
        let began = Instant::now();
        let script = format!("cd {POINT} && {script}");
        let output = run(
            self.hosts,
            0,
            self.user,
            &["timeout", "30", "sh", "-c", &script],
        );
        (output, began.elapsed())
    }

    /// The mount, for this process; of root's.
    fn path(&self) -> PathBuf {
        self.hosts.path_of(0, Path::new(POINT)).unwrap()
    }

    fn status(&self) -> serde_json::Value {
        let shown = perigee(
            self.hosts,
            self.user,
            &["union", "--status", "--json", POINT],
        );
        serde_json::from_slice(&shown.stdout).unwrap_or_else(|_| panic!("{shown:?}"))
    }

    fn umount(&self) {
        let done = perigee(self.hosts, self.user, &["umount", POINT]);
        assert!(done.status.success(), "{done:?}");
        nothing_is_left(self.hosts);
    }
}

/// No process, and no file of the program, on any host.
fn nothing_is_left(hosts: &SshHosts) {
    for host in 0..=hosts.count() {
        nothing_runs(hosts, host);
        let look = "find / -xdev -name '.perigee-*' 2>/dev/null | head -3; ls -A /tmp | grep perigee-union; true";
        let left = sh(hosts, host, User::Root, look);
        assert!(left.is_empty(), "host {host}: {left}");
    }
}

fn nothing_runs(hosts: &SshHosts, host: u32) {
    let mut seen = Vec::new();
    let ended = wait::until("nothing runs on a host", ANSWER + busy(), || {
        seen = hosts.processes(host)?;
        Ok(seen.is_empty().then_some(()))
    });
    ended.unwrap_or_else(|error| panic!("host {host}: {error}: {seen:?}"));
}

/// A process on a host whose command line has this word.
fn process(hosts: &SshHosts, host: u32, word: &str) -> Identity {
    let running = hosts.processes(host).unwrap();
    let found = running.iter().find(|(_, line)| line.contains(word));
    let (pid, _) = found.unwrap_or_else(|| panic!("no {word} on host {host}: {running:?}"));
    Identity::of(*pid).unwrap()
}

#[test]
fn one_command_makes_one_tree_of_eight_hosts_for_an_ordinary_user() {
    let Some((hosts, _alone)) = hosts_of(&Plan::of(8).behind_firewall(8)) else {
        return;
    };
    for host in 1..=8 {
        let disk = hosts.directory(host).unwrap().display().to_string();
        let script =
            format!("cd {disk} && mkdir -p shared only-{host} && echo {host} > shared/of-{host}");
        sh(&hosts, host, User::Tester, &script);
    }
    let all = targets(&hosts, 1..=8);
    let began = Instant::now();
    let (union, output) = union_of(&hosts, User::Tester, &[], &all);
    eprintln!("eight hosts mounted in {:?}", began.elapsed());
    assert!(output.status.success(), "{output:?}");
    assert_eq!(union.sh("ls shared | wc -l"), "8");
    assert_eq!(union.sh("cat shared/* | sort | tr -d '\\n'"), "12345678");
    assert_eq!(union.sh("ls -d only-* | wc -l"), "8");
    // Files of all hosts, also of the one that only SSH reaches, are read and rewritten where they lie.
    for host in [3, 8] {
        let script = format!(
            "head -c 3000000 /dev/urandom > only-{host}/big && sum=$(md5sum < only-{host}/big) && \
             echo more >> only-{host}/big && [ \"$(head -c 3000000 only-{host}/big | md5sum)\" = \"$sum\" ]"
        );
        union.sh(&script);
        let there = hosts
            .directory(host)
            .unwrap()
            .join(format!("only-{host}/big"));
        assert_eq!(fs::metadata(there).unwrap().len(), 3_000_005);
    }
    let status = union.status();
    let way = |host: usize| status["hosts"][host]["way"].as_str().unwrap().to_owned();
    assert_eq!((way(3), way(8)), ("direct".to_owned(), "ssh".to_owned()));
    // Who asks where files are is told their hosts.
    let located = perigee(
        &hosts,
        User::Tester,
        &["locate", "--best", &format!("{POINT}/only-3/big")],
    );
    assert_eq!(String::from_utf8_lossy(&located.stdout), "h3\n");
    union.umount();
}

#[test]
fn every_host_has_the_mount_where_that_is_wanted() {
    let Some((hosts, _alone)) = hosts_of(&Plan::of(3).behind_firewall(3)) else {
        return;
    };
    let all = targets(&hosts, 1..=3);
    let (union, output) = union_of(&hosts, User::Tester, &["--everywhere"], &all);
    assert!(output.status.success(), "{output:?}");
    for host in 1..=3 {
        // A new file goes to the host whose program makes it.
        sh(
            &hosts,
            host,
            User::Tester,
            &format!("mkdir -p {POINT}/d && echo {host} > {POINT}/d/f{host}"),
        );
        assert!(
            hosts
                .directory(host)
                .unwrap()
                .join(format!("d/f{host}"))
                .exists()
        );
    }
    // Others see it after the freshness, those behind a firewall, too.
    for host in 0..=3 {
        let seen = wait::until("all files are seen", ANSWER, || {
            let seen = sh(
                &hosts,
                host,
                User::Tester,
                &format!("cat {POINT}/d/* | tr -d '\\n'"),
            );
            Ok((seen == "123").then_some(()))
        });
        seen.unwrap();
    }
    union.umount();
}

/// Nothing is remembered where that is not wanted.
#[test]
fn what_a_command_on_another_host_has_made_is_there_when_it_has_ended() {
    let Some((hosts, _alone)) = hosts_of(&Plan::of(3)) else {
        return;
    };
    let all = targets(&hosts, 1..=3);
    let (union, output) = union_of(
        &hosts,
        User::Tester,
        &["--everywhere", "--fresh", "0"],
        &all,
    );
    assert!(output.status.success(), "{output:?}");
    union.sh("mkdir d");
    for number in 0..12 {
        let host = number % 3 + 1;
        union.sh(&format!(
            "! test -e d/f{number} && ssh h{host} 'echo {number} > {POINT}/d/f{number}' && \
             test \"$(cat d/f{number})\" = {number}"
        ));
    }
    union.umount();
}

#[test]
fn a_host_that_is_down_is_named_or_left_out() {
    let Some((mut hosts, _alone)) = hosts_of(&Plan::of(3)) else {
        return;
    };
    hosts.stop(2).unwrap();
    let all = targets(&hosts, 1..=3);
    let ssh = ["-e", "ssh -o ConnectTimeout=1"];
    let (_, refused) = union_of(&hosts, User::Tester, &ssh, &all);
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        said.contains("h2: ") && said.contains("--partial"),
        "{said}"
    );
    nothing_is_left(&hosts);
    let partial = ["-e", "ssh -o ConnectTimeout=1", "--partial"];
    let (union, output) = union_of(&hosts, User::Tester, &partial, &all);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    assert!(
        String::from_utf8_lossy(&output.stdout).contains("left out h2"),
        "{output:?}"
    );
    union.sh("echo text > f && cat f");
    // It is there once it is up again.
    hosts.restart(2).unwrap();
    let union = Union {
        hosts: &hosts,
        user: User::Tester,
    };
    fs::write(hosts.directory(2).unwrap().join("of-2"), "text").unwrap();
    let back = wait::until("a host is back", Duration::from_secs(60), || {
        let (seen, _) = union.timed("cat of-2");
        Ok(seen.status.success().then_some(()))
    });
    back.unwrap();
    union.umount();
}

#[test]
fn whoever_is_killed_programs_hear_of_it_soon_and_nothing_is_left() {
    let Some((hosts, _alone)) = hosts_of(&Plan::of(3)) else {
        return;
    };
    let all = targets(&hosts, 1..=3);
    for host in 1..=3 {
        fs::write(
            hosts.directory(host).unwrap().join(format!("f{host}")),
            "text",
        )
        .unwrap();
    }
    for (on, word) in [(1, "serve-union"), (0, "ssh "), (0, "serve-union --dir")] {
        let (union, output) = union_of(&hosts, User::Tester, &["--fresh", "0"], &all);
        assert!(output.status.success(), "{output:?}");
        union.sh("cat f1 f2 f3");
        process(&hosts, on, word).signal(Signal::KILL).unwrap();
        // Each call ends, whether with what was asked for or with an error.
        for name in ["f1", "f2", "f3", "new"] {
            let (_, took) = union.timed(&format!("cat {name}; echo text > {name}"));
            assert!(
                took < ANSWER + busy(),
                "{name} took {took:?} after {word} was killed"
            );
        }
        let starter_lives = word != "serve-union --dir";
        if starter_lives {
            let back = wait::until("the host is back", Duration::from_secs(30), || {
                let (seen, _) = union.timed("cat f1 f2 f3");
                Ok(seen.status.success().then_some(()))
            });
            back.unwrap();
        }
        let done = perigee(&hosts, User::Tester, &["umount", "--lazy", POINT]);
        assert!(done.status.success(), "{done:?}");
        if starter_lives {
            nothing_is_left(&hosts);
        } else {
            // Its own directory nobody is left to remove; the next boot does.
            for host in 0..=3 {
                nothing_runs(&hosts, host);
            }
        }
        for host in 1..=3 {
            _ = fs::remove_file(hosts.directory(host).unwrap().join("new"));
        }
    }
}

#[test]
fn a_host_that_falls_silent_costs_no_program_more_than_seconds() {
    let near = |_: u32, _: u32| Duration::from_micros(200);
    let Some((hosts, _alone)) = hosts_of(&Plan::of(3).one_way(near)) else {
        return;
    };
    let all = targets(&hosts, 1..=3);
    fs::write(hosts.directory(1).unwrap().join("f1"), "text").unwrap();
    fs::write(hosts.directory(2).unwrap().join("f2"), "text").unwrap();
    let (union, output) = union_of(&hosts, User::Tester, &["--fresh", "0"], &all);
    assert!(output.status.success(), "{output:?}");
    union.sh("cat f1 f2");
    let link = hosts.link(2).unwrap();
    for pair in hosts.links().around(link) {
        hosts.links().cut(pair).unwrap();
    }
    let (lost, took) = union.timed("cat f2");
    assert!(!lost.status.success(), "{lost:?}");
    assert!(took < ANSWER + busy(), "{took:?}");
    // What is not found might be there.
    let (unknown, took) = union.timed("cat no-such-file");
    assert!(
        String::from_utf8_lossy(&unknown.stderr).contains("Input/output error"),
        "{unknown:?}"
    );
    assert!(took < ANSWER + busy(), "{took:?}");
    let (near, took) = union.timed("cat f1");
    assert!(
        near.status.success() && took < ANSWER + busy(),
        "{near:?} {took:?}"
    );
    for pair in hosts.links().around(link) {
        hosts.links().mend(pair).unwrap();
    }
    let back = wait::until("the host is back", Duration::from_secs(60), || {
        let (seen, _) = union.timed("cat f2");
        Ok(seen.status.success().then_some(()))
    });
    back.unwrap();
    union.umount();
}

#[test]
fn names_on_several_branches_are_one() {
    let Some((hosts, _alone)) = hosts_of(&Plan::of(2)) else {
        return;
    };
    let disk = |host| hosts.directory(host).unwrap();
    let own = disk(0).display().to_string();
    for (host, text) in [(0, "zero"), (1, "one"), (2, "two")] {
        fs::write(disk(host).join("same"), text).unwrap();
        fs::create_dir(disk(host).join("d")).unwrap();
        fs::write(disk(host).join(format!("d/{text}")), text).unwrap();
    }
    fs::create_dir_all(disk(2).join("deep/er")).unwrap();
    fs::write(disk(2).join("deep/er/file"), "two").unwrap();
    let all = [vec![own], targets(&hosts, 1..=2)].concat();
    let (union, output) = union_of(&hosts, User::Root, &[], &all);
    assert!(output.status.success(), "{output:?}");

    // What is here hides what is farther away; removed, none of them comes to light.
    assert_eq!(union.sh("cat same"), "zero");
    union.sh("rm same && ! test -e same");
    assert!((0..=2).all(|host| !disk(host).join("same").exists()));
    // A directory is one wherever it is, and goes only when it is empty everywhere.
    assert_eq!(union.sh("ls d | tr '\\n' ' '"), "one two zero");
    union.sh("rm d/zero && ! rmdir d 2>/dev/null && test -d d");
    assert!((0..=2).all(|host| disk(host).join("d").exists()));
    union.sh("rm d/one d/two && rmdir d && ! test -e d");
    assert!((0..=2).all(|host| !disk(host).join("d").exists()));
    // A new file goes here, with the directories above it; an old one stays where it is.
    union.sh("echo here > deep/er/new && echo more >> deep/er/file");
    assert_eq!(
        fs::read_to_string(disk(0).join("deep/er/new")).unwrap(),
        "here\n"
    );
    assert_eq!(
        fs::read_to_string(disk(2).join("deep/er/file")).unwrap(),
        "twomore\n"
    );
    assert!(!disk(0).join("deep/er/file").exists() && !disk(1).join("deep").exists());
    // A name that moves stays on its branch, and what it replaces goes.
    fs::write(disk(1).join("target"), "hidden").unwrap();
    union.sh("sleep 1.1; mv deep/er/file target && cat target");
    assert_eq!(
        fs::read_to_string(disk(2).join("target")).unwrap(),
        "twomore\n"
    );
    assert!(!disk(1).join("target").exists());
    // A directory moves on all of its branches.
    union.sh("mv deep moved && cat moved/er/new && ! test -e deep");
    assert!(disk(0).join("moved/er/new").exists() && disk(2).join("moved/er").exists());
    // Permission bits of a directory are set on all of them.
    union.sh("chmod 750 moved");
    for host in [0, 2] {
        use std::os::unix::fs::PermissionsExt;
        let mode = fs::metadata(disk(host).join("moved"))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o750, "host {host}");
    }
    // The far user's own files are shown as one's own.
    sh(
        &hosts,
        1,
        User::Tester,
        &format!("echo x > {}/theirs", disk(1).display()),
    );
    assert_eq!(union.sh("sleep 1.1; stat -c %u theirs"), "4711");
    union.umount();
}

/// What others do to names on their hosts leads no program of this mount to the wrong file.
#[test]
fn names_that_other_hosts_change_lead_where_they_lead_now() {
    let Some((hosts, _alone)) = hosts_of(&Plan::of(2)) else {
        return;
    };
    let disk = |host| hosts.directory(host).unwrap();
    let there = disk(1);
    for directory in ["logs", "kept"] {
        fs::create_dir(there.join(directory)).unwrap();
    }
    fs::write(there.join("logs/old"), "old").unwrap();
    fs::write(there.join("f.tmp"), "first").unwrap();
    let (union, output) = union_of(
        &hosts,
        User::Root,
        &["--fresh", "0"],
        &targets(&hosts, 1..=2),
    );
    assert!(output.status.success(), "{output:?}");
    union.sh("ls -l logs f.tmp");
    // A directory is moved on its host, and another one made in its place: a removal by the new name spares that one.
    fs::rename(there.join("logs"), there.join("archive")).unwrap();
    fs::create_dir(there.join("logs")).unwrap();
    fs::write(there.join("logs/new"), "new").unwrap();
    union.sh("ls archive && rm -r archive");
    assert!(there.join("logs/new").exists() && !there.join("archive").exists());
    // A file that is moved there, and one of the old name: what is written by the new name leaves that alone.
    fs::rename(there.join("f.tmp"), there.join("f")).unwrap();
    union.sh("test \"$(cat f)\" = first");
    fs::write(there.join("f.tmp"), "second").unwrap();
    union.sh("echo third > f && cat f.tmp");
    assert_eq!(fs::read_to_string(there.join("f.tmp")).unwrap(), "second");
    assert_eq!(fs::read_to_string(there.join("f")).unwrap(), "third\n");
    // A file that is open outlives its name.
    let nameless = "open(F, '+<', 'f') && unlink('f') && sysseek(F, 6, 0) && syswrite(F, 'more') or die 'changed'; \
                    (stat F)[7] == 10 or die 'length'; sysseek(F, 0, 0); sysread(F, $b, 20); \
                    $b eq 'third'.chr(10).'more' or die 'content'";
    union.sh(&format!(
        "perl -e \"{}\" && ! test -e f",
        nameless.replace('$', "\\$")
    ));
    // A rename that fails leaves what it would have replaced.
    fs::write(there.join("kept/target"), "kept").unwrap();
    fs::write(disk(2).join("source"), "source").unwrap();
    let refuses = format!("mkdir {0}/kept && chattr +i {0}/kept", disk(2).display());
    if run(&hosts, 2, User::Root, &["sh", "-c", &refuses])
        .status
        .success()
    {
        let (moved, _) = union.timed("mv source kept/target");
        sh(
            &hosts,
            2,
            User::Root,
            &format!("chattr -i {}/kept", disk(2).display()),
        );
        assert!(!moved.status.success());
        assert_eq!(
            fs::read_to_string(there.join("kept/target")).unwrap(),
            "kept"
        );
    }
    union.umount();
}

/// A member that is started anew has nothing open of what its host had open before.
#[test]
fn files_that_were_open_on_a_lost_member_are_errors_and_no_others() {
    let Some((hosts, _alone)) = hosts_of(&Plan::of(1)) else {
        return;
    };
    let there = hosts.directory(1).unwrap();
    for name in ["a", "b", "c"] {
        let path = there.join(name).display().to_string();
        sh(&hosts, 1, User::Tester, &format!("printf {name} > {path}"));
    }
    let (union, output) = union_of(
        &hosts,
        User::Tester,
        &["--fresh", "0"],
        &targets(&hosts, [1]),
    );
    assert!(output.status.success(), "{output:?}");
    // One file stays open over the loss, while others are opened at the new process.
    let script = format!(
        "exec 3>> {POINT}/a && echo one >&3; touch /tmp/opened; while test -e /tmp/opened; do sleep 0.1; done; \
         exec 4>> {POINT}/b 5>> {POINT}/c; echo two >&3; echo $? > /tmp/wrote; exec 3>&- || true"
    );
    let mut writer = hosts.command(0, User::Tester, "bash").unwrap();
    let mut writer = writer.args(["-c", &script]).spawn().unwrap();
    let opened = hosts.path_of(0, Path::new("/tmp/opened")).unwrap();
    wait::until("a file is open", ANSWER + busy(), || {
        Ok(opened.exists().then_some(()))
    })
    .unwrap();
    process(&hosts, 1, "serve-union")
        .signal(Signal::KILL)
        .unwrap();
    let back = wait::until("the host is back", Duration::from_secs(30), || {
        let (seen, _) = union.timed("ls -l a b c");
        Ok(seen.status.success().then_some(()))
    });
    back.unwrap();
    fs::remove_file(opened).unwrap();
    writer.wait().unwrap();
    assert_eq!(fs::read_to_string(there.join("b")).unwrap(), "b");
    assert_eq!(fs::read_to_string(there.join("c")).unwrap(), "c");
    union.umount();
}

#[test]
fn new_files_go_where_the_command_says() {
    let Some((hosts, _alone)) = hosts_of(&Plan::of(2)) else {
        return;
    };
    let disk = |host| hosts.directory(host).unwrap();
    let own = disk(0).display().to_string();
    let all = [vec![own], targets(&hosts, 1..=2)].concat();
    for (place, at) in [("here", 0), ("path", 2), ("h1", 1)] {
        fs::create_dir(disk(2).join(place)).unwrap();
        let (union, output) = union_of(&hosts, User::Root, &["--create", place], &all);
        assert!(output.status.success(), "{output:?}");
        union.sh(&format!("echo text > {place}/f"));
        let having: Vec<u32> = (0..=2)
            .filter(|host| disk(*host).join(place).join("f").exists())
            .collect();
        assert_eq!(having, [at], "--create {place}");
        union.umount();
    }
    let (_, refused) = union_of(&hosts, User::Root, &["--create", "h9"], &all);
    assert!(
        String::from_utf8_lossy(&refused.stderr).contains("h9"),
        "{refused:?}"
    );
}

/// What programs see of a union is what a local directory shows, also of directories that two hosts share.
#[test]
fn a_union_is_like_a_local_directory() {
    let Some((hosts, _alone)) = hosts_of(&Plan::of(2)) else {
        return;
    };
    let local = tempfile::tempdir().unwrap();
    let all = targets(&hosts, 1..=2);
    let (union, output) = union_of(&hosts, User::Root, &[], &all);
    assert!(output.status.success(), "{output:?}");
    for seed in 1..=6 {
        let (at, model) = (
            union.path().join(format!("s{seed}")),
            local.path().join(format!("s{seed}")),
        );
        fs::create_dir(&at).unwrap();
        fs::create_dir(&model).unwrap();
        let sides = model::Sides {
            hosts: vec![at.clone(), at],
            model,
        };
        model::run(&sides, seed, 400).unwrap();
    }
    union.umount();
}

/// Files that a program opens one after the other are here before it opens them, and none of them is older than one that was
/// asked for.
#[test]
fn small_files_come_before_they_are_opened_and_are_not_old() {
    const COUNT: u32 = 150;
    let far = |_: u32, _: u32| Duration::from_millis(20);
    let Some((hosts, _alone)) = hosts_of(&Plan::of(1).one_way(far)) else {
        return;
    };
    let there = hosts.directory(1).unwrap();
    let old = |number: u32| format!("the {number}th");
    for number in 0..COUNT {
        fs::write(there.join(number.to_string()), old(number)).unwrap();
    }
    let (union, output) = union_of(&hosts, User::Root, &[], &targets(&hosts, [1]));
    assert!(output.status.success(), "{output:?}");
    let here = |number: u32| union.path().join(number.to_string());
    let shown = |number: u32| fs::read_to_string(here(number)).unwrap();
    let goes_through = |numbers: std::ops::Range<u32>| {
        for number in numbers {
            assert_eq!(shown(number), old(number));
        }
    };
    let began = Instant::now();
    goes_through(0..COUNT);
    let took = began.elapsed();
    assert!(took < COUNT / 2 * 2 * far(0, 1), "{took:?}");

    // One that is being written is not among them; whoever begins to write waits until nobody uses what came before.
    let written = fs::File::options()
        .write(true)
        .open(there.join("60"))
        .unwrap();
    goes_through(51..56);
    written.set_len(0).unwrap();
    fs::write(there.join("60"), "written").unwrap();
    drop(written);
    assert_eq!(shown(60), "written");
    fs::write(there.join("62"), "new").unwrap();
    assert_eq!(shown(62), "new");

    // What programs of this mount do they all see, and do not wait for.
    wait::until("files come early again", 4 * ANSWER, || {
        goes_through(101..106);
        let began = Instant::now();
        assert_eq!(shown(106), old(106));
        Ok((began.elapsed() < far(0, 1)).then_some(()))
    })
    .unwrap();
    fs::write(here(107), "own").unwrap();
    assert_eq!(shown(107), "own");
    let mut open = fs::File::open(here(108)).unwrap();
    fs::remove_file(here(108)).unwrap();
    assert_eq!(open.metadata().unwrap().len(), old(108).len() as u64);
    let mut content = String::new();
    std::io::Read::read_to_string(&mut open, &mut content).unwrap();
    assert_eq!(content, old(108));
    drop(open);
    union.umount();
}
