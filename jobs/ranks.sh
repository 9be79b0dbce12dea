# What the job scripts of several ranks share. They source it after jobs/common.sh.

# run_ranks WAY GPU_FLAGS ARGUMENT...: train by jobs/train_ranks.py, with these flags first, so that the arguments
# overrule them. --ranks N is for here: so many on each node of the job; without Slurm this machine is the only one.
run_ranks() {
    local way=$1 nodes=${SLURM_JOB_NUM_NODES:-1} ranks= checkpoints= arguments=() size gpus
    choose_size "$2"
    shift 2
    while (($#)); do
        case $1 in
            --ranks) ranks=${2:-none}; shift ;;
            --ranks=*) ranks=${1#*=} ;;
            *)
                [[ $1 == --checkpoints ]] && checkpoints=${2:-}
                [[ $1 == --checkpoints=* ]] && checkpoints=${1#*=}
                arguments+=("$1")
                ;;
        esac
        (($#)) && shift
    done
    if [[ -z $ranks ]]; then   # one a GPU; at least two on a machine alone, and for a grid; four for a grid on cores
        local least=1
        [[ $way == hybrid || $nodes == 1 ]] && least=2
        [[ $way == hybrid && $nodes == 1 && $gpus == 0 ]] && least=4
        ranks=$((gpus < least ? least : gpus))
    fi
    if [[ ! $ranks =~ ^[1-9][0-9]*$ ]]; then
        echo "--ranks is the number of ranks on each node, 1 or more, not $ranks" >&2
        exit 2
    fi

    # A batch job that is started again has its old number, so its folder has what it needs to go on.
    local run=local-$$
    [[ -n ${SLURM_JOB_ID:-} ]] && run=$SLURM_JOB_ID
    [[ -n ${SLURM_JOB_ID:-} && ${ENVIRONMENT:-} != BATCH ]] && run=$SLURM_JOB_ID-$$   # of salloc: runs of one job
    run=$(folder_of "$root/results/${SLURM_JOB_NAME:-$(basename "$0" .sh)}-$run")
    mkdir -p "$run" && rm -f "$run/stopped" || exit 1

    [[ -n $checkpoints ]] || set -- --checkpoints "${checkpoints:=$run/checkpoints}"
    set -- "$python" -m fewgpu.workshop.torchrun --ranks "$ranks" --run "$run" "$root/jobs/train_ranks.py" \
        --way "$way" "$@" --report "$run/report.json" --stopped "$run/stopped" \
        ${size[@]+"${size[@]}"} ${arguments[@]+"${arguments[@]}"}
    if [[ -n ${SLURM_JOB_ID:-} ]]; then
        echo "Job $SLURM_JOB_ID on ${SLURM_JOB_NODELIST:-$nodes nodes}, ranks on each node: $ranks. Output: $run"
        export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1}   # which srun does not take over by itself
        set -- srun --nodes="$nodes" --ntasks="$nodes" --ntasks-per-node=1 --overlap --kill-on-bad-exit=1 "$@"
    else
        echo "Ranks on this machine: $ranks. Output: $run"
    fi
    wait_for "$@"
    conclude "$run" "$checkpoints" $?
}

# folder_of NAME: this folder, or NAME-2, NAME-3, ... Numbers of jobs come again where a Slurm was set up anew, and what
# an older job has left is neither ours to go on from nor to overwrite.
folder_of() {
    local folder=$1 number=1
    if ((${SLURM_RESTART_COUNT:-0})); then   # ours is the last of them
        while [[ -e $1-$((number + 1)) ]]; do folder=$1-$((++number)); done
    else
        while [[ -e $folder ]]; do folder=$1-$((++number)); done
    fi
    echo "$folder"
}

# wait_for COMMAND...: its exit status. Signals of this script are passed on to it.
wait_for() {
    local child status trapped
    (trap '' USR1 && exec "$@") &   # which would end a program that has just started
    child=$!
    trap 'trapped=1; kill -USR1 "$child" 2>/dev/null' USR1   # the time limit is near: see #SBATCH --signal
    trap 'trapped=1; kill -TERM "$child" 2>/dev/null' TERM INT
    while true; do
        trapped=
        wait "$child"   # which a signal interrupts
        status=$?
        [[ -n $trapped ]] || return "$status"
    done
}

# all_answer: do all nodes of the job?
all_answer() {
    [[ -z ${SLURM_JOB_ID:-} ]] || timeout 60 srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" \
        --ntasks-per-node=1 --overlap true 2>/dev/null
}

# start_again: put this job back into the queue, if it is one. After the loss of a node Slurm may have done so already.
start_again() {
    local said
    [[ ${ENVIRONMENT:-} == BATCH ]] || return 1
    if ! said=$(scontrol requeue "$SLURM_JOB_ID" 2>&1) && [[ $said != *pending* ]]; then
        echo "$said"
        return 1
    fi
    echo "Job $SLURM_JOB_ID is back in the queue, and will go on."
}

# how_to_go_on CHECKPOINTS: a sentence, if there are any (a name begins with the step).
how_to_go_on() {
    ! compgen -G "$1/[0-9]*" >/dev/null ||
        echo "To go on after its last checkpoint, start it with the same arguments and --checkpoints $1"
}

# conclude FOLDER CHECKPOINTS STATUS: end the job, or have Slurm start it again where there is something to go on from.
conclude() {
    local run=$1 checkpoints=$2 status=$3 lost= signal
    if ((status)); then
        if "$python" -m fewgpu.workshop.failed "$run" "$status"; then
            all_answer || lost=1   # else a rank hung, and would do so again
        else
            status=$?
        fi
    fi
    signal=$(cat "$run/stopped" 2>/dev/null)
    # (Who has saved in time may still be cut off before all of it has ended.)
    if [[ -n $lost && ${SLURM_RESTART_COUNT:-0} -lt 5 || -z $lost && $signal == SIGUSR1 ]]; then
        start_again && exit 0
        echo "It is not started again. $(how_to_go_on "$checkpoints")"
    elif ((status)); then
        how_to_go_on "$checkpoints"
    fi
    if ((status)); then
        exit "$status"
    elif [[ -n $signal ]]; then
        exit $((128 + $(kill -l "${signal#SIG}")))
    fi
    exit 0
}
