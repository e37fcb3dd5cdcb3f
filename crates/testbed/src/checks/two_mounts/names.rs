//! Names: create, mkdir, rename, unlink, link, symlink, and the attributes that go with them.

use super::{Case, Pair};
use crate::ensure;
use crate::error::{Call, Checked};
use rustix::fs::{CWD, RenameFlags, XattrFlags};
use std::fs::{self, File, FileTimes, OpenOptions, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::time::{Duration, UNIX_EPOCH};

pub(super) const CASES: &[Case] = &[
    ("create", create),
    ("create-excl", create_exclusive),
    ("mkdir-rmdir", make_and_remove_directory),
    ("unlink", unlink),
    ("unlink-recreate", unlink_and_recreate),
    ("rename", rename),
    ("rename-over", rename_over),
    ("rename-exchange", rename_exchange),
    ("rename-directory", rename_directory),
    ("rename-across", rename_across),
    ("link", link),
    ("symlink", symbolic_link),
    ("chmod-chown", mode_and_owner),
    ("permission", permission),
    ("times", times),
    ("xattr", extended_attributes),
    ("many", many),
];

fn create(pair: &Pair) -> Checked {
    pair.prime_absent("f")?;
    File::create_new(pair.w("f")).call(|| "create".to_owned())?;
    pair.present("f")
}

/// A name that one host just made is EEXIST for the other, though it knew the name as absent.
fn create_exclusive(pair: &Pair) -> Checked {
    pair.prime_absent("f")?;
    File::create_new(pair.w("f")).call(|| "create".to_owned())?;
    let second = File::create_new(pair.r("f"));
    let refused = second
        .as_ref()
        .is_err_and(|error| error.kind() == ErrorKind::AlreadyExists);
    ensure!(refused, "O_EXCL made `f` a second time: {second:?}");
    Ok(())
}

fn make_and_remove_directory(pair: &Pair) -> Checked {
    pair.prime_absent("d")?;
    fs::create_dir(pair.w("d")).call(|| "mkdir".to_owned())?;
    pair.present("d")?;
    let inside = Pair::new(&pair.w("d"), &pair.r("d"));
    ensure!(inside.names()?.is_empty(), "a new directory is not empty");
    inside.write("x", b"x")?;
    inside.present("x")?;
    let refused = fs::remove_dir(pair.r("d"));
    ensure!(
        refused.is_err(),
        "rmdir removed a directory with a file that the other host made"
    );
    fs::remove_file(inside.w("x")).call(|| "unlink x".to_owned())?;
    inside.absent("x")?;
    fs::remove_dir(pair.w("d")).call(|| "rmdir".to_owned())?;
    pair.absent("d")
}

fn unlink(pair: &Pair) -> Checked {
    pair.write("f", b"content")?;
    pair.prime("f")?;
    fs::remove_file(pair.w("f")).call(|| "unlink".to_owned())?;
    pair.absent("f")
}

/// The new file of an old name is another file: nothing of the old one's pages may show.
fn unlink_and_recreate(pair: &Pair) -> Checked {
    for round in 0..10_u8 {
        pair.write("f", &vec![round; 5_000])?;
        drop(pair.prime("f")?);
        fs::remove_file(pair.w("f")).call(|| "unlink".to_owned())?;
        pair.absent("f")?;
        let content = vec![round + 100; 4_000];
        pair.write("f", &content)?;
        pair.present("f")?;
        let held = File::open(pair.r("f")).call(|| "open".to_owned())?;
        pair.same_content("f", &held, &content)?;
        fs::remove_file(pair.w("f")).call(|| "unlink".to_owned())?;
    }
    Ok(())
}

fn rename(pair: &Pair) -> Checked {
    pair.write("old", b"moved")?;
    let held = pair.prime("old")?;
    pair.prime_absent("new")?;
    fs::rename(pair.w("old"), pair.w("new")).call(|| "rename".to_owned())?;
    pair.absent("old")?;
    pair.present("new")?;
    pair.same_content("new", &held, b"moved")
}

fn rename_over(pair: &Pair) -> Checked {
    pair.write("target", b"old content, longer")?;
    pair.write("source", b"new content")?;
    let old = pair.prime("target")?;
    let held = pair.prime("source")?;
    fs::rename(pair.w("source"), pair.w("target")).call(|| "rename".to_owned())?;
    pair.absent("source")?;
    pair.present("target")?;
    pair.same_content("target", &held, b"new content")?;
    super::equal(
        "target",
        "its old descriptor",
        b"old content, longer",
        &super::read_all(&old)?,
    )
}

fn rename_exchange(pair: &Pair) -> Checked {
    pair.write("one", b"1")?;
    fs::create_dir(pair.w("two")).call(|| "mkdir".to_owned())?;
    pair.prime("one")?;
    ensure!(pair.r("two").is_dir(), "`two` is no directory");
    rustix::fs::renameat_with(
        CWD,
        pair.w("one"),
        CWD,
        pair.w("two"),
        RenameFlags::EXCHANGE,
    )
    .call(|| "renameat2 EXCHANGE".to_owned())?;
    ensure!(
        pair.r("one").is_dir(),
        "`one` is no directory after the exchange"
    );
    ensure!(
        pair.r("two").is_file(),
        "`two` is no file after the exchange"
    );
    let outcome = rustix::fs::renameat_with(
        CWD,
        pair.r("one"),
        CWD,
        pair.r("two"),
        RenameFlags::NOREPLACE,
    );
    ensure!(
        outcome == Err(rustix::io::Errno::EXIST),
        "NOREPLACE replaced: {outcome:?}"
    );
    pair.present("one")?;
    pair.present("two")
}

/// A path through a renamed directory is gone, though every step of it was cached.
fn rename_directory(pair: &Pair) -> Checked {
    fs::create_dir_all(pair.w("a/b/c")).call(|| "mkdir -p".to_owned())?;
    pair.write("a/b/c/f", b"deep")?;
    pair.prime("a/b/c/f")?;
    fs::rename(pair.w("a/b"), pair.w("moved")).call(|| "rename".to_owned())?;
    let old = fs::read(pair.r("a/b/c/f"));
    ensure!(old.is_err(), "the old path still leads to the file");
    let content = fs::read(pair.r("moved/c/f")).call(|| "read moved/c/f".to_owned())?;
    ensure!(content == b"deep", "`moved/c/f` has other content");
    pair.same_attributes("a")?;
    pair.same_attributes("moved")
}

fn rename_across(pair: &Pair) -> Checked {
    let from = pair.fresh("from")?;
    let to = pair.fresh("to")?;
    for round in 0..20 {
        let name = format!("f{round}");
        from.write(&name, name.as_bytes())?;
        from.prime(&name)?;
        to.prime_absent(&name)?;
        fs::rename(from.w(&name), to.w(&name)).call(|| "rename".to_owned())?;
        from.absent(&name)?;
        to.present(&name)?;
    }
    Ok(())
}

fn link(pair: &Pair) -> Checked {
    pair.write("f", b"one file")?;
    let held = pair.prime("f")?;
    pair.prime_absent("g")?;
    fs::hard_link(pair.w("f"), pair.w("g")).call(|| "link".to_owned())?;
    pair.present("g")?;
    let links = fs::metadata(pair.r("f"))
        .call(|| "stat f".to_owned())?
        .nlink();
    ensure!(links == 2, "`f` has {links} links instead of 2");
    // A write by one name shows by the other.
    pair.write("g", b"the same file")?;
    pair.same_content("f", &held, b"the same file")?;
    fs::remove_file(pair.w("f")).call(|| "unlink f".to_owned())?;
    pair.absent("f")?;
    let links = held.metadata().call(|| "fstat".to_owned())?.nlink();
    ensure!(links == 1, "{links} links instead of 1 after the unlink");
    pair.present("g")
}

fn symbolic_link(pair: &Pair) -> Checked {
    for target in ["first", "a/second/target"] {
        pair.prime_absent("l")?;
        symlink(target, pair.w("l")).call(|| "symlink".to_owned())?;
        pair.present("l")?;
        let seen = fs::read_link(pair.r("l")).call(|| "readlink".to_owned())?;
        ensure!(
            seen == std::path::Path::new(target),
            "the link leads to {}",
            seen.display()
        );
        fs::remove_file(pair.w("l")).call(|| "unlink".to_owned())?;
    }
    Ok(())
}

fn mode_and_owner(pair: &Pair) -> Checked {
    pair.write("f", b"f")?;
    pair.prime("f")?;
    for mode in [0o600, 0o4755, 0o444] {
        fs::set_permissions(pair.w("f"), Permissions::from_mode(mode))
            .call(|| format!("chmod {mode:o}"))?;
        let seen = fs::metadata(pair.r("f")).call(|| "stat".to_owned())?.mode() & 0o7777;
        ensure!(seen == mode, "mode {seen:o} instead of {mode:o}");
        pair.same_attributes("f")?;
    }
    if rustix::process::geteuid().is_root() {
        chown(pair.w("f"), Some(12_345), Some(54_321)).call(|| "chown".to_owned())?;
        let seen = fs::metadata(pair.r("f")).call(|| "stat".to_owned())?;
        ensure!(
            (seen.uid(), seen.gid()) == (12_345, 54_321),
            "chown is not seen: {seen:?}"
        );
        pair.same_attributes("f")?;
    }
    Ok(())
}

/// A right that one host took away is gone on the other, for a process that is not root.
fn permission(pair: &Pair) -> Checked {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    pair.write("f", b"secret")?;
    let may_read = |mode: u32| -> Checked<bool> {
        fs::set_permissions(pair.w("f"), Permissions::from_mode(mode))
            .call(|| "chmod".to_owned())?;
        let status = std::process::Command::new("setpriv")
            .args(["--reuid=65534", "--regid=65534", "--clear-groups", "cat"])
            .arg(pair.r("f"))
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .status()
            .call(|| "run setpriv".to_owned())?;
        Ok(status.success())
    };
    ensure!(may_read(0o644)?, "a readable file cannot be read by others");
    ensure!(
        !may_read(0o600)?,
        "a file that was made private is still readable by others"
    );
    ensure!(
        may_read(0o644)?,
        "a file that was opened again cannot be read by others"
    );
    Ok(())
}

fn times(pair: &Pair) -> Checked {
    pair.write("f", b"f")?;
    pair.prime("f")?;
    let modified = UNIX_EPOCH + Duration::new(1_000_000_000, 123_456_789);
    let file = OpenOptions::new()
        .write(true)
        .open(pair.w("f"))
        .call(|| "open".to_owned())?;
    file.set_times(FileTimes::new().set_modified(modified))
        .call(|| "utimens".to_owned())?;
    let seen = fs::metadata(pair.r("f")).call(|| "stat".to_owned())?;
    ensure!(
        seen.modified().ok() == Some(modified),
        "mtime is {:?}",
        seen.modified()
    );
    pair.same_attributes("f")?;
    let before = fs::metadata(&pair.reader).call(|| "stat".to_owned())?;
    pair.write("g", b"")?;
    let after = fs::metadata(&pair.reader).call(|| "stat".to_owned())?;
    let stamp = |data: &fs::Metadata| (data.mtime(), data.mtime_nsec());
    ensure!(
        stamp(&after) > stamp(&before),
        "the directory's mtime did not move by a create"
    );
    Ok(())
}

fn extended_attributes(pair: &Pair) -> Checked {
    pair.write("f", b"f")?;
    pair.prime("f")?;
    let read = |name: &str| {
        let mut value = Vec::with_capacity(4_096);
        let read = rustix::fs::getxattr(
            pair.r("f"),
            name,
            rustix::buffer::spare_capacity(&mut value),
        );
        read.map(|_| value)
    };
    let absent = read("user.k");
    ensure!(
        absent == Err(rustix::io::Errno::NODATA),
        "an unset attribute reads {absent:?}"
    );
    let longer = vec![0xa5; 1_000];
    for value in [b"one".as_slice(), b"two and more", b"", &longer] {
        rustix::fs::setxattr(pair.w("f"), "user.k", value, XattrFlags::empty())
            .call(|| "setxattr".to_owned())?;
        let seen = read("user.k");
        ensure!(seen.as_deref() == Ok(value), "the attribute reads {seen:?}");
    }
    let mut list = Vec::with_capacity(4_096);
    rustix::fs::listxattr(pair.r("f"), rustix::buffer::spare_capacity(&mut list))
        .call(|| "listxattr".to_owned())?;
    let listed = list.split(|byte| *byte == 0).any(|name| name == b"user.k");
    ensure!(listed, "`user.k` is not listed");
    rustix::fs::removexattr(pair.w("f"), "user.k").call(|| "removexattr".to_owned())?;
    let gone = read("user.k");
    ensure!(
        gone == Err(rustix::io::Errno::NODATA),
        "a removed attribute reads {gone:?}"
    );
    pair.same_attributes("f")
}

/// A burst of creations by one host, each looked up by the other right after its call.
fn many(pair: &Pair) -> Checked {
    for number in 0..200 {
        let name = format!("file-{number:03}");
        if number % 10 == 0 {
            pair.prime_absent(&name)?;
        }
        pair.write(&name, name.as_bytes())?;
        let seen = fs::read(pair.r(&name)).call(|| format!("read {name}"))?;
        ensure!(
            seen == name.as_bytes(),
            "`{name}` reads {} bytes",
            seen.len()
        );
    }
    let listed = pair.names()?.len();
    ensure!(listed == 200, "{listed} of 200 names are listed");
    Ok(())
}
