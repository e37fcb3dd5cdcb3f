//! The mount. Reading order: [`options`], `mount` (how it is made and unmade), `session` (its life),
//! `ops` (one kernel request, one call), `open_modes` (how the kernel may treat an open file),
//! `notify` (what its caches must drop), `crossing` (which answers such a notice has overtaken), `watchdog` (who ends it
//! when the daemon is killed), `wire` and `device` (bytes).

mod crossing;
mod device;
mod directories;
mod errno;
mod latency;
mod lock_owners;
mod mount;
mod nearby;
mod notify;
mod open_files;
mod open_modes;
mod ops;
mod options;
mod pages;
mod point;
mod reply;
mod session;
mod short_reads;
mod slice;
mod threads;
mod turns;
mod waiting;
mod watchdog;
mod wire;

pub use mount::{Busy, MountError, Mounted, UnmountError, mount};
pub use open_modes::{Counts, Mode, Wish};
pub use options::{Locks, MountOptions, OptionError, Passthrough};
pub use session::{Attached, Hooks, KernelFacts, SessionEnd};
pub use watchdog::{WatchdogCommand, watch};
