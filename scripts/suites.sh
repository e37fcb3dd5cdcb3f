#!/usr/bin/env bash
# The outside suites, pjdfstest and fsx, on the mount of a three-node cluster of their own. Needs root.
#   OPERATIONS   how many fsx does (default: 1,000,000)
set -euo pipefail
cd "$(dirname "$0")/.."

perigee=$(realpath "${1:-target/release/perigee}")
# short: the path of a socket has 107 bytes at most, and pjdfstest adds long names of its own
work=$(mktemp -d "${TMPDIR:-/tmp}/pgs.XXXX")
export PERIGEE_DIR=$work/cluster

clean_up() {
    "$perigee" down >/dev/null 2>&1 || true
    umount --lazy "$work/m" 2>/dev/null || true
    rm -rf --one-file-system "$work"
}
trap clean_up EXIT
trap 'exit 130' INT TERM

# the suites act as other users, who must be able to get there
chmod 755 "$work"
mkdir "$work/m"
"$perigee" up --nodes 3 --mount "$work/m"
mkdir "$work/m/p" "$work/m/f"
failed=0
scripts/suite-pjdfstest.sh "$work/m/p" || failed=1
scripts/suite-fsx.sh "$work/m/f" "${OPERATIONS:-1000000}" || failed=1
exit $failed
