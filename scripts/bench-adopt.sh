#!/bin/bash
# bench-adopt.sh [ROUNDS] [LARGE_MIB] [FILES]: how long a directory of LARGE_MIB in files of 64 MiB, and FILES of 200 KiB, takes to
# become one of a cluster: by `perigee adopt`, by `cp -a` into its mount with a sync at the end, and by `cp -a` on the disk alone;
# with one copy and with three (three nodes on this machine, so all copies go to one disk). Rounds by turns, page cache warm; prints
# a table and writes bench/results/adopt.json. Needs root.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."
rounds=${1:-3} large=${2:-1024} files=${3:-2000}
cargo build --release --quiet -p perigee -p perigee-bench
perigee=$PWD/${CARGO_TARGET_DIR:-target}/release/perigee
work=$(mktemp -d "${BENCH_DIR:-/var/tmp}/perigee-bench-adopt-XXXXXX")

down() {
    "$perigee" down --dir "$work/c" >/dev/null 2>&1 || true
    umount -l "$work/m" 2>/dev/null || true
    rm -rf "$work/c"
}
trap 'down; rm -rf "$work"' EXIT

make_tree() {
    local at=$1 number
    mkdir -p "$at/many"
    for ((number = 0; number < large / 64; number++)); do
        head -c $((64 << 20)) "$work/noise" >"$at/large$number"
    done
    for ((number = 0; number < files; number++)); do
        head -c $((200 << 10)) "$work/noise" >"$at/many/$number"
    done
    sync -f "$at"
}

# Seconds that a command takes.
timed() {
    local began=$EPOCHREALTIME
    "$@" >/dev/null
    awk -v began="$began" -v now="$EPOCHREALTIME" 'BEGIN { printf "%.3f\n", now - began }'
}

copied_to_mount() {
    cp -a "$work/tree" "$work/m/tree"
    find "$work/m/tree" -type f -print0 | xargs -0 -n 200 sync -d
}

copied_on_disk() {
    cp -a "$work/tree" "$work/copy"
    sync -f "$work/copy"
}

median() { sort -n | awk '{ all[NR] = $1 } END { printf "%.3f", (NR % 2) ? all[(NR + 1) / 2] : (all[NR / 2] + all[NR / 2 + 1]) / 2 }'; }

head -c $((64 << 20)) /dev/urandom >"$work/noise"
for ((round = 0; round < rounds; round++)); do
    for copies in 1 3; do
        for way in adopt cp disk; do
            make_tree "$work/tree"
            mkdir -p "$work/m"
            [ $way = disk ] || "$perigee" up --dir "$work/c" --nodes "$copies" --mount "$work/m" >/dev/null
            case $way in
                adopt) timed "$perigee" adopt "$work/tree" "$work/m/tree" ;;
                cp) timed copied_to_mount ;;
                disk) timed copied_on_disk ;;
            esac >>"$work/$way$copies"
            down
            rm -rf "$work/tree" "$work/copy"
        done
    done
done

row() { printf '    "%s": { "median_s": %s, "rounds_s": [%s] }' "$1" "$(median <"$work/$2")" "$(paste -sd, "$work/$2")"; }
{
    printf '{\n  "name": "adopt",\n  "what": "%d MiB in files of 64 MiB and %d files of 200 KiB",\n  "measured": {\n' "$large" "$files"
    row "adopt, one copy" adopt1 && printf ',\n'
    row "cp -a into the mount, one copy" cp1 && printf ',\n'
    row "adopt, three copies" adopt3 && printf ',\n'
    row "cp -a into the mount, three copies" cp3 && printf ',\n'
    row "cp -a on the disk" disk1 && printf '\n'
    printf '  },\n  "command": "scripts/bench-adopt.sh %d %d %d",\n  "machine": "%s x %s, Linux %s"\n}\n' "$rounds" "$large" "$files" \
        "$(nproc)" "$(sed -n 's/^model name.*: //p' /proc/cpuinfo | head -1)" "$(uname -r)"
} >bench/results/adopt.json
cat bench/results/adopt.json
