//! What a cluster keeps from strangers, from those who were members, and from members that lie: from outside, on real
//! processes.
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod security;

use perigee_cluster::{Admits, Txn, key};
use perigee_control::wire;
use perigee_meta::lock::{FileLock, LockKind, Mode, Patience};
use perigee_meta::{Credential, Leftovers, NewNode, Op};
use perigee_net::PeerName;
use perigee_proto::message::{chain, data, file, report, session, tx};
use perigee_proto::{Code, Rpc, encode};
use perigee_testbed::{Cluster, program, wait};
use perigee_types::{
    ByteRange, ContainerId, Epoch, Errno, InodeId, NodeId, OpId, Seq, SessionId, Span, Tick,
    Version,
};
use security::guest::{self, Guest, Kind};
use security::wire::{
    CALL, CAST, JOIN, MEMBER, Papers, REFUSED, Rogue, answer_to, frame, hello, hello_of_tls_12,
};
use security::{logs, sockets};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// Word of a change has reached every process within this.
const HEARD: Duration = Duration::from_secs(20);

fn node(id: u32) -> PeerName {
    PeerName::Node(NodeId(id))
}

fn addresses(cluster: &mut Cluster) -> Vec<SocketAddr> {
    let nodes = cluster.status().unwrap();
    nodes.iter().map(|n| n.address.parse().unwrap()).collect()
}

/// Nothing, or an alert of TLS.
fn is_no_more_than_an_alert(bytes: &[u8]) -> bool {
    bytes.is_empty() || (bytes.len() == 7 && bytes[0] == 0x15)
}

#[test]
fn no_port_answers_more_than_a_handshake_to_strangers() {
    let Some(_alone) = program::alone() else {
        return;
    };
    let mut cluster = Cluster::start(2).unwrap();
    cluster.mount(1).unwrap();
    let mut expected = addresses(&mut cluster);
    expected.push(guest::control(&cluster));
    expected.sort_unstable();

    let mut open = sockets::of(&cluster.pids());
    open.tcp.sort_unstable();
    assert_eq!(open.tcp, expected, "what listens is not what is known");
    assert_eq!(open.datagram, Vec::<String>::new());
    assert_eq!(open.unix.len(), 2, "{:?}", open.unix);
    for path in &open.unix {
        let name = path.to_string_lossy();
        assert!(name.contains("admin.sock"), "a unix socket `{name}`");
    }
    for number in 1..=2 {
        let socket = cluster
            .dir()
            .join(format!("node-{number}/admin.sock"))
            .metadata()
            .unwrap();
        assert_eq!(socket.mode() & 0o777, 0o600);
    }

    let number = guest::number(&mut cluster);
    let forged = |cluster, at: &str, path: &Path| Papers::forge(cluster, node(2), &path.join(at));
    let (same, other) = (
        forged(number, "same", cluster.path()),
        forged(perigee_net::ClusterId(7), "other", cluster.path()),
    );
    for address in open.tcp {
        plain_text_is_not_answered(address, number);
        let strangers = [
            ("no certificate", None, &[MEMBER][..]),
            ("no certificate and no protocol", None, &[]),
            ("an authority of its own", Some(&same), &[MEMBER]),
            ("another cluster's certificate", Some(&other), &[MEMBER]),
            ("a protocol of its own", None, &[b"h2"]),
        ];
        for (who, papers, protocols) in strangers {
            let mut stranger = Rogue::connect(address, papers, protocols);
            // it may be cut off while it speaks
            _ = stranger.say(&hello(number, 1, 1));
            _ = stranger.say(&frame(CALL, report::AskReport::METHOD, 1, &[], &[]));
            let rest = stranger.rest();
            assert!(rest.closed && rest.bytes.is_empty(), "{who}: {rest:?}");
        }
        who_joins_may_ask_for_nothing_else(address, number);
    }
    // of each process: four times plain text, five strangers, two who wanted a member's lane
    wait::until("every refusal is counted", HEARD, || {
        let found = logs::lines(&cluster, &[r#"event="connection" outcome="refused""#]);
        Ok((found.len() == 3 * 11).then_some(()))
    })
    .unwrap();
}

fn plain_text_is_not_answered(address: SocketAddr, number: perigee_net::ClusterId) {
    for plain in [&b"GET / HTTP/1.1\r\n\r\n"[..], &hello(number, 1, 1), b"\n"] {
        let rest = answer_to(address, plain);
        assert!(
            rest.closed && is_no_more_than_an_alert(&rest.bytes),
            "{rest:?}"
        );
    }
    let rest = answer_to(address, &hello_of_tls_12());
    // fatal (2), protocol_version (70)
    assert_eq!((rest.closed, &rest.bytes[5..]), (true, &[2, 70][..]));
}

/// A stranger gets as far as one request, and only that to join is looked at.
fn who_joins_may_ask_for_nothing_else(address: SocketAddr, number: perigee_net::ClusterId) {
    for method in [
        wire::Get::METHOD,
        wire::Commit::METHOD,
        wire::CreateToken::METHOD,
        session::Execute::METHOD,
        file::Read::METHOD,
        data::StatePage::METHOD,
        report::AskReport::METHOD,
    ] {
        let mut stranger = Rogue::connect(address, None, &[JOIN]);
        stranger.say(&hello(number, 3, 0)).unwrap();
        let welcome = stranger.answer().unwrap();
        assert!(welcome.body.len() < 32, "{welcome:?}");
        stranger.say(&frame(CALL, method, 1, &[0; 8], &[])).unwrap();
        let answer = stranger.answer().unwrap();
        assert_eq!(
            (answer.flags, Code::from_number(answer.method)),
            (REFUSED, Code::Forbidden),
            "{method:#06x}"
        );
        let rest = stranger.rest();
        assert!(rest.closed && rest.bytes.is_empty(), "{rest:?}");
    }
    for lane in [1, 2] {
        let mut stranger = Rogue::connect(address, None, &[JOIN]);
        stranger.say(&hello(number, lane, 0)).unwrap();
        let rest = stranger.rest();
        assert!(rest.closed && rest.bytes.is_empty(), "{rest:?}");
    }
}

#[test]
fn a_removed_node_can_do_nothing_with_its_old_certificate() {
    let Some(_alone) = program::alone() else {
        return;
    };
    let mut cluster = Cluster::start(1).unwrap();
    let number = guest::number(&mut cluster);
    let guest = Guest::join(&mut cluster, "leaver", Kind::OnlyMounts);
    let ask_node = |patience| {
        let asked = guest.ask_within(patience, node(1), &report::AskReport, &[]);
        asked.map(drop)
    };
    let get = wire::Get {
        key: key::node(guest.id),
    };
    let ask_control = |patience| {
        let asked = guest.ask_within(patience, PeerName::Control, &get, &[]);
        asked.map(drop)
    };
    ask_node(HEARD).unwrap();
    ask_control(HEARD).unwrap();

    let papers = guest.papers();
    let asks = [
        (
            addresses(&mut cluster)[0],
            report::AskReport::METHOD,
            encode(&report::AskReport),
        ),
        (guest::control(&cluster), wire::Get::METHOD, encode(&get)),
    ];
    let mut before: Vec<(Rogue, _)> = asks
        .iter()
        .map(|ask| (Rogue::enter(ask.0, &papers, number, 9), ask))
        .collect();
    // True while the connection is served.
    let served = |rogue: &mut Rogue, method: u16, body: &[u8], id: u64| {
        let said = rogue.say(&frame(CALL, method, id, body, &[]));
        said.and_then(|()| rogue.answer())
            .is_ok_and(|answer| answer.flags == 0)
    };
    for (rogue, (_, method, body)) in &mut before {
        assert!(served(rogue, *method, body, 1));
    }

    cluster.perigee(&["remove", "leaver"]).unwrap();
    for (rogue, (address, method, body)) in &mut before {
        let mut id = 1;
        wait::until("an open connection is cut", HEARD, || {
            id += 1;
            Ok((!served(rogue, *method, body, id)).then_some(()))
        })
        .unwrap();
        let mut again = Rogue::connect(*address, Some(&papers), &[MEMBER]);
        _ = again.say(&hello(number, 1, 10));
        let rest = again.rest();
        assert!(rest.closed && rest.bytes.is_empty(), "{rest:?}");
    }
    // they are open or not by now
    let soon = Duration::from_secs(2);
    let (of_node, of_control) = (ask_node(soon), ask_control(soon));
    assert!(of_node.is_err() && of_control.is_err());
    assert_eq!(cluster.status().unwrap().len(), 1);
}

fn execute(session: SessionId, op: u64, operation: Op) -> session::Execute {
    session::Execute {
        session,
        op: OpId(op),
        answered_through: OpId(0),
        content_max: 0,
        names_max: 0,
        new_directory_in: None,
        operation,
    }
}

fn make(name: &[u8]) -> Op {
    Op::Make {
        parent: InodeId::ROOT,
        name: name.to_vec(),
        node: NewNode::File,
        mode: 0o644,
        umask: 0,
        cred: Credential::default(),
        open_existing: false,
    }
}

fn lock(session: SessionId, inode: InodeId, mode: Option<Mode>) -> Op {
    Op::SetLock {
        inode,
        session,
        lock: FileLock {
            kind: LockKind::Flock,
            owner: 1,
            range: ByteRange::ALL,
            mode,
            pid: 1,
        },
        patience: Patience::Refuse,
    }
}

/// The sessions that are mounted at a node: their numbers begin with the moment at which its daemon began.
fn sessions_of(guest: &Guest, cluster: &Cluster, id: u32) -> Vec<SessionId> {
    let pid_file = cluster.dir().join(format!("node-{id}/pid"));
    let began = pid_file.metadata().unwrap().modified().unwrap();
    let began = began.duration_since(std::time::UNIX_EPOCH).unwrap();
    let began = began.as_millis() as u32;
    let guesses = began.wrapping_sub(1_000)..began.wrapping_add(30_000);
    let sessions = guesses.map(|count| SessionId::new(NodeId(id), count));
    let ask = session::AskSessions {
        sessions: sessions.collect(),
    };
    guest.ask(node(id), &ask, &[]).unwrap().sessions
}

#[test]
fn forged_requests_of_members_change_nothing() {
    let Some(_alone) = program::alone() else {
        return;
    };
    let mut cluster = Cluster::start(3).unwrap();
    let (first, second) = (cluster.mount(1).unwrap(), cluster.mount(2).unwrap());
    fs::write(first.join("f"), "unharmed").unwrap();
    let locked = fs::File::options()
        .write(true)
        .open(second.join("f"))
        .unwrap();
    locked.lock().unwrap();
    let inode = InodeId(first.join("f").metadata().unwrap().ino());
    let owner = cluster.chains().unwrap()[0][0];
    let storing = Guest::join(&mut cluster, "storing", Kind::Stores);
    let mounting = Guest::join(&mut cluster, "mounting", Kind::OnlyMounts);
    let chains = cluster.chains().unwrap();
    let victims = sessions_of(&storing, &cluster, 2);
    assert_eq!(victims.len(), 1, "the mount of node 2 was not found");

    for guest in [&storing, &mounting] {
        acts_in_another_name(guest, owner, victims[0], inode);
        names_no_directory_can_hold(guest, owner);
    }
    without_a_place_in_the_chain(&mounting, owner, inode);
    changes_the_record(&mounting);

    let other = fs::File::open(first.join("f")).unwrap();
    assert!(other.try_lock().is_err(), "the lock was taken away");
    for mount in [&first, &second] {
        assert_eq!(fs::read_to_string(mount.join("f")).unwrap(), "unharmed");
        let names = fs::read_dir(mount).unwrap().count();
        assert_eq!(names, 1, "a name was made");
    }
    assert_eq!(cluster.chains().unwrap()[..3], chains[..3]);
    fs::write(second.join("g"), "served").unwrap();
    assert_eq!(fs::read_to_string(first.join("g")).unwrap(), "served");
}

/// With sessions of another host, in the request or inside its operation, and with what only owners do to themselves.
fn acts_in_another_name(guest: &Guest, owner: u32, victim: SessionId, inode: InodeId) {
    let own = SessionId::new(guest.id, 1);
    let root = ContainerId::ROOT;
    let forged = [
        execute(victim, 1, make(b"forged")),
        execute(own, 2, lock(victim, inode, None)),
        execute(
            own,
            3,
            Op::ReleaseSession {
                container: root,
                session: victim,
                leftovers: Leftovers::None,
            },
        ),
        execute(
            own,
            4,
            Op::ReleaseLocks {
                inode,
                session: victim,
                owner: None,
                kind: None,
            },
        ),
        execute(own, 5, Op::Reap { inode }),
        execute(
            own,
            6,
            Op::Wrote {
                inode,
                ranges: vec![ByteRange::new(0, 4)],
                size_at_least: Some(4_096),
                mtime: Default::default(),
                kill_privileges: false,
            },
        ),
    ];
    for request in &forged {
        let refused = guest.refusal(node(owner), request, &[]);
        assert_eq!(refused, Code::Forbidden, "{:?}", request.operation);
    }
    let write = file::Write {
        session: victim,
        op: OpId(7),
        answered_through: OpId(0),
        inode,
        at: file::At::Offset(0),
        kill_privileges: false,
        cuts: None,
        behind: None,
    };
    assert_eq!(
        guest.refusal(node(owner), &write, b"forged"),
        Code::Forbidden
    );
}

fn names_no_directory_can_hold(guest: &Guest, owner: u32) {
    let own = SessionId::new(guest.id, 1);
    let long = [b'n'; 256];
    let names = [
        (&b"a/b"[..], Errno::EINVAL),
        (b"../../etc/passwd", Errno::EINVAL),
        (b"nul\0", Errno::EINVAL),
        (b"", Errno::EINVAL),
        (&long, Errno::ENAMETOOLONG),
    ];
    for (turn, (name, errno)) in names.into_iter().enumerate() {
        let request = execute(own, 100 + turn as u64, make(name));
        let answer = guest.ask(node(owner), &request, &[]).unwrap();
        assert_eq!(answer.result, Err(errno), "{name:?}");
    }
    for (turn, name) in [&b"."[..], b".."].into_iter().enumerate() {
        let request = execute(own, 200 + turn as u64, make(name));
        let answer = guest.ask(node(owner), &request, &[]).unwrap();
        assert!(answer.result.is_err(), "{name:?}");
    }
}

/// What only nodes that store data say to each other, and with an epoch that nobody has made.
fn without_a_place_in_the_chain(guest: &Guest, owner: u32, inode: InodeId) {
    let container = ContainerId::ROOT;
    let page = data::StatePage {
        container,
        snapshot: None,
        after: None,
        in_place: Vec::new(),
    };
    assert_eq!(guest.refusal(node(owner), &page, &[]), Code::Forbidden);
    let fetch = data::Fetch {
        older: false,
        container,
        regions: vec![data::Wanted {
            inode,
            range: ByteRange::new(0, 8),
            in_place: None,
        }],
    };
    assert_eq!(guest.refusal(node(owner), &fetch, &[]), Code::Forbidden);
    let keys = tx::ReadKeys {
        container,
        gets: Vec::new(),
        scans: Vec::new(),
    };
    assert_eq!(guest.refusal(node(owner), &keys, &[]), Code::Forbidden);
    let revoke = session::Revoke {
        session: SessionId::new(NodeId(2), 1),
        touched: Vec::new(),
    };
    assert_eq!(guest.refusal(node(2), &revoke, &[]), Code::Forbidden);
    for member in 1..=3 {
        let message = perigee_replica::Message::Append {
            view: perigee_replica::ChainView {
                epoch: Epoch(1_000_000),
                chain: vec![guest.id, NodeId(member)],
            },
            prev: Version::default(),
            entries: Vec::new(),
            commit: Seq::ZERO,
            admit: None,
            sent_at: Tick(1),
        };
        let (body, payload) = (encode(&chain::Envelope { container }), encode(&message));
        guest.tell(node(member), chain::Envelope::METHOD, body, payload);
        // whoever answers this has the message before it: both take the same lane
        guest.ask(node(member), &report::AskReport, &[]).unwrap();
    }
}

/// Of the cluster's record, all but what a node says of itself is for others to change.
fn changes_the_record(guest: &Guest) {
    let control = PeerName::Control;
    for txn in [
        Txn::default().delete(key::node(NodeId(1))),
        Txn::default().put(key::revoked(&[1; 16]), vec![1]),
        Txn::default().delete(key::container(ContainerId::ROOT)),
        Txn::default().put(key::live(NodeId(1)), vec![1]),
        Txn::default().put(key::node(guest.id), vec![1]),
    ] {
        let commit = wire::Commit { txn };
        assert_eq!(guest.refusal(control, &commit, &[]), Code::Forbidden);
    }
    let token = wire::CreateToken {
        ttl: Span::from_millis(60_000),
        admits: Admits::Anybody,
    };
    assert_eq!(guest.refusal(control, &token, &[]), Code::Forbidden);
}

/// Each is a frame that nobody may send.
fn hostile_frames() -> Vec<(&'static str, Vec<u8>)> {
    let good = frame(CALL, report::AskReport::METHOD, 1, &[0; 100], &[0; 100]);
    let changed = |at: usize, value: &[u8]| {
        let mut bytes = good.clone();
        bytes[at..at + value.len()].copy_from_slice(value);
        bytes
    };
    vec![
        ("another format", changed(0, &[9])),
        ("an unknown kind", changed(1, &[99])),
        ("unknown flags", changed(2, &[0xff])),
        ("an unknown priority", changed(3, &[77])),
        ("a body over the limit", changed(28, &[1, 0, 0x10, 0])),
        ("a body of 4 GiB", changed(28, &[0xff; 4])),
        ("bytes over the limit", changed(32, &[1, 0, 0, 1])),
        ("a changed byte", changed(60, &[1])),
        ("an answer that nobody asked for", frame(3, 0, 1, &[], &[])),
        ("a second hello", frame(1, 0, 0, &[0; 29], &[])),
        (
            "noise",
            (0..4_096).map(|n: u32| ((n * n) >> 3) as u8).collect(),
        ),
    ]
}

#[test]
fn hostile_frames_disconnect_their_sender_alone_and_memory_stays_bounded() {
    let Some(_alone) = program::alone() else {
        return;
    };
    let mut cluster = Cluster::start(1).unwrap();
    let number = guest::number(&mut cluster);
    let mount = cluster.mount(1).unwrap();
    fs::write(mount.join("f"), "unharmed").unwrap();
    let papers = Guest::join(&mut cluster, "hostile", Kind::OnlyMounts).papers();
    let honest = Guest::join(&mut cluster, "honest", Kind::OnlyMounts);
    let places = [addresses(&mut cluster)[0], guest::control(&cluster)];
    let pids = cluster.pids();
    let before = sockets::resident(&pids);
    let mut incarnation = 0;
    for address in places {
        for (what, bytes) in hostile_frames() {
            incarnation += 1;
            let mut rogue = Rogue::enter(address, &papers, number, incarnation);
            rogue.say(&bytes).unwrap();
            assert!(rogue.rest().closed, "{what}");
            assert_eq!(fs::read_to_string(mount.join("f")).unwrap(), "unharmed");
            honest.ask(node(1), &report::AskReport, &[]).unwrap();
        }
        unreadable_messages_are_refused(Rogue::enter(address, &papers, number, incarnation + 1));
        incarnation += 1;

        // Promises of 17 MiB that are not kept, and peers that say nothing at all.
        let promise = &frame(
            CALL,
            file::Write::METHOD,
            1,
            &[0; 1 << 20],
            &vec![0; 16 << 20],
        )[..4_096];
        let mut promised = Vec::new();
        for _ in 0..40 {
            incarnation += 1;
            let mut rogue = Rogue::enter(address, &papers, number, incarnation);
            rogue.say(promise).unwrap();
            promised.push(rogue);
        }
        let silent: Vec<_> = (0..300).map(|_| TcpStream::connect(address)).collect();
        drop((promised, silent));
    }
    nested_requests_are_refused(&cluster.dir().join("node-1/admin.sock"));
    let after = sockets::resident(&pids);
    for (pid, bytes) in &before {
        let grown = after[pid].saturating_sub(*bytes) >> 20;
        eprintln!("process {pid}: {} MiB, {grown} MiB more", bytes >> 20);
        assert!(grown < MEMORY_MAX_MIB, "process {pid} took {grown} MiB");
    }
    fs::write(mount.join("g"), "served").unwrap();
}

/// A peer's two lanes may each have one frame of 17 MiB under way, and some rest for the allocator.
const MEMORY_MAX_MIB: u64 = 96;

/// Bodies that are no message, to every method: refused, and the connection goes on.
fn unreadable_messages_are_refused(mut rogue: Rogue) {
    let noise: Vec<u8> = (0..300_u32).map(|n| ((n * n) >> 2) as u8).collect();
    let mut id = 0;
    for method in (0x0100..0x0130).chain(0x0200..0x0250) {
        // lengths without end, noise, nothing
        for body in [&[0xff; 200][..], &noise, &[]] {
            id += 1;
            rogue.say(&frame(CALL, method, id, body, &[])).unwrap();
            let answer = rogue.answer().unwrap();
            let code = Code::from_number(answer.method);
            // nothing at all is a message where nothing needs to be said
            let answered = answer.flags == 0 && body.is_empty();
            assert!(
                answered || (answer.flags == REFUSED && code != Code::Failed),
                "{method:#06x}: {answer:?}"
            );
            rogue.say(&frame(CAST, method, 0, body, &[])).unwrap();
        }
    }
}

fn nested_requests_are_refused(socket: &Path) {
    let mut stream = UnixStream::connect(socket).unwrap();
    let mut line = "[".repeat(60_000);
    line.push('\n');
    stream.write_all(line.as_bytes()).unwrap();
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).unwrap();
    assert!(answer.contains("cannot read the request"), "{answer}");
}

#[test]
fn a_captured_request_that_is_sent_again_does_nothing() {
    let Some(_alone) = program::alone() else {
        return;
    };
    let mut cluster = Cluster::start(1).unwrap();
    let number = guest::number(&mut cluster);
    let mount = cluster.mount(1).unwrap();
    let guest = Guest::join(&mut cluster, "captured", Kind::OnlyMounts);
    let address = addresses(&mut cluster)[0];

    let mut rogue = Rogue::enter(address, &guest.papers(), number, 5);
    let request = execute(SessionId::new(guest.id, 1), 1, make(b"once"));
    let call = frame(CALL, session::Execute::METHOD, 1, &encode(&request), &[]);
    rogue.say(&call).unwrap();
    assert_eq!(rogue.answer().unwrap().flags, 0);
    fs::remove_file(mount.join("once")).unwrap();

    // over the same connection it is answered from what was kept
    rogue.say(&call).unwrap();
    assert_eq!(rogue.answer().unwrap().flags, 0);
    assert!(!mount.join("once").exists(), "a repeat ran");
    let captured = rogue.captured();
    assert!(captured.len() > 1_000, "nothing was captured");
    drop(rogue);
    let rest = answer_to(address, &captured);
    assert!(rest.closed && !mount.join("once").exists());
}
