//! The checks: each takes paths, and passes on a local directory.
//!
//! [`two_mounts`] coherence between two hosts · [`kill_write`] what fsync promised, through a crash ·
//! [`crash_names`] the same for names · [`tree`] a real tree in and out · [`model`] random operations
//! against a local directory · [`latency`] how long small calls take · [`cuts`] reads beside truncations of other hosts ·
//! [`renames`] calls beside renames between directories of several owners · [`pages`] parts of the same pages written by several mounts ·
//! [`shown`] nobody is shown less than another host was · [`appends`] records that several hosts append to one file.

pub mod appends;
pub mod crash_names;
pub mod cuts;
pub mod kill_write;
pub mod latency;
pub mod model;
pub mod pages;
pub mod renames;
pub mod rewrites;
pub mod shown;
pub mod tree;
pub mod two_mounts;
