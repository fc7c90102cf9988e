#!/usr/bin/env bash
# Train a random tiny model on both games and print its rewards before and after: bash tasks/numbers/run.sh
# Extra arguments are overrides of mini_rl_config.yml, such as train.seed=1.
export SCALE="${SCALE:-mini}"
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/env.sh"

words="$(seq -s ' ' 1 31) Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec $(seq -s ' ' 2001 2012)"
launch -m fgrlhf.cli.tiny_model "tasks.$TASK" output_dir="$OUTPUT_DIR/base_model" words="$words"
echo "before:"
evaluate_policy rl_config.yml "" "" policy="$OUTPUT_DIR/base_model" name=base_model
stage fgrlhf.cli.rl rl_config.yml "" "" "$@"
echo "after:"
run="$(run_folder "$OUTPUT_DIR/rl" "$@")"
evaluate_policy rl_config.yml "" "" policy="$run/best" name="$(basename "$run")"
