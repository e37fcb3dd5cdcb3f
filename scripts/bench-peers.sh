#!/bin/bash
# bench-peers.sh [OPTIONS of perigee-bench]: the same rows on a Perigee mount, on the local disk, on a FUSE file system
# that does nothing, and on each peer that is installed (`scripts/peers/NAME.sh install`), by turns. Prints tables,
# writes bench/results/peers_ROW.json and docs/peers.svg. Needs root; with all four peers about 50 minutes for five rounds.
#   PEERS (gluster moosefs cephfs sshfs)   ROUNDS (5)   SIZE (256, MiB)   SECS (5)   FILES (5000)
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."
cargo build --release --quiet -p perigee -p perigee-bench
binaries=${CARGO_TARGET_DIR:-target}/release

read -ra peers <<<"${PEERS:-gluster moosefs cephfs sshfs}"
PEER_ROOT=$(mktemp --directory --tmpdir perigee-peers-XXXXXX)
export PEER_ROOT
started=()
bare=

finish() {
    local peer
    for peer in "${started[@]}"; do "scripts/peers/$peer.sh" down || true; done
    if [[ -n $bare ]]; then
        umount "$PEER_ROOT/bare/mount" || umount --lazy "$PEER_ROOT/bare/mount" || true
        wait "$bare" || true
    fi
    rm -rf --one-file-system "$PEER_ROOT"
}
trap finish EXIT

beside=()
mkdir -p "$PEER_ROOT"/bare/{files,mount} "$PEER_ROOT/native"
"$binaries/perigee-bench-bare" "$PEER_ROOT/bare/files" "$PEER_ROOT/bare/mount" &
bare=$!
for _ in {1..50}; do
    mountpoint --quiet "$PEER_ROOT/bare/mount" && break
    sleep 0.1
done
beside+=(--beside bare 0 "$PEER_ROOT/bare/mount" "$bare")

for peer in "${peers[@]}"; do
    script=scripts/peers/$peer.sh
    if ! "$script" installed; then
        echo "left out: $peer is not installed ($script install)" >&2
        continue
    fi
    started+=("$peer")
    "$script" up
    directory=$("$script" mount)
    read -r label copies <<<"$("$script" describe)"
    beside+=(--beside "$label" "$copies" "$directory" "$("$script" pids | paste --serial --delimiters=,)")
done

"$binaries/perigee-bench" --peers bench/peers.json --results bench/results --picture docs/peers.svg \
    --native "$PEER_ROOT/native" --rounds "${ROUNDS:-5}" --size "${SIZE:-256}" --secs "${SECS:-5}" \
    --files "${FILES:-5000}" "${beside[@]}" "$@"
