#!/bin/bash
# All checks and tests, from a fresh clone on a bare machine:
#
#     scripts/test.sh [arguments of pytest]
#
# As root it also installs the Debian packages with which the tests make hosts and a Slurm of their own, and build
# Horovod; as an ordinary user tests that lack what they need are left out, and the last line says how many.
set -euo pipefail

root=$(dirname "$(dirname "$(readlink -f "$0")")")
# shellcheck source=scripts/mpi-env.sh
. "$root/scripts/mpi-env.sh"
# shellcheck source=scripts/venv.sh
. "$root/scripts/venv.sh"
cd "$root"

install_debian_packages() {
    local missing=() package
    command -v g++ >/dev/null || missing+=(g++)
    command -v make >/dev/null || missing+=(make)
    # With libpmix-dev Debian's srun can start Open MPI: it looks for the library by the name that only this package has.
    for package in openssh-server slurm-wlm munge libpmix-dev iproute2 openmpi-bin libopenmpi3; do
        dpkg -s "$package" >/dev/null 2>&1 || missing+=("$package")
    done
    find_python || missing+=(python3-venv)
    [ ${#missing[@]} -gt 0 ] || return 0
    command -v apt-get >/dev/null || die "root's tests need ${missing[*]}, and there is no apt-get to install them"
    say "installing Debian's ${missing[*]}"
    local log
    log=$(mktemp)
    if ! { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends \
        "${missing[@]}"; } </dev/null >"$log" 2>&1; then
        tail -n 20 "$log" >&2
        die "apt-get could not install ${missing[*]}, all of its output is in $log"
    fi
    rm -f "$log"
}

# Horovod takes minutes to compile: the tests that need it come late, and wait for it. It gets an environment of its own,
# and .venv stays as most users have it.
build_horovod_meanwhile() {
    set_up_beside horovod openmpi
    setsid nice -n 19 scripts/install-horovod.sh "$venv/horovod/bin/python" </dev/null >"$venv/horovod/build.out" 2>&1 &
    builder=$!
}

lint() {
    say "ruff, mypy, shellcheck"
    "$venv/bin/ruff" check .
    "$venv/bin/ruff" format --check .
    "$venv/bin/mypy"
    "$venv/bin/shellcheck" --external-sources .ci/run scripts/*.sh scripts/slurm/*
}

[ "$(id -u)" != 0 ] || install_debian_packages
set_up_venv cpu openmpi plot dev
output=$(mktemp)
builder=
trap 'rm -f "$output"; [ -z "$builder" ] || kill -- "-$builder" 2>/dev/null || true' EXIT
build_horovod_meanwhile
# A second MPI for the tests of hostfiles and Slurm.
set_up_beside mpich mpich
[ "$(id -u)" != 0 ] || set_up_beside debian
# Where nothing reaches it, the tests that need all of MNIST say so.
if fetched=$("$venv/bin/python" -m mpitrain data fetch); then say "MNIST is in $(tail -n 1 <<<"$fetched")"; fi
lint

colour=auto
[ ! -t 1 ] || colour=yes
code=0
"$venv/bin/python" -m pytest --color="$colour" --durations=20 "$@" </dev/null | tee "$output" || code=$?
if [ "$(id -u)" != 0 ]; then
    left_out=$(sed 's/\x1b\[[0-9;]*m//g' "$output" | tail -n 1 | sed -n 's/.* \([0-9]*\) deselected.*/\1/p')
    say "${left_out:-0} tests were deselected: they need root, which makes network namespaces and a Slurm on this machine," \
        "or a C++ compiler"
fi
exit "$code"
