#!/usr/bin/env bash
# RL with the same reward once, at the end of the response. Further arguments: key=value overrides of the YAML.
source "$(dirname "$0")/../../../scripts/call.sh" stage fgrlhf.cli.rl training/holistic_config.yml "" \
    'small:$FGRLHF_SMALL_MODEL=scripts/get_small_model.sh' "$@"
