#!/usr/bin/env bash
# The whole task at mini scale: data, SFT, reward model, PPO; prints the results after SFT and after RL. Extra arguments are
# overrides of the RL config. Stages that are complete are reused.
export SCALE="${SCALE:-mini}"
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/env.sh"
here="tasks/$TASK"
bash "$here/data/make_mini.sh"
bash "$here/training/train_sft.sh"
bash "$here/reward_modeling/train_rm.sh"
echo "after SFT:"
bash "$here/training/evaluate.sh" policy="$OUTPUT_DIR/sft" name=sft
bash "$here/training/train_rl.sh" "$@"
echo "after RL:"
run="$(run_folder "$OUTPUT_DIR/ppo" "$@")"
bash "$here/training/evaluate.sh" policy="$run/best" name="$(basename "$run")"
