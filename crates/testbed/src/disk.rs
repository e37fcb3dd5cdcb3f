//! Small disks, somebody who fills them, and rot.

use crate::error::{Call, Checked};
use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

const MIB: usize = 1 << 20;

/// Mounts an empty disk of so many MiB, in memory, at `place`, which is made. Who made the folder above detaches it.
///
/// Errors: this process is not root, or the folder cannot be made.
pub fn mount_small(place: &Path, mib: u64) -> Checked {
    std::fs::create_dir_all(place).call(|| format!("make {}", place.display()))?;
    let size = CString::new(format!("size={mib}m")).call(|| "name the size".to_owned())?;
    let flags = rustix::mount::MountFlags::empty();
    rustix::mount::mount("perigee-small", place, "tmpfs", flags, &*size)
        .map_err(io::Error::from)
        .call(|| format!("mount a small disk at {}", place.display()))
}

/// Makes a file that leaves nothing of the disk under it.
///
/// Errors: any but that there is no room.
pub fn fill(path: &Path) -> Checked {
    let what = || format!("fill the disk under {}", path.display());
    let mut file = File::create(path).call(what)?;
    let block = vec![7; MIB];
    let mut left = &block[..];
    while !left.is_empty() {
        match file.write(left) {
            Ok(0) => left = &left[..left.len() / 2],
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::StorageFull => left = &left[..left.len() / 2],
            Err(error) => return Err(error).call(what),
        }
    }
    Ok(())
}

/// Turns one bit of a file over.
///
/// Errors: the file cannot be opened, read there, or written.
pub fn flip(path: &Path, at: u64) -> Checked {
    let what = || format!("flip a bit of {} at {at}", path.display());
    let opened = OpenOptions::new().read(true).write(true).open(path);
    let file = opened.call(what)?;
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).call(what)?;
    file.write_all_at(&[byte[0] ^ 0x10], at).call(what)
}
