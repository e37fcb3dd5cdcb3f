//! Bodies of replies.

use perigee_types::WallTime;
use std::time::Duration;

/// The bytes of a reply after its header.
#[derive(Debug, Default)]
pub(crate) struct Body(Vec<u8>);

/// Attributes of a node as the kernel takes them. `mode` has the file type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NodeAttr {
    pub(crate) ino: u64,
    pub(crate) size: u64,
    pub(crate) blocks: u64,
    pub(crate) atime: WallTime,
    pub(crate) mtime: WallTime,
    pub(crate) ctime: WallTime,
    pub(crate) btime: WallTime,
    pub(crate) mode: u32,
    pub(crate) nlink: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) rdev: u32,
}

/// `st_blksize`: what programs take as the size of a good request.
const BLOCK_SIZE_HINT: u32 = 1 << 16;

/// The answer to `OPEN`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OpenReply {
    pub(crate) handle: u64,
    pub(crate) flags: u32,
    pub(crate) backing: u32,
}

/// The answer to `INIT`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct InitReply {
    pub(crate) minor: u32,
    pub(crate) max_readahead: u32,
    pub(crate) flags: u64,
    pub(crate) max_background: u16,
    pub(crate) congestion_threshold: u16,
    pub(crate) max_write: u32,
    pub(crate) max_pages: u16,
    pub(crate) max_stack_depth: u32,
}

/// The answer to `STATFS`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StatfsReply {
    pub(crate) blocks: u64,
    pub(crate) free: u64,
    pub(crate) available: u64,
    pub(crate) files: u64,
    pub(crate) files_free: u64,
    pub(crate) block_len: u32,
    pub(crate) name_len: u32,
}

impl Body {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Two 32-bit words, or one and padding: `WRITE`, `GETXATTR` with size 0.
    pub(crate) fn count(count: u32) -> Self {
        Self::default().u32(count).u32(0)
    }

    /// One 64-bit word: `LSEEK`, `COPY_FILE_RANGE_64`.
    pub(crate) fn long(value: u64) -> Self {
        Self::default().u64(value)
    }

    /// A name: node id, and how long name and attributes hold.
    pub(crate) fn entry(
        node: u64,
        name_ttl: Duration,
        attr_ttl: Duration,
        attr: &NodeAttr,
    ) -> Self {
        Self(Vec::with_capacity(160)).put_entry(node, name_ttl, attr_ttl, attr)
    }

    /// The absence of a name.
    pub(crate) fn absent(ttl: Duration) -> Self {
        Self::entry(0, ttl, Duration::ZERO, &NodeAttr::NONE)
    }

    pub(crate) fn attr(ttl: Duration, attr: &NodeAttr) -> Self {
        let body = Self::default()
            .u64(ttl.as_secs())
            .u32(ttl.subsec_nanos())
            .u32(0);
        body.put_attr(attr)
    }

    pub(crate) fn statx(ttl: Duration, attr: &NodeAttr) -> Self {
        // STATX_BASIC_STATS | STATX_BTIME
        const MASK: u32 = 0xfff;
        let head = Self(Vec::with_capacity(288))
            .u64(ttl.as_secs())
            .u32(ttl.subsec_nanos())
            .u32(0)
            .zeros(16);
        let base = head
            .u32(MASK)
            .u32(BLOCK_SIZE_HINT)
            .u64(0)
            .u32(attr.nlink)
            .u32(attr.uid);
        let sizes = base.u32(attr.gid).u16(attr.mode as u16).u16(0);
        let times = sizes.u64(attr.ino).u64(attr.size).u64(attr.blocks).u64(0);
        [attr.atime, attr.btime, attr.ctime, attr.mtime]
            .into_iter()
            .fold(times, |body, time| {
                body.i64(time.secs).u32(time.nanos).u32(0)
            })
            .u32(attr.rdev_major())
            .u32(attr.rdev_minor())
            .zeros(8 + 14 * 8)
    }

    pub(crate) fn open(open: OpenReply) -> Self {
        Self::default().put_open(open)
    }

    pub(crate) fn create(
        node: u64,
        ttl: Duration,
        name_ttl: Duration,
        attr: &NodeAttr,
        open: OpenReply,
    ) -> Self {
        Self::entry(node, name_ttl, ttl, attr).put_open(open)
    }

    pub(crate) fn statfs(s: StatfsReply) -> Self {
        let counts = Self::default().u64(s.blocks).u64(s.free).u64(s.available);
        let counts = counts.u64(s.files).u64(s.files_free);
        counts
            .u32(s.block_len)
            .u32(s.name_len)
            .u32(s.block_len)
            .zeros(28)
    }

    /// An ioctl's return value, and what it writes back.
    pub(crate) fn ioctl(result: i32, data: &[u8]) -> Self {
        let mut body = Self::default().u32(result.cast_unsigned()).zeros(12);
        body.0.extend_from_slice(data);
        body
    }

    pub(crate) fn lock(first: u64, last: u64, kind: u32, pid: u32) -> Self {
        Self::default().u64(first).u64(last).u32(kind).u32(pid)
    }

    pub(crate) fn init(i: InitReply) -> Self {
        let body = Self::default()
            .u32(super::MAJOR)
            .u32(i.minor)
            .u32(i.max_readahead);
        let body = body
            .u32(i.flags as u32)
            .u16(i.max_background)
            .u16(i.congestion_threshold);
        // Times have nanoseconds: granularity 1.
        let body = body.u32(i.max_write).u32(1).u16(i.max_pages).u16(0);
        body.u32((i.flags >> 32) as u32)
            .u32(i.max_stack_depth)
            .zeros(24)
    }

    /// Body of the notice `INVAL_INODE`.
    pub(crate) fn inval_inode(node: u64, offset: i64, len: i64) -> Self {
        Self::default().u64(node).i64(offset).i64(len)
    }

    /// The head of a notice that gives the kernel a part of a file: the bytes follow.
    pub(crate) fn store(node: u64, offset: u64, len: u32) -> Self {
        Self::default().u64(node).u64(offset).u32(len).u32(0)
    }

    fn put_entry(self, node: u64, name_ttl: Duration, attr_ttl: Duration, attr: &NodeAttr) -> Self {
        // Generation 0: inode numbers are never used twice.
        let body = self
            .u64(node)
            .u64(0)
            .u64(name_ttl.as_secs())
            .u64(attr_ttl.as_secs());
        body.u32(name_ttl.subsec_nanos())
            .u32(attr_ttl.subsec_nanos())
            .put_attr(attr)
    }

    fn put_attr(self, attr: &NodeAttr) -> Self {
        let sizes = self.u64(attr.ino).u64(attr.size).u64(attr.blocks);
        let secs = sizes
            .i64(attr.atime.secs)
            .i64(attr.mtime.secs)
            .i64(attr.ctime.secs);
        let nanos = secs
            .u32(attr.atime.nanos)
            .u32(attr.mtime.nanos)
            .u32(attr.ctime.nanos);
        let ids = nanos
            .u32(attr.mode)
            .u32(attr.nlink)
            .u32(attr.uid)
            .u32(attr.gid);
        ids.u32(attr.rdev).u32(BLOCK_SIZE_HINT).u32(0)
    }

    fn put_open(self, open: OpenReply) -> Self {
        self.u64(open.handle).u32(open.flags).u32(open.backing)
    }

    fn u16(mut self, value: u16) -> Self {
        self.0.extend_from_slice(&value.to_ne_bytes());
        self
    }

    fn u32(mut self, value: u32) -> Self {
        self.0.extend_from_slice(&value.to_ne_bytes());
        self
    }

    fn u64(mut self, value: u64) -> Self {
        self.0.extend_from_slice(&value.to_ne_bytes());
        self
    }

    fn i64(self, value: i64) -> Self {
        self.u64(value.cast_unsigned())
    }

    fn zeros(mut self, count: usize) -> Self {
        self.0.resize(self.0.len() + count, 0);
        self
    }
}

impl NodeAttr {
    /// Of a name that does not exist.
    const NONE: Self = {
        let never = WallTime { secs: 0, nanos: 0 };
        Self {
            ino: 0,
            size: 0,
            blocks: 0,
            atime: never,
            mtime: never,
            ctime: never,
            btime: never,
            mode: 0,
            nlink: 0,
            uid: 0,
            gid: 0,
            rdev: 0,
        }
    };

    /// Major number, of the kernel's 32-bit form (12 bits of major between 8 and 12 of minor).
    fn rdev_major(&self) -> u32 {
        (self.rdev & 0xfff00) >> 8
    }

    fn rdev_minor(&self) -> u32 {
        (self.rdev & 0xff) | ((self.rdev >> 12) & 0xfff00)
    }
}

/// The body of a `READDIR` or `READDIRPLUS` reply while it fills.
#[derive(Debug)]
pub(crate) struct Listing {
    body: Body,
    len_max: usize,
}

/// Bytes of one entry before its name.
const DIRENT_LEN: usize = 24;
/// Bytes of the node's part of a `READDIRPLUS` entry.
const ENTRY_LEN: usize = 128;

impl Listing {
    /// A listing of at most `len_max` bytes.
    pub(crate) fn new(len_max: u32) -> Self {
        Self {
            body: Body::default(),
            len_max: len_max as usize,
        }
    }

    /// How many entries with names of usual length fit.
    pub(crate) fn capacity(len: u32, plus: bool) -> usize {
        const NAME_LEN_USUAL: usize = 16;
        let entry = DIRENT_LEN + NAME_LEN_USUAL + if plus { ENTRY_LEN } else { 0 };
        (len as usize / entry).max(1)
    }

    /// Adds an entry; false when there is no room for it.
    pub(crate) fn push(&mut self, ino: u64, kind: u32, name: &[u8], cookie: u64) -> bool {
        self.fits(DIRENT_LEN + name.len()) && self.put(ino, kind, name, cookie)
    }

    /// Adds an entry with its node; a `node` of 0 only names it.
    pub(crate) fn push_plus(
        &mut self,
        (node, name_ttl, attr_ttl, attr): (u64, Duration, Duration, &NodeAttr),
        (ino, kind, name, cookie): (u64, u32, &[u8], u64),
    ) -> bool {
        if !self.fits(ENTRY_LEN + DIRENT_LEN + name.len()) {
            return false;
        }
        let body = std::mem::take(&mut self.body);
        self.body = body.put_entry(node, name_ttl, attr_ttl, attr);
        self.put(ino, kind, name, cookie)
    }

    /// Adds an entry of a `READDIRPLUS` reply whose attributes are not at hand.
    pub(crate) fn push_plain(&mut self, ino: u64, kind: u32, name: &[u8], cookie: u64) -> bool {
        let none = (0, Duration::ZERO, Duration::ZERO, &NodeAttr::NONE);
        self.push_plus(none, (ino, kind, name, cookie))
    }

    pub(crate) fn finish(self) -> Body {
        self.body
    }

    fn fits(&self, len: usize) -> bool {
        self.body.0.len() + len.next_multiple_of(8) <= self.len_max
    }

    fn put(&mut self, ino: u64, kind: u32, name: &[u8], cookie: u64) -> bool {
        let body = std::mem::take(&mut self.body);
        let mut body = body.u64(ino).u64(cookie).u32(name.len() as u32).u32(kind);
        body.0.extend_from_slice(name);
        let len = body.0.len().next_multiple_of(8);
        body.0.resize(len, 0);
        self.body = body;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_have_the_lengths_of_the_kernels_structs() {
        let ttl = Duration::from_millis(1500);
        let attr = NodeAttr::NONE;
        let open = OpenReply {
            handle: 1,
            flags: 2,
            backing: 3,
        };
        assert_eq!(Body::entry(1, ttl, ttl, &attr).bytes().len(), 128);
        assert_eq!(Body::attr(ttl, &attr).bytes().len(), 104);
        assert_eq!(Body::statx(ttl, &attr).bytes().len(), 288);
        assert_eq!(Body::open(open).bytes().len(), 16);
        assert_eq!(Body::create(1, ttl, ttl, &attr, open).bytes().len(), 144);
        assert_eq!(Body::lock(0, 1, 2, 3).bytes().len(), 24);
        assert_eq!(Body::inval_inode(1, -1, 0).bytes().len(), 24);
        assert_eq!(Body::store(1, 0, 0).bytes().len(), 24);
        let statfs = StatfsReply {
            blocks: 1,
            free: 1,
            available: 1,
            files: 1,
            files_free: 1,
            block_len: 4096,
            name_len: 255,
        };
        assert_eq!(Body::statfs(statfs).bytes().len(), 80);
        let init = InitReply {
            minor: 45,
            max_readahead: 1,
            flags: u64::MAX,
            max_background: 1,
            congestion_threshold: 1,
            max_write: 1,
            max_pages: 1,
            max_stack_depth: 1,
        };
        assert_eq!(Body::init(init).bytes().len(), 64);
    }

    #[test]
    fn a_listing_never_passes_its_length() {
        for len in 0..400 {
            let mut plain = Listing::new(len);
            while plain.push(1, 4, b"name", 9) {}
            let mut plus = Listing::new(len);
            while plus.push_plain(1, 4, b"name", 9) {}
            for body in [plain.finish(), plus.finish()] {
                assert!(body.bytes().len() <= len as usize && body.bytes().len() % 8 == 0);
            }
        }
    }

    #[test]
    fn device_numbers_split_as_the_kernel_joins_them() {
        let attr = NodeAttr {
            rdev: 0x1234_5678,
            ..NodeAttr::NONE
        };
        assert_eq!((attr.rdev_major(), attr.rdev_minor()), (0x456, 0x12378));
    }
}
