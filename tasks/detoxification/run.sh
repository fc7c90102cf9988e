#!/usr/bin/env bash
# The whole task at mini scale: a language model, the scorer of sentences, RL with a reward after every sentence and with
# the same reward at the end; prints the results before and after. Extra arguments are overrides of both RL configs.
# Stages that are complete are reused.
export SCALE="${SCALE:-mini}"
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/env.sh"
here="tasks/$TASK"
bash "$here/data/make_mini.sh"
bash "$here/training/train_pretrain.sh"
bash "$here/reward_modeling/train_span_rm.sh"
bash "$here/training/train_finegrained.sh" "$@"
bash "$here/training/train_holistic.sh" "$@"
bash "$here/training/evaluate.sh" policy="$OUTPUT_DIR/pretrained" name=initial
bash "$here/training/evaluate.sh" policy="$OUTPUT_DIR/holistic/best" name=holistic
bash "$here/training/evaluate.sh" policy="$OUTPUT_DIR/fine_grained/best" name=fine_grained
