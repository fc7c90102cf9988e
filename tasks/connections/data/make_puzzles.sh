#!/usr/bin/env bash
# Write puzzles and demonstrations to $DATA_DIR, and at mini scale a tiny random model to $OUTPUT_DIR/base_model.
#   make_puzzles.sh [seed=1 error_rate=0.5 ...]      mini: 3 groups of 3 words; other scales: 4 groups of 4 words
SCALE="${SCALE:-mini}"
source "$(dirname "${BASH_SOURCE[0]}")/../../../scripts/env.sh"
if [ "$SCALE" = mini ]; then
    python -m tasks.connections.data.make_puzzles data_dir="$DATA_DIR" groups=3 size=3 categories=8 words=6 \
        hold_out=groups train=8000 "$@"
    python -m fgrlhf.cli.tiny_model "tasks.$TASK" train_file="$DATA_DIR/train.json" output_dir="$OUTPUT_DIR/base_model" \
        heads=2
else
    python -m tasks.connections.data.make_puzzles data_dir="$DATA_DIR" error_rate=0 "$@"
fi
