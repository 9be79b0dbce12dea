#!/usr/bin/env bash
# Train ResNet-50 on MNIST with your own exercise 09.
#
#     sbatch jobs/job_gpipe_exercise.sh                   or, without Slurm:  bash jobs/job_gpipe_exercise.sh
#     sbatch jobs/job_gpipe_exercise.sh --balance_by memory --num_microbatches 12
#
# Arguments reach exercises/09_mnist_gpipe.py.
# What your cluster needs beside this (partition, account, GPUs, modules): see jobs/site.sh.example-*.
#
#SBATCH --job-name=gpipe_exercise
#SBATCH --output=slurm-%x-%j.out
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

run exercises/09_mnist_gpipe.py "--batchsize 512" "$@"
