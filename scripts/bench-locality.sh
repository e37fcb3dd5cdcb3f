#!/bin/bash
# bench-locality.sh [OPTIONS of perigee-bench-locality]: nodes on hosts of their own, 1 ms apart: files that one node made
# are written by all, where ownership moves and where it does not; prints a table and writes
# bench/results/locality_ROW.json. Needs root, network namespaces and /dev/net/tun.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."
cargo build --release --quiet -p perigee -p perigee-bench
exec "${CARGO_TARGET_DIR:-target}/release/perigee-bench-locality" --results bench/results "$@"
