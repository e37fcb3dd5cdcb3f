//! Whatever another member sends, it is a message or an error.

use crate::path::RelPath;
use crate::wire::{
    Answers, Ask, BranchId, Done, FileId, Found, Member, Members, Op, Order, Outcome, Query,
    Request, Word, decode, encode,
};
use perigee_fuzz::{Verdict, assault};
use perigee_types::{Errno, NodeId};
use serde::{Serialize, de::DeserializeOwned};

fn message<T: Serialize + DeserializeOwned + PartialEq>(what: &str, examples: &[T]) {
    let examples: Vec<Vec<u8>> = examples.iter().map(encode).collect();
    assault(what, &examples, |bytes| {
        let Ok(value) = decode::<T>(bytes) else {
            return Verdict::Refused;
        };
        // What was taken can be written, and is the same when it is read again.
        assert!(decode::<T>(&encode(&value)).is_ok_and(|again| again == value));
        Verdict::Taken
    });
}

#[test]
fn fuzz_every_message() {
    let path = RelPath::try_from(b"a/b".to_vec()).expect("a path");
    let member = Member {
        id: NodeId(3),
        name: "h3".to_owned(),
        addresses: vec!["10.0.0.3:4000".parse().expect("an address")],
        branches: vec![BranchId(1), BranchId(9)],
        coordinate: vec![1, 2, 3],
        away: true,
        born: 2,
    };
    let asks = [
        Ask::Search {
            directory: path.clone(),
            query: Query::Names(vec![b"c".to_vec()]),
            branches: vec![BranchId(1)],
            cover: vec![NodeId(2), NodeId(4)],
        },
        Ask::On {
            branch: BranchId(1),
            path: path.clone(),
            op: Op::Unlink,
        },
        Ask::On {
            branch: BranchId(1),
            path,
            op: Op::ReadAhead {
                files: vec![(b"c".to_vec(), (1, 2))],
                bytes: 9,
                term_ms: 500,
            },
        },
    ];
    let asks = asks.map(Some).into_iter().chain([None]);
    let requests = asks.map(|ask| Request {
        closing: vec![FileId(5)],
        ask,
    });
    message("union::request", &requests.collect::<Vec<_>>());
    let found = Found::List {
        entries: Vec::new(),
        more: true,
    };
    message(
        "union::answers",
        &[Answers {
            found: vec![(BranchId(1), Found::NoDirectory), (BranchId(2), found)],
            away: vec![NodeId(7)],
        }],
    );
    let outcomes: [Outcome; 2] = [
        Ok((Done::At(7), crate::wire::Above::default())),
        Err(Errno::EIO),
    ];
    message("union::outcome", &outcomes);
    let members = Members {
        version: 3,
        members: vec![member],
    };
    message("union::order", &[Order::Members(members), Order::Ping]);
    message("union::word", &[Word::Failed("why".to_owned()), Word::Ping]);
}
