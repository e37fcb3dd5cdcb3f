#!/bin/bash
# bench-crowd.sh [OPTIONS of perigee-bench-crowd]: a million files in one directory of a cluster of three nodes: made, listed,
# looked at and removed, and the memory that the daemons need for them. Prints a table and writes
# bench/results/crowd_perigee.json. PEERS="gluster" does the same on each of these afterwards, if it is installed
# (`scripts/peers/NAME.sh install`), into crowd_NAME.json. Empties the kernel's caches of the whole machine. Needs root, some
# 2 GiB of memory, and six minutes.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."
cargo build --release --quiet -p perigee -p perigee-bench
crowd=${CARGO_TARGET_DIR:-target}/release/perigee-bench-crowd

"$crowd" --results bench/results "$@"

read -ra peers <<<"${PEERS:-}"
PEER_ROOT=$(mktemp --directory --tmpdir perigee-peers-XXXXXX)
export PEER_ROOT
started=()
finish() {
    local peer
    for peer in "${started[@]}"; do "scripts/peers/$peer.sh" down || true; done
    rm -rf --one-file-system "$PEER_ROOT"
}
trap finish EXIT
for peer in "${peers[@]}"; do
    script=scripts/peers/$peer.sh
    if ! "$script" installed; then
        echo "left out: $peer is not installed ($script install)" >&2
        continue
    fi
    started+=("$peer")
    "$script" up
    directory=$("$script" mount)
    echo "== $peer"
    "$crowd" --on "$directory" --label "$peer" --daemons "$("$script" pids | paste --serial --delimiters=,)" \
        --results bench/results "$@"
    "$script" down
    started=()
done
