#!/bin/bash
# bench-path.sh [BINARY]: what one operation costs the daemons on its way: system calls, switches of context, page faults
# and CPU time, of 4 KiB and of 1 MiB, at home and from a host without a copy. Prints the table of
# docs/PERFORMANCE.md. Needs root, perf, a build (`make build`), and TMPDIR on ext4 or XFS under Linux 6.9 or later, for
# the rows past the daemon.
set -euo pipefail
export LC_ALL=C
[[ -z ${1:-} ]] || set -- "$(realpath "$1")"
cd "$(dirname "$(readlink -f "$0")")/.."
perigee=${1:-${CARGO_TARGET_DIR:-target}/release/perigee}
[[ -x $perigee ]] || { echo "error: no $perigee (make build)" >&2; exit 1; }
command -v perf >/dev/null || { echo "error: perf is needed (Debian: linux-perf)" >&2; exit 1; }
root=$(mktemp --directory --tmpdir perigee-path-XXXXXX)

finish() {
    local point
    for point in "$root"/{through,past,far}; do
        "$perigee" umount "$point" 2>/dev/null || umount --lazy "$point" 2>/dev/null || true
    done
    "$perigee" down --dir "$root/c" >/dev/null 2>&1 || true
    rm -rf --one-file-system "$root"
}
trap finish EXIT

events=raw_syscalls:sys_enter,context-switches,page-faults,task-clock

mkdir "$root"/{through,past,far}
"$perigee" up --dir "$root/c" --nodes 3 >/dev/null
"$perigee" mount "$root/through" --dir "$root/c" --node 1 -o nopassthrough
"$perigee" mount "$root/far" --dir "$root/c" --node 3
mkdir "$root"/through/{three,one}
"$perigee" policy set "$root/through/one" copies=1 migration=off >/dev/null
"$perigee" policy set "$root/through/three" migration=off >/dev/null
for place in three one; do
    dd if=/dev/urandom of="$root/through/$place/f" bs=1M count=64 conv=fsync status=none
done
sleep 5
pid() { cut --delimiter=' ' --fields=1 "$root/c/node-$1/pid"; }

printf '| %-34s | %-18s | %9s | %8s | %8s | %9s |\n' operation daemon 'sys calls' switches faults 'CPU us'
printf '|%s|%s|%s|%s|%s|%s|\n' "$(printf -- '-%.0s' {1..36})" "$(printf -- '-%.0s' {1..20})" ----------: ---------: ---------: ----------:

# row TITLE COUNT COMMAND...: counts in the daemons of all nodes while the command runs; for each operation.
row() {
    local title=$1 count=$2 node
    shift 2
    sync
    sleep 1
    local count_in=(perf stat --field-separator , --event "$events")
    "${count_in[@]}" --output "$root/stat-1" --pid "$(pid 1)" \
        "${count_in[@]}" --output "$root/stat-2" --pid "$(pid 2)" \
        "${count_in[@]}" --output "$root/stat-3" --pid "$(pid 3)" bash -euc '"$@"' _ "$@"
    for node in 1 2 3; do
        case $node in
        1) name="node 1 (owner)" ;;
        2) name="node 2" ;;
        3) name="node 3" ;;
        esac
        awk -F , -v count="$count" -v title="$title" -v name="$name" '
            $3 ~ /sys_enter/ { calls = $1 } $3 ~ /context/ { switches = $1 }
            $3 ~ /faults/ { faults = $1 } $3 ~ /task-clock/ { cpu = $1 * 1000 }
            $1 ~ /not counted|not supported/ { print "error: perf: " $0 > "/dev/stderr"; exit 1 }
            END { if (calls / count >= 0.2)
                printf "| %-34s | %-18s | %9.1f | %8.2f | %8.2f | %9.1f |\n", title, name, calls / count,
                    switches / count, faults / count, cpu / count }' "$root/stat-$node"
    done
}

read_small() { dd if="$1" of=/dev/null bs=4k count=8000 iflag=direct status=none; }
read_large() { dd if="$1" of=/dev/null bs=1M count=64 iflag=direct status=none; }
write_small() { dd if=/dev/zero of="$1" bs=4k count="${2:-8000}" oflag=direct conv=notrunc,fsync status=none; }
write_large() { dd if=/dev/zero of="$1" bs=1M count=64 oflag=direct conv=notrunc,fsync status=none; }
create() { for ((i = 0; i < 1000; i++)); do : >"$1/$RANDOM-$i"; done; }

export -f read_small read_large write_small write_large create

three=$root/through/three one=$root/far/one
row 'read 4 KiB, at home' 8000 read_small "$three/f"
row 'read 1 MiB, at home' 64 read_large "$three/f"
row 'write 4 KiB, at home, 3 copies' 8000 write_small "$three/f"
row 'write 1 MiB, at home, 3 copies' 64 write_large "$three/f"
row 'create, at home, 3 copies' 1000 create "$three"
row 'read 4 KiB, far, no copy' 8000 read_small "$one/f"
row 'read 1 MiB, far, no copy' 64 read_large "$one/f"
row 'write 4 KiB, far, no copy' 1000 write_small "$one/f" 1000
row 'write 1 MiB, far, no copy' 64 write_large "$one/f"
"$perigee" umount "$root/through"
"$perigee" mount "$root/past" --dir "$root/c" --node 1
past=$root/past/three/f
told=$("$perigee" explain "$past" | tr -s '\n ' ' ')
[[ $told == *'for writing use the local file itself'* ]] || { echo "error: it is not written past the daemon: $told" >&2; exit 1; }
row 'read 4 KiB, past the daemon' 8000 dd if="$past" of=/dev/null bs=4k count=8000 status=none
row 'read 1 MiB, past the daemon' 64 dd if="$past" of=/dev/null bs=1M count=64 status=none
row 'write 4 KiB, past the daemon' 8000 dd if=/dev/zero of="$past" bs=4k count=8000 conv=notrunc,fsync status=none
row 'write 1 MiB, past the daemon' 64 dd if=/dev/zero of="$past" bs=1M count=64 conv=notrunc,fsync status=none
