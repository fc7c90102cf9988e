#!/usr/bin/env bash
# Write a small world of arithmetic with known first errors, the files of its process reward model, and a tiny random
# model that knows its words. Further arguments: key=value, e.g. seed=1 judged=500
SCALE="${SCALE:-mini}"
source "$(dirname "${BASH_SOURCE[0]}")/../../../scripts/env.sh"
python -m tasks.reasoning.data.mini_world data_dir="$DATA_DIR" "$@"
for split in train dev; do
    python -m reward_modeling.step_files "tasks.$TASK" source="$DATA_DIR/steps_$split.jsonl" output="$DATA_DIR/step/$split.json"
done
python -m fgrlhf.cli.tiny_model "tasks.$TASK" train_file="$DATA_DIR/train.json" output_dir="$OUTPUT_DIR/base_model"
