#!/usr/bin/env bash
# Train ResNet-50 on MNIST with data parallelism: every rank has the model, and rows of its own.
#
#     sbatch jobs/job_ddp.sh                   or, without Slurm:  bash jobs/job_ddp.sh
#     sbatch --nodes=2 jobs/job_ddp.sh --ranks 4 --batchsize 1024
#
# Arguments reach jobs/train_ranks.py, but for --ranks N: so many on each node (one a GPU).
# What is printed, checkpoints and the report are in results/NAME-JOB. Before its time limit the job saves, and is put
# back into the queue, to go on; a job that loses a node goes on from its last checkpoint.
# What your cluster needs beside this (partition, account, GPUs, modules): see jobs/site.sh.example-*.
#
#SBATCH --job-name=ddp
#SBATCH --output=slurm-%x-%j.out
#SBATCH --open-mode=append
#SBATCH --time=01:00:00
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=2
#SBATCH --requeue
#SBATCH --signal=B:USR1@60

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
source "$root/jobs/ranks.sh"

run_ranks ddp "--batchsize 512" "$@"
