#!/bin/bash
# suite-fsx.sh DIR [OPERATIONS] [SEED]: the file exerciser `fsx` on a file in DIR; every read is compared.
#
#   OPERATIONS  default 1,000,000            SEED     default random; printed, and replays the same run
#   SUITES      where the suite is installed (default: target/suites)
set -euo pipefail
VERSION=0.3.2
here=$(cd "$(dirname "$(readlink -f "$0")")/.." && pwd)
SUITES=${SUITES:-${CARGO_TARGET_DIR:-$here/target}/suites}
[ $# -ge 1 ] || { echo "usage: suite-fsx.sh DIR [OPERATIONS] [SEED]" >&2; exit 2; }
dir=$(readlink -f "$1") operations=${2:-1000000} seed=${3:-$((RANDOM * 32768 + RANDOM))}
[ -d "$dir" ] || { echo "error: \`$dir\` is not a directory" >&2; exit 2; }

bin=$SUITES/bin/fsx
if [ "$("$bin" --version 2>/dev/null)" != "fsx $VERSION" ]; then
  cargo install --quiet --locked --root "$SUITES" --target-dir "$SUITES/build" "fsx@$VERSION"
fi

out=$(mktemp -d "${TMPDIR:-/tmp}/fsx-out-XXXXXX")
file=$dir/fsx.$$
# Every second run leaves out the msync after a mapped write: then the file system itself has to see stores in time.
# Never an empty operation: fsx takes the EINVAL of an empty posix_fallocate for a fault.
# fsync and fdatasync are rare: a million operations with one in ten synced would measure the disk.
config() { # FILE NOMSYNC
  cat > "$1" <<TOML
flen = 1048576
nomsyncafterwrite = $2
[opsize]
min = 1
max = 65536
[weights]
close_open = 1
invalidate = 1
read = 10
write = 10
mapread = 10
mapwrite = 5
truncate = 5
fsync = 0.05
fdatasync = 0.05
posix_fallocate = 3
punch_hole = 5
sendfile = 3
posix_fadvise = 1
copy_file_range = 5
TOML
}
config "$out/fsx-0.toml" false; config "$out/fsx-1.toml" true
# fsx 0.3.2 never unmaps what it maps for reading, so a long run ends at vm.max_map_count (65,530) and is slow
# long before. Runs of SEGMENT operations with seeds that follow each other make up the number instead.
segment=${SEGMENT:-20000}
echo "fsx: $operations operations on $dir in runs of $segment, first seed $seed"
start=$(date +%s) left=$operations
while [ "$left" -gt 0 ]; do
  count=$((left < segment ? left : segment))
  if ! "$bin" -f "$out/fsx-$((seed % 2)).toml" -N "$count" -S "$seed" -P "$out" "$file" > "$out/log" 2>&1; then
    tail -40 "$out/log"
    echo "error: mismatch or failure; artifacts in $out; $file is kept; replay: suite-fsx.sh $1 $count $seed" >&2
    exit 1
  fi
  grep -q 'All operations completed' "$out/log" || { tail -5 "$out/log"; echo "error: fsx ended early" >&2; exit 1; }
  left=$((left - count)) seed=$((seed + 1))
done
rm -rf "$file" "$out"
echo "fsx: $operations operations without a mismatch in $(($(date +%s) - start)) s"
