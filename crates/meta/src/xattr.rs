//! Extended attributes: names, limits and flags.

/// `setxattr(2)`: the attribute must not exist.
pub const XATTR_CREATE: u32 = 1;
/// `setxattr(2)`: the attribute must exist.
pub const XATTR_REPLACE: u32 = 2;
