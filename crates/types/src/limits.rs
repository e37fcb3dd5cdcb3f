//! Limits that every room shares. What arrives from outside is held against them before it is used.

/// The unit of data ownership: 64 MiB of a file.
pub const CHUNK_LEN: u64 = 64 << 20;
/// The unit of checksums: one page of every file system that Perigee stands on.
pub const BLOCK_LEN: u64 = 4096;
/// The largest file: what a 4 KiB-block ext4, the smallest of the local file systems, can hold.
pub const FILE_LEN_MAX: u64 = (16 << 40) - BLOCK_LEN;
/// The longest name of a directory entry, in bytes.
pub const NAME_LEN_MAX: usize = 255;
/// The longest target of a symbolic link, in bytes.
pub const SYMLINK_LEN_MAX: usize = 4095;
/// The longest name of an extended attribute, in bytes.
pub const XATTR_NAME_LEN_MAX: usize = 255;
/// The longest value of an extended attribute, in bytes (the kernel's own limit).
pub const XATTR_VALUE_LEN_MAX: usize = 65536;
/// The most links to one inode, as ext4 has it.
pub const LINK_MAX: u32 = 65000;
/// The most bytes of one read or write request.
pub const IO_LEN_MAX: usize = 1 << 20;
