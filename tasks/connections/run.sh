#!/usr/bin/env bash
# Puzzles, a random tiny model, SFT on imperfect solutions, then RL; evaluates the policies after SFT and after RL:
#   bash tasks/connections/run.sh                    a reward after every line (dense_config.yml)
#   REWARD=scalar bash tasks/connections/run.sh      the same reward once, at the end (scalar_config.yml)
# Extra arguments are overrides of the RL config. Stages that are complete are reused.
export SCALE="${SCALE:-mini}"
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/env.sh"
reward="${REWARD:-dense}"
run_task "data/make_puzzles.sh training/train_sft.sh" "training/train_$reward.sh" "$reward/best" "$@"
