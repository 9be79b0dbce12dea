#!/usr/bin/env bash
# Train with every setting of a grid, each a task of its own, and put speed and memory into one table and one picture.
#
#     sbatch jobs/job_sweep.sh                   or, without Slurm, one after the other:  bash jobs/job_sweep.sh
#     sbatch --array=0-5 jobs/job_sweep.sh --num_microbatches 2 4 8 --batchsize 128 256 --balance_by time
#     sbatch --array=3,5 jobs/job_sweep.sh ... the same arguments: those two again
#
# A flag with several values varies; all flags reach solutions/09_mnist_gpipe.py, but for --out FOLDER: where reports,
# table and picture go (default: results/sweep-..., the same for the same arguments).
# The task that ends last makes the table; `./workshop.py sweep FOLDER` makes it again, at any time.
# What your cluster needs beside this (partition, account, GPUs, modules): see jobs/site.sh.example-*.
#
#SBATCH --job-name=sweep
#SBATCH --output=slurm-%x-%A_%a.out
#SBATCH --array=0-7
#SBATCH --time=01:00:00
#SBATCH --nodes=1
#SBATCH --ntasks=1

# Slurm runs a copy of this file from a folder of its own, so look where the job was submitted, too.
for root in "$(dirname "${BASH_SOURCE[0]}")/.." "${SLURM_SUBMIT_DIR:-.}" "${SLURM_SUBMIT_DIR:-.}/.."; do
    [[ -f $root/jobs/common.sh && -f $root/workshop.py ]] && break
    root=
done
if [[ -z $root ]]; then
    echo "The kit is not here: submit the job from its folder, the one with workshop.py in it." >&2
    exit 1
fi
source "$root/jobs/common.sh"

# The grid, unless arguments say otherwise: 2 x 2 x 2 runs.
choose_size "--batchsize 256 512" "--batchsize 32 64 --samples 128"
"$python" -m fewgpu.workshop.sweep_run solutions/09_mnist_gpipe.py \
    --balance_by time memory --num_microbatches 2 8 "${size[@]}" "$@"
