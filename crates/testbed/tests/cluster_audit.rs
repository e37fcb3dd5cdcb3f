//! Who was let in, who was refused and who changed what is in the logs; no secret is anywhere: from outside, on real
//! processes.
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod security;

use perigee_net::{ClusterId, JoinToken, PeerName};
use perigee_proto::Code;
use perigee_proto::message::data;
use perigee_testbed::{Cluster, program};
use perigee_types::{ContainerId, NodeId};
use security::guest::{self, Guest, Kind};
use security::logs::one_line;
use security::wire::{MEMBER, Papers, Rogue, hello};

#[test]
fn who_came_in_who_was_refused_and_who_changed_what_is_logged_in_one_line_each() {
    if let Some(reason) = program::why_no_cluster() {
        return eprintln!("{reason}");
    }
    let mut cluster = Cluster::start(1).unwrap();
    let number = guest::number(&mut cluster);
    let mount = cluster.mount(1).unwrap();
    let guest = Guest::join(&mut cluster, "visitor", Kind::OnlyMounts);
    let command = r#"event="command" outcome="done" uid=0 request="#;
    one_line(&cluster, &[command, "Mount {"]);
    one_line(&cluster, &[command, "Token { ttl_secs: 3600 }"]);
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
