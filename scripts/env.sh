# Common part of all stage scripts. Source it, then call the functions below; a script of one call sources call.sh with it:
#   source "$(dirname "$0")/../../../scripts/call.sh" stage sft.run_sft training/sft_config.yml "train.json" "" "$@"
#
# Input   TASK        the task; NAME for scripts in tasks/NAME/, none for those in scripts/
#         SCALE       paper (default), mini, or any other scale that has configs in the task's folder
#         VARIANT     published: use configs with all published switches if they exist (paper scale only)
#         DATA_DIR    folder of the data, to which only scripts in tasks/$TASK/data write; default tasks/$TASK/data (paper),
#                     $OUTPUT_DIR/data (other scales)
#         OUTPUT_DIR  folder of the results, also of files derived from the data; default outputs/$TASK/$SCALE
#         PROCESSES   processes on a machine without GPUs; default 1
#         NNODES, RDZV_ENDPOINT, RDZV_ID  several machines with GPUs: see `launched` in fgrlhf/cli/stage_script.py
#         FGRLHF_SMALL_MODEL  at small scale, folder of the pretrained language model; default outputs/models/smollm2
# Result  the working directory is the repository's root, `python` is that of the active environment or of .venv,
#         these variables are exported, and the functions below are defined.
# Relative DATA_DIR, OUTPUT_DIR and FGRLHF_SMALL_MODEL are relative to the folder in which the script was started.

set -euo pipefail
unset CDPATH  # `cd` could enter another folder, and would print its path

fail() {
    printf 'error: %s\n' "$*" >&2
    exit 2
}

# Make the caller's relative paths absolute before the `cd` below.
absolute() {
    case "$1" in
        "" | /*) printf '%s\n' "$1" ;;
        *) printf '%s/%s\n' "$PWD" "$1" ;;
    esac
}

DATA_DIR="$(absolute "${DATA_DIR:-}")"
OUTPUT_DIR="$(absolute "${OUTPUT_DIR:-}")"
FGRLHF_SMALL_MODEL="$(absolute "${FGRLHF_SMALL_MODEL:-}")"

# the folder of the script that sources this file, directly or not; its path is relative to the caller's folder
script=""
if [ "${#BASH_SOURCE[@]}" -gt 1 ]; then script="$(cd "$(dirname "${BASH_SOURCE[${#BASH_SOURCE[@]} - 1]}")" && pwd)"; fi

cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Folders in the repository get the same name from wherever a script was started, because a run that is continued must have
# the paths with which it began.
DATA_DIR="${DATA_DIR#"$PWD"/}"
OUTPUT_DIR="${OUTPUT_DIR#"$PWD"/}"

case "$script" in
    "$PWD"/tasks/*) TASK="${script#"$PWD"/tasks/}"; TASK="${TASK%%/*}" ;;
esac
if [ "$script" != "$PWD/scripts" ] && { ! [ -d "tasks/${TASK:-}" ] || [ -z "${TASK:-}" ]; }; then
    fail "TASK=${TASK:-} is not a task: set TASK to the name of a folder below $PWD/tasks."
fi
export TASK="${TASK:-}"

# ignore conda's base environment: it is active by default
if [ -z "${VIRTUAL_ENV:-}" ] && { [ -z "${CONDA_PREFIX:-}" ] || [ "${CONDA_DEFAULT_ENV:-}" = base ]; }; then
    if ! [ -f .venv/.stamp ]; then
        fail "no environment: none is active and $PWD/.venv is not set up. Run \`make setup\` in $PWD."
    fi
    PATH="$PWD/.venv/bin:$PATH"  # not .venv/bin/activate: that one breaks when the checkout is moved
    export PATH VIRTUAL_ENV="$PWD/.venv"
fi

if ! command -v python >/dev/null; then
    fail "the active environment has no program \`python\`. Deactivate it and run \`make setup\` in $PWD."
fi

export SCALE="${SCALE:-paper}"
case "$SCALE" in
    *[!A-Za-z0-9_-]*) fail "SCALE=$SCALE is not a scale: use letters, digits, - and _, such as SCALE=paper (the default) or SCALE=mini." ;;
esac
export OUTPUT_DIR="${OUTPUT_DIR:-outputs/$TASK/$SCALE}"
if [ "$SCALE" = paper ]; then
    export DATA_DIR="${DATA_DIR:-tasks/$TASK/data}"
else
    export DATA_DIR="${DATA_DIR:-$OUTPUT_DIR/data}"
fi
if [ "$SCALE" = small ]; then
    export FGRLHF_SMALL_MODEL="${FGRLHF_SMALL_MODEL:-$PWD/outputs/models/smollm2}"
fi
case "${VARIANT:-}" in
    "") ;;
    published)
        if [ "$SCALE" != paper ]; then
            fail "VARIANT=published is for SCALE=paper only: no other scale was published. Unset VARIANT or SCALE."
        fi
        ;;
    *) fail "VARIANT=$VARIANT is not a variant: set VARIANT=published, or unset it for the defaults." ;;
esac
export TOKENIZERS_PARALLELISM=false
# Threads that wait spin briefly, then sleep: see wait_passively in fgrlhf/cli/main.py.
if [ -z "${OMP_WAIT_POLICY:-}" ]; then
    export OMP_WAIT_POLICY=passive
    export GOMP_SPINCOUNT="${GOMP_SPINCOUNT:-1000}"
fi

# Tiny matrices are slower with two threads than with one, and stages may run at the same time.
if [ "$SCALE" = mini ]; then export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"; fi

# Functions of fgrlhf/cli/stage_script.py.
config_for() { python -m fgrlhf.cli.stage_script config_for "$@"; }
needs() { python -m fgrlhf.cli.stage_script needs "$@"; }
launch() { python -m fgrlhf.cli.stage_script launch "$@"; }
stage() { python -m fgrlhf.cli.stage_script stage "$@"; }
evaluate_policy() { python -m fgrlhf.cli.stage_script evaluate_policy "$@"; }
compare_runs() { python -m fgrlhf.cli.stage_script compare_runs "$@"; }
write_report() { python -m fgrlhf.cli.stage_script write_report "$@"; }
run_task() { python -m fgrlhf.cli.stage_script run_task "$@"; }
setting() { python -m fgrlhf.cli.stage_script setting "$@"; }
unknown() { python -m fgrlhf.cli.stage_script unknown "$@"; }  # MESSAGE NAME KNOWN...: an error with the similar name
run_folder() { setting logging.save_dir "$@"; }  # of a run, by default the first argument

if [ -n "$TASK" ] && [ "$SCALE" != paper ] && [ -z "$(find "tasks/$TASK" -name "${SCALE}_*.yml")" ]; then
    scales=(paper)
    for scale in mini small; do
        if [ -n "$(find "tasks/$TASK" -name "${scale}_*.yml")" ]; then scales+=("$scale"); fi
    done
    unknown "$TASK has no configs of SCALE=$SCALE" "$SCALE" "${scales[@]}"
fi
