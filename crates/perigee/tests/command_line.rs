//! The binary as a script sees it: exit codes, errors, and a cluster's processes coming and going.
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

fn perigee(dir: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_perigee"))
        .args(arguments)
        .env("PERIGEE_DIR", dir)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn code(output: &Output) -> Option<i32> {
    output.status.code()
}

fn error(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn wrong_usage_is_exit_code_two() {
    let temp = tempfile::tempdir().unwrap();
    for arguments in [
        &[][..],
        &["fly"],
        &["status", "--bogus"],
        &["up", "--nodes", "0"],
        &["up", "--nodes", "many"],
        &["init"],
        &["init", "--listen", "here"],
        &["join"],
        &["inventory"],
        &["inventory", "f", "--undo"],
        &["token", "--ttl", "soon"],
        &["token", "--ttl", "31d"],
        &["token", "--again", "n", "--read-only"],
        &["mount", "/mnt", "-o", "bogus"],
        &["policy", "set", "/mnt"],
        &["policy", "set", "/mnt", "copies"],
        &["completions", "cobol"],
        &["bench", "--size", "0"],
        &["init", "--listen", "127.0.0.1:1", "--name", "a/b"],
    ] {
        assert_eq!(
            code(&perigee(temp.path(), arguments)),
            Some(2),
            "{arguments:?}"
        );
    }
    assert_eq!(temp.path().read_dir().unwrap().count(), 0);
}

#[test]
fn a_failure_is_exit_code_one_with_an_error_and_a_hint() {
    let temp = tempfile::tempdir().unwrap();
    for arguments in [
        &["status"][..],
        &["down"],
        &["token"],
        &["mount", "/mnt"],
        &["where", "/etc/passwd"],
        &["explain", "/etc/passwd"],
        &["policy", "get", "/"],
        &["umount", "/proc"],
        &["bench", "/proc"],
    ] {
        let output = perigee(temp.path(), arguments);
        assert_eq!(code(&output), Some(1), "{arguments:?}");
        let error = error(&output);
        assert!(
            error.starts_with("error: cannot "),
            "{arguments:?}: {error}"
        );
        assert!(error.contains("\nhint: "), "{arguments:?}: {error}");
        assert_eq!(error.lines().count(), 2, "{arguments:?}: {error}");
    }
}

#[test]
fn a_bad_mount_point_is_refused_before_anything_starts() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("cluster");
    let full = temp.path().join("full");
    std::fs::create_dir_all(full.join("inner")).unwrap();
    for (mountpoint, why) in [
        (full.as_path(), "the directory is not empty"),
        (&temp.path().join("none"), "there is no such directory"),
        (Path::new("/proc"), "something is mounted there already"),
    ] {
        let output = perigee(&dir, &["up", "--mount", mountpoint.to_str().unwrap()]);
        assert_eq!(code(&output), Some(1));
        assert!(error(&output).contains(why), "{}", error(&output));
        assert!(!dir.exists());
    }
}

#[test]
fn a_bad_configuration_is_one_clear_sentence_with_all_faults() {
    let temp = tempfile::tempdir().unwrap();
    let node = temp.path().join("node-1");
    std::fs::create_dir(&node).unwrap();
    std::fs::write(
        node.join("node.toml"),
        "name = 'a b'\nlisten = 7\ncolour = 'red'\n",
    )
    .unwrap();
    let output = perigee(temp.path(), &["up"]);
    assert_eq!(code(&output), Some(1));
    let error = error(&output);
    for part in [
        "node.toml",
        "`name`",
        "`listen`",
        "`control` is missing",
        "`colour` is no key",
    ] {
        assert!(error.contains(part), "{part}: {error}");
    }
    assert!(
        error
            .lines()
            .next()
            .is_some_and(|line| line.contains("`colour`") && line.contains("`name`"))
    );
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_perigee"))
        .args(["completions", "bash"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(code(&output), Some(0));
    assert_eq!(error(&output), "");
}

#[test]
fn completions_and_man_pages_cover_the_commands() {
    let temp = tempfile::tempdir().unwrap();
    for shell in ["bash", "zsh", "fish"] {
        let output = perigee(temp.path(), &["completions", shell]);
        assert!(
            String::from_utf8_lossy(&output.stdout).contains("umount"),
            "{shell}"
        );
    }
    let output = perigee(temp.path(), &["man", temp.path().to_str().unwrap()]);
    assert_eq!(code(&output), Some(0));
    for page in [
        "perigee.1",
        "perigee-up.1",
        "perigee-policy-set.1",
        "perigee-status.1",
    ] {
        assert!(temp.path().join(page).exists(), "{page}");
    }
    assert!(!temp.path().join("perigee-serve.1").exists());
}

#[test]
fn a_mount_helper_by_name_fails_as_mount_expects() {
    let temp = tempfile::tempdir().unwrap();
    let helper = temp.path().join("mount.perigee");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_perigee"), &helper).unwrap();
    let call = |arguments: &[&str]| Command::new(&helper).args(arguments).output().unwrap();
    assert_eq!(code(&call(&["only-one"])), Some(1));
    let nothing = temp.path().join("nothing");
    let output = call(&[nothing.to_str().unwrap(), "/mnt", "-o", "rw"]);
    assert_eq!(code(&output), Some(32));
    assert!(error(&output).contains("cannot find a cluster"));
    assert!(error(&call(&["x", "/mnt", "-o", "bogus"])).contains("`bogus`"));
}

#[test]
fn a_cluster_comes_and_goes() {
    let temp = tempfile::tempdir().unwrap();
    let _down = Down(temp.path());
    let json = |arguments: &[&str]| -> serde_json::Value {
        let output = perigee(temp.path(), arguments);
        assert!(matches!(code(&output), Some(0 | 3)), "{}", error(&output));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let first = json(&["up", "--nodes", "2", "--json"]);
    assert_eq!(first["nodes"][1]["started"], true);
    let again = json(&["up", "--json"]);
    assert_eq!(again["nodes"][0]["started"], false);
    assert_eq!(again["nodes"][0]["pid"], first["nodes"][0]["pid"]);

    let status = json(&["status", "--json"]);
    let nodes = status["nodes"].as_array().unwrap();
    assert_eq!(nodes.len(), 2);
    for (node, started) in nodes.iter().zip(first["nodes"].as_array().unwrap()) {
        assert_eq!(node["pid"], started["pid"]);
        assert_eq!(node["state"], "up");
        assert!(node["address"].as_str().unwrap().starts_with("127.0.0.1:"));
    }
    assert!(
        json(&["token", "--json"])["token"]
            .as_str()
            .unwrap()
            .starts_with("pgt1.")
    );

    let fewer = perigee(temp.path(), &["up", "--nodes", "1"]);
    assert_eq!(code(&fewer), Some(1));
    assert_eq!(code(&perigee(temp.path(), &["down"])), Some(0));
    let gone = perigee(temp.path(), &["status"]);
    assert!(
        error(&gone).contains("no node runs here"),
        "{}",
        error(&gone)
    );
}

/// Stops the cluster even when the test fails.
struct Down<'a>(&'a Path);

impl Drop for Down<'_> {
    fn drop(&mut self) {
        perigee(self.0, &["down"]);
    }
}

/// Its log is on the disk of its data, so it may be the log that meets a full disk first.
#[test]
fn a_daemon_that_cannot_write_its_log_goes_on() {
    let temp = tempfile::tempdir().unwrap();
    let _down = Down(temp.path());
    for arguments in [&["up", "--nodes", "1"][..], &["down"]] {
        let output = perigee(temp.path(), arguments);
        assert!(matches!(code(&output), Some(0 | 3)), "{}", error(&output));
    }
    let start = |command: &str, part: &str| {
        let child = Command::new(env!("CARGO_BIN_EXE_perigee"))
            .args([command, "--dir"])
            .arg(temp.path().join(part))
            .env("PERIGEE_LOG", "debug")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(std::fs::File::create("/dev/full").unwrap())
            .spawn();
        End(child.unwrap())
    };
    let _control = start("serve-control", "control");
    let _node = start("serve", "node-1");
    let limit = Instant::now() + Duration::from_secs(30);
    loop {
        let status = perigee(temp.path(), &["status", "--json"]);
        let shown: serde_json::Value = serde_json::from_slice(&status.stdout).unwrap_or_default();
        if shown["nodes"][0]["state"] == "up" {
            break;
        }
        assert!(Instant::now() < limit, "{}", error(&status));
        std::thread::yield_now();
    }
}

/// Ends a process that the test started.
struct End(Child);

impl Drop for End {
    fn drop(&mut self) {
        // It may have ended by itself.
        _ = self.0.kill();
        _ = self.0.wait();
    }
}
