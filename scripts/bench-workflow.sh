#!/bin/bash
# bench-workflow.sh [OPTIONS of perigee-bench-workflow]: a mosaic of some 400 tasks over a union of four hosts, with each
# task where its files are, and by turns; prints a table, writes bench/results/workflow_*.json. Needs root, openssh-server
# and snakemake; about ten minutes.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."
command -v snakemake >/dev/null || apt-get install --yes --no-install-recommends snakemake >/dev/null
cargo build --release --quiet -p perigee -p perigee-bench
exec "${CARGO_TARGET_DIR:-target}/release/perigee-bench-workflow" --results bench/results "$@"
