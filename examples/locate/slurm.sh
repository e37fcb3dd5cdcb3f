#!/bin/bash
# Has Slurm run a command for each file on the host that has it. A host that is busy is waited for.
#   slurm.sh COMMAND FILE...
# One job for each host, in which its files are done one after the other: thousands of short jobs are no work for a scheduler.
set -euo pipefail
command=$1
shift
declare -A files
for file in "$@"; do
    host=$(perigee locate --best "$file")
    files[$host]+=$(printf '%q ' "$file")
done
for host in "${!files[@]}"; do
    sbatch --nodelist="$host" --wrap "for file in ${files[$host]}; do $command \"\$file\" || exit; done"
done
