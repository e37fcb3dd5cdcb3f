#!/bin/bash
# bench-union.sh [OPTIONS of perigee-bench-union]: the union of directories of several hosts. `--only files`: files of four
# hosts, beside sshfs of one of them and mergerfs over sshfs of all, at two distances. `--only metadata`: operations on names
# by up to 64 clients at four sites. Prints tables, and writes bench/results/union_*.json; `--picture FILE` draws the second
# part. The hosts' directories lie in memory: a disk takes its time with all of these alike, and ext4 without a journal more
# of it the more was removed lately. TMPDIR names another place. Needs root, openssh-server, sshfs and mergerfs.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."
cargo build --release --quiet -p perigee -p perigee-bench
if [ -w /dev/shm ]; then export TMPDIR="${TMPDIR:-/dev/shm}"; fi
exec "${CARGO_TARGET_DIR:-target}/release/perigee-bench-union" --results bench/results "$@"
