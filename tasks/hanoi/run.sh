#!/usr/bin/env bash
# A random tiny model, SFT on imperfect solutions, then RL; prints the share of solved puzzles after SFT and after RL:
#   bash tasks/hanoi/run.sh              a reward for every move (mini_dense_config.yml)
#   REWARD=scalar bash tasks/hanoi/run.sh         a reward for solved puzzles (mini_scalar_config.yml)
# Extra arguments are overrides of the RL config. Stages that are complete are reused.
export SCALE="${SCALE:-mini}"
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/env.sh"
reward="${REWARD:-dense}"
evaluate() { evaluate_policy "${reward}_config.yml" "" "" num_samples=4 "$@"; }

launch -m fgrlhf.cli.tiny_model "tasks.$TASK" output_dir="$OUTPUT_DIR/base_model"
launch -m "tasks.$TASK.data.demonstrations" file="$OUTPUT_DIR/demonstrations.json"
launch -m sft.run_sft "$(config_for sft_config.yml)"
echo "after SFT:"
evaluate policy="$OUTPUT_DIR/sft" name=sft
stage fgrlhf.cli.rl "${reward}_config.yml" "" "" "$@"
echo "after RL:"
run="$(run_folder "$OUTPUT_DIR/$reward" "$@")"
evaluate policy="$run/best" name="$(basename "$run")"
