//! A cluster needs no root: an ordinary user starts one, mounts it, works in it and stops it.
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

use perigee_testbed::cluster::{Ended, run};
use perigee_testbed::leftover::Workspace;
use perigee_testbed::{process, program};
use rustix::fs::Access;
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

/// The user and group that nobody is on every distribution.
const NOBODY: u32 = 65_534;
const LIMIT: Duration = Duration::from_secs(120);

/// As root, in a mount namespace of its own: the binary and a device that everybody may open are put
/// in place, then root is given up for good. $1: the folder, $2: the binary, $3: the user's script.
const AS_ROOT: &str = r#"
set -eu
mkdir "$1/dev"
mount -t tmpfs -o mode=0755,size=64k perigee-testbed "$1/dev"
mknod -m 0666 "$1/dev/fuse" c 10 229
mount --bind "$1/dev/fuse" /dev/fuse
touch "$1/perigee"
mount --bind "$2" "$1/perigee"
exec setpriv --reuid 65534 --regid 65534 --clear-groups \
    env -i PATH="$PATH" HOME="$1/home" sh -c "$3" user "$1/home" "$1/perigee"
"#;

/// $1: a folder of the user's own, $2: the binary.
const AS_USER: &str = r#"
set -eux
test "$(id -u)" != 0
cd "$1"
mkdir m1 m2
trap 'umount_all; "$2" down --dir "$1/c" || true' EXIT
umount_all() { "$2" umount --lazy "$1/m2" || true; "$2" umount --lazy "$1/m1" || true; } 2>/dev/null
"$2" up --dir "$1/c" --nodes 2 --mount "$1/m1"
"$2" mount "$1/m2" --node 2 --dir "$1/c"
grep -q " $1/m1 fuse.*user_id=$(id -u)" /proc/self/mounts
mkdir m1/d
head -c 3000000 /dev/urandom > content
cp content m1/d/file
cmp content m2/d/file
echo more >> m2/d/file
echo more >> content
cmp content m1/d/file
chmod 600 m1/d/file
ln m1/d/file m1/link
mv m2/link m2/d/moved
test "$(stat -c '%u %a %h' m2/d/moved)" = "$(id -u) 600 2"
flock -x m1/d/file true
rm -r m1/d
test -z "$(ls m2)"
"$2" status --dir "$1/c" --json > status.json || test $? = 3
"$2" umount "$1/m2"
"$2" umount "$1/m1"
if grep " $1/m" /proc/self/mounts; then exit 9; fi
"$2" down --dir "$1/c"
trap - EXIT
"#;

fn done(ended: &Ended) {
    assert!(ended.status.success(), "{}\n{}", ended.status, ended.stderr);
}

/// Everything ran, and nothing of it runs on.
fn all_is_over(workspace: &Workspace) {
    let left = process::mentioning(&workspace.path().to_string_lossy());
    assert!(left.is_empty(), "still running: {left:?}");
}

fn as_another_user(workspace: &Workspace) {
    let base = workspace.path().join("run");
    let probe = ["--mount", "--propagation", "private", "true"];
    let probed = run(Path::new("unshare"), &probe, &base, LIMIT);
    match probed {
        Ok(ended) if ended.status.success() => {}
        Ok(ended) => {
            return eprintln!("skipped: no mount namespace can be made: {}", ended.stderr);
        }
        Err(error) => return eprintln!("skipped: there is no unshare(1): {error}"),
    }
    let home = workspace.path().join("home");
    fs::create_dir(&home).unwrap();
    std::os::unix::fs::chown(&home, Some(NOBODY), Some(NOBODY)).unwrap();
    fs::set_permissions(workspace.path(), Permissions::from_mode(0o711)).unwrap();
    let binary = program::perigee().unwrap();
    let (folder, binary) = (workspace.path().to_string_lossy(), binary.to_string_lossy());
    let words = [
        "--mount",
        "--propagation",
        "private",
        "sh",
        "-c",
        AS_ROOT,
        "root",
        &folder,
        &binary,
        AS_USER,
    ];
    done(&run(Path::new("unshare"), &words, &base, LIMIT).unwrap());
    let about = fs::metadata(home.join("c/node-1/store")).unwrap();
    assert_eq!((about.uid(), about.gid()), (NOBODY, NOBODY));
    all_is_over(workspace);
}

fn as_this_user(workspace: &Workspace) {
    let home = workspace.path().join("home");
    fs::create_dir(&home).unwrap();
    let binary = program::perigee().unwrap();
    let (folder, binary) = (home.to_string_lossy(), binary.to_string_lossy());
    let words = ["-c", AS_USER, "user", &folder, &binary];
    let base = workspace.path().join("run");
    done(&run(Path::new("sh"), &words, &base, LIMIT).unwrap());
    all_is_over(workspace);
}

#[test]
fn a_user_without_privileges_runs_a_cluster() {
    if !Path::new("/dev/fuse").exists() {
        return eprintln!("skipped: there is no /dev/fuse");
    }
    let is_root = rustix::process::geteuid().is_root();
    let access = rustix::fs::access("/dev/fuse", Access::READ_OK | Access::WRITE_OK);
    if let (false, Err(error)) = (is_root, access) {
        return eprintln!("skipped: this user may not open /dev/fuse: {error}");
    }
    let workspace = Workspace::new().unwrap();
    if is_root {
        as_another_user(&workspace);
    } else {
        as_this_user(&workspace);
    }
}
