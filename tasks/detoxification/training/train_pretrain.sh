#!/usr/bin/env bash
# At mini scale: train the tiny model on the corpus; the result is the policy before RL. Further arguments: key=value
# overrides of the YAML. At other scales the policy is a pretrained model.
source "$(dirname "${BASH_SOURCE[0]}")/../../../scripts/env.sh"
needs "$DATA_DIR/corpus.json" "$(data_script)" "data.*" "$@"
launch -m sft.run_sft "tasks.$TASK" "$(config_for training/pretrain_config.yml)" "$@"
