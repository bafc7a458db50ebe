# shellcheck shell=bash
# Sourced by the batch scripts beside it: finds the Python, how its MPI is started under Slurm, passes Slurm's warning
# on to the ranks, and queues the job again when they have saved.

die() {
    echo "mpitrain: error: $*" >&2
    exit 2
}

# The Python: of the active virtual environment, else of .venv in the folder of the submission, else the one on PATH.
find_python() {
    local folder
    python=$(command -v python3) || python=
    for folder in "${VIRTUAL_ENV:-}" "${SLURM_SUBMIT_DIR:-.}/.venv"; do
        if [ -n "$folder" ] && [ -x "$folder/bin/python" ]; then
            python=$folder/bin/python
            break
        fi
    done
    [ -n "$python" ] || die "no virtual environment is active, $PWD has no .venv, and no python3 is on PATH"
}

# How that Python's MPI is started, in `start`. START_WITH=srun or START_WITH=mpirun before sbatch decides it.
find_start() {
    local found form wiring launcher
    found=$("$python" -m mpitrain.launching.find) || die "$python cannot load mpitrain, mpi4py and an MPI: see above"
    { read -r form && read -r launcher; } <<<"$found" || true
    # A way of wiring up that the library does not speak would start each task as an MPI world of its own.
    case $form in
        openmpi) wiring=pmix ;;
        *) wiring=pmi2 ;;
    esac
    # `srun --mpi=list` also names what cannot be loaded, so an empty step on all nodes tries it.
    if [ -z "${START_WITH:-}" ] && srun --mpi="$wiring" true 2>/dev/null; then
        START_WITH=srun
    fi
    if [ "${START_WITH:-}" = srun ]; then
        # srun does not take this over from sbatch by itself.
        export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1}
        # Ranks end together. One that was killed takes the others with it after half a minute, which they need to
        # say why.
        start=(srun --mpi="$wiring" --kill-on-bad-exit=0 --wait=30)
        return
    fi
    [ -n "$launcher" ] || die "srun --mpi=$wiring does not work here, and no launcher of this Python's MPI is found"
    # It reads the nodes and the number of tasks from Slurm.
    start=("$launcher")
    if [ "$wiring" = pmix ]; then
        if [ "$(id -u)" = 0 ]; then export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1; fi
        # The ranks of a node share its cores themselves.
        start+=(--bind-to none)
        local name
        for name in PYTHONPATH $(compgen -e MPITRAIN_); do
            [ -z "${!name:-}" ] || start+=(-x "$name")
        done
    fi
}

# A run of its own for each job, which goes on where it was when Slurm starts the job again.
resume_by_job() {
    local job=${SLURM_ARRAY_JOB_ID:+$SLURM_ARRAY_JOB_ID-$SLURM_ARRAY_TASK_ID}
    export MPITRAIN_RUN_DIR=${MPITRAIN_RUN_DIR:-runs/slurm-${job:-$SLURM_JOB_ID}}
    export MPITRAIN_RESUME=${MPITRAIN_RESUME:-auto}
}

# mpitrain with these arguments. Slurm warns this shell alone, by SIGUSR1; the ranks then save and end with code 75.
run_mpitrain() {
    local job='' code interrupted warned=''
    find_python
    find_start
    echo "mpitrain: ${start[*]} $python -m mpitrain $*"
    # shellcheck disable=SC2016  # expanded when the signal comes
    trap 'interrupted=yes warned=yes; [ -z "$job" ] || kill -USR1 "$job" 2>/dev/null' USR1
    "${start[@]}" "$python" -m mpitrain "$@" &
    job=$!
    while :; do
        interrupted='' code=0
        wait "$job" || code=$?
        [ -n "$interrupted" ] || break
    done
    if [ -n "$warned" ] && [ "$code" = 75 ]; then queue_again; fi
    exit "$code"
}

queue_again() {
    [ -n "${MPITRAIN_RESUME:-}" ] || return 0
    if scontrol requeue "$SLURM_JOB_ID"; then
        echo "mpitrain: the job is queued again, and goes on from its checkpoint"
        # Slurm ends this shell now.
        sleep 60
    fi
}
