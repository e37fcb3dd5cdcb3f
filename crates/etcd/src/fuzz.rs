//! Whatever an etcd answers, or a person writes, is what it should be or an error.

use crate::memory;
use crate::place::Place;
use crate::wire::{Complaint, Leased, Ranged, Streamed, TxnDone, Watched};
use perigee_fuzz::assault;
use serde::de::DeserializeOwned;

const HEADER: &str = r#"{"cluster_id":"12101053776118486841","revision":"2"}"#;

fn read<T: DeserializeOwned>(what: &str, examples: &[String]) {
    let examples: Vec<Vec<u8>> = examples.iter().map(|text| text.clone().into()).collect();
    assault(what, &examples, |bytes| {
        serde_json::from_slice::<T>(bytes).into()
    });
}

#[test]
fn fuzz_answers_of_etcd() {
    let kv = r#"{"key":"L2E=","mod_revision":"2","version":"1","value":"MQ==","lease":"7"}"#;
    let ranged = format!(r#"{{"header":{HEADER},"kvs":[{kv}],"more":true,"count":"1"}}"#);
    read::<Ranged>("etcd::Ranged", std::slice::from_ref(&ranged));
    let txn = format!(r#"{{"header":{HEADER},"responses":[{{"response_range":{ranged}}}]}}"#);
    read::<TxnDone>("etcd::TxnDone", &[txn]);
    let leased = format!(r#"{{"result":{{"header":{HEADER},"ID":"5","TTL":"2"}}}}"#);
    read::<Streamed<Leased>>("etcd::Leased", &[leased]);
    let watched =
        format!(r#"{{"result":{{"header":{HEADER},"events":[{{"type":"DELETE","kv":{kv}}}]}}}}"#);
    let gone = r#"{"result":{"canceled":true,"compact_revision":"2"}}"#.to_owned();
    let error = r#"{"error":{"grpc_code":14,"message":"etcdserver: no leader"}}"#.to_owned();
    read::<Streamed<Watched>>("etcd::Watched", &[watched, gone, error]);
    let complaint = r#"{"error":"no","message":"no","code":5}"#.to_owned();
    read::<Complaint>("etcd::Complaint", &[complaint]);
}

#[test]
fn fuzz_memories() {
    let known = memory::Known {
        etcd: 12_101_053_776_118_486_841,
        marked: 5,
        seen: 9,
    };
    let text = memory::text(&known).expect("a text");
    assault("etcd::Memory", &[text.into()], |bytes| {
        memory::parse(bytes).into()
    });
}

#[test]
fn fuzz_places() {
    let examples = ["etcd://127.0.0.1:2379,[::1]:1", "etcds://a.example:2379"];
    let examples = examples.map(|text| text.as_bytes().to_vec());
    assault("etcd::Place", &examples, |bytes| {
        String::from_utf8_lossy(bytes).parse::<Place>().into()
    });
}
