#!/usr/bin/env bash
# At mini scale: train the tiny model on the corpus; the result is the policy before RL. Further arguments: key=value
# overrides of the YAML. At other scales the policy is a pretrained model.
source "$(dirname "$0")/../../../scripts/call.sh" stage sft.run_sft training/pretrain_config.yml "corpus.json" "" "$@"
