//! A FUSE file system that does nothing of its own: each call goes to a directory of the local file system.
//!
//! What the best file system behind FUSE could reach, so far as a measurement tells: it keeps names and attributes in the
//! kernel for an hour, since nobody else changes the directory, reads and writes go past it (passthrough), and it
//! answers neither `flush` nor attributes of programs (xattrs), which the kernel then stops asking for. For root alone;
//! all files are root's. `perigee-bench-bare` mounts it; the side-by-side benchmark measures it as one more peer.

mod attributes;
mod calls;
mod nodes;

use fuser::{Config, MountOption, SessionACL};
use std::io;
use std::path::Path;

/// How long the kernel keeps what it was told.
const KEPT: std::time::Duration = std::time::Duration::from_secs(3_600);

/// Serves `directory` at `mountpoint` with `threads` threads, until it is unmounted.
///
/// Errors: what mounting, or the connection to the kernel, fails with.
pub fn serve(directory: &Path, mountpoint: &Path, threads: usize) -> io::Result<()> {
    let bare = calls::Bare::new(directory)?;
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName("bare".to_owned()),
        MountOption::DefaultPermissions,
        MountOption::NoAtime,
    ];
    config.acl = SessionACL::All;
    config.n_threads = Some(threads);
    config.clone_fd = true;
    fuser::mount(bare, mountpoint, &config)
}
