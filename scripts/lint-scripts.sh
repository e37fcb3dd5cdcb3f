#!/usr/bin/env bash
# Checks the shell scripts: their syntax always, their habits where shellcheck is installed.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts=(scripts/*.sh scripts/peers/*.sh examples/*/*.sh .ci/run)
for script in "${scripts[@]}"; do
    bash -n "$script"
done
if command -v shellcheck >/dev/null; then
    shellcheck --severity=warning "${scripts[@]}"
fi
