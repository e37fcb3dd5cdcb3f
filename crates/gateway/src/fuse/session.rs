//! The life of a mount: the first exchange with the kernel, the threads that take requests, the end.

use super::device::Device;
use super::latency::{Latency, Wanted};
use super::lock_owners::LockOwners;
use super::nearby::Nearby;
use super::notify::Kernel;
use super::open_files::OpenFiles;
use super::ops;
use super::options::{Locks, MountOptions, Passthrough};
use super::point::{self, MountError};
use super::reply::Reply;
use super::slice;
use super::turns::{Found, Turns};
use super::waiting::Waiting;
use super::watchdog::Watchdog;
use super::wire::{self, Body, InitReply, InitRequest, Request, init};
use parking_lot::{Condvar, Mutex};
use perigee_client::fs::{FileSystem, KernelCache};
use perigee_types::limits::IO_LEN_MAX;
use std::io;
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use tracing::{debug, error, info};

/// What this kernel and this mount can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelFacts {
    /// Minor version of the FUSE protocol, the lesser of the kernel's and ours.
    pub protocol_minor: u32,
    /// Whether files can be handed to the kernel whole. When not, such opens become cached ones.
    pub passthrough: bool,
    /// Whether [`KernelCache::forget_names`] reaches names that were given before. When not, a
    /// name that another host may change must be given with a `ttl` of zero.
    pub names_can_be_forgotten: bool,
}

/// A kernel that is ready to ask.
#[derive(Clone)]
pub struct Attached {
    /// Its caches.
    pub cache: Arc<dyn KernelCache>,
    /// What it can do.
    pub facts: KernelFacts,
}

/// How a mount ended.
#[derive(Debug)]
pub enum SessionEnd {
    /// It was unmounted, by [`Mounted`](super::Mounted) or by somebody else.
    Unmounted,
    /// The connection failed; the mount point answers ENOTCONN until it is unmounted.
    Failed(io::Error),
}

/// What a mount tells its maker. Neither may block.
pub struct Hooks {
    /// Called once, before the first operation.
    pub attached: Box<dyn FnOnce(Attached) + Send>,
    /// Called once, after the last operation, on a thread of the session.
    pub ended: Box<dyn FnOnce(SessionEnd) + Send>,
}

impl Default for Hooks {
    fn default() -> Self {
        Self {
            attached: Box::new(|_| {}),
            ended: Box::new(|_| {}),
        }
    }
}

/// What all requests of a mount share.
pub(crate) struct Session {
    pub(crate) fs: Arc<dyn FileSystem>,
    pub(crate) files: OpenFiles,
    /// Programs that write may pass the daemon by, too.
    pub(crate) past_daemon: bool,
    /// Who keeps the locks of programs.
    pub(crate) locks: Locks,
    pub(crate) kernel: Arc<Kernel>,
    pub(crate) waiting: Waiting,
    pub(crate) lock_owners: LockOwners,
    /// Goes with the last request.
    pub(crate) _watchdog: Option<Watchdog>,
}

/// Whether a session goes on, and how to wait for its end.
#[derive(Default)]
pub(crate) struct Lifetime {
    state: Mutex<Life>,
    ended: Condvar,
}

#[derive(Default)]
struct Life {
    readers: usize,
    failure: Option<io::Error>,
    on_end: Option<Box<dyn FnOnce(SessionEnd) + Send>>,
    over: bool,
}

impl Lifetime {
    /// Waits for the end, or until the time is up. True: it is over.
    pub(crate) fn wait(&self, limit: Option<Duration>) -> bool {
        let deadline = limit.map(|limit| Instant::now() + limit);
        let mut life = self.state.lock();
        while !life.over {
            let Some(deadline) = deadline else {
                self.ended.wait(&mut life);
                continue;
            };
            if self.ended.wait_until(&mut life, deadline).timed_out() {
                return life.over;
            }
        }
        true
    }

    fn reader_ends(&self, result: io::Result<()>) {
        let mut life = self.state.lock();
        life.readers -= 1;
        if let Err(error) = result {
            life.failure.get_or_insert(error);
        }
        if life.readers > 0 {
            return;
        }
        let end = life
            .failure
            .take()
            .map_or(SessionEnd::Unmounted, SessionEnd::Failed);
        let on_end = life.on_end.take();
        drop(life);
        info!(?end, "mount ended");
        if let Some(on_end) = on_end {
            on_end(end);
        }
        self.state.lock().over = true;
        self.ended.notify_all();
    }
}

/// Bytes of a `WRITE` request before its data, rounded up to a page.
const REQUEST_HEAD_LEN: usize = 4096;
/// The largest request: a write of [`IO_LEN_MAX`] and what comes before its data.
const REQUEST_LEN_MAX: usize = IO_LEN_MAX + REQUEST_HEAD_LEN;
const PAGE_LEN: usize = 4096;
/// Pages of the largest request: a program's buffer that begins within a page reaches into one more.
pub(crate) const REQUEST_PAGES: u16 = (IO_LEN_MAX / PAGE_LEN) as u16 + 1;

/// A started session.
pub(crate) struct Started {
    pub(crate) kernel: Arc<Kernel>,
    pub(crate) facts: KernelFacts,
    pub(crate) lifetime: Arc<Lifetime>,
}

/// Answers the kernel's first request, and starts the threads that answer the others.
pub(crate) fn start(
    fs: Arc<dyn FileSystem>,
    device: Device,
    path: &Path,
    options: &MountOptions,
    hooks: Hooks,
    watchdog: Option<Watchdog>,
) -> Result<Started, MountError> {
    let broke = |source: io::Error| MountError::Handshake {
        path: path.to_owned(),
        source,
    };
    let device = Arc::new(device);
    let (unique, request) = read_init(&device).map_err(broke)?;
    let facts = facts(&request, options)?;
    let kernel = Arc::new(Kernel::new(
        Arc::clone(&device),
        facts.names_can_be_forgotten,
    ));
    let readers = readers(&device, options);
    let cache: Arc<dyn KernelCache> = Arc::clone(&kernel) as _;
    (hooks.attached)(Attached { cache, facts });
    let session = Arc::new(Session {
        fs,
        files: OpenFiles::new(Arc::clone(&device), facts.passthrough),
        past_daemon: facts.passthrough && options.passthrough == Passthrough::All,
        locks: options.locks,
        kernel: Arc::clone(&kernel),
        waiting: Waiting::default(),
        lock_owners: LockOwners::default(),
        _watchdog: watchdog,
    });
    let answer = Body::init(answer(&request, &facts, options));
    Reply::new(&device, unique).body(&answer);
    let lifetime = Arc::new(Lifetime::default());
    lifetime.state.lock().on_end = Some(hooks.ended);
    let wanted = if options.low_latency {
        Wanted::Yes
    } else {
        Wanted::No
    };
    spawn(&session, readers, wanted, &lifetime).map_err(broke)?;
    Ok(Started {
        kernel,
        facts,
        lifetime,
    })
}

fn read_init(device: &Arc<Device>) -> io::Result<(u64, InitRequest)> {
    let mut buffer = vec![0; REQUEST_LEN_MAX];
    let len = retry(|| device.read(&mut buffer))?;
    let (header, request) = wire::parse(&buffer[..len]).map_err(io::Error::other)?;
    match request {
        Request::Init(request) => Ok((header.unique, request)),
        _ => Err(io::Error::other("the kernel's first request was not INIT")),
    }
}

fn facts(request: &InitRequest, options: &MountOptions) -> Result<KernelFacts, MountError> {
    if request.major != wire::MAJOR || request.minor < wire::MINOR_MIN {
        return Err(MountError::Protocol {
            major: request.major,
            minor: request.minor,
            needed: wire::MINOR_MIN,
        });
    }
    let minor = request.minor.min(wire::MINOR);
    Ok(KernelFacts {
        protocol_minor: minor,
        // The kernel lets only those with CAP_SYS_ADMIN register a backing file.
        passthrough: options.passthrough != Passthrough::None
            && point::is_root()
            && request.flags & init::PASSTHROUGH != 0,
        names_can_be_forgotten: minor >= wire::MINOR_EPOCH,
    })
}

fn answer(request: &InitRequest, facts: &KernelFacts, options: &MountOptions) -> InitReply {
    // Not among them: WRITEBACK_CACHE, which excludes passthrough and hides writes from us; READDIRPLUS_AUTO, by which
    // all but the first part of a large directory would come without attributes, each to be asked for alone.
    let mut wanted = init::ASYNC_READ
        | init::ATOMIC_O_TRUNC
        | init::BIG_WRITES
        | init::DONT_MASK
        | init::AUTO_INVAL_DATA
        | init::DO_READDIRPLUS
        | init::ASYNC_DIO
        | init::PARALLEL_DIROPS
        | init::POSIX_ACL
        | init::MAX_PAGES
        | init::CACHE_SYMLINKS
        | init::HANDLE_KILLPRIV_V2
        | init::INIT_EXT
        | init::DIRECT_IO_ALLOW_MMAP;
    if facts.passthrough {
        wanted |= init::PASSTHROUGH;
    }
    if options.locks == Locks::FileSystem {
        wanted |= init::POSIX_LOCKS | init::FLOCK_LOCKS;
    }
    InitReply {
        minor: facts.protocol_minor,
        max_readahead: request
            .max_readahead
            .max(options.read_ahead_kb.saturating_mul(1024)),
        flags: wanted & request.flags,
        max_background: options.max_background,
        congestion_threshold: options.max_background.div_ceil(4) * 3,
        max_write: IO_LEN_MAX as u32,
        max_pages: REQUEST_PAGES,
        // Backing files lie in a file system that is not itself stacked.
        max_stack_depth: u32::from(facts.passthrough),
    }
}

/// A descriptor for each thread, so that the kernel gives each its own queue. Who may not open
/// `/dev/fuse` (the helper that mounted may) has one for all, which is slower, but right.
fn readers(device: &Arc<Device>, options: &MountOptions) -> Vec<Arc<Device>> {
    let processors = thread::available_parallelism().map_or(2, usize::from);
    let count = options.threads.unwrap_or_else(|| processors.clamp(2, 8));
    let another = |_| match device.clone_reader() {
        Ok(clone) => Arc::new(clone),
        Err(error) => {
            debug!(%error, "threads share a descriptor");
            Arc::clone(device)
        }
    };
    std::iter::once(Arc::clone(device))
        .chain((1..count).map(another))
        .collect()
}

fn spawn(
    session: &Arc<Session>,
    readers: Vec<Arc<Device>>,
    low_latency: Wanted,
    lifetime: &Arc<Lifetime>,
) -> io::Result<()> {
    let count = readers.len();
    let latency = Arc::new(Latency::new(low_latency));
    let watched = Arc::clone(&latency);
    let turns = Arc::new(Turns::new(move || watched.pauses()));
    lifetime.state.lock().readers = count;
    for (index, device) in readers.into_iter().enumerate() {
        let reader = Reader {
            session: Arc::clone(session),
            turns: Arc::clone(&turns),
            device,
            latency: Arc::clone(&latency),
        };
        let life = Arc::clone(lifetime);
        let spawned = thread::Builder::new()
            .name(format!("fuse-{index}"))
            .spawn(move || life.reader_ends(reader.run()));
        match spawned {
            Ok(_) => {}
            Err(error) if index == 0 => return Err(error),
            Err(error) => {
                // Fewer threads serve the mount more slowly, but they serve it.
                error!(%error, threads = index, "could not start all threads of the mount");
                (index..count).for_each(|_| lifetime.reader_ends(Ok(())));
                break;
            }
        }
    }
    Ok(())
}

/// For how long a thread looks for the next request before it sleeps, if the one before came as soon.
const LOOK_MAX: Duration = Duration::from_micros(100);

/// Who follows a program goes on to for requests that come within this time: sleeping costs nobody anything.
const FOLLOWED_MAX: Duration = Duration::from_millis(1);

/// A program that reads more than this at once reads in a row.
const READ_ALONE_MAX: u32 = 64 << 10;

/// One thread: when it leads, reads a request, dispatches it, reads the next.
struct Reader {
    session: Arc<Session>,
    turns: Arc<Turns>,
    device: Arc<Device>,
    latency: Arc<Latency>,
}

/// A request that was read.
struct Taken {
    len: usize,
    found: Found,
    pace: Pace,
}

/// How a thread waits for a request that is expected soon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wait {
    /// The program that will ask has the other processor.
    Awake,
    /// The program that will ask has this processor: whoever looks keeps it from working. Or none is expected.
    Asleep,
}

/// Whether the next request is expected soon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pace {
    Brisk,
    Slow,
}

impl Reader {
    fn run(self) -> io::Result<()> {
        slice::shorten();
        let result = self.lead_by_turns();
        self.latency.pauses();
        self.turns.end();
        result
    }

    fn lead_by_turns(&self) -> io::Result<()> {
        let mut buffer = vec![0; REQUEST_LEN_MAX];
        let mut nearby = Nearby::new();
        while let Some(mut turn) = self.turns.lead() {
            let mut pace = Pace::Slow;
            loop {
                let wait = match pace {
                    Pace::Slow => Wait::Asleep,
                    Pace::Brisk if nearby.follows() && turn.is_watched() => Wait::Asleep,
                    Pace::Brisk => Wait::Awake,
                };
                if pace == Pace::Slow {
                    self.latency.pauses();
                }
                let brisk_max = if nearby.follows() {
                    FOLLOWED_MAX
                } else {
                    LOOK_MAX
                };
                let next = match self.next_request(&mut buffer, wait, brisk_max) {
                    Ok(next) => next,
                    Err(error) if error.raw_os_error() == Some(libc::ENODEV) => return Ok(()),
                    Err(error) => return Err(error),
                };
                turn.took(next.found);
                pace = next.pace;
                match pace {
                    Pace::Brisk => self.latency.goes_on(),
                    Pace::Slow => nearby.roam(),
                }
                if self.take(&buffer[..next.len], &mut nearby) == Next::Stop {
                    return Ok(());
                }
                if !turn.done() {
                    break;
                }
            }
            nearby.roam();
        }
        Ok(())
    }

    fn next_request(
        &self,
        buffer: &mut [u8],
        wait: Wait,
        brisk_max: Duration,
    ) -> io::Result<Taken> {
        if wait == Wait::Awake
            && let Some(taken) = self.look_for_request(buffer)?
        {
            return Ok(taken);
        }
        self.device.set_blocking(true)?;
        let since = Instant::now();
        loop {
            match retry(|| self.device.read(buffer)) {
                // Of one descriptor for all: a thread that has just lost the lead still looked for a request.
                Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => {
                    self.device.set_blocking(true)?;
                }
                Err(error) => return Err(error),
                Ok(len) => {
                    let brisk = since.elapsed() < brisk_max;
                    return Ok(Taken {
                        len,
                        // Also one that was there: a program on this processor often asks again before the thread
                        // that answered it is back.
                        found: Found::Awaited,
                        pace: if brisk { Pace::Brisk } else { Pace::Slow },
                    });
                }
            }
        }
    }

    /// Stays awake for the next request. `None`: it does not come.
    fn look_for_request(&self, buffer: &mut [u8]) -> io::Result<Option<Taken>> {
        let since = Instant::now();
        self.device.set_blocking(false)?;
        let mut found = Found::Queued;
        loop {
            match retry(|| self.device.read(buffer)) {
                Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => {}
                Err(error) => return Err(error),
                Ok(len) => {
                    let pace = Pace::Brisk;
                    return Ok(Some(Taken { len, found, pace }));
                }
            }
            found = Found::Awaited;
            if since.elapsed() > LOOK_MAX {
                self.latency.pauses();
                return Ok(None);
            }
            // Whoever else has work on this processor goes first.
            thread::yield_now();
        }
    }

    fn take(&self, message: &[u8], nearby: &mut Nearby) -> Next {
        let (header, request) = match wire::parse(message) {
            Ok(parsed) => parsed,
            Err(malformed) => {
                error!(%malformed, "request could not be read");
                return self.refuse(message);
            }
        };
        match request {
            // The kernel asks for these ahead of the program, which works meanwhile.
            Request::Read { len, .. } if len > READ_ALONE_MAX => nearby.roam(),
            _ => nearby.asked_by(header.pid),
        }
        if request == Request::Destroy {
            Reply::new(&self.device, header.unique).ok();
            return Next::Go;
        }
        // A panic in the file system answers its own request with EIO (the dropped reply), and must
        // not take the thread along: with the last one the mount would hang.
        let work = || ops::dispatch(&self.session, &self.device, &header, request);
        if std::panic::catch_unwind(AssertUnwindSafe(work)).is_err() {
            error!(
                opcode = header.opcode,
                node = header.node,
                "operation panicked"
            );
        }
        Next::Go
    }

    /// Answers what could not be read, if at least its number can be.
    fn refuse(&self, message: &[u8]) -> Next {
        let unique = message.get(8..16).and_then(|field| field.try_into().ok());
        match unique.map(u64::from_ne_bytes) {
            Some(unique) => Reply::new(&self.device, unique).error(perigee_types::Errno::EIO),
            None => return Next::Stop,
        }
        Next::Go
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Next {
    Go,
    Stop,
}

/// Repeats a read that was interrupted, or whose request was taken back (ENOENT).
fn retry(mut read: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    loop {
        match read() {
            Err(error) if is_transient(&error) => debug!(%error, "reading a request again"),
            result => return result,
        }
    }
}

fn is_transient(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINTR | libc::ENOENT))
}
