//! Making and opening a data directory.

use crate::core::Core;
use crate::disk::{Disk, OpenMode, read_padded, write_all};
use crate::error::OpenError;
use crate::format::{FORMAT, Found, Layout, format_text, parse_format};
use crate::kv::Kv;
use crate::reserve::Reserve;
use crate::store::{StoreIdentity, StoreOptions};
use crate::touched::Touched;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

/// The `FORMAT` file is a few lines; more than this is not ours. In bytes.
const FORMAT_LEN_MAX: u64 = 4096;

/// Makes the directory and, last, its `FORMAT` file: a crash before leaves no store.
pub(crate) fn create(
    dir: &Path,
    identity: StoreIdentity,
    options: &StoreOptions,
) -> Result<(), OpenError> {
    let (disk, layout) = (&*options.disk, Layout::new(dir));
    disk.create_dirs(dir).map_err(at("make", dir))?;
    let _lock = lock(disk, dir)?;
    if let Some(found) = read_format(disk, &layout)? {
        return Err(OpenError::Exists {
            dir: dir.to_owned(),
            cluster: found.identity.cluster,
        });
    }
    let objects = layout.objects();
    disk.create_dirs(&objects).map_err(at("make", &objects))?;
    make_files(&options.disk, &layout, options)?;
    let sync_parent = || match dir.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        Some(parent) => disk.sync_dir(parent),
        None => disk.sync_dir(Path::new(".")),
    };
    write_format(disk, &layout, identity)
        .and_then(|()| sync_parent())
        .map_err(at("write", &layout.format()))
}

/// Replaces the `FORMAT` file; durable when it returns.
fn write_format(disk: &dyn Disk, layout: &Layout, identity: StoreIdentity) -> io::Result<()> {
    let path = layout.format();
    let next = path.with_extension("new");
    let file = disk.open(&next, OpenMode::Truncate)?;
    write_all(&*file, 0, format_text(identity).as_bytes())?;
    file.sync_data()?;
    disk.rename(&next, &path)?;
    disk.sync_dir(layout.dir())
}

/// The files that must be there whenever `FORMAT` is: a store without them has lost its keys.
fn make_files(
    disk: &Arc<dyn Disk>,
    layout: &Layout,
    options: &StoreOptions,
) -> Result<(), OpenError> {
    let touched = layout.touched();
    disk.open(&touched, OpenMode::Create)
        .map_err(at("make", &touched))?;
    let keys = layout.keys();
    let file = disk.open(&keys, OpenMode::Truncate);
    let file = file.map_err(at("make", &keys))?;
    let reserve = open_reserve(disk, layout, options)?;
    Kv::open(file, reserve, options.cache_bytes)
        .map_err(|why| OpenError::Damaged { path: keys, why })?;
    disk.sync_dir(layout.dir())
        .map_err(at("sync", layout.dir()))
}

/// Opens the directory for this process alone.
pub(crate) fn open(
    dir: &Path,
    expect_cluster: Option<u128>,
    options: &StoreOptions,
) -> Result<(StoreIdentity, Core), OpenError> {
    let layout = Layout::new(dir);
    let disk = &options.disk;
    let lock = match lock(&**disk, dir) {
        Err(OpenError::Io { source, .. }) if source.raw_os_error() == Some(libc::ENOENT) => {
            let dir = dir.to_owned();
            return Err(OpenError::NotAStore { dir });
        }
        other => other?,
    };
    let Some(Found { format, identity }) = read_format(&**disk, &layout)? else {
        let dir = dir.to_owned();
        return Err(OpenError::NotAStore { dir });
    };
    if let Some(expected) = expect_cluster
        && expected != identity.cluster
    {
        return Err(OpenError::OtherCluster {
            dir: dir.to_owned(),
            found: identity.cluster,
            expected,
        });
    }
    if format < FORMAT {
        // Before anything is written that a binary of the older format could misread.
        write_format(&**disk, &layout, identity).map_err(at("write", &layout.format()))?;
    }
    let touched = layout.touched();
    let touched = Touched::open(Arc::clone(disk), dir, touched.clone())
        .map_err(missing_or("open", &touched))?;
    let reserve = open_reserve(disk, &layout, options)?;
    let keys = layout.keys();
    let file = disk
        .open(&keys, OpenMode::Existing)
        .map_err(missing_or("open", &keys))?;
    if file.size().map_err(at("read", &keys))? == 0 {
        let why = "it is empty".to_owned();
        return Err(OpenError::Damaged { path: keys, why });
    }
    let kv = Kv::open(file, reserve, options.cache_bytes)
        .map_err(|why| OpenError::Damaged { path: keys, why })?;
    let objects = layout.objects();
    let whole = disk.whole(&objects).map_err(missing_or("open", &objects))?;
    let core = Core::new(
        Arc::clone(disk),
        layout,
        Arc::new(kv),
        touched,
        whole,
        options.small_len_max,
        lock,
    );
    Ok((identity, core))
}

fn lock(disk: &dyn Disk, dir: &Path) -> Result<OwnedFd, OpenError> {
    let dir_owned = || dir.to_owned();
    disk.lock_dir(dir)
        .map_err(at("lock", dir))?
        .ok_or_else(|| OpenError::Busy { dir: dir_owned() })
}

fn read_format(disk: &dyn Disk, layout: &Layout) -> Result<Option<Found>, OpenError> {
    let path = layout.format();
    let file = match disk.open(&path, OpenMode::Existing) {
        Err(e) if e.raw_os_error() == Some(libc::ENOENT) => return Ok(None),
        other => other.map_err(at("open", &path))?,
    };
    let len = file.size().map_err(at("read", &path))?;
    let mut text = vec![0; len.min(FORMAT_LEN_MAX) as usize];
    read_padded(&*file, 0, &mut text).map_err(at("read", &path))?;
    parse_format(layout.dir(), &text).map(Some)
}

fn open_reserve(
    disk: &Arc<dyn Disk>,
    layout: &Layout,
    options: &StoreOptions,
) -> Result<Reserve, OpenError> {
    let path = layout.reserve();
    Reserve::open(Arc::clone(disk), layout.dir(), &path, options.reserve_bytes)
        .map_err(at("open", &path))
}

/// A file that every store has is damage when it is not there.
fn missing_or(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> OpenError {
    let path = path.to_owned();
    move |source| {
        if source.raw_os_error() == Some(libc::ENOENT) {
            let why = "it is missing".to_owned();
            return OpenError::Damaged { path, why };
        }
        OpenError::Io { what, path, source }
    }
}

fn at(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> OpenError {
    let path = path.to_owned();
    move |source| OpenError::Io { what, path, source }
}
