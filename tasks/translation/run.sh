#!/usr/bin/env bash
# The whole task at mini scale: data, SFT, the reward models of spans and omissions, RL with severities; prints the results
# after SFT and after RL. Extra arguments are overrides of the RL config. Stages that are complete are reused.
export SCALE="${SCALE:-mini}"
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/env.sh"
here="tasks/$TASK"
bash "$here/data/make_mini.sh"
bash "$here/training/train_sft.sh"
bash "$here/reward_modeling/train_span_rm.sh"
bash "$here/reward_modeling/train_omission_rm.sh"
echo "after SFT:"
bash "$here/training/evaluate.sh" policy="$OUTPUT_DIR/sft" name=sft
bash "$here/training/train_spans.sh" "$@"
echo "after RL:"
run="$(run_folder "$OUTPUT_DIR/spans" "$@")"
bash "$here/training/evaluate.sh" policy="$run/final" name="$(basename "$run")"
