# Common part of all stage scripts. Source it, then call the stage's program:
#   source "$(dirname "${BASH_SOURCE[0]}")/../../../scripts/env.sh"
#   stage sft.run_sft training/sft_config.yml "train.json" "" "$@"
#
# Input   TASK        the task; NAME for scripts in tasks/NAME/
#         SCALE       paper (default), mini, or any other scale that has configs
#         VARIANT     published: use configs with all published switches if they exist (paper scale only)
#         DATA_DIR    folder of the data; default tasks/$TASK/data (paper), $OUTPUT_DIR/data (other scales)
#         OUTPUT_DIR  folder of the results; default outputs/$TASK/$SCALE
#         PROCESSES   processes on a machine without GPUs; default 1
#         NNODES, RDZV_ENDPOINT, RDZV_ID  several machines: see `launch`
#         FGRLHF_SMALL_MODEL  at small scale, folder of the pretrained language model; default outputs/models/smollm2
# Result  the working directory is the repository's root, `python` is that of the active environment or of .venv,
#         these variables are exported, and the functions below are defined, such as `needs`, `launch` and `stage`.
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
        /*) printf '%s\n' "$1" ;;
        *) printf '%s/%s\n' "$PWD" "$1" ;;
    esac
}

if [ -n "${DATA_DIR:-}" ]; then DATA_DIR="$(absolute "$DATA_DIR")"; fi
if [ -n "${OUTPUT_DIR:-}" ]; then OUTPUT_DIR="$(absolute "$OUTPUT_DIR")"; fi
if [ -n "${FGRLHF_SMALL_MODEL:-}" ]; then FGRLHF_SMALL_MODEL="$(absolute "$FGRLHF_SMALL_MODEL")"; fi

# the folder of the script that sources this file; its path is relative to the caller's folder
if [ "${#BASH_SOURCE[@]}" -gt 1 ]; then script="$(cd "$(dirname "${BASH_SOURCE[1]}")" && pwd)"; else script=""; fi

cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Folders in the repository get the same name from wherever a script was started, because a run that is continued must have
# the paths with which it began.
if [ -n "${DATA_DIR:-}" ]; then DATA_DIR="${DATA_DIR#"$PWD"/}"; fi
if [ -n "${OUTPUT_DIR:-}" ]; then OUTPUT_DIR="${OUTPUT_DIR#"$PWD"/}"; fi

case "$script" in
    "$PWD"/tasks/*) TASK="${script#"$PWD"/tasks/}"; TASK="${TASK%%/*}" ;;
esac
if ! [ -d "tasks/${TASK:-}" ] || [ -z "${TASK:-}" ]; then
    fail "TASK=${TASK:-} is not a task: set TASK to the name of a folder below $PWD/tasks."
fi
export TASK

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

# config_for training/name.yml prints tasks/$TASK/training/name.yml at paper scale, .../mini_name.yml at mini scale, and
# with VARIANT=published .../published_name.yml if that file exists.
config_for() {
    local folder name path
    folder="tasks/$TASK/$(dirname "$1")"
    folder="${folder%/.}"
    name="$(basename "$1")"
    path="$folder/$name"
    if [ "$SCALE" != paper ]; then
        path="$folder/${SCALE}_$name"
    elif [ "${VARIANT:-}" = published ] && [ -f "$folder/published_$name" ]; then
        path="$folder/published_$name"
    fi
    if ! [ -f "$path" ]; then
        # the program that reads it will fail; list the existing configs
        printf 'note: there is no %s; the configs of this stage are: %s\n' "$path" "$(cd "$folder" 2>/dev/null && echo *"$name")" >&2
    fi
    printf '%s\n' "$path"
}

# needs FILE SCRIPT KEYS arguments...: stop if a file or folder that SCRIPT writes is missing.
# SCRIPT is relative to the task's folder (scripts/... to the repository). KEYS are the keys, as patterns separated by
# spaces, by which the arguments can name another file or make it superfluous; then nothing is checked.
needs() {
    local file="$1" script="tasks/$TASK/$2" key argument
    local -a keys
    case "$2" in scripts/*) script="$2" ;; esac
    if [ -e "$file" ]; then return; fi
    read -ra keys <<<"${3:-}"
    for argument in "${@:4}"; do
        case "$argument" in -h | --help) return ;; esac
        for key in ${keys[@]+"${keys[@]}"}; do
            # shellcheck disable=SC2254  # the key is a pattern
            case "$argument" in $key=*) return ;; esac
        done
    done
    fail "$file is missing. Run \`SCALE=$SCALE bash $script\` first, with the same DATA_DIR and OUTPUT_DIR if they are set."
}

# needs_at SCALE ...: `needs ...` at this scale only.
needs_at() {
    if [ "$SCALE" = "$1" ]; then needs "${@:2}"; fi
}

# data_script prints the script that writes the task's data at this scale, relative to the task's folder.
data_script() {
    # shellcheck disable=SC2046  # names without spaces
    first_script data/{"make_$SCALE",prepare,download}.sh $(cd "tasks/$TASK" && echo data/make_*.sh) run.sh
}

# first_script NAME...: print the first of these scripts of the task that exists.
first_script() {
    local script
    for script in "$@"; do
        if [ -f "tasks/$TASK/$script" ]; then
            printf '%s\n' "$script"
            return
        fi
    done
    printf 'data\n'
}

# needs_model NAME KEYS arguments...: stop if the model $OUTPUT_DIR/NAME is missing, which the script train_NAME.sh trains.
needs_model() { needs "$OUTPUT_DIR/$1" "$(first_script {training,reward_modeling}/"train_$1.sh")" "$2" "${@:3}"; }

# run_folder DEFAULT overrides...: print the run's folder, which is logging.save_dir if it is among the overrides.
run_folder() {
    local folder="$1" argument
    shift
    for argument in "$@"; do
        case "$argument" in logging.save_dir=*) folder="${argument#logging.save_dir=}" ;; esac
    done
    printf '%s\n' "$folder"
}

# Print the number of GPUs to use: those in CUDA_VISIBLE_DEVICES, else those that the driver lists.
gpu_count() {
    if ! command -v nvidia-smi >/dev/null; then
        echo 0
    elif [ -n "${CUDA_VISIBLE_DEVICES+set}" ]; then
        local -a devices
        IFS=, read -ra devices <<<"$CUDA_VISIBLE_DEVICES"
        if [ "${devices[0]:-}" = -1 ]; then echo 0; else echo "${#devices[@]}"; fi
    else
        { nvidia-smi -L 2>/dev/null || true; } | grep -c '^GPU ' || true
    fi
}

# launch [-m] program arguments...: run one process per GPU, or PROCESSES of them without GPUs. Mini models are too small
# for several GPUs.
# With NNODES=2 or more, this is one of several machines with as many GPUs each, which see the same folders: run the same
# command on all of them, with RDZV_ENDPOINT=HOST:PORT, a free port of the first machine. Runs with the same RDZV_ENDPOINT
# at the same time need different values of RDZV_ID, which is fgrlhf by default.
launch() {
    local gpus
    gpus="$(gpu_count)"
    case "${PROCESSES:-1}" in *[!0-9]* | 0*) fail "PROCESSES=$PROCESSES is not a number of processes." ;; esac
    if [ "${NNODES:-1}" != 1 ]; then
        launch_on_nodes "$gpus" "$@"
    elif [ "$gpus" -gt 1 ] && [ "$SCALE" = paper ]; then
        python -m fgrlhf.cli.torchrun --standalone --nproc_per_node "$gpus" "$@"
    elif [ "$gpus" -eq 0 ] && [ "${PROCESSES:-1}" != 1 ]; then
        ACCELERATE_USE_CPU=true python -m fgrlhf.cli.torchrun --standalone --nproc_per_node "$PROCESSES" "$@"
    else
        python "$@"
    fi
}

# stage PROGRAM NAME.yml FILES MODELS arguments...: train on the task with the config of this scale. It needs the FILES of
# $DATA_DIR and the MODELS of $OUTPUT_DIR, which are `sft` or reward models; both are lists separated by spaces.
stage() {
    local file model
    for file in $3; do needs "$DATA_DIR/$file" "$(data_script)" "data.*" "${@:5}"; done
    for model in $4; do
        if [ "$model" = sft ]; then needs_model sft "model.*" "${@:5}"; else needs_model "$model" "reward.*" "${@:5}"; fi
    done
    launch -m "$1" "tasks.$TASK" "$(config_for "$2")" "${@:5}"
}

# evaluate_policy NAME.yml MODELS arguments...: evaluate a policy on the task's prompts by the rewards of the config of this scale,
# which need the reward MODELS.
evaluate_policy() {
    local model
    needs "$DATA_DIR/test.json" "$(data_script)" "data_dir split" "${@:3}"
    for model in $2; do needs_model "$model" "config reward" "${@:3}"; done
    launch -m fgrlhf.cli.evaluate "tasks.$TASK" data_dir="$DATA_DIR" output_dir="$OUTPUT_DIR" config="$(config_for "$1")" "${@:3}"
}

# write_report SCRIPT arguments...: summarise the policies that SCRIPT has evaluated, and write $OUTPUT_DIR/report.html.
write_report() {
    needs "$OUTPUT_DIR/eval" "$1" "" "${@:2}"
    python -m fgrlhf.pipeline.summary "tasks.$TASK" output_dir="$OUTPUT_DIR" scale="$SCALE"
    python -m fgrlhf.report.page "$OUTPUT_DIR" task="tasks.$TASK" "${@:2}"
}

launch_on_nodes() {
    local processes="$1"
    shift
    case "$NNODES" in *[!0-9]* | 0*) fail "NNODES=$NNODES is not a number of machines." ;; esac
    if [ -z "${RDZV_ENDPOINT:-}" ]; then
        fail "NNODES=$NNODES needs RDZV_ENDPOINT=HOST:PORT, a free port of the first machine, the same on all of them."
    fi
    if [ "$processes" -eq 0 ]; then
        processes=1
        export ACCELERATE_USE_CPU=true
    fi
    python -m fgrlhf.cli.torchrun --nnodes "$NNODES" --nproc_per_node "$processes" --rdzv_backend c10d \
        --rdzv_id "${RDZV_ID:-fgrlhf}" --rdzv_endpoint "$RDZV_ENDPOINT" "$@"
}

# Tiny matrices are slower with two threads than with one, and stages may run at the same time.
if [ "$SCALE" = mini ] && [ "$(gpu_count)" -eq 0 ]; then
    export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
fi
