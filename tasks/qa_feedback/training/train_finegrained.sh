#!/usr/bin/env bash
# Fine-grained RLHF from the SFT policy and the reward models.
# Further arguments: key=value overrides of the YAML.
source "$(dirname "${BASH_SOURCE[0]}")/../../../scripts/env.sh"
needs "$DATA_DIR/train.json" "$(data_script)" "data.*" "$@"
needs "$OUTPUT_DIR/sft" training/train_sft.sh "model.*" "$@"
needs "$OUTPUT_DIR/rel_rm" reward_modeling/train_rel_rm.sh "reward.relevance_model.*" "$@"
needs "$OUTPUT_DIR/fact_rm" reward_modeling/train_fact_rm.sh "reward.factuality_model.*" "$@"
needs "$OUTPUT_DIR/comp_rm" reward_modeling/train_comp_rm.sh "reward.completeness_model.*" "$@"
launch -m tasks.qa_feedback.training.train_finegrained "$(config_for training/fine_grained_config.yml)" "$@"
