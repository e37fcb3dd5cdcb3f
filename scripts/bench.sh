#!/bin/bash
# bench.sh [OPTIONS of perigee-bench]: the rows of bench/peers.json on a mount at home and on the local file system
# beside it, by turns; prints a table and writes bench/results/home_ROW.json. Needs root.
#   ROUNDS (3)   SIZE (1024, MiB of the large file)   SECS (10, of each random row)   FILES (5000, small files)
#   scripts/bench.sh --peer DIR LABEL   measures any directory instead
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."
cargo build --release --quiet -p perigee -p perigee-bench
exec "${CARGO_TARGET_DIR:-target}/release/perigee-bench" --peers bench/peers.json --results bench/results \
  --rounds "${ROUNDS:-3}" --size "${SIZE:-1024}" --secs "${SECS:-10}" --files "${FILES:-5000}" "$@"
