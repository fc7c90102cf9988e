#!/usr/bin/env bash
# The stages of this task: run.sh prepare|sft|ppo|nlpo|evaluate|report|all [key=value ...]. scripts/text_task.sh has them.
source "$(dirname "$0")/../../scripts/text_task.sh"
