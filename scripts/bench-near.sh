#!/bin/bash
# bench-near.sh [OPTIONS of perigee-bench-near]: a host with a near store and one 96 ms away, beside plain TCP streams, and
# the map of four sites before and after routes change; prints tables, writes bench/results/near_ROW.json and
# docs/topo.svg. Needs root; about eight minutes.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."
cargo build --release --quiet -p perigee -p perigee-bench
exec "${CARGO_TARGET_DIR:-target}/release/perigee-bench-near" --results bench/results --picture docs/topo.svg "$@"
