#!/usr/bin/env bash
# The main job, on real input: three nodes on this machine, a source tree of thousands of files put
# through the mount, compiled there, and read back identically after a node was killed.
# Leaves nothing behind, whatever happens.
set -euo pipefail

perigee=$(realpath "${1:-target/release/perigee}")
repository=$(realpath "$(dirname "$0")/..")
work=$(mktemp -d "${TMPDIR:-/tmp}/perigee-demo.XXXXXX")
export PERIGEE_DIR=$work/cluster
first=$work/first
second=$work/second
files_min=2000

clean_up() {
    local code=$?
    trap - EXIT
    cd /
    "$perigee" down >/dev/null 2>&1 || true
    # only mounts of this run; normally `down` has removed them
    for mountpoint in "$first" "$second"; do
        umount --lazy "$mountpoint" 2>/dev/null || fusermount3 -uz "$mountpoint" 2>/dev/null || true
    done
    if ((code != 0)); then
        echo
        echo "the demo failed; the last lines of the logs:"
        tail -n 5 "$work"/cluster/*/daemon.log 2>/dev/null || true
    fi
    rm -rf --one-file-system "$work"
    exit "$code"
}
trap clean_up EXIT
trap 'exit 130' INT TERM

now_us() {
    echo "${EPOCHREALTIME//[.,]/}"
}

begin() {
    echo
    echo "== $*"
    begun=$(now_us)
}

took() {
    local us=$(($(now_us) - begun))
    printf '   %d.%02d s\n' $((us / 1000000)) $((us % 1000000 / 10000))
}

# exit code 3 means "degraded but working", which is what this demo is about
show() {
    echo "\$ perigee $*"
    "$perigee" "$@" || (($? == 3))
}

# The repository, then crates from cargo's cache until there are enough files.
collect_tree() {
    local tree=$1 crate count
    mkdir -p "$tree/perigee" "$tree/crates"
    git -C "$repository" archive HEAD | tar --extract --directory "$tree/perigee"
    for crate in "${CARGO_HOME:-$HOME/.cargo}"/registry/src/*/*/; do
        count=$(find "$tree" -type f | wc -l)
        if ((count >= files_min)); then
            return
        fi
        cp -r "$crate" "$tree/crates/"
    done
}

checksums() {
    (cd "$1" && find . -type f -print0 | sort -z | xargs -0 sha256sum)
}

pid_of_node() {
    local json
    json=$("$perigee" status --json) || (($? == 3))
    # nodes come before everything else that has an id
    awk -v id="$1" '$1 == "\"id\":" { here = ($2 == id ",") }
        here && $1 == "\"pid\":" { gsub(/[^0-9]/, "", $2); print $2; exit }' <<<"$json"
}

mkdir "$first" "$second"
collect_tree "$work/tree"
files=$(find "$work/tree" -type f | wc -l)
size=$(du -sh --apparent-size "$work/tree" | cut -f 1)

begin "start three nodes, and mount through node 1"
show up --nodes 3 --mount "$first"
took

begin "copy a source tree of $files files ($size) in through the mount"
cp -r "$work/tree" "$first/tree"
took

begin "make it durable: fsync of every file and directory"
find "$first/tree" -print0 | xargs -0 sync
took

begin "compare checksums through the mount"
checksums "$work/tree" >"$work/expected"
checksums "$first/tree" >"$work/found"
cmp "$work/expected" "$work/found"
echo "   all $files are identical"
took

begin "compile crates there, with the compiler's output in the mount too"
mkdir "$first/built"
compiled=0
for name in itoa strsim scopeguard cfg-if; do
    for source in "${CARGO_HOME:-$HOME/.cargo}"/registry/src/*/"$name"-[0-9]*/src/lib.rs; do
        [[ -f $source ]] || continue
        cp -r "$(dirname "$(dirname "$source")")" "$first/built/$name"
        rustc --edition 2021 --crate-name "${name//-/_}" --crate-type lib --cap-lints allow \
            --out-dir "$first/built" "$first/built/$name/src/lib.rs"
        compiled=$((compiled + 1))
        break
    done
done
find "$first/built" -print0 | xargs -0 sync
checksums "$first/built" >"$work/built"
echo "   compiled $compiled crates: $(cd "$first/built" && echo *.rlib)"
took

begin "mount through node 2 as well, and look where a file is"
show mount "$second" --node 2
show where "$second/tree/perigee/Cargo.toml"
show status
took

victim=$(pid_of_node 1)
begin "kill node 1 (process $victim) with SIGKILL, and read everything through node 2"
kill -KILL "$victim"
checksums "$second/tree" >"$work/found"
cmp "$work/expected" "$work/found"
checksums "$second/built" >"$work/found"
cmp "$work/built" "$work/found"
echo "   all files are identical"
took

begin "write through node 2, and look how the cluster is"
echo "life goes on" >"$second/after"
sync "$second/after"
show where "$second/after"
show status
took

begin "start node 1 again"
show up
took

begin "stop everything"
cd /
show down
took
echo
echo "done: $files files came back identically from a cluster that had lost a node"
