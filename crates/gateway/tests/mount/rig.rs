//! A mount for one test, taken away whatever happens to the test.

use crate::memory::MemoryFs;
use perigee_gateway::fuse::{Hooks, MountOptions, Mounted, SessionEnd, mount};
use rustix::mount::UnmountFlags;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

/// Longer than anything here takes, on a machine that has other work.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Whether the mount can be tested here; says so where it cannot.
pub fn can_mount() -> bool {
    let usable = std::fs::File::options()
        .read(true)
        .write(true)
        .open("/dev/fuse")
        .is_ok();
    let can = usable && rustix::process::geteuid().is_root();
    if !can {
        eprintln!("skipped: mounting takes root and /dev/fuse");
    }
    can
}

pub struct Rig {
    pub fs: Arc<MemoryFs>,
    pub mounted: Option<Mounted>,
    pub ended: Receiver<SessionEnd>,
    root: PathBuf,
}

impl Rig {
    /// `None`, with a word to the reader, where this cannot be tested.
    pub fn new() -> Option<Self> {
        Self::with("")
    }

    pub fn with(options: &str) -> Option<Self> {
        if !can_mount() {
            return None;
        }
        let fs = Arc::new(MemoryFs::default());
        let root = tempfile::tempdir().unwrap().keep();
        let (end, ended) = channel();
        let hooks = Hooks {
            ended: Box::new(move |how| _ = end.send(how)),
            ..Hooks::default()
        };
        let options = MountOptions::parse([options]).unwrap();
        let mounted = mount(Arc::clone(&fs) as _, &root, &options, hooks).unwrap();
        Some(Self {
            fs,
            mounted: Some(mounted),
            ended,
            root,
        })
    }

    pub fn mounted(&self) -> &Mounted {
        self.mounted.as_ref().unwrap()
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.fs.let_go();
        self.mounted = None;
        // Whatever a failed test has left there; EINVAL when nothing has.
        while rustix::mount::unmount(&self.root, UnmountFlags::DETACH).is_ok() {}
        _ = std::fs::remove_dir(&self.root);
        let faults = self
            .fs
            .change_elsewhere(|tree| std::mem::take(&mut tree.faults));
        assert!(faults.is_empty() || thread::panicking(), "{faults:?}");
    }
}

/// Runs `work` on a thread; panics when it takes too long, which is how a deadlock shows.
pub fn in_time<T: Send + 'static>(what: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, finished) = channel();
    thread::spawn(move || _ = done.send(work()));
    finished
        .recv_timeout(PATIENCE)
        .unwrap_or_else(|_| panic!("{what}: hangs"))
}

/// Waits until `condition` holds.
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "{what}: not in time");
        thread::sleep(Duration::from_millis(2));
    }
}

/// The error number of a failed call.
pub fn errno<T>(result: std::io::Result<T>) -> Option<i32> {
    result.err().and_then(|error| error.raw_os_error())
}

/// A shared map of a whole file.
pub struct Map {
    address: *mut u8,
    len: usize,
}

#[expect(unsafe_code, reason = "the standard library cannot map")]
impl Map {
    pub fn new(file: &std::fs::File, len: usize, writable: bool) -> std::io::Result<Self> {
        use std::os::fd::AsRawFd;
        let protection = libc::PROT_READ | if writable { libc::PROT_WRITE } else { 0 };
        // SAFETY: a fresh map of an open file; the kernel chooses the place.
        let address = unsafe {
            let fd = file.as_raw_fd();
            libc::mmap(
                std::ptr::null_mut(),
                len,
                protection,
                libc::MAP_SHARED,
                fd,
                0,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error());
        }
        Ok(Self {
            address: address.cast(),
            len,
        })
    }

    pub fn get(&self, at: usize) -> u8 {
        assert!(at < self.len);
        // SAFETY: inside the map, which lives as long as `self`.
        unsafe { self.address.add(at).read_volatile() }
    }

    pub fn put(&self, at: usize, byte: u8) {
        assert!(at < self.len);
        // SAFETY: inside the map, which lives as long as `self` and was made writable by the test.
        unsafe { self.address.add(at).write_volatile(byte) }
    }

    pub fn sync(&self) {
        // SAFETY: exactly the map.
        assert_eq!(
            unsafe { libc::msync(self.address.cast(), self.len, libc::MS_SYNC) },
            0
        );
    }
}

impl Drop for Map {
    #[expect(unsafe_code, reason = "undoes the map")]
    fn drop(&mut self) {
        // SAFETY: exactly the map, and nobody holds a reference into it.
        unsafe { libc::munmap(self.address.cast(), self.len) };
    }
}
