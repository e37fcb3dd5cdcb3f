#!/bin/bash
# suite-pjdfstest.sh DIR [PATTERN...]: the POSIX suite `pjdfstest` on DIR and on a local directory beside it.
#
# Prints every test that fails on DIR and not on the local file system, and fails if there is one. Must run as root.
#   SUITES   where the suite is installed     (default: target/suites)
#   LOCAL    the local directory              (default: a fresh one below TMPDIR or /tmp; must not be a tmpfs, say)
#   SECOND   a second file system for EXDEV   (default: /dev/shm)
#   OUT      where the two result lists go    (default: a fresh directory, printed)
set -euo pipefail
VERSION=0.2.2
here=$(cd "$(dirname "$(readlink -f "$0")")/.." && pwd)
SUITES=${SUITES:-${CARGO_TARGET_DIR:-$here/target}/suites}
[ $# -ge 1 ] || { echo "usage: suite-pjdfstest.sh DIR [PATTERN...]" >&2; exit 2; }
dir=$(readlink -f "$1"); shift
[ -d "$dir" ] || { echo "error: \`$dir\` is not a directory" >&2; exit 2; }
[ "$(id -u)" = 0 ] || { echo "error: pjdfstest switches users, so it needs root" >&2; exit 2; }

bin=$SUITES/bin/pjdfstest
if [ "$("$bin" --version 2>/dev/null)" != "pjdfstest $VERSION" ]; then
  cargo install --quiet --locked --root "$SUITES" --target-dir "$SUITES/build" "pjdfstest@$VERSION"
fi

out=${OUT:-$(mktemp -d "${TMPDIR:-/tmp}/pjdfstest-out-XXXXXX")}; mkdir -p "$out"
local_made=
if [ -z "${LOCAL:-}" ]; then LOCAL=$(mktemp -d "${TMPDIR:-/tmp}/pjdfstest-local-XXXXXX"); local_made=$LOCAL; fi
work=$dir/pjdfstest.$$
trap 'rm -rf "$work" ${local_made:+"$local_made"}' EXIT
mkdir "$work"
chmod 755 "$LOCAL" "$work" # the suite's users must reach its files

# Two users that every Debian has. rename_ctime and utime_now are on since ext4 keeps them too.
cat > "$out/pjdfstest.toml" <<TOML
[features]
posix_fallocate = {}
rename_ctime = {}
stat_st_birthtime = {}
utime_now = {}
utimensat = {}
[settings]
naptime = 0.01
allow_remount = false
[dummy_auth]
entries = [["nobody", "$(id -gn nobody)"], ["daemon", "$(id -gn daemon)"]]
TOML

# A result line is "NAME ... ok|FAILED|skipped"; colours are for terminals only.
run() { # DIRECTORY LIST PATTERN...
  local where=$1 list=$2; shift 2
  local second=(); if [ -d "${SECOND:-/dev/shm}" ]; then second=(-s "${SECOND:-/dev/shm}"); fi
  NO_COLOR=1 "$bin" -c "$out/pjdfstest.toml" -p "$where" "${second[@]}" "$@" > "$list.log" 2>&1 || true
  awk '$NF == "FAILED" {print $1}' "$list.log" | sort > "$list"
  if ! grep -q '^Summary' "$list.log"; then
    echo "error: pjdfstest did not finish on $where:" >&2; tail -5 "$list.log" >&2; exit 1
  fi
}
run "$LOCAL" "$out/local" "$@"
run "$work" "$out/mount" "$@"

echo "local: $(grep '^Summary' "$out/local.log")"
echo "mount: $(grep '^Summary' "$out/mount.log")"
# A test that is skipped on DIR alone would hide what it should show.
for list in local mount; do awk '$NF == "skipped" {print $1}' "$out/$list.log" | sort > "$out/$list.skipped"; done
only=$(comm -13 "$out/local" "$out/mount")
# The suite knows the link limit of some local file systems by name; of a mount over FUSE it cannot.
skipped=$(comm -13 "$out/local.skipped" "$out/mount.skipped" | grep -vx 'link::link_count_max' || true)
[ -z "$skipped" ] || { echo "skipped on the mount only:"; echo "$skipped" | sed 's/^/  /'; }
if [ -n "$only" ]; then
  echo "fail on the mount only (details in $out/mount.log):"; echo "$only" | sed 's/^/  /'; exit 1
fi
[ -z "$skipped" ] || exit 1
echo "no failure that the local file system does not have"
