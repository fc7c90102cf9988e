#!/usr/bin/env bash
# RL with a reward after every sentence. Further arguments: key=value overrides of the YAML.
source "$(dirname "${BASH_SOURCE[0]}")/../../../scripts/env.sh"
if [ "$SCALE" = small ]; then needs "$FGRLHF_SMALL_MODEL" scripts/get_small_model.sh "model.*" "$@"; fi
stage fgrlhf.cli.rl training/fine_grained_config.yml "" "" "$@"
