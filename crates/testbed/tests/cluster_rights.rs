//! What a mount lets programs do, and what a node that only mounts may do: from outside, on real processes.
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod security;

use perigee_meta::{Credential, FileLock, LockKind, Mode, NewNode, Op, Patience, SetAttr};
use perigee_net::PeerName;
use perigee_proto::message::{file, session};
use perigee_testbed::{Cluster, program};
use perigee_types::{ByteRange, Errno, InodeId, NodeId, OpId, SessionId};
use security::client::Client;
use security::guest::{Guest, Kind};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

#[test]
fn a_node_that_only_mounts_serves_its_programs_and_administers_nothing() {
    let Some(_alone) = program::alone() else {
        return;
    };
    let mut cluster = Cluster::start(2).unwrap();
    let own = cluster.mount(1).unwrap();
    let client = Client::join(&mut cluster, "client", Kind::OnlyMounts);
    let there = &client.mount;
    fs::create_dir_all(there.join("a/b")).unwrap();
    fs::write(there.join("a/b/f"), vec![b'x'; 300_000]).unwrap();
    fs::rename(there.join("a/b/f"), there.join("a/g")).unwrap();
    assert_eq!(fs::read(own.join("a/g")).unwrap(), vec![b'x'; 300_000]);
    fs::write(own.join("a/g"), "shorter").unwrap();
    assert_eq!(fs::read_to_string(there.join("a/g")).unwrap(), "shorter");
    let (here, file) = (own.join("a/g"), fs::File::open(there.join("a/g")).unwrap());
    file.lock().unwrap();
    assert!(fs::File::open(&here).unwrap().try_lock().is_err());
    drop(file);
    fs::File::open(&here).unwrap().lock().unwrap();

    let asked = client.say(&mut cluster, &["status", "--json"]);
    assert!(asked.stdout.contains("\"client\""), "{asked:?}");
    let drain = ["drain", "node-2", "--fewer-copies", "--no-wait"];
    for command in [&["token"][..], &drain] {
        let refused = client.say(&mut cluster, command);
        assert_eq!(refused.status.code(), Some(1), "{refused:?}");
        assert!(refused.stderr.contains("it only mounts"), "{refused:?}");
    }
    let nodes = cluster.status().unwrap();
    assert_eq!(nodes.iter().filter(|node| node.state == "up").count(), 3);
}

#[test]
fn a_mount_has_no_set_id_programs_and_no_devices_unless_root_asks() {
    let Some(_alone) = program::alone() else {
        return;
    };
    let mut cluster = Cluster::start(1).unwrap();
    let options = |point: &Path| {
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let place = point.to_string_lossy();
        let mut rows = table.lines().map(|row| row.split(' ').collect::<Vec<_>>());
        let row = rows.find(|row| row[4] == place).unwrap();
        (row[5].to_owned(), row[row.len() - 1].to_owned())
    };
    let plain = cluster.mount(1).unwrap();
    let (of_mount, of_system) = options(&plain);
    assert!(of_mount.contains("nosuid") && of_mount.contains("nodev"));
    assert!(of_system.contains("default_permissions"), "{of_system}");
    assert!(of_system.contains("allow_other"), "{of_system}");
    // the kernel refuses whom the mode refuses
    fs::write(plain.join("secret"), "x").unwrap();
    fs::set_permissions(plain.join("secret"), fs::Permissions::from_mode(0o600)).unwrap();
    let mut cat = Command::new("cat");
    cat.uid(65_534).arg(plain.join("secret"));
    let seen = cat.output().unwrap();
    assert!(!seen.status.success() && seen.stdout.is_empty());

    let other = cluster.path().join("other");
    fs::create_dir(&other).unwrap();
    let words = other.to_string_lossy().into_owned();
    cluster
        .perigee(&["mount", &words, "-o", "suid,dev"])
        .unwrap();
    let (of_mount, _) = options(&other);
    assert!(!of_mount.contains("nosuid") && !of_mount.contains("nodev"));
    cluster.command(&["umount", &words]).unwrap();
}

fn is_read_only<T: std::fmt::Debug>(outcome: io::Result<T>) {
    let error = outcome.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ReadOnlyFilesystem, "{error}");
}

#[test]
fn a_node_that_only_reads_sees_everything_and_changes_nothing() {
    let Some(_alone) = program::alone() else {
        return;
    };
    let mut cluster = Cluster::start(2).unwrap();
    let own = cluster.mount(1).unwrap();
    fs::create_dir(own.join("d")).unwrap();
    fs::write(own.join("d/f"), "unharmed").unwrap();

    let token = Kind::OnlyReads.token(&mut cluster);
    let dir = cluster.path().join("stores").to_string_lossy().into_owned();
    let place = ["--listen", "127.0.0.1:0", "--name", "stores", "--dir", &dir];
    let refused = cluster.command(&[&["join", &token][..], &place].concat());
    let refused = refused.unwrap();
    assert!(refused.stderr.contains("reading alone"), "{refused:?}");

    let client = Client::join(&mut cluster, "reader", Kind::OnlyReads);
    // it cannot be talked into more
    let more = cluster.path().join("more");
    fs::create_dir(&more).unwrap();
    let place = more.to_string_lossy().into_owned();
    let mounted = client.say(&mut cluster, &["mount", &place, "-o", "rw"]);
    assert!(mounted.status.success(), "{mounted:?}");
    for there in [&client.mount, &more] {
        assert_eq!(fs::read_to_string(there.join("d/f")).unwrap(), "unharmed");
        is_read_only(fs::write(there.join("d/f"), "harmed"));
        is_read_only(fs::write(there.join("new"), "new"));
        is_read_only(fs::create_dir(there.join("new")));
        is_read_only(fs::remove_file(there.join("d/f")));
        is_read_only(fs::rename(there.join("d/f"), there.join("g")));
        let open = fs::Permissions::from_mode(0o777);
        is_read_only(fs::set_permissions(there.join("d/f"), open));
        fs::File::open(there.join("d/f"))
            .unwrap()
            .lock_shared()
            .unwrap();
    }
    fs::write(own.join("d/f"), "anew").unwrap();
    assert_eq!(
        fs::read_to_string(client.mount.join("d/f")).unwrap(),
        "anew"
    );
    let status = cluster.perigee(&["status"]).unwrap();
    assert!(status.contains("up, only reads"), "{status}");

    let inode = InodeId(own.join("d/f").metadata().unwrap().ino());
    let parent = InodeId(own.join("d").metadata().unwrap().ino());
    let bold = Guest::join(&mut cluster, "bold", Kind::OnlyReads);
    past_its_kernel(&bold, parent, inode);
    let seen = fs::File::open(own.join("d/f")).unwrap();
    seen.try_lock().unwrap();
    assert_eq!(fs::read_to_string(own.join("d/f")).unwrap(), "anew");
    let names: Vec<_> = fs::read_dir(own.join("d")).unwrap().flatten().collect();
    assert_eq!(names.len(), 1, "{names:?}");
}

/// What a reader's daemon could send if somebody had rewritten it.
fn past_its_kernel(guest: &Guest, parent: InodeId, inode: InodeId) {
    let (owner, own) = (PeerName::Node(NodeId(1)), SessionId::new(guest.id, 1));
    let (cred, name) = (Credential::default(), b"f".to_vec());
    let lock = FileLock {
        kind: LockKind::Flock,
        owner: 1,
        range: ByteRange::ALL,
        mode: Some(Mode::Exclusive),
        pid: 1,
    };
    let changes = [
        Op::Make {
            parent,
            name: b"new".to_vec(),
            node: NewNode::File,
            mode: 0o644,
            umask: 0,
            cred,
            open_existing: false,
        },
        Op::Unlink { parent, name, cred },
        Op::SetAttr {
            inode,
            set: SetAttr {
                size: Some(0),
                ..SetAttr::default()
            },
            cred,
        },
        Op::SetXattr {
            inode,
            name: b"user.x".to_vec(),
            value: Vec::new(),
            flags: 0,
            cred,
        },
        Op::SetPolicy {
            inode: parent,
            policy: Vec::new(),
        },
        Op::SetLock {
            inode,
            session: own,
            lock,
            patience: Patience::Refuse,
        },
    ];
    for (op, operation) in (1..).zip(changes) {
        let request = session::Execute {
            session: own,
            op: OpId(op),
            answered_through: OpId(0),
            content_max: 0,
            names_max: 0,
            new_directory_in: None,
            operation,
        };
        let answer = guest.ask(owner, &request, &[]).unwrap();
        assert_eq!(answer.result, Err(Errno::EROFS), "{:?}", request.operation);
    }
    let write = file::Write {
        session: own,
        op: OpId(100),
        answered_through: OpId(0),
        inode,
        at: file::At::Offset(0),
        kill_privileges: false,
        cuts: None,
        behind: None,
    };
    let answer = guest.ask(owner, &write, b"harmed").unwrap();
    assert_eq!(answer.result, Err(Errno::EROFS));
}
