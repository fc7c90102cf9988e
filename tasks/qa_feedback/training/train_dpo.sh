#!/usr/bin/env bash
# DPO from the SFT policy on the feedback file, without reward models. Extra arguments: key=value overrides of the YAML.
#   train_dpo.sh                                          corrected over predicted answers, marked spans weigh more
#   train_dpo.sh data.pairs=preference dpo.span_weight=1  comparisons between predicted answers
source "$(dirname "${BASH_SOURCE[0]}")/../../../scripts/env.sh"
launch -m tasks.qa_feedback.training.train_dpo "$(config_for tasks/qa_feedback/training/dpo_config.yml)" "$@"
