//! The program at the tracepoint, written by hand: too short for a compiler, and a compiler would be one more thing to have.
#![expect(
    unsafe_code,
    reason = "bpf(2) and perf_event_open(2) have no safe wrapper"
)]

use super::Unavailable;
use super::tracepoint::Place;
use std::ffi::c_long;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

// Commands, kinds and helpers of `linux/bpf.h`.
const MAP_CREATE: u32 = 0;
const MAP_LOOKUP: u32 = 1;
const MAP_UPDATE: u32 = 2;
const MAP_DELETE: u32 = 3;
const PROG_LOAD: u32 = 5;
const HASH: u32 = 1;
const ARRAY: u32 = 2;
const RINGBUF: u32 = 27;
const TRACEPOINT: u32 = 5;
const LOOKUP_ELEM: i32 = 1;
const RINGBUF_RESERVE: i32 = 131;
const RINGBUF_SUBMIT: i32 = 132;
const NO_WAKEUP: i32 = 1;
/// An instruction's immediate is the descriptor of a map.
const IS_MAP: u8 = 1;
/// Inodes that are watched at once.
const WATCHED_MAX: u32 = 1 << 16;
/// An event: the inode, the page.
pub(crate) const EVENT_BYTES: usize = 16;

/// The length of this system's pages, in bytes; 0 when it does not say.
pub(crate) fn page_bytes() -> u64 {
    // SAFETY: takes a number.
    u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(0)
}

/// The program, at its tracepoint until this is dropped.
pub(crate) struct Program {
    watched: OwnedFd,
    ring: OwnedFd,
    lost: OwnedFd,
    _program: OwnedFd,
    _event: OwnedFd,
}

impl Program {
    pub fn load(place: &Place, ring_bytes: u32) -> Result<Self, Unavailable> {
        let failed = |what| move |why: io::Error| Unavailable::Bpf { what, why };
        let watched = new_map(HASH, 8, 4, WATCHED_MAX).map_err(failed("make a table"))?;
        let ring = new_map(RINGBUF, 0, 0, ring_bytes).map_err(failed("make a ring"))?;
        let lost = new_map(ARRAY, 4, 8, 1).map_err(failed("make a counter"))?;
        let code = code(
            place,
            watched.as_raw_fd(),
            ring.as_raw_fd(),
            lost.as_raw_fd(),
        );
        let program = load(&code).map_err(failed("load the program"))?;
        let event = attach(place.id, &program).map_err(failed("put the program in place"))?;
        Ok(Self {
            watched,
            ring,
            lost,
            _program: program,
            _event: event,
        })
    }

    pub fn ring(&self) -> BorrowedFd<'_> {
        self.ring.as_fd()
    }

    pub fn watch(&self, inode: u64) -> io::Result<()> {
        let one = 1_u32;
        change(
            MAP_UPDATE,
            &self.watched,
            &raw const inode as u64,
            &raw const one as u64,
        )
        .map(drop)
    }

    /// One that is not there is forgotten already.
    pub fn forget(&self, inode: u64) {
        _ = change(MAP_DELETE, &self.watched, &raw const inode as u64, 0);
    }

    /// Events that had no room, since the beginning.
    pub fn lost(&self) -> io::Result<u64> {
        let (first, mut count) = (0_u32, 0_u64);
        change(
            MAP_LOOKUP,
            &self.lost,
            &raw const first as u64,
            &raw mut count as u64,
        )?;
        Ok(count)
    }
}

/// `struct bpf_insn`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Insn {
    code: u8,
    /// The source in the upper half, the destination in the lower one.
    registers: u8,
    offset: i16,
    immediate: i32,
}

const fn insn(code: u8, to: u8, from: u8, offset: i16, immediate: i32) -> Insn {
    Insn {
        code,
        registers: from << 4 | to,
        offset,
        immediate,
    }
}

const fn copy(to: u8, from: u8) -> Insn {
    insn(0xbf, to, from, 0, 0)
}

const fn set(to: u8, value: i32) -> Insn {
    insn(0xb7, to, 0, 0, value)
}

const fn add(to: u8, value: i32) -> Insn {
    insn(0x07, to, 0, 0, value)
}

/// Eight bytes.
const fn read(to: u8, from: u8, at: i16) -> Insn {
    insn(0x79, to, from, at, 0)
}

const fn write(to: u8, at: i16, from: u8) -> Insn {
    insn(0x7b, to, from, at, 0)
}

const fn call(helper: i32) -> Insn {
    insn(0x85, 0, 0, 0, helper)
}

/// Two instructions.
const fn map(to: u8, fd: RawFd) -> [Insn; 2] {
    [insn(0x18, to, IS_MAP, 0, fd), insn(0, 0, 0, 0, 0)]
}

const fn skip_if_zero(register: u8, skipped: i16) -> Insn {
    insn(0x15, register, 0, skipped, 0)
}

const fn skip(skipped: i16) -> Insn {
    insn(0x05, 0, 0, skipped, 0)
}

const fn exit() -> Insn {
    insn(0x95, 0, 0, 0, 0)
}

/// Of a watched inode, its number and the page go into the ring, or what was lost is counted.
fn code(place: &Place, watched: RawFd, ring: RawFd, lost: RawFd) -> Vec<Insn> {
    const STACK: u8 = 10;
    let [watched, watched_high] = map(1, watched);
    let [ring, ring_high] = map(1, ring);
    let [lost, lost_high] = map(1, lost);
    // What is skipped to is counted from the next instruction.
    let record = [
        ring,
        ring_high,
        set(2, EVENT_BYTES as i32),
        set(3, 0),
        call(RINGBUF_RESERVE),
        skip_if_zero(0, 7),
        write(0, 0, 7),
        read(8, 6, place.page_at),
        write(0, 8, 8),
        copy(1, 0),
        set(2, NO_WAKEUP),
        call(RINGBUF_SUBMIT),
        skip(10),
    ];
    let count = [
        set(1, 0),
        write(STACK, -16, 1),
        lost,
        lost_high,
        copy(2, STACK),
        add(2, -16),
        call(LOOKUP_ELEM),
        skip_if_zero(0, 2),
        set(1, 1),
        // An atomic addition of eight bytes.
        insn(0xdb, 0, 1, 0, 0),
    ];
    let mut code = vec![
        copy(6, 1),
        read(7, 6, place.inode_at),
        write(STACK, -8, 7),
        watched,
        watched_high,
        copy(2, STACK),
        add(2, -8),
        call(LOOKUP_ELEM),
        skip_if_zero(0, (record.len() + count.len()) as i16),
    ];
    code.extend(record);
    code.extend(count);
    code.extend([set(0, 0), exit()]);
    code
}

/// The part of `union bpf_attr` that is used here, for each command one layout.
#[repr(C)]
#[derive(Default)]
struct MapAttr {
    kind: u32,
    key_bytes: u32,
    value_bytes: u32,
    entries: u32,
    flags: u32,
}

#[repr(C)]
#[derive(Default)]
struct ElemAttr {
    map: u32,
    padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

#[repr(C)]
#[derive(Default)]
struct ProgramAttr {
    kind: u32,
    instructions: u32,
    code: u64,
    licence: u64,
    log_level: u32,
    log_bytes: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
}

/// `bpf(2)`.
fn bpf<T>(command: u32, attr: &mut T) -> io::Result<c_long> {
    // SAFETY: the structure is of the form that the command takes, and the kernel reads no more than its length; what it
    // points to lives as long as the call.
    let done = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            std::ptr::from_mut(attr),
            size_of::<T>() as u32,
        )
    };
    if done < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(done)
}

fn owned(fd: c_long) -> io::Result<OwnedFd> {
    let fd = RawFd::try_from(fd).map_err(io::Error::other)?;
    // SAFETY: the kernel has just made it for this process, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn new_map(kind: u32, key_bytes: u32, value_bytes: u32, entries: u32) -> io::Result<OwnedFd> {
    let mut attr = MapAttr {
        kind,
        key_bytes,
        value_bytes,
        entries,
        flags: 0,
    };
    owned(bpf(MAP_CREATE, &mut attr)?)
}

fn change(command: u32, map: &OwnedFd, key: u64, value: u64) -> io::Result<c_long> {
    let mut attr = ElemAttr {
        map: map.as_raw_fd().cast_unsigned(),
        key,
        value,
        ..ElemAttr::default()
    };
    bpf(command, &mut attr)
}

fn load(code: &[Insn]) -> io::Result<OwnedFd> {
    let licence = c"Apache-2.0";
    let mut attr = ProgramAttr {
        kind: TRACEPOINT,
        instructions: code.len() as u32,
        code: code.as_ptr() as u64,
        licence: licence.as_ptr() as u64,
        ..ProgramAttr::default()
    };
    let refused = match bpf(PROG_LOAD, &mut attr) {
        Ok(fd) => return owned(fd),
        Err(refused) => refused,
    };
    // Once more, for what the kernel says of it.
    let mut said = vec![0_u8; 64 << 10];
    (attr.log_level, attr.log_bytes) = (1, said.len() as u32);
    attr.log = said.as_mut_ptr() as u64;
    if let Ok(fd) = bpf(PROG_LOAD, &mut attr) {
        return owned(fd);
    }
    let said = String::from_utf8_lossy(&said);
    tracing::debug!(%refused, "the kernel says: {}", said.trim_end_matches('\0'));
    Err(refused)
}

/// `struct perf_event_attr`, as far as it is used: its first form.
#[repr(C)]
#[derive(Default)]
struct EventAttr {
    kind: u32,
    bytes: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    bp_type: u32,
    bp_addr: u64,
}

/// The program runs on every processor, whichever the event is of.
fn attach(tracepoint: u64, program: &OwnedFd) -> io::Result<OwnedFd> {
    const KIND_TRACEPOINT: u32 = 2;
    const CLOSE_ON_EXEC: u64 = 1 << 3;
    const SET_BPF: u64 = 0x4004_2408;
    let attr = EventAttr {
        kind: KIND_TRACEPOINT,
        bytes: size_of::<EventAttr>() as u32,
        config: tracepoint,
        sample_period: 1,
        wakeup_events: 1,
        ..EventAttr::default()
    };
    // SAFETY: the structure says how long it is, and lives as long as the call.
    let event = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            &raw const attr,
            -1,
            0,
            -1,
            CLOSE_ON_EXEC,
        )
    };
    if event < 0 {
        return Err(io::Error::last_os_error());
    }
    let event = owned(event)?;
    // SAFETY: takes a descriptor, and both are open.
    let set = unsafe { libc::ioctl(event.as_raw_fd(), SET_BPF, program.as_raw_fd()) };
    if set < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(event)
}
