#!/bin/bash
# bench-remote.sh [OPTIONS of perigee-bench-remote]: a large file that lies on another host, read and written in pieces of
# 1 MiB, beside one TLS stream between two processes, over loopback and over links with a rate; prints tables and writes
# bench/results/remote_LINK_ROW.json. Needs root.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."
cargo build --release --quiet -p perigee -p perigee-bench
exec "${CARGO_TARGET_DIR:-target}/release/perigee-bench-remote" --results bench/results "$@"
