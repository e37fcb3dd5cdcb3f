//! On-disk forms: the directory, the `FORMAT` file, and an object's records. Drawn in `docs/FORMAT.md`.

use crate::error::{OpenError, StoreError};
use crate::store::StoreIdentity;
use perigee_replica::RegionMap;
use perigee_types::{ByteRange, ContainerId, InodeId, NodeId, Version};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// The newest format that this binary reads, and the one that it writes.
pub(crate) const FORMAT: u32 = 5;
const MAGIC: &str = "perigee store";

/// Where everything is.
#[derive(Debug, Clone)]
pub(crate) struct Layout {
    dir: PathBuf,
}

impl Layout {
    pub(crate) fn new(dir: &Path) -> Self {
        Self {
            dir: dir.to_owned(),
        }
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(crate) fn format(&self) -> PathBuf {
        self.dir.join("FORMAT")
    }

    pub(crate) fn keys(&self) -> PathBuf {
        self.dir.join("state.redb")
    }

    pub(crate) fn reserve(&self) -> PathBuf {
        self.dir.join("reserve")
    }

    pub(crate) fn touched(&self) -> PathBuf {
        self.dir.join("touched.log")
    }

    /// A file that is there for a moment, to see what the file system can do.
    pub(crate) fn probe(&self) -> PathBuf {
        self.dir.join("probe")
    }

    pub(crate) fn objects(&self) -> PathBuf {
        self.dir.join("objects")
    }

    pub(crate) fn container(&self, container: ContainerId) -> PathBuf {
        self.objects().join(format!("{:06x}", container.0))
    }

    /// The directory of an object: 256 for each container, by the inode's low byte.
    pub(crate) fn shelf(&self, inode: InodeId) -> PathBuf {
        let low = inode.0 & 0xff;
        self.container(inode.container()).join(format!("{low:02x}"))
    }

    pub(crate) fn object(&self, inode: InodeId) -> PathBuf {
        self.shelf(inode).join(format!("{:016x}", inode.0))
    }
}

/// The container of a directory's name in `objects`.
pub(crate) fn container_of_name(name: &str) -> Option<ContainerId> {
    (name.len() == 6)
        .then(|| u32::from_str_radix(name, 16).ok().map(ContainerId))
        .flatten()
}

/// The container whose backing files lie in the folder `path` of the store in `store`, and below; `None`: it is another one.
#[must_use]
pub fn container_of_dir(store: &Path, path: &Path) -> Option<ContainerId> {
    let of_objects = path.parent()? == Layout::new(store).objects();
    let name = path.file_name()?.to_str().filter(|_| of_objects)?;
    container_of_name(name)
}

/// The text of the `FORMAT` file.
pub(crate) fn format_text(identity: StoreIdentity) -> String {
    text_of(FORMAT, identity)
}

fn text_of(format: u32, identity: StoreIdentity) -> String {
    let body = format!(
        "{MAGIC}\nformat {format}\ncluster {:032x}\nnode {}\n",
        identity.cluster, identity.node.0
    );
    let crc = crc32c::crc32c(body.as_bytes());
    format!("{body}crc32c {crc:08x}\n")
}

/// What a `FORMAT` file says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) format: u32,
    pub(crate) identity: StoreIdentity,
}

/// Reads the text of the `FORMAT` file. The first two lines are the same in every format.
pub(crate) fn parse_format(dir: &Path, text: &[u8]) -> Result<Found, OpenError> {
    let damaged = |why: &str| OpenError::Damaged {
        path: dir.join("FORMAT"),
        why: why.to_owned(),
    };
    let text = std::str::from_utf8(text).map_err(|_| damaged("not text"))?;
    let mut lines = text.lines();
    if lines.next() != Some(MAGIC) {
        return Err(damaged("the first line is not that of a store"));
    }
    let mut field = |name: &str| {
        let line = lines.next().unwrap_or_default();
        line.strip_prefix(name)
            .and_then(|rest| rest.strip_prefix(' '))
            .ok_or_else(|| damaged(&format!("no `{name}` where it should be")))
    };
    let found: u32 = field("format")?
        .parse()
        .map_err(|_| damaged("the format is not a number"))?;
    if found > FORMAT {
        return Err(OpenError::Newer {
            dir: dir.to_owned(),
            found,
            known: FORMAT,
        });
    }
    let cluster = u128::from_str_radix(field("cluster")?, 16);
    let node = field("node")?.parse();
    let (Ok(cluster), Ok(node)) = (cluster, node) else {
        return Err(damaged("cluster or node is not a number"));
    };
    let identity = StoreIdentity {
        cluster,
        node: NodeId(node),
    };
    if text != text_of(found, identity) {
        return Err(damaged("it does not match its checksum"));
    }
    Ok(Found {
        format: found,
        identity,
    })
}

/// Where an object's bytes are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Place {
    /// It has none.
    #[default]
    Nowhere,
    /// In a backing file.
    File,
    /// Among its keys.
    Keys,
}

/// What is kept of an object beside its checksums and validity.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ObjectRecord {
    /// In bytes.
    pub(crate) len: u64,
    pub(crate) place: Place,
}

#[derive(Serialize, Deserialize)]
enum StoredRecord {
    /// Of format 1: length in bytes, and whether there is a backing file.
    V1(u64, bool),
    V2(ObjectRecord),
}

#[derive(Serialize, Deserialize)]
enum StoredRegions {
    /// Of formats 1 and 2: ranges, with the version that each needs and the first record that it lacks.
    V1(Vec<(ByteRange, (Version, Version))>),
    V2(RegionMap),
}

pub(crate) fn encode_record(record: ObjectRecord) -> Vec<u8> {
    encode(&StoredRecord::V2(record))
}

pub(crate) fn decode_record(inode: InodeId, bytes: &[u8]) -> Result<ObjectRecord, StoreError> {
    match postcard::from_bytes(bytes) {
        Ok(StoredRecord::V1(len, present)) => Ok(ObjectRecord {
            len,
            place: if present { Place::File } else { Place::Nowhere },
        }),
        Ok(StoredRecord::V2(record)) => Ok(record),
        Err(e) => Err(damaged(inode, "record", &e)),
    }
}

pub(crate) fn encode_regions(regions: RegionMap) -> Vec<u8> {
    encode(&StoredRegions::V2(regions))
}

pub(crate) fn decode_regions(inode: InodeId, bytes: &[u8]) -> Result<RegionMap, StoreError> {
    match postcard::from_bytes(bytes) {
        Ok(StoredRegions::V1(regions)) => {
            let mut map = RegionMap::new();
            for (range, (needed, since)) in regions {
                map.invalidate_since(range, needed, since);
            }
            Ok(map)
        }
        Ok(StoredRegions::V2(regions)) => Ok(regions),
        Err(e) => Err(damaged(inode, "validity", &e)),
    }
}

fn encode(value: &impl Serialize) -> Vec<u8> {
    postcard::to_stdvec(value).expect("plain values into memory always encode")
}

fn damaged(inode: InodeId, which: &str, error: &postcard::Error) -> StoreError {
    let what = format!("{which} of inode {inode}: {error}");
    StoreError::Damaged { what }
}

#[cfg(test)]
mod tests {
    use super::*;
    use perigee_types::{Epoch, InodeIndex, Seq};

    fn sample() -> StoreIdentity {
        StoreIdentity {
            cluster: 0xfeed_beef,
            node: NodeId(7),
        }
    }

    #[test]
    fn regions_of_older_formats_are_read() {
        let version = |seq| Version {
            epoch: Epoch(3),
            seq: Seq(seq),
        };
        let inode = InodeId::new(ContainerId::ROOT, InodeIndex(9));
        let (first, second) = (ByteRange::new(0, 10), ByteRange::new(20, 30));
        let old = vec![
            (first, (version(7), version(4))),
            (second, (version(8), version(8))),
        ];
        let read = decode_regions(inode, &encode(&StoredRegions::V1(old))).unwrap();
        let mut expected = RegionMap::new();
        expected.invalidate_since(first, version(7), version(4));
        expected.invalidate(second, version(8));
        assert_eq!(read, expected);
        expected.spoil(first, version(9));
        let written = encode_regions(expected.clone());
        assert_eq!(decode_regions(inode, &written).unwrap(), expected);
    }

    #[test]
    fn format_file_reads_back() {
        let text = format_text(sample());
        let read = parse_format(Path::new("/x"), text.as_bytes()).unwrap();
        assert_eq!(read.identity, sample());
        assert_eq!(read.format, FORMAT);
    }

    #[test]
    fn an_older_format_is_read() {
        let read = parse_format(Path::new("/x"), text_of(1, sample()).as_bytes()).unwrap();
        assert_eq!((read.format, read.identity), (1, sample()));
    }

    #[test]
    fn a_newer_format_is_named_whatever_follows() {
        let text = b"perigee store\nformat 9\nsomething else\n";
        let error = parse_format(Path::new("/x"), text).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("`/x` has format 9, this binary knows up to {FORMAT}")
        );
    }

    #[test]
    fn every_flipped_bit_of_the_format_file_is_refused() {
        let text = format_text(sample()).into_bytes();
        for bit in 0..text.len() * 8 {
            let mut bad = text.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(parse_format(Path::new("/x"), &bad).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn stored_records_keep_their_bytes() {
        let record = |place| ObjectRecord { len: 300, place };
        let (file, keys) = (record(Place::File), record(Place::Keys));
        assert_eq!(encode_record(keys), [1, 0xac, 2, 2]);
        assert_eq!(decode_record(InodeId(1), &[1, 0xac, 2, 2]), Ok(keys));
        assert_eq!(decode_record(InodeId(1), &[0, 0xac, 2, 1]), Ok(file));
        assert!(decode_record(InodeId(1), &[7, 1]).is_err());
    }
}
