#!/usr/bin/env bash
# Write problems, solutions and judged steps to $DATA_DIR from $DATA_DIR/source (source=... for another folder,
# subset_size=500), and the files of the process reward model.
source "$(dirname "${BASH_SOURCE[0]}")/../../../scripts/env.sh"
needs "$DATA_DIR/source" data/download.sh source "$@"
python -m tasks.reasoning.data.gsm8k source="$DATA_DIR/source" data_dir="$DATA_DIR" "$@"
for split in train dev; do
    python -m reward_modeling.step_files "tasks.$TASK" source="$DATA_DIR/steps_$split.jsonl" output="$DATA_DIR/step/$split.json"
done
