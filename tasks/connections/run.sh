#!/usr/bin/env bash
# Puzzles, a random tiny model, SFT on imperfect solutions, then RL; evaluates the policies after SFT and after RL:
#   bash tasks/connections/run.sh                    a reward after every line (dense_config.yml)
#   REWARD=scalar bash tasks/connections/run.sh      the same reward once, at the end (scalar_config.yml)
# Extra arguments are overrides of the RL config. Stages that are complete are reused.
export SCALE="${SCALE:-mini}"
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/env.sh"

reward="${REWARD:-dense}"
config="$(config_for "training/${reward}_config.yml")"
evaluate() {
    launch -m fgrlhf.cli.evaluate "tasks.$TASK" policy="$1" name="$2" config="$(config_for training/dense_config.yml)" \
        data_dir="$DATA_DIR" output_dir="$OUTPUT_DIR" num_samples=4
}

bash "tasks/$TASK/data/make_puzzles.sh"
launch -m sft.run_sft "tasks.$TASK" "$(config_for training/sft_config.yml)"
echo "after SFT:"
evaluate "$OUTPUT_DIR/sft" sft
launch -m fgrlhf.cli.rl "tasks.$TASK" "$config" "$@"
echo "after RL:"
run="$(run_folder "$OUTPUT_DIR/$reward" "$@")"
evaluate "$run/best" "$(basename "$run")"
