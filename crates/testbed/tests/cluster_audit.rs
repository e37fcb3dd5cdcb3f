//! Who was let in, who was refused and who changed what is in the logs; no secret is anywhere: from outside, on real
//! processes.
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod security;

use perigee_net::{ClusterId, JoinToken, PeerName};
use perigee_proto::Code;
use perigee_proto::message::data;
use perigee_testbed::{Cluster, program, wait};
use perigee_types::{ContainerId, NodeId};
use security::guest::{self, Guest, Kind};
use security::logs::{self, one_line};
use security::wire::{MEMBER, Papers, Rogue, hello};
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// A command begins within this.
const LIMIT: Duration = Duration::from_secs(20);

#[test]
fn who_came_in_who_was_refused_and_who_changed_what_is_logged_in_one_line_each() {
    let Some(_alone) = program::alone() else {
        return;
    };
    let mut cluster = Cluster::start(1).unwrap();
    let number = guest::number(&mut cluster);
    let mount = cluster.mount(1).unwrap();
    let guest = Guest::join(&mut cluster, "visitor", Kind::OnlyMounts);
    let command = r#"event="command" outcome="done" uid=0 request="#;
    one_line(&cluster, &[command, "Mount {", "m1"]);
    one_line(
        &cluster,
        &[command, "Token { ttl_secs: 3600, admits: Anybody }"],
    );
    one_line(
        &cluster,
        &["asked{by=n1}", r#"event="token" outcome="made" id="#],
    );
    let admitted = r#"event="join" outcome="admitted" node=n2 name="visitor""#;
    one_line(&cluster, &["joining{address=127.0.0.1:", admitted]);

    a_wrong_token_is_refused(&mut cluster, number);
    one_line(
        &cluster,
        &[
            r#"event="join" outcome="refused" name="thief""#,
            "the token is not known",
        ],
    );

    let forged = Papers::forge(
        number,
        PeerName::Node(NodeId(1)),
        &cluster.path().join("forged"),
    );
    let mut stranger = Rogue::connect(guest::control(&cluster), Some(&forged), &[MEMBER]);
    _ = stranger.say(&hello(number, 1, 1));
    assert!(stranger.rest().closed);
    let refused = r#"event="connection" outcome="refused" peer=joining address=127.0.0.1:"#;
    one_line(&cluster, &[refused, "reason=TLS: "]);

    let page = data::StatePage {
        container: ContainerId::ROOT,
        snapshot: None,
        after: None,
        in_place: Vec::new(),
    };
    let code = guest.refusal(PeerName::Node(NodeId(1)), &page, &[]);
    assert_eq!(code, Code::Forbidden);
    one_line(
        &cluster,
        &[r#"event="call" outcome="refused" peer=n2 call="state_page""#],
    );

    let place = mount.to_string_lossy().into_owned();
    cluster
        .command(&["policy", "set", &place, "copies=2"])
        .unwrap();
    one_line(&cluster, &[command, "PolicySet"]);
    let failed = cluster.on_this(&["drain", "n77"]).unwrap();
    assert!(!failed.status.success());
    one_line(
        &cluster,
        &[
            r#"outcome="failed" uid=0"#,
            "Drain",
            "n77",
            "no node of the cluster",
        ],
    );

    cluster.perigee(&["remove", "visitor"]).unwrap();
    one_line(&cluster, &[command, "Remove", "visitor"]);
    one_line(
        &cluster,
        &[r#"event="certificate" outcome="revoked" node=n2 serial="#],
    );
}

fn a_wrong_token_is_refused(cluster: &mut Cluster, number: ClusterId) {
    let real: JoinToken = guest::token(cluster).parse().unwrap();
    let (addresses, fingerprint) = (real.addresses.clone(), real.fingerprint);
    let wrong = JoinToken::new(addresses, number, fingerprint, real.expires).unwrap();
    let dir = cluster.path().join("thief").to_string_lossy().into_owned();
    let wrong = wrong.to_string();
    let join = [
        "join",
        &wrong,
        "--dir",
        &dir,
        "--listen",
        "127.0.0.1:0",
        "--name",
        "thief",
    ];
    let ended = cluster.command(&join).unwrap();
    assert!(ended.stderr.contains("the token is not known"), "{ended:?}");
}

/// What nobody but its holder may see: a token's secret, and the lines of every private key.
struct Secrets {
    shown: Vec<String>,
    raw: Vec<u8>,
}

impl Secrets {
    fn of(cluster: &Cluster, token: &str) -> Self {
        let digits = token.strip_prefix("pgt1.").unwrap();
        // after expiry, cluster and fingerprint
        let mut shown = vec![digits[112..176].to_owned()];
        for name in ["node.key.pem", "ca.key.pem"] {
            for key in logs::files(cluster.path(), name) {
                let text = fs::read_to_string(&key).unwrap();
                // what comes after the first two lines is the public key
                let lines = text.lines().skip(1).take(2);
                shown.extend(lines.map(str::to_owned));
            }
        }
        assert_eq!(shown.len(), 7, "three keys were not found");
        let token: JoinToken = token.parse().unwrap();
        let raw = token.secret().to_vec();
        Self { shown, raw }
    }

    fn are_not_in(&self, bytes: &[u8], what: &str) {
        let text = String::from_utf8_lossy(bytes);
        for secret in &self.shown {
            assert!(!text.contains(secret), "a secret is in {what}");
        }
        let found = bytes.windows(self.raw.len()).any(|part| part == self.raw);
        assert!(!found, "a token's secret is in {what}");
    }

    fn are_in_no_process(&self, pids: &[i32]) {
        for pid in pids {
            for file in ["cmdline", "environ"] {
                let path = format!("/proc/{pid}/{file}");
                let bytes = fs::read(&path).unwrap();
                assert!(!bytes.is_empty() || file == "environ", "{path} is empty");
                self.are_not_in(&bytes, &path);
            }
        }
    }
}

/// Files of the cluster that are no store: below it lies what programs wrote.
fn settings_and_logs(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().flatten();
    let mut found = Vec::new();
    for entry in entries {
        let (path, name) = (entry.path(), entry.file_name());
        let name = name.to_string_lossy();
        match entry.file_type().unwrap() {
            kind if kind.is_dir() && name != "store" => found.extend(settings_and_logs(&path)),
            kind if kind.is_file() && !name.ends_with("key.pem") => found.push(path),
            _ => {}
        }
    }
    found
}

#[test]
fn no_secret_is_in_a_command_line_an_environment_a_log_or_a_file_of_another_purpose() {
    let Some(_alone) = program::alone() else {
        return;
    };
    let mut cluster = Cluster::start(1).unwrap();
    cluster.down().unwrap();
    let config = cluster.dir().join("node-1/node.toml");
    let settings = fs::read_to_string(&config).unwrap();
    let talkative = settings.replace("log = \"info\"", "log = \"trace\"");
    assert_ne!(settings, talkative);
    fs::write(&config, talkative).unwrap();
    cluster.up().unwrap();
    let mount = cluster.mount(1).unwrap();
    fs::write(mount.join("f"), "x").unwrap();

    let token = guest::token(&mut cluster);
    let secrets = Secrets::of(&cluster, &token);
    let dir = cluster.path().join("reader");
    let mut join = Command::new(program::perigee().unwrap())
        .args(["join", "-", "--listen", "127.0.0.1:0", "--name", "reader"])
        .arg("--dir")
        .arg(&dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let pid = i32::try_from(join.id()).unwrap();
    wait::until("the command is there", LIMIT, || {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        Ok(line.starts_with(b"/").then_some(()))
    })
    .unwrap();
    secrets.are_in_no_process(&[pid]);
    writeln!(join.stdin.take().unwrap(), "{token}").unwrap();
    assert!(join.wait().unwrap().success());

    let named = perigee_testbed::process::mentioning(&cluster.path().to_string_lossy());
    let pids: Vec<i32> = named.iter().map(|process| process.pid).collect();
    assert!(pids.len() >= 3, "{pids:?}");
    secrets.are_in_no_process(&pids);
    let bundle = cluster.path().join("bundle");
    let words = bundle.to_string_lossy().into_owned();
    cluster.on_this(&["doctor", "--bundle", &words]).unwrap();
    let mut files = settings_and_logs(&cluster.dir());
    files.extend(settings_and_logs(&dir));
    files.push(bundle);
    let logs = files.iter().filter(|file| file.ends_with("daemon.log"));
    assert_eq!(logs.count(), 3);
    for file in files {
        secrets.are_not_in(&fs::read(&file).unwrap(), &file.to_string_lossy());
    }
}

#[test]
fn a_key_or_a_token_that_others_may_read_is_refused() {
    let Some(_alone) = program::alone() else {
        return;
    };
    let mut cluster = Cluster::start(1).unwrap();
    let token = guest::token(&mut cluster);
    let file = cluster.path().join("token");
    fs::write(&file, &token).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
    let path = |name: &str| cluster.path().join(name).to_string_lossy().into_owned();
    let (words, dir) = (path("token"), path("other"));
    let place = ["--listen", "127.0.0.1:0", "--name", "other", "--dir", &dir];
    let join = [&["join", "--token-file", &words][..], &place].concat();
    let refused = cluster.command(&join).unwrap();
    assert!(
        refused.stderr.contains("others may read the token"),
        "{refused:?}"
    );
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    let done = cluster.command(&join).unwrap();
    assert!(done.status.success(), "{done:?}");
    cluster.command(&["down", "--dir", &dir]).unwrap();

    cluster.down().unwrap();
    for key in [
        "node-1/identity/node.key.pem",
        "control/node.key.pem",
        "control/ca.key.pem",
    ] {
        let key = cluster.dir().join(key);
        fs::set_permissions(&key, fs::Permissions::from_mode(0o604)).unwrap();
        let refused = cluster.on_this(&["up"]).unwrap();
        assert_eq!(refused.status.code(), Some(1), "{refused:?}");
        assert!(
            refused.stderr.contains("others may read the key"),
            "{refused:?}"
        );
        fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    }
    cluster.up().unwrap();
}
