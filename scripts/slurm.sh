#!/usr/bin/env bash
#SBATCH --ntasks-per-node=1
#SBATCH --output=slurm-%j.log
#SBATCH --open-mode=append
#SBATCH --requeue
# A stage on one or more machines of a SLURM cluster, with one process per GPU. Submit it from the repository's root, which
# all machines must see:
#   sbatch --nodes=2 --gpus-per-node=8 --cpus-per-task=32 --time=24:00:00 scripts/slurm.sh tasks/qa_feedback/training/train_finegrained.sh
# Further arguments are those of the stage's script. SCALE, DATA_DIR and OUTPUT_DIR are taken from the environment. A job that
# SLURM puts back into the queue continues from its last checkpoint.
set -euo pipefail

for variable in SLURM_JOB_ID SLURM_SUBMIT_DIR SLURM_JOB_NODELIST SLURM_JOB_NUM_NODES; do
    if [ -z "${!variable:-}" ]; then
        echo "error: this is a job script, which only sbatch can start ($variable is not set):" \
            "sbatch --nodes=2 --gpus-per-node=8 $0 SCRIPT [key=value ...]" >&2
        exit 2
    fi
done
if [ "$#" -eq 0 ]; then
    echo "error: name the stage's script: scripts/slurm.sh tasks/TASK/training/SCRIPT.sh [key=value ...]" >&2
    exit 2
fi

cd "$SLURM_SUBMIT_DIR"
if ! [ -f "$1" ]; then
    echo "error: there is no script $1 in $PWD, where sbatch was called. Submit from the repository's root, and check the" \
        "name; the scripts beside it are: $(cd "$(dirname "$1")" 2>/dev/null && echo *.sh)" >&2
    exit 2
fi
hosts="$(scontrol show hostnames "$SLURM_JOB_NODELIST")"
export NNODES="$SLURM_JOB_NUM_NODES"
export RDZV_ID="$SLURM_JOB_ID"
# Jobs that share a machine have different ports.
export RDZV_ENDPOINT="${hosts%%$'\n'*}:$((20000 + SLURM_JOB_ID % 10000))"
# srun does not take the number of CPUs from sbatch.
export SRUN_CPUS_PER_TASK="${SLURM_CPUS_PER_TASK:-1}"
# If one machine fails, the others would wait for it.
exec srun --ntasks="$NNODES" --ntasks-per-node=1 --kill-on-bad-exit=1 bash "$@"
