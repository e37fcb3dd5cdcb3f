//! Whatever a disk gives for a row, or for the format file, is one or an error.

use crate::StoreIdentity;
use crate::format::{
    ObjectRecord, decode_record, decode_regions, encode_record, encode_regions, format_text,
    parse_format,
};
use crate::kv::key::{seal, unseal};
use perigee_fuzz::{Verdict, assault};
use perigee_replica::RegionMap;
use perigee_types::{ByteRange, Epoch, InodeId, NodeId, Seq, Version};
use std::path::Path;

const INODE: InodeId = InodeId(7);

const fn version(seq: u64) -> Version {
    Version {
        epoch: Epoch(3),
        seq: Seq(seq),
    }
}

#[test]
fn fuzz_every_row() {
    let record = ObjectRecord::default();
    assault("store::record", &[encode_record(record)], |bytes| {
        let Ok(record) = decode_record(INODE, bytes) else {
            return Verdict::Refused;
        };
        assert_eq!(
            decode_record(INODE, &encode_record(record)).unwrap(),
            record
        );
        Verdict::Taken
    });
    assault("store::seal", &[seal(b"key", b"value")], |bytes| {
        let Ok(value) = unseal(b"key", bytes) else {
            return Verdict::Refused;
        };
        assert_eq!(seal(b"key", value), bytes);
        Verdict::Taken
    });
}

#[test]
fn fuzz_regions() {
    let mut regions = RegionMap::default();
    regions.invalidate(ByteRange::new(4096, 8192), version(5));
    regions.invalidate(ByteRange::new(65_536, 4096), version(6));
    assault("store::regions", &[encode_regions(regions)], |bytes| {
        let Ok(mut regions) = decode_regions(INODE, bytes) else {
            return Verdict::Refused;
        };
        // What was taken can be worked with.
        let piece = ByteRange::new(5000, 90_000);
        _ = (regions.is_valid(piece), regions.len(), regions.oldest());
        regions.invalidate(piece, version(9));
        assert!(!regions.is_valid(piece));
        regions.fill(piece, version(u64::MAX));
        regions.drop_range(piece);
        assert!(regions.is_valid(piece));
        assert!(decode_regions(INODE, &encode_regions(regions)).is_ok());
        Verdict::Taken
    });
}

#[test]
fn fuzz_the_format_file() {
    let identity = StoreIdentity {
        cluster: 0xfeed_beef,
        node: NodeId(7),
    };
    let text = format_text(identity).into_bytes();
    assault("store::FORMAT", &[text], |bytes| {
        parse_format(Path::new("/x"), bytes).into()
    });
}
