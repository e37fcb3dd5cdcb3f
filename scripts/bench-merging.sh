#!/bin/bash
# bench-merging.sh [OPTIONS of perigee-bench-merging]: many files of 4 KiB, written and read over links of 1 ms, with
# nothing merged, with messages that wait for 1 to 7 others, and as they are merged by default; prints a table and
# writes bench/results/merging_ROW.json. Needs root, network namespaces and /dev/net/tun.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."
cargo build --release --quiet -p perigee -p perigee-bench
exec "${CARGO_TARGET_DIR:-target}/release/perigee-bench-merging" --results bench/results "$@"
