#!/bin/bash
# test.sh: every test. The suites of the testbed wait for real time most of the time (leases, takeovers, processes that
# start), so three of them run at once; those that keep the processors busy, or measure, run alone afterwards.
# PERIGEE_TEST_JOBS says how many at once (3).
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."
jobs=${PERIGEE_TEST_JOBS:-3}
cargo=${CARGO:-cargo}

# The longest first.
first="cluster_kill cluster_behind union cluster_failing_disk cluster_etcd cluster_moves cluster_chunks cluster_snapshots cluster_rebalance"
alone="cluster_two_mounts cluster_chaos"

logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT

among() {
    case " $2 " in *" $1 "*) return 0 ;; esac
    return 1
}

# Runs one suite, and shows what it said when it has ended.
suite() {
    local status=0 began=$SECONDS
    "$cargo" test --locked --package perigee-testbed --test "$1" >"$logs/$1" 2>&1 || status=$?
    {
        flock 9
        printf '\n=== %s: %s after %d s\n' "$1" "$([ $status = 0 ] && echo passed || echo FAILED)" $((SECONDS - began))
        cat "$logs/$1"
        [ $status = 0 ] || echo "$1" >>"$logs/failed"
    } 9>"$logs/lock"
}

"$cargo" test --locked --workspace --no-run
"$cargo" test --locked --no-fail-fast --workspace --exclude perigee-testbed || echo workspace >>"$logs/failed"
"$cargo" test --locked --package perigee-testbed --lib --bins || echo testbed >>"$logs/failed"

together=$first
for path in crates/testbed/tests/*.rs; do
    name=$(basename "$path" .rs)
    among "$name" "$first $alone" || together="$together $name"
done
for name in $together; do
    while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do wait -n || true; done
    suite "$name" &
done
wait
for name in $alone; do suite "$name"; done

if [ -s "$logs/failed" ]; then
    echo "error: these suites failed: $(sort "$logs/failed" | xargs)" >&2
    exit 1
fi
