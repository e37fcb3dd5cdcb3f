//! The instant union: directories of several hosts as one, with nothing but SSH between them (GMount, Dun, Taura and
//! Yonezawa: locality-aware lookups; SSHFS-MUX: union mounts of what users can log in to).
//!
//! Promises:
//! - Whatever is asked is answered within seconds, with an answer or an error, whoever dies.
//! - A path never leads out of a branch, whatever is asked and whatever links there are ([`branch`]).
//! - Nobody but the members of one union talks to any of them: each has a certificate of an authority that its starter makes
//!   for it alone, and hands out over SSH ([`ssh`]).
//! - What a member remembers of others is used no longer than the union's freshness ([`mount`]).
//! - Nothing of it outlives the starter: members end with their SSH connection, and have removed their file by then.
//!
//! It is no cluster: it keeps no copies, orders nothing between hosts and makes nothing durable but by `fsync` on the host that
//! has a file. Only the binary may use it; it gives [`mount::Mount`] to a gateway, as `client` gives its sessions.
//!
//! Reading order: [`wire`], [`branch`], [`member`] with [`cover`] and [`ways`], [`ssh`] with [`channel`], [`mount`].
#![deny(unsafe_code)] // allowed in `lease`, for one system call
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod branch;
pub mod channel;
pub mod cover;
pub mod files;
#[cfg(test)]
mod fuzz;
mod lease;
pub mod member;
pub mod mount;
pub mod path;
pub mod roster;
pub mod ssh;
pub mod ways;
pub mod wire;
