//! Small disks, somebody who fills them, and rot.

use crate::error::{Call, Checked};
use crate::{ensure, mounts};
use std::ffi::{CString, OsStr};
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
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

/// A disk that says it has more than it can hold: an image in a small one of its own.
#[derive(Debug)]
pub struct Thin {
    place: PathBuf,
    inner: PathBuf,
    mib: u64,
}

impl Thin {
    /// The disk at `place`, whose image lies in the folder `inner`.
    #[must_use]
    pub fn new(inner: &Path, place: &Path, mib: u64) -> Self {
        Self {
            place: place.to_owned(),
            inner: inner.to_owned(),
            mib,
        }
    }

    fn image(&self) -> PathBuf {
        self.inner.join("image")
    }

    fn foreign(&self) -> PathBuf {
        self.inner.join("foreign")
    }

    /// Makes it, empty, with room for all that it says.
    ///
    /// Errors: those of [`mount_small`] and [`mount_image`].
    pub fn make(&self) -> Checked {
        // The image's own tables are in it, too.
        mount_small(&self.inner, self.mib + self.mib / 8)?;
        mount_image(&self.image(), &self.place, self.mib)
    }

    /// From now on no block of it can be written that is not in use: the writer is told EIO when it syncs.
    ///
    /// Errors: those of `sync`, `fstrim` and [`fill`].
    pub fn fail(&self) -> Checked {
        // Blocks that were in use would still be there; those that were freed are not free before that is on the disk.
        let place = self.place.as_os_str();
        tool("sync", [OsStr::new("-f"), place].into_iter())?;
        tool("fstrim", std::iter::once(place))?;
        fill(&self.foreign())
    }

    /// Whether it loses what is written to it now, once that is more than was freed since it fails.
    #[must_use]
    pub fn is_failing(&self) -> bool {
        let Ok(mut file) = File::create(self.place.join("probe")) else {
            return true;
        };
        for _ in 0..self.mib / 2 {
            match file.write_all(&vec![7; MIB]) {
                Ok(()) if file.sync_all().is_ok() => {}
                // It is full, which is no failure, and holds what was written.
                Err(error) if error.kind() == ErrorKind::StorageFull => return false,
                _ => return true,
            }
        }
        false
    }

    /// Puts a new one in its place, with `kept` of the old one's content; nobody uses the old one any more.
    ///
    /// Errors: those of `mount`, `cp` and [`mount_image`].
    pub fn replace(&self, kept: &Path) -> Checked {
        mounts::detach_below(&self.place).call(|| format!("detach {}", self.place.display()))?;
        for path in [self.foreign(), self.image()] {
            std::fs::remove_file(&path).call(|| format!("remove {}", path.display()))?;
        }
        mount_image(&self.image(), &self.place, self.mib)?;
        copy_all(kept, &self.place)
    }
}

/// Copies what is in a folder, with its modes, into another one, which is made.
///
/// Errors: those of `cp`.
pub fn copy_all(from: &Path, to: &Path) -> Checked {
    std::fs::create_dir_all(to).call(|| format!("make {}", to.display()))?;
    let all = from.join(".");
    let words = [OsStr::new("-a"), all.as_os_str(), to.as_os_str()];
    tool("cp", words.into_iter())
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
