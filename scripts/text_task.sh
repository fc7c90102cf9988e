# The stages of the text tasks (docs/text_tasks.md). The run.sh of a task sources env.sh, then this file:
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

if [ "$DATA_DIR" = "tasks/$TASK/data" ]; then export DATA_DIR="$OUTPUT_DIR/data"; fi

prepare() {
    if [ "$SCALE" = mini ]; then set -- source=fixture "$@"; fi
    python -m fgrlhf.cli.published "tasks.$TASK" data_dir="$DATA_DIR" "$@"
    if [ "$SCALE" = mini ]; then
        python -m fgrlhf.cli.tiny_model "tasks.$TASK" train_file="$DATA_DIR/train.json" output_dir="$OUTPUT_DIR/base_model"
        if [ -f "$DATA_DIR/labelled.json" ]; then
            python -m fgrlhf.cli.linear_scorer texts="$DATA_DIR/labelled.json" output_dir="$OUTPUT_DIR/scorers"
        fi
    fi
}

sft() {
    needs "$DATA_DIR/train.json" "run.sh prepare" "data.*" "$@"
    launch -m sft.run_sft "tasks.$TASK" "$(config_for sft_config.yml)" "$@"
}

ppo() { rl "$(config_for ppo_config.yml)" "$@"; }

nlpo() { rl "$(config_for nlpo_config.yml)" "$@"; }

rl() {
    local config="$1"
    shift
    needs "$DATA_DIR/train.json" "run.sh prepare" "data.*" "$@"
    # some configs begin with a model of the hub
    if grep -qF '${OUTPUT_DIR}/sft' "$config"; then needs "$OUTPUT_DIR/sft" "run.sh sft" "model.*" "$@"; fi
    launch -m fgrlhf.cli.rl "tasks.$TASK" "$config" "$@"
}

evaluate_with() {
    launch -m fgrlhf.cli.evaluate "tasks.$TASK" config="$(config_for ppo_config.yml)" data_dir="$DATA_DIR" \
        output_dir="$OUTPUT_DIR" "$@"
}

evaluate() {
    local name
    case " $* " in
        *" policy="*) evaluate_with "$@" ;;
        *)
            needs "$DATA_DIR/test.json" "run.sh prepare" "data_dir split" "$@"
            needs "$OUTPUT_DIR/sft" "run.sh sft" "" "$@"
            evaluate_with policy="$OUTPUT_DIR/sft" name=sft "$@"
            for name in ppo nlpo; do
                if [ -d "$OUTPUT_DIR/$name/best" ]; then evaluate_with policy="$OUTPUT_DIR/$name/best" name="$name" "$@"; fi
            done
            ;;
    esac
}

report() { write_report "run.sh evaluate" "$@"; }

stage="${1:-}"
if [ $# -gt 0 ]; then shift; fi
case "$stage" in
    prepare | sft | ppo | nlpo | evaluate | report) "$stage" "$@" ;;
    all)
        if [ $# -gt 0 ]; then fail "all takes no further arguments, there are $*. Run the stages one by one to change settings."; fi
        prepare
        sft
        ppo
        nlpo
        evaluate
        report
        ;;
    *) fail "\`$stage\` is not a stage: bash tasks/$TASK/run.sh prepare|sft|ppo|nlpo|evaluate|report|all [key=value ...]" ;;
esac
