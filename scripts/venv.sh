# shellcheck shell=sh
# Sourced by the other scripts: makes .venv in the checkout and installs mpitrain into it, once.
# They set `root`, the absolute path of the checkout.

venv="${root:?}/.venv"
stamp="$venv/mpitrain.stamp"

# One line per stage; what a stage prints itself goes to a log.
say() { echo "mpitrain: $*" >&2; }
die() { say "$@"; exit 1; }

# A Python that can make virtual environments, in `base_python`.
candidates="${PYTHON:-} python3 /usr/bin/python3 python3.13 python3.12 python3.11 python3.10"
find_python() {
    too_bare=
    for candidate in $candidates; do
        "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || continue
        if "$candidate" -c 'import ensurepip, venv' 2>/dev/null; then
            base_python=$candidate
            return 0
        fi
        too_bare=${too_bare:-$candidate}
    done
    return 1
}

explain_no_python() {
    [ -n "$too_bare" ] &&
        die "$too_bare has no venv package: install it (as root: apt-get install python3-venv) and start again"
    die "no Python >= 3.10 is on PATH: install one (as root: apt-get install python3 python3-venv) or set PYTHON to it"
}

# What the environment must hold: another pyproject.toml, or a checkout that was moved, asks for another installation.
fingerprint() { { cat "$root/pyproject.toml" && echo "$root"; } | sha256sum | cut -d ' ' -f 1; }

# Whether a finished installation holds all the extras named.
is_installed() {
    [ -x "$venv/bin/python" ] && [ -r "$stamp" ] && read -r made extras <"$stamp" && [ "$made" = "$(fingerprint)" ] ||
        return 1
    for extra in "$@"; do
        case " $extras " in *" $extra "*) ;; *) return 1 ;; esac
    done
}

# Run a command with its output in a log, whose end is shown only when the command fails.
quietly() {
    "$@" >"$venv/mpitrain-install.log" 2>&1 && return
    tail -n 20 "$venv/mpitrain-install.log" >&2
    die "the installation failed; all of its output is in $venv/mpitrain-install.log"
}

make_venv() {
    "$venv/bin/python" -m pip --version >/dev/null 2>&1 && return
    if [ ! -e "$stamp.begun" ] && "$venv/bin/python" -c '' 2>/dev/null; then
        say "adding pip to $venv"
        quietly "$venv/bin/python" -m ensurepip
        return
    fi
    find_python || explain_no_python
    say "making $venv with $("$base_python" --version)"
    if ! complaint=$("$base_python" -m venv --clear "$venv" 2>&1); then
        echo "$complaint" | tail -n 5 >&2
        die "$base_python cannot make the virtual environment $venv: see above"
    fi
}

# Install mpitrain with the extras named, unless that has been done.
set_up_venv() {
    is_installed "$@" && return
    [ ! -e "$venv" ] || [ -w "$venv" ] ||
        die "$venv does not fit this checkout and belongs to another user: run this as that user, or remove it"
    # Two that start at once would install into each other's files: the second waits here, and finds it done.
    exec 9<"$root/pyproject.toml"
    flock 9
    is_installed "$@" && { exec 9<&-; return; }
    # An installation that broke off leaves packages of which pip believes that they are there.
    broke_off=
    [ ! -e "$stamp.begun" ] || broke_off=yes
    make_venv
    rm -f "$stamp"
    touch "$stamp.begun"
    if [ "$broke_off" ]; then quietly "$venv/bin/python" "$root/scripts/drop_broken_packages.py"; fi
    wanted=
    for extra in "$@"; do
        if [ "$extra" = cpu ] && has_tensorflow; then
            say "keeping the TensorFlow that is in $venv"
        else
            wanted="$wanted${wanted:+,}$extra"
        fi
    done
    say "installing mpitrain[$wanted] into $venv; the first time takes minutes and 2 GB of disk"
    quietly "$venv/bin/python" -m pip install --no-input --disable-pip-version-check -e "${root}[$wanted]"
    # The first import of all takes long, builds caches, and tells whether TensorFlow runs on this processor.
    quietly env KERAS_BACKEND=tensorflow "$venv/bin/python" -c 'import keras'
    echo "$(fingerprint) $*" >"$stamp.new"
    mv "$stamp.new" "$stamp"
    rm -f "$stamp.begun"
    exec 9<&-
}

# A small environment .venv/$1 with an MPI of its own, $2, that borrows everything else from .venv.
set_up_beside() {
    beside=$venv/$1
    [ ! -e "$beside/made" ] || return 0
    say "installing ${2:-mpi4py} into $beside"
    quietly "$venv/bin/python" -m venv --clear "$beside"
    quietly "$beside/bin/python" -m pip install --no-input --disable-pip-version-check ${2:+"$2"} mpi4py
    site=$("$beside/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    # The path comes after the environment's own packages, so that its mpi4py, which finds its MPI, wins.
    "$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' >"$site/borrowed.pth"
    echo "$root" >>"$site/borrowed.pth"
    touch "$beside/made"
}

# Whatever its name (tensorflow, tensorflow-cpu, a build of one's own): two of them overwrite each other's files.
has_tensorflow() {
    "$venv/bin/python" -c 'import sys; from importlib.metadata import packages_distributions as found
sys.exit("tensorflow" not in found())' 2>/dev/null
}
