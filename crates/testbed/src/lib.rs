//! The testbed: real Perigee processes, real mounts, and the checks that run on them.
//!
//! Every check takes plain paths, so it runs twice: on an ordinary local directory, where it must
//! pass (that proves the check itself), and on the mounts of two nodes. Nothing here sleeps for a
//! fixed time and hopes; [`wait::until`] polls a condition up to a deadline.
//!
//! Read [`cluster`] first (start, kill, restart, mount, clean up), then [`checks`].

pub mod apart;
pub mod campaign;
pub mod chaos;
pub mod checks;
pub mod closing;
pub mod cluster;
pub mod delay;
pub mod disk;
pub mod error;
pub mod etcd;
pub mod launch;
pub mod leftover;
pub mod links;
pub mod lock;
pub mod map;
pub mod mounts;
mod namespace;
mod netns;
pub mod pattern;
pub mod process;
pub mod program;
pub mod side;
pub mod sites;
pub mod slow;
pub mod ssh_hosts;
pub mod tree;
pub mod wait;

pub use cluster::{Cluster, Node};
pub use error::{Call, CheckError, Checked};
