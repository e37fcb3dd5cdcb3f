//! Whatever is in the log file, or comes from a caller, is what it should be or an error.

use crate::journal::replay;
use crate::state::{Change, Record, State};
use crate::{log, wire};
use perigee_cluster::{LeaseNumber, Revision, Write};
use perigee_fuzz::{Verdict, assault, assault_plain};
use perigee_types::Span;
use serde::Serialize;
use serde::de::DeserializeOwned;

fn encode(record: &Record) -> Vec<u8> {
    postcard::to_stdvec(record).expect("records always encode")
}

/// A file with a base and some changes, as its bodies.
fn bodies() -> Vec<Vec<u8>> {
    let put = Write::Put {
        key: "/nodes/00000003".to_owned(),
        value: vec![1, 2, 3],
        lease: None,
    };
    let changes = vec![
        Change::Granted {
            lease: LeaseNumber(1),
            ttl: Span::from_millis(5_000),
        },
        Change::Commit {
            revision: Revision(1),
            writes: vec![put],
        },
    ];
    let mut bodies: Vec<Vec<u8>> = State::at(Revision(0), 1)
        .base()
        .iter()
        .map(encode)
        .collect();
    bodies.push(encode(&Record::Group(changes)));
    bodies
}

/// Bodies behind each other, each with its length before it: so that what is within sound frames changes, too.
fn joined(bodies: &[Vec<u8>]) -> Vec<u8> {
    let with_len = |body: &Vec<u8>| {
        let mut bytes = (body.len() as u16).to_le_bytes().to_vec();
        bytes.extend(body);
        bytes
    };
    bodies.iter().flat_map(with_len).collect()
}

fn split(mut bytes: &[u8]) -> Vec<(u64, &[u8])> {
    let mut bodies = Vec::new();
    while let Some((len, rest)) = bytes.split_first_chunk::<2>() {
        let (body, rest) = rest.split_at(usize::from(u16::from_le_bytes(*len)).min(rest.len()));
        bodies.push((bodies.len() as u64, body));
        bytes = rest;
    }
    bodies
}

#[test]
fn fuzz_the_log() {
    let mut file = log::header(7);
    for body in bodies() {
        let frame = log::frame(7, file.len() as u64, &body);
        file.extend(frame);
    }
    assault("control::log", &[file], |bytes| {
        log::scan("f", bytes).into()
    });
    assault("control::journal", &[joined(&bodies())], |bytes| {
        replay("f", &split(bytes), 100, 1 << 20).into()
    });
}

fn message<T: Serialize + DeserializeOwned>(what: &str) {
    assault_plain(what, |bytes| {
        let Ok(value) = perigee_proto::decode::<T>(bytes) else {
            return Verdict::Refused;
        };
        let passed = perigee_proto::encode(&value);
        assert!(perigee_proto::decode::<T>(&passed).is_ok());
        Verdict::Taken
    });
}

macro_rules! of {
    ($($name:ident),*) => {{
        $(message::<wire::$name>(concat!("control::", stringify!($name)));)*
    }};
}

#[test]
fn fuzz_bundles() {
    let bundle = r#"{"format":1,"authority":"a","authority_key":"k","etcd":"etcds://a:1","credentials":{"authority":"b","certificate":"c","key":"d"}}"#;
    assault("control::Bundle", &[bundle.into()], |bytes| {
        crate::further::Bundle::decode(bytes).into()
    });
}

#[test]
fn fuzz_every_message() {
    of!(
        Get,
        List,
        Page,
        Commit,
        Poll,
        Polled,
        Grant,
        KeepAlive,
        Revoke,
        CreateToken,
        CreateReadmission,
        NewToken,
        ListTokens,
        TokenInfo,
        AskStatus,
        ControlStatus,
        Join,
        Admission,
        JoinRefusal,
        AdminError
    );
}
