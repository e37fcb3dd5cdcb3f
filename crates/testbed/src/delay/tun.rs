//! A TUN device in a namespace.
#![expect(
    unsafe_code,
    reason = "no wrapper that the workspace has makes TUN devices"
)]

use super::packet::VIRTIO_BYTES;
use crate::error::{Call, Checked};
use crate::netns;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Makes a device in a namespace. It is there as long as the file.
///
/// Errors: no right to, or the system has none.
pub(super) fn open_in(namespace: &Path, name: &str) -> Checked<File> {
    let what = || format!("make a TUN device in {}", namespace.display());
    netns::inside(namespace, || open(name).call(what))
}

fn open(name: &str) -> io::Result<File> {
    let device = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open("/dev/net/tun")?;
    // SAFETY: all zeros are a valid `ifreq`.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    let room = request.ifr_name.len() - 1;
    for (place, byte) in request.ifr_name.iter_mut().take(room).zip(name.bytes()) {
        *place = byte.cast_signed();
    }
    let flags = libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
    request.ifr_ifru.ifru_flags = flags as libc::c_short;
    // SAFETY: this call reads and writes one `ifreq`, which `request` is.
    done(unsafe { libc::ioctl(device.as_raw_fd(), libc::TUNSETIFF, &raw mut request) })?;
    let header = VIRTIO_BYTES as libc::c_int;
    // SAFETY: this call reads one `int`, which `header` is.
    done(unsafe { libc::ioctl(device.as_raw_fd(), libc::TUNSETVNETHDRSZ, &raw const header) })?;
    let offload = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO_ECN;
    let offload = libc::c_ulong::from(offload);
    // SAFETY: this call takes a number, and no place.
    done(unsafe { libc::ioctl(device.as_raw_fd(), libc::TUNSETOFFLOAD, offload) })?;
    Ok(device)
}

fn done(code: libc::c_int) -> io::Result<()> {
    if code < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
