# What the job scripts share. They source it with $root, the folder of the kit.

root=$(cd "$root" && pwd)

# Slurm tells a job to end before it ends it; bash does this once the command has ended that runs now.
told_to_end() {
    echo "Slurm ended this job early: it was cancelled (scancel), or its time was over. In that case submit it with more" \
        "time (sbatch --time=02:00:00 SCRIPT), or give it less to do (a smaller --samples)." >&2
    exit 143
}
[[ -z ${SLURM_JOB_ID:-} ]] || trap told_to_end TERM

# site_failed FILE LINE: a command has failed. What the site's own files try in between is theirs.
site_failed() {
    [[ $1 == "$root/jobs/site.sh" ]] || return 0
    echo "jobs/site.sh, line $2, failed: $(sed -n "$2p" "$1"). Correct it (for a module: \`module avail\` lists what" \
        "there is), or let it end with || true." >&2
    exit 1
}
if [[ -f $root/jobs/site.sh ]]; then   # modules and the like: see jobs/site.sh.example-*
    trap 'site_failed "${BASH_SOURCE[0]}" "$LINENO"' ERR
    source "$root/jobs/site.sh"
    trap - ERR
fi

# The Python that has the kit: the one that ./workshop.py made, or else one of this environment.
python=
has_the_kit='import importlib.util as i, sys; sys.exit(not (i.find_spec("fewgpu") and i.find_spec("torch")))'
sees_gpu='import sys, torch; sys.exit(not torch.cuda.is_available())'
for candidate in "$root/.venv/bin/python" "$root/.venv/Scripts/python.exe" python3 python; do
    if "$candidate" -c "$has_the_kit" 2>/dev/null; then
        python=$candidate
        break
    fi
done
if [[ -z $python ]]; then
    echo "No Python here has the kit: run ./workshop.py --help in $root first, which sets it up (on a cluster, on the" \
        "login node, with the modules of jobs/site.sh)." >&2
    exit 1
fi

# choose_size GPU_FLAGS [FLAGS]: `size` are the first where there are GPUs; elsewhere a size that a few cores can do.
choose_size() {
    read -ra size <<<"${2:---batchsize 64 --samples 256}"
    gpus=0
    # A GPU that nvidia-smi lists is none for a CPU build of torch.
    if nvidia-smi -L >/dev/null 2>&1 && "$python" -c "$sees_gpu"; then
        read -ra size <<<"$1"
        gpus=${SLURM_GPUS_ON_NODE:-$(nvidia-smi -L | grep -c '^GPU')}
    else
        [[ -z ${SLURM_JOB_GPUS:-} ]] ||
            echo "Slurm gave this job GPUs ($SLURM_JOB_GPUS), but its torch sees none: \`srun ./workshop.py doctor\`" \
                "in such a job says why (a torch for CPUs alone, an old driver, a module that is missing)." >&2
        echo "No GPU here, so a small run, unless you ask for more: ${size[*]}"
    fi
}

# run SCRIPT GPU_FLAGS ARGUMENT...: train, with these flags first, so that the arguments overrule them.
run() {
    local script=$1 size gpus
    choose_size "$2"
    local name=${SLURM_JOB_NAME:-$(basename "$0" .sh)}
    shift 2
    set -- "$python" "$root/$script" --report "$root/results/$name-${SLURM_JOB_ID:-local}.json" \
        ${size[@]+"${size[@]}"} "$@"
    echo "${SLURM_JOB_ID:+Job $SLURM_JOB_ID on ${SLURM_JOB_NODELIST:-this node}: }$*"
    [[ -n ${SLURM_JOB_ID:-} ]] || exec "$@"
    "$@"
    exit
}
