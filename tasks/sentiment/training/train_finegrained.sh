#!/usr/bin/env bash
# RL with a reward after every sentence. Further arguments: key=value overrides of the YAML.
source "$(dirname "$0")/../../../scripts/call.sh" stage fgrlhf.cli.rl training/fine_grained_config.yml "" \
    'small:$FGRLHF_SMALL_MODEL=scripts/get_small_model.sh' "$@"
