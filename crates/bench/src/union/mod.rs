//! The union of directories of several hosts, beside what else there is for that, and as many clients meet it.
//!
//! Hosts have networks, mounts and SSH servers of their own on this machine, and every packet between two of them takes its
//! time ([`perigee_testbed::ssh_hosts`]). [`files`] compares the union with `sshfs` of one host, and with `mergerfs` over
//! `sshfs` of all; [`metadata`] counts operations on names by up to 64 clients at four sites.

pub mod files;
mod ground;
pub mod metadata;
