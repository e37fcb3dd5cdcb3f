//! Making a mount, and what its maker holds.

use super::notify::Kernel;
use super::options::MountOptions;
use super::point;
pub use super::point::{MountError, UnmountError};
use super::session::{self, Hooks, KernelFacts, Lifetime};
use super::watchdog::Watchdog;
use perigee_client::fs::{FileSystem, KernelCache};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use tracing::{info, warn};

/// How long dropping a mount waits for the kernel to take it out of sight. It waits for nothing
/// but the flush of mapped files; when the file system no longer answers, even that would hang.
const DROP_WAIT: Duration = Duration::from_secs(5);
/// How long an unmount that succeeded waits for the threads to notice.
const END_WAIT: Duration = Duration::from_secs(5);

/// What an unmount does with a mount that is in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Busy {
    /// Leaves it, with [`UnmountError::InUse`].
    Refuse,
    /// Takes it out of sight at once; it serves what is open until that is closed.
    Detach,
}

/// A mounted file system. Dropped, it is detached, as [`Busy::Detach`] does.
#[must_use = "dropping it unmounts"]
pub struct Mounted {
    path: PathBuf,
    /// `major:minor`, which tells this mount from another one at the same place.
    device: Option<String>,
    kernel: Arc<Kernel>,
    facts: KernelFacts,
    lifetime: Arc<Lifetime>,
}

/// Mounts `fs` on `mountpoint`.
///
/// As root by itself, otherwise by `fusermount3`. `hooks` are told before the first operation, and
/// after the last. Operations come on threads of the session as soon as this returns, or before.
///
/// Errors: [`MountError`]; nothing stays mounted then.
pub fn mount(
    fs: Arc<dyn FileSystem>,
    mountpoint: &Path,
    options: &MountOptions,
    hooks: Hooks,
) -> Result<Mounted, MountError> {
    let path = point::check(mountpoint, options)?;
    let connection = point::attach(&path, options)?;
    let device = point::topmost(&path).ok().flatten();
    let watchdog = watchdog(options, device.as_deref(), &path);
    let started =
        session::start(fs, connection, &path, options, hooks, watchdog).inspect_err(|_| {
            // What failed is told; that the half-made mount stays would be told by the next attempt.
            _ = point::detach(&path, true);
        })?;
    if let Some(device) = device.as_deref().filter(|_| point::is_root())
        && let Err(error) = point::set_read_ahead(device, options.read_ahead_kb)
    {
        warn!(path = %path.display(), %error, "read-ahead stays at what the kernel chose");
    }
    info!(path = %path.display(), facts = ?started.facts, "mounted");
    Ok(Mounted {
        path,
        device,
        kernel: started.kernel,
        facts: started.facts,
        lifetime: started.lifetime,
    })
}

/// A mount that cannot have its watchdog works all the same; only after a kill it may hang.
fn watchdog(options: &MountOptions, device: Option<&str>, path: &Path) -> Option<Watchdog> {
    let command = options.watchdog.as_ref()?;
    let started = match device {
        Some(device) => Watchdog::start(command, device),
        None => Err(io::Error::other("the mount is not in /proc/self/mountinfo")),
    };
    started
        .inspect_err(|error| {
            warn!(path = %path.display(), %error, "no watchdog: programs there may hang when this process is killed");
        })
        .ok()
}

impl Mounted {
    /// Where it is mounted, in full.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What the kernel and this mount can do.
    #[must_use]
    pub fn facts(&self) -> KernelFacts {
        self.facts
    }

    /// The kernel's caches of this mount.
    #[must_use]
    pub fn kernel_cache(&self) -> Arc<dyn KernelCache> {
        Arc::clone(&self.kernel) as _
    }

    /// Whether it has ended.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.lifetime.wait(Some(Duration::ZERO))
    }

    /// Waits until the mount has ended: unmounted by anybody, and no longer in use.
    pub fn wait(&self) {
        self.lifetime.wait(None);
    }

    /// Unmounts. After success with [`Busy::Refuse`] no operation runs any more.
    ///
    /// Does nothing when the mount has ended already, or something else is mounted in its place.
    ///
    /// Errors: [`UnmountError::InUse`] unless `busy` says to detach.
    pub fn unmount(&self, busy: Busy) -> Result<(), UnmountError> {
        if self.is_over() {
            return Ok(());
        }
        match self.place() {
            Place::Ours => point::detach(&self.path, busy == Busy::Detach)?,
            Place::Gone => {}
            Place::Covered => {
                return Err(UnmountError::Covered {
                    path: self.path.clone(),
                });
            }
        }
        if busy == Busy::Refuse {
            self.lifetime.wait(Some(END_WAIT));
        }
        Ok(())
    }

    fn place(&self) -> Place {
        match point::topmost(&self.path) {
            Ok(None) => Place::Gone,
            Ok(top) if top == self.device => Place::Ours,
            Ok(Some(_)) => Place::Covered,
            // Without the table, the path alone has to do.
            Err(_) => Place::Ours,
        }
    }
}

/// What is at the mount point now.
enum Place {
    Ours,
    Gone,
    Covered,
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if self.is_over() || !matches!(self.place(), Place::Ours) {
            return;
        }
        let path = self.path.clone();
        let (done, finished) = std::sync::mpsc::channel();
        let detached = thread::Builder::new()
            .name("fuse-detach".to_owned())
            .spawn(move || {
                // Nobody listens any more when the wait below was given up.
                _ = done.send(point::detach(&path, true));
            });
        let result = match detached {
            Ok(_) => finished.recv_timeout(DROP_WAIT),
            Err(error) => {
                warn!(path = %self.path.display(), %error, "mount is left behind");
                return;
            }
        };
        match result {
            Ok(Ok(())) => {}
            Ok(Err(error)) => warn!(%error, "mount is left behind"),
            Err(_) => warn!(path = %self.path.display(), "unmount goes on behind"),
        }
    }
}
