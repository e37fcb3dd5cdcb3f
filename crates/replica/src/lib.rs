//! Replication of one container on one node: which node owns it, what its log holds, when a record is
//! committed, and which bytes of its data objects are valid here.
//!
//! Pure: no clock, file, socket or thread. A driver feeds inputs and performs the outputs.
#![forbid(unsafe_code)]

pub mod region;

pub use region::RegionMap;
