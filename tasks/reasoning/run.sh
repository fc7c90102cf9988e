#!/usr/bin/env bash
# The whole task at mini scale: data, SFT, process reward model, RL with the process reward; prints the results after SFT
# and after RL. Extra arguments are overrides of the RL config. Stages that are complete are reused.
export SCALE="${SCALE:-mini}"
source "$(dirname "$0")/../../scripts/call.sh" run_task \
    "data/make_mini.sh training/train_sft.sh reward_modeling/train_prm.sh" training/train_process.sh process/final "$@"
