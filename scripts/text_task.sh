# The stages of the text tasks (docs/text_tasks.md). The run.sh of a task sources this file:
#   bash tasks/$TASK/run.sh STAGE [key=value ...]
#
#   prepare    prompts from the published set; further arguments are those of `fgrlhf prompts`, such as source=FOLDER.
#              At mini scale: prompts from the fixture, a tiny random model, and scorers if the task has labelled texts
#   sft        supervised fine-tuning; further arguments: key=value overrides of the YAML
#   ppo, nlpo  RL from the supervised policy; likewise
#   evaluate   evaluate the supervised policy and those of PPO and NLPO that exist; with policy=... name=..., that policy
#   report     summarise the evaluated policies, and write $OUTPUT_DIR/report.html
#   all        all of them in this order, without further arguments
#
# Input   the variables of scripts/env.sh; DATA_DIR is $OUTPUT_DIR/data by default, at paper scale too

source "$(dirname "${BASH_SOURCE[0]}")/env.sh"
if [ "$DATA_DIR" = "tasks/$TASK/data" ]; then export DATA_DIR="$OUTPUT_DIR/data"; fi

prepare() {
    if [ "$SCALE" = mini ]; then set -- source=fixture "$@"; fi
    python -m fgrlhf.cli.published "tasks.$TASK" data_dir="$DATA_DIR" "$@"
    if [ "$SCALE" != mini ]; then return; fi
    python -m fgrlhf.cli.tiny_model "tasks.$TASK" train_file="$DATA_DIR/train.json" output_dir="$OUTPUT_DIR/base_model"
    if [ -f "$DATA_DIR/labelled.json" ]; then
        python -m fgrlhf.cli.linear_scorer texts="$DATA_DIR/labelled.json" output_dir="$OUTPUT_DIR/scorers"
    fi
}

rl() {  # NAME.yml arguments...
    needs "$DATA_DIR/train.json" "run.sh prepare" "data.*" "$@"
    # a config with a policy of its own starts from a model of the hub
    if ! grep -qs '^  ckpt:' "$(config_for ppo_config.yml)"; then needs "$OUTPUT_DIR/sft" "run.sh sft" "model.*" "$@"; fi
    stage fgrlhf.cli.rl "$1" "" "" "${@:2}"
}

evaluate() {
    local name
    needs "$DATA_DIR/test.json" "run.sh prepare" "data_dir split" "$@"
    case " $* " in
        *" policy="*) evaluate_policy ppo_config.yml "test.json" "" "$@"; return ;;
    esac
    needs "$OUTPUT_DIR/sft" "run.sh sft" "" "$@"
    evaluate policy="$OUTPUT_DIR/sft" name=sft "$@"
    for name in ppo nlpo; do
        if [ -d "$OUTPUT_DIR/$name/best" ]; then evaluate policy="$OUTPUT_DIR/$name/best" name="$name" "$@"; fi
    done
}

run_stage() {
    case "$1" in
        prepare | evaluate) "$@" ;;
        sft)
            needs "$DATA_DIR/train.json" "run.sh prepare" "data.*" "${@:2}"
            stage sft.run_sft sft_config.yml "" "" "${@:2}"
            ;;
        ppo | nlpo) rl "$1_config.yml" "${@:2}" ;;
        report) write_report "run.sh evaluate" "${@:2}" ;;
        *) fail "\`$1\` is not a stage: bash tasks/$TASK/run.sh prepare|sft|ppo|nlpo|evaluate|report|all [key=value ...]" ;;
    esac
}

if [ "${1:-}" != all ]; then
    run_stage "${1:-}" "${@:2}"
elif [ $# -gt 1 ]; then
    fail "all takes no further arguments, there are ${*:2}. Run the stages one by one to change settings."
else
    for name in prepare sft ppo nlpo evaluate report; do run_stage "$name"; done
fi
