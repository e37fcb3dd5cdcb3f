//! Open files outlive their names: unlinked, renamed or replaced by the other host.

use super::{Case, Pair, equal, read_all};
use crate::ensure;
use crate::error::{Call, Checked};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};

pub(super) const CASES: &[Case] = &[
    ("unlinked-open", unlinked),
    ("renamed-open", renamed),
    ("replaced-open", replaced),
    ("both-open-unlinked", both_open_unlinked),
];

fn open(path: std::path::PathBuf) -> Checked<File> {
    let opened = OpenOptions::new().read(true).write(true).open(&path);
    opened.call(|| format!("open {}", path.display()))
}

/// The reader's host holds the file open, the writer's host unlinks it.
fn unlinked(pair: &Pair) -> Checked {
    pair.write("f", b"still here")?;
    let held = open(pair.r("f"))?;
    fs::remove_file(pair.w("f")).call(|| "unlink".to_owned())?;
    pair.absent("f")?;
    let data = held.metadata().call(|| "fstat".to_owned())?;
    ensure!(
        data.nlink() == 0,
        "an unlinked file has {} links",
        data.nlink()
    );
    equal("f", "the open descriptor", b"still here", &read_all(&held)?)?;
    held.write_all_at(b"and writable", 0)
        .call(|| "write".to_owned())?;
    held.sync_all().call(|| "fsync".to_owned())?;
    equal(
        "f",
        "the open descriptor",
        b"and writable",
        &read_all(&held)?,
    )?;
    // A new file of that name is another one.
    pair.write("f", b"new")?;
    let new = fs::metadata(pair.r("f")).call(|| "stat".to_owned())?.ino();
    ensure!(
        new != data.ino(),
        "the new file has the inode of the open one"
    );
    equal(
        "f",
        "the open descriptor",
        b"and writable",
        &read_all(&held)?,
    )?;
    held.set_len(3).call(|| "truncate".to_owned())?;
    equal("f", "the open descriptor", b"and", &read_all(&held)?)?;
    drop(held);
    let content = fs::read(pair.r("f")).call(|| "read".to_owned())?;
    equal("f", "its name", b"new", &content)
}

fn renamed(pair: &Pair) -> Checked {
    pair.write("old", b"before")?;
    let held = open(pair.r("old"))?;
    fs::rename(pair.w("old"), pair.w("new")).call(|| "rename".to_owned())?;
    held.write_all_at(b"after!", 0)
        .call(|| "write".to_owned())?;
    let content = fs::read(pair.w("new")).call(|| "read new".to_owned())?;
    equal("new", "the host that renamed it", b"after!", &content)?;
    pair.absent("old")?;
    pair.present("new")
}

fn replaced(pair: &Pair) -> Checked {
    pair.write("f", b"old file")?;
    let held = open(pair.r("f"))?;
    for round in 0..5 {
        let content = format!("version {round}");
        pair.write("f.tmp", content.as_bytes())?;
        fs::rename(pair.w("f.tmp"), pair.w("f")).call(|| "rename".to_owned())?;
        let seen = fs::read(pair.r("f")).call(|| "read".to_owned())?;
        equal("f", "a new open", content.as_bytes(), &seen)?;
        equal("f", "the old descriptor", b"old file", &read_all(&held)?)?;
    }
    let links = held.metadata().call(|| "fstat".to_owned())?.nlink();
    ensure!(links == 0, "a replaced file has {links} links");
    Ok(())
}

/// Both hosts hold an unlinked file: what one writes, the other reads; one closing harms nothing.
fn both_open_unlinked(pair: &Pair) -> Checked {
    pair.write("f", b"shared")?;
    let (one, two) = (open(pair.w("f"))?, open(pair.r("f"))?);
    fs::remove_file(pair.w("f")).call(|| "unlink".to_owned())?;
    one.write_all_at(b"by one", 0).call(|| "write".to_owned())?;
    equal("f", "the other host", b"by one", &read_all(&two)?)?;
    drop(one);
    two.write_all_at(b"alone!", 0).call(|| "write".to_owned())?;
    equal("f", "the last descriptor", b"alone!", &read_all(&two)?)
}
