//! What is said to etcd, in the JSON form of its protocol: numbers of 64 bits are texts, bytes are base64, and
//! what is zero, false or empty is left out.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Blob(pub Vec<u8>);

impl Serialize for Blob {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&BASE64_STANDARD.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Blob {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(deserializer)?;
        let bytes = BASE64_STANDARD.decode(text.as_bytes());
        bytes.map(Self).map_err(serde::de::Error::custom)
    }
}

/// A number of 64 bits, as text.
pub(crate) mod number {
    use serde::{Deserialize, Deserializer, Serializer};
    use std::fmt::Display;
    use std::str::FromStr;

    pub(crate) fn serialize<T: Display, S: Serializer>(
        number: &T,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_str(number)
    }

    pub(crate) fn deserialize<'de, T, D>(deserializer: D) -> Result<T, D::Error>
    where
        T: FromStr,
        T::Err: Display,
        D: Deserializer<'de>,
    {
        let text = std::borrow::Cow::<str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// Begins every answer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Header {
    /// Names the etcd: made with it, of its first members' names.
    #[serde(with = "number")]
    pub cluster_id: u64,
    /// The revision of its store as of this answer.
    #[serde(with = "number")]
    pub revision: u64,
}

/// A key and what it holds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct KeyValue {
    pub key: Blob,
    #[serde(with = "number")]
    pub mod_revision: u64,
    pub value: Blob,
    #[serde(with = "number")]
    pub lease: i64,
}

/// `/v3/kv/range`.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Range {
    pub key: Blob,
    /// Empty: the one key.
    #[serde(skip_serializing_if = "is_empty")]
    pub range_end: Blob,
    /// 0: without.
    #[serde(with = "number")]
    pub limit: u64,
    /// 0: the current one.
    #[serde(with = "number")]
    pub revision: u64,
    pub keys_only: bool,
}

fn is_empty(blob: &Blob) -> bool {
    blob.0.is_empty()
}

/// The answer to [`Range`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Ranged {
    pub header: Header,
    pub kvs: Vec<KeyValue>,
    pub more: bool,
}

/// A condition: the key's last change was in this revision; 0: it is not there.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Compare {
    pub key: Blob,
    target: &'static str,
    #[serde(with = "number")]
    mod_revision: u64,
}

impl Compare {
    pub(crate) fn new(key: Blob, mod_revision: u64) -> Self {
        Self {
            key,
            target: "MOD",
            mod_revision,
        }
    }
}

/// A put within a transaction.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Put {
    pub key: Blob,
    pub value: Blob,
    #[serde(with = "number")]
    pub lease: i64,
}

/// A delete within a transaction.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Delete {
    pub key: Blob,
    /// Empty: the one key.
    #[serde(skip_serializing_if = "is_empty")]
    pub range_end: Blob,
}

/// A part of a transaction.
#[derive(Debug, Clone, Serialize)]
pub(crate) enum Op {
    #[serde(rename = "request_range")]
    Range(Range),
    #[serde(rename = "request_put")]
    Put(Put),
    #[serde(rename = "request_delete_range")]
    Delete(Delete),
}

/// `/v3/kv/txn`.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Txn {
    pub compare: Vec<Compare>,
    pub success: Vec<Op>,
    pub failure: Vec<Op>,
}

/// The answer to one [`Op`]; those of writes say nothing that is needed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Done {
    pub response_range: Option<Ranged>,
}

/// The answer to [`Txn`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct TxnDone {
    pub header: Header,
    pub succeeded: bool,
    pub responses: Vec<Done>,
}

/// `/v3/lease/grant`, with a number that etcd chooses.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Grant {
    /// In seconds.
    #[serde(rename = "TTL", with = "number")]
    pub ttl: u64,
}

/// `/v3/lease/keepalive` and `/v3/lease/revoke`.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct LeaseId {
    #[serde(rename = "ID", with = "number")]
    pub id: i64,
}

/// The answer about a lease.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Leased {
    pub header: Header,
    #[serde(rename = "ID", with = "number")]
    pub id: i64,
    /// In seconds; 0: it has ended.
    #[serde(rename = "TTL", with = "number")]
    pub ttl: u64,
}

/// `/v3/watch`.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Watch {
    pub create_request: CreateWatch,
}

/// What is watched.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct CreateWatch {
    pub key: Blob,
    pub range_end: Blob,
    #[serde(with = "number")]
    pub start_revision: u64,
    /// Long answers come in parts.
    pub fragment: bool,
}

/// Whether a key was put or deleted. What is left out is a put.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub(crate) enum EventKind {
    #[default]
    Put,
    Delete,
}

/// A change of a key.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Event {
    #[serde(rename = "type")]
    pub kind: EventKind,
    pub kv: KeyValue,
}

/// What a watch says.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Watched {
    pub header: Header,
    pub created: bool,
    pub canceled: bool,
    /// Not 0: history before it is gone.
    #[serde(with = "number")]
    pub compact_revision: u64,
    /// More parts follow.
    pub fragment: bool,
    pub events: Vec<Event>,
}

/// One of the answers that follow each other in a stream.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Streamed<T> {
    Result(T),
    Error(Complaint),
}

/// Why etcd does not do what it was asked.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Complaint {
    /// As gRPC counts; streams call it so.
    pub grpc_code: u32,
    /// The same elsewhere.
    pub code: u32,
    pub message: String,
}

/// The key behind all those that begin with `prefix`: etcd's way to say a prefix.
pub(crate) fn end_of(prefix: &[u8]) -> Blob {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if let Some(next) = last.checked_add(1) {
            end.push(next);
            return Blob(end);
        }
    }
    // Nothing but 0xff: everything that follows.
    Blob(vec![0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_has_etcds_form() {
        let txn = Txn {
            compare: vec![Compare::new(Blob(b"/a".to_vec()), 7)],
            success: vec![Op::Put(Put {
                key: Blob(b"/a".to_vec()),
                value: Blob(b"1".to_vec()),
                lease: 0,
            })],
            failure: Vec::new(),
        };
        assert_eq!(
            serde_json::to_string(&txn).unwrap(),
            r#"{"compare":[{"key":"L2E=","target":"MOD","mod_revision":"7"}],"success":[{"request_put":{"key":"L2E=","value":"MQ==","lease":"0"}}],"failure":[]}"#
        );
    }

    #[test]
    fn what_etcd_left_out_is_zero() {
        let text = r#"{"result":{"header":{"cluster_id":"12101053776118486841","revision":"2"},"events":[{"kv":{"key":"L2E=","mod_revision":"2"}},{"type":"DELETE","kv":{"key":"L2I="}}]}}"#;
        let Streamed::Result(watched) = serde_json::from_str::<Streamed<Watched>>(text).unwrap()
        else {
            panic!("{text}");
        };
        assert_eq!(watched.header.cluster_id, 12_101_053_776_118_486_841);
        assert_eq!(watched.events[0].kind, EventKind::Put);
        assert_eq!(watched.events[1].kind, EventKind::Delete);
        assert!(!watched.canceled && watched.events[0].kv.value.0.is_empty());
    }

    #[test]
    fn the_end_of_a_prefix_is_behind_all_that_begin_with_it() {
        assert_eq!(end_of(b"/a/").0, b"/a0");
        assert_eq!(end_of(b"a\xff").0, b"b");
        assert_eq!(end_of(b"\xff").0, [0]);
    }
}
