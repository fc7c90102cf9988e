#!/usr/bin/env bash
# A random tiny model, SFT on imperfect solutions, then RL; prints the share of solved puzzles after SFT and after RL:
#   bash tasks/hanoi/run.sh              a reward for every move (mini_dense_config.yml)
#   REWARD=scalar bash tasks/hanoi/run.sh         a reward for solved puzzles (mini_scalar_config.yml)
# Extra arguments are overrides of the RL config. Stages that are complete are reused.
export SCALE="${SCALE:-mini}"
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/env.sh"

reward="${REWARD:-dense}"
config="$(config_for "${reward}_config.yml")"
evaluate() {
    launch -m fgrlhf.cli.evaluate "tasks.$TASK" policy="$1" name="$2" config="$config" output_dir="$OUTPUT_DIR" num_samples=4
}

launch -m fgrlhf.cli.tiny_model "tasks.$TASK" output_dir="$OUTPUT_DIR/base_model"
launch -m "tasks.$TASK.data.demonstrations" file="$OUTPUT_DIR/demonstrations.json"
launch -m sft.run_sft "$(config_for sft_config.yml)"
echo "after SFT:"
evaluate "$OUTPUT_DIR/sft" sft
launch -m fgrlhf.cli.rl "tasks.$TASK" "$config" "$@"
echo "after RL:"
run="$(run_folder "$OUTPUT_DIR/$reward" "$@")"
evaluate "$run/best" "$(basename "$run")"
