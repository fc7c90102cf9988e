#!/usr/bin/env bash
# DPO from the SFT policy on corrected over predicted answers, marked spans weighted. Extra arguments: key=value overrides of the YAML.
source "$(dirname "${BASH_SOURCE[0]}")/../../../scripts/env.sh"
launch -m fgrlhf.cli.dpo tasks.qa_feedback "$(config_for tasks/qa_feedback/training/fine_grained_dpo_config.yml)" "$@"
