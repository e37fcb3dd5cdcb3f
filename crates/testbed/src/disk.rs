//! Small disks, somebody who fills them, and rot.

use crate::ensure;
use crate::error::{Call, Checked};
use std::ffi::{CString, OsStr};
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

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

/// Mounts an empty disk of so many MiB, in the file `image`, at `place`, which is made. Who made the folder above
/// detaches it, and with it the block device.
///
/// Errors: this process is not root, or has no `mkfs.ext4` and `mount`.
pub fn mount_image(image: &Path, place: &Path, mib: u64) -> Checked {
    std::fs::create_dir_all(place).call(|| format!("make {}", place.display()))?;
    let made = File::create(image).and_then(|file| file.set_len(mib << 20));
    made.call(|| format!("make {}", image.display()))?;
    // Nothing is kept for root, who could fill the disk no further then.
    let make = ["-q", "-F", "-m", "0"].map(OsStr::new);
    tool("mkfs.ext4", make.into_iter().chain([image.as_os_str()]))?;
    let attach = ["-o", "loop"].map(OsStr::new);
    let paths = [image.as_os_str(), place.as_os_str()];
    tool("mount", attach.into_iter().chain(paths))?;
    let found = place.join("lost+found");
    std::fs::remove_dir(&found).call(|| format!("remove {}", found.display()))
}

fn tool<'a>(name: &str, arguments: impl Iterator<Item = &'a OsStr>) -> Checked {
    let output = Command::new(name).args(arguments).output();
    let output = output.call(|| format!("run {name}"))?;
    ensure!(
        output.status.success(),
        "{name}: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(())
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
