//! Bad input from outside ends in one clear sentence, and harms nobody: law 8 as a user meets it.
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

use perigee_testbed::cluster::{Ended, run};
use perigee_testbed::leftover::Workspace;
use perigee_testbed::{Cluster, program};
use std::fs::{self, OpenOptions};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

const COMMAND: Duration = Duration::from_secs(30);
/// A peer that talks nonsense is not listened to for longer.
const PATIENCE: Duration = Duration::from_secs(30);

/// A refusal has the exit code, says `error: ...` with the word that matters, and is no crash.
fn refused(ended: &Ended, code: i32, word: &str) {
    let text = &ended.stderr;
    assert_eq!(ended.status.code(), Some(code), "{ended:?}");
    assert!(text.starts_with("error: "), "no `error:` in {text:?}");
    assert!(
        text.to_lowercase().contains(&word.to_lowercase()),
        "no `{word}` in {text:?}"
    );
    assert!(
        !text.contains("panicked") && !text.contains("RUST_BACKTRACE"),
        "{text}"
    );
    assert!(text.lines().count() <= 15, "too long for a refusal: {text}");
}

fn perigee(workspace: &Workspace, name: &str, arguments: &[&str]) -> Ended {
    let binary = program::perigee().unwrap();
    run(&binary, arguments, &workspace.path().join(name), COMMAND).unwrap()
}

#[test]
fn wrong_usage_and_wrong_places_are_refused_before_anything_starts() {
    let workspace = Workspace::new().unwrap();
    let path = |name: &str| workspace.path().join(name).to_string_lossy().into_owned();
    fs::write(path("file"), "x").unwrap();
    let say = |name: &str, arguments: &[&str]| perigee(&workspace, name, arguments);

    refused(
        &say("1", &["up", "--no-such-option"]),
        2,
        "--no-such-option",
    );
    refused(&say("2", &["no-such-command"]), 2, "no-such-command");
    refused(
        &say("3", &["up", "--dir", &path("d"), "--nodes", "0"]),
        2,
        "nodes",
    );
    refused(
        &say("4", &["up", "--dir", &path("d"), "--nodes", "many"]),
        2,
        "many",
    );
    refused(
        &say("5", &["up", "--dir", &path("file")]),
        1,
        "not a directory",
    );
    refused(
        &say("6", &["status", "--dir", &path("nothing")]),
        1,
        "nothing",
    );
    refused(
        &say("7", &["mount", &path("m"), "--dir", &path("nothing")]),
        1,
        "nothing",
    );
    refused(&say("8", &["umount", &path("file")]), 1, "file");
    refused(
        &say("9", &["init", "--dir", &path("i"), "--listen", "nowhere"]),
        2,
        "nowhere",
    );
    let join = [
        "join",
        "no-token",
        "--dir",
        &path("j"),
        "--listen",
        "127.0.0.1:0",
    ];
    refused(&say("10", &join), 1, "token");
    assert!(
        !Path::new(&path("j")).join("node-1").exists(),
        "a refused join left a node"
    );
    let left = perigee_testbed::process::mentioning(&workspace.path().to_string_lossy());
    assert!(left.is_empty(), "processes run on after refusals: {left:?}");
}

#[test]
fn a_busy_port_is_named() {
    let Some(_alone) = program::alone() else {
        return;
    };
    let workspace = Workspace::new().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let dir = workspace.path().join("c").to_string_lossy().into_owned();
    let ended = perigee(
        &workspace,
        "init",
        &["init", "--dir", &dir, "--listen", &address],
    );
    refused(&ended, 1, &address);
    let left = perigee_testbed::process::mentioning(&workspace.path().to_string_lossy());
    assert!(
        left.is_empty(),
        "processes run on after a refusal: {left:?}"
    );
}

#[test]
fn a_bad_mount_point_is_refused_and_the_cluster_goes_on() {
    let Some(_alone) = program::alone() else {
        return;
    };
    let mut cluster = Cluster::start(1).unwrap();
    let mount = cluster.mount(1).unwrap();
    fs::write(mount.join("f"), "unharmed").unwrap();
    let path = |name: &str| cluster.path().join(name).to_string_lossy().into_owned();
    let (full, file, none) = (path("full"), path("file"), path("none"));
    fs::create_dir(&full).unwrap();
    fs::write(Path::new(&full).join("x"), "x").unwrap();
    fs::write(&file, "x").unwrap();
    refused(&cluster.on_this(&["mount", &full]).unwrap(), 1, "empty");
    refused(&cluster.on_this(&["mount", &file]).unwrap(), 1, "directory");
    refused(&cluster.on_this(&["mount", &none]).unwrap(), 1, "none");
    fs::create_dir(&none).unwrap();
    refused(
        &cluster
            .on_this(&["mount", &none, "-o", "no_such_option"])
            .unwrap(),
        2,
        "no_such",
    );
    refused(
        &cluster.on_this(&["mount", &none, "--node", "77"]).unwrap(),
        1,
        "77",
    );
    // Asking again for the mount that is there is either done or refused, and harms nothing.
    let again = mount.to_string_lossy().into_owned();
    cluster.on_this(&["mount", &again]).unwrap();
    assert_eq!(fs::read_to_string(mount.join("f")).unwrap(), "unharmed");
}

/// Offsets, sizes and names past the limits are an errno.
#[test]
fn limits_of_the_mount_are_errors() {
    let Some(_alone) = program::alone() else {
        return;
    };
    let mut cluster = Cluster::start(1).unwrap();
    let mount = cluster.mount(1).unwrap();
    let path = mount.join("f");
    fs::write(&path, "content").unwrap();
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(&path)
        .unwrap();
    for offset in [i64::MAX as u64, i64::MAX as u64 - 5] {
        let error = file.write_at(b"far away", offset).unwrap_err();
        let number = error.raw_os_error();
        assert!(
            matches!(number, Some(libc::EFBIG | libc::EINVAL)),
            "{error}"
        );
        assert!(
            file.set_len(offset).is_err(),
            "a size of {offset} was accepted"
        );
        assert_eq!(file.read_at(&mut [0; 8], offset - 8).unwrap_or(0), 0);
    }
    assert_eq!(fs::read(&path).unwrap(), b"content");

    fs::write(mount.join("n".repeat(255)), "longest").unwrap();
    let error = fs::write(mount.join("n".repeat(256)), "too long").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENAMETOOLONG));
    let odd = ["a\nb", "tab\t", "\u{1F30D}", " ", "...", "-rf", "*", "\\"];
    for name in odd {
        fs::write(mount.join(name), name).unwrap();
        assert_eq!(fs::read_to_string(mount.join(name)).unwrap(), name);
    }
    assert_eq!(fs::read_dir(&mount).unwrap().count(), odd.len() + 2);
}

/// Bytes that are no handshake, an oversized length, a half frame, and a peer without a certificate.
#[test]
fn nonsense_from_a_peer_is_dropped_and_others_are_served() {
    let Some(_alone) = program::alone() else {
        return;
    };
    let mut cluster = Cluster::start(3).unwrap();
    let mount = cluster.mount(1).unwrap();
    fs::write(mount.join("f"), "unharmed").unwrap();
    // A TLS 1.2 record head that promises a handshake of 16 KiB and never sends it.
    let half = [0x16, 0x03, 0x01, 0x40, 0x00, 0x01, 0x00];
    let noise: Vec<u8> = (0..1 << 20)
        .map(|n: u32| (n.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    for node in cluster.status().unwrap() {
        for nonsense in [
            &b"GET / HTTP/1.1\r\n\r\n"[..],
            &[0xff; 64],
            &half,
            &noise,
            b"",
        ] {
            let mut peer = TcpStream::connect(&node.address).unwrap();
            peer.set_read_timeout(Some(PATIENCE)).unwrap();
            // The node may close before it has read all: that is its right.
            _ = peer.write_all(nonsense);
            _ = peer.shutdown(std::net::Shutdown::Write);
            let mut answer = Vec::new();
            let end = peer.read_to_end(&mut answer);
            let open = end.is_err_and(|e| e.kind() == std::io::ErrorKind::WouldBlock);
            assert!(!open, "node {} keeps a peer that talks nonsense", node.id);
            assert!(
                answer.len() < 256,
                "{} bytes were answered to nonsense",
                answer.len()
            );
        }
    }
    // Peers that say nothing at all must not use up what others need.
    let address = cluster.status().unwrap()[0].address.clone();
    let silent: Vec<TcpStream> = (0..50)
        .filter_map(|_| TcpStream::connect(&address).ok())
        .collect();
    let second = cluster.mount(2).unwrap();
    assert_eq!(fs::read_to_string(second.join("f")).unwrap(), "unharmed");
    fs::write(second.join("g"), "served").unwrap();
    assert_eq!(fs::read_to_string(mount.join("g")).unwrap(), "served");
    drop(silent);
}

/// A stopped cluster whose files were tampered with refuses to start, says why, and works again as soon
/// as the file is as before.
#[test]
fn damaged_newer_and_foreign_data_is_refused_and_unharmed() {
    let Some(_alone) = program::alone() else {
        return;
    };
    let mut other = Cluster::start(1).unwrap();
    other.down().unwrap();
    let foreign = fs::read(format_file(&other)).unwrap();

    let mut cluster = Cluster::start(1).unwrap();
    let mount = cluster.mount(1).unwrap();
    fs::write(mount.join("f"), "unharmed").unwrap();
    cluster.down().unwrap();
    let format = format_file(&cluster);
    let own = fs::read_to_string(&format).unwrap();
    let config = cluster.dir().join("node-1/node.toml");
    let settings = fs::read_to_string(&config).unwrap();

    let line = own.lines().find(|line| line.starts_with("format "));
    let newer = own.replace(
        line.expect("the FORMAT file names its format"),
        "format 999",
    );
    let tampered: [(&Path, Vec<u8>, &str); 5] = [
        (&format, newer.into_bytes(), "999"),
        (&format, foreign, "cluster"),
        (&format, own.as_bytes()[..own.len() / 2].to_vec(), "FORMAT"),
        (
            &config,
            format!("{settings}\nno_such_key = 1\n").into_bytes(),
            "no_such_key",
        ),
        (
            &config,
            settings
                .replace("log = \"info\"", "log = \"loud\"")
                .into_bytes(),
            "loud",
        ),
    ];
    for (file, content, word) in tampered {
        let before = fs::read(file).unwrap();
        assert_ne!(before, content, "nothing was tampered with for `{word}`");
        fs::write(file, content).unwrap();
        refused(&cluster.on_this(&["up"]).unwrap(), 1, word);
        fs::write(file, before).unwrap();
    }
    cluster.up().unwrap();
    let mount = cluster.mount(1).unwrap();
    assert_eq!(fs::read_to_string(mount.join("f")).unwrap(), "unharmed");
}

/// The one file `FORMAT` of a cluster of one node.
fn format_file(cluster: &Cluster) -> std::path::PathBuf {
    let mut folders = vec![cluster.dir().join("node-1")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let entry = entry.unwrap();
            if entry.file_name() == "FORMAT" {
                return entry.path();
            }
            if entry.file_type().unwrap().is_dir() {
                folders.push(entry.path());
            }
        }
    }
    panic!("no file `FORMAT` below {}", cluster.dir().display())
}

/// A join token lets one node in, once.
#[test]
fn a_token_is_used_once() {
    let Some(_alone) = program::alone() else {
        return;
    };
    let mut cluster = Cluster::start(1).unwrap();
    let answer: serde_json::Value =
        serde_json::from_str(&cluster.perigee(&["token", "--json"]).unwrap()).unwrap();
    let token = answer["token"]
        .as_str()
        .expect("`token --json` has `token`")
        .to_owned();
    let path = |name: &str| cluster.path().join(name).to_string_lossy().into_owned();
    let (first, second) = (path("first"), path("second"));

    let mut wrong = token.clone();
    let last = wrong.pop().unwrap();
    wrong.push(if last == 'a' { 'b' } else { 'a' });
    let listen = ["--listen", "127.0.0.1:0"];
    let join = |token: &str, dir: &str, name: &str| {
        let words = ["join", token, "--dir", dir, "--name", name];
        words
            .iter()
            .chain(&listen)
            .map(|word| (*word).to_owned())
            .collect::<Vec<_>>()
    };
    refused(
        &cluster.command(&join(&wrong, &second, "second")).unwrap(),
        1,
        "token",
    );
    let ended = cluster.command(&join(&token, &first, "first")).unwrap();
    assert!(ended.status.success(), "{ended:?}");
    refused(
        &cluster.command(&join(&token, &second, "second")).unwrap(),
        1,
        "token",
    );
    assert_eq!(cluster.status().unwrap().len(), 2);
}
