#!/usr/bin/env bash
# Continue the SFT policy's training on the corrected answers of the feedback file: $OUTPUT_DIR/corrected_sft.
# Further arguments: key=value overrides of the YAML.
source "$(dirname "${BASH_SOURCE[0]}")/../../../scripts/env.sh"
needs "$DATA_DIR/train_feedback.json" "" "" "$@"
needs "$OUTPUT_DIR/sft" training/train_sft.sh "model.*" "$@"
python -m tasks.qa_feedback.training.corrected_examples feedback="$DATA_DIR/train_feedback.json" questions="$DATA_DIR/train.json" \
    out="$OUTPUT_DIR/derived/train_corrected.json"
launch -m sft.run_sft "$(config_for training/corrected_sft_config.yml)" "$@"
