# What the job scripts share. They source it with $root, the folder of the kit.

root=$(cd "$root" && pwd)
if [[ -f $root/jobs/site.sh ]]; then   # modules and the like: see jobs/site.sh.example
    source "$root/jobs/site.sh"
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
    echo "No Python here has the kit: run ./workshop.py --help in $root first, which sets it up (on a cluster, on the login node)." >&2
    exit 1
fi

# choose_size GPU_FLAGS: `size` are these flags where there are GPUs; elsewhere a size that a few cores can do.
choose_size() {
    size=(--batchsize 64 --samples 256)
    gpus=0
    # A GPU that nvidia-smi lists is none for a CPU build of torch.
    if nvidia-smi -L >/dev/null 2>&1 && "$python" -c "$sees_gpu"; then
        read -ra size <<<"$1"
        gpus=${SLURM_GPUS_ON_NODE:-$(nvidia-smi -L | grep -c '^GPU')}
    else
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
    exec "$@"
}
