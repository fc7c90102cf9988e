#!/usr/bin/env bash
# The stages of this task: run.sh prepare|sft|ppo|nlpo|evaluate|report|all [key=value ...]. tasks/text_stages.py has them.
source "$(dirname "$0")/../../scripts/call.sh" python -m tasks.text_stages "$@"
