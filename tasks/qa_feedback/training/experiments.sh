#!/usr/bin/env bash
# One row of the paper's tables: train it, then evaluate it on dev and test.
#   experiments.sh NAME [key=value ...]      NAME is one of the cases below. SCALE=mini runs the row in minutes;
#                                            VARIANT=published runs the RL rows with all published switches
#   experiments.sh plan [key=value ...]      steps, samples and GPU hours of every row, of what is there; nothing is trained
# Requires the SFT policy and the reward models (tasks/qa_feedback/README.md has the order).
source "$(dirname "${BASH_SOURCE[0]}")/../../../scripts/env.sh"

here=tasks/qa_feedback/training
name="${1:-}"
[ $# -gt 0 ] && shift
script=train_finegrained.sh
overrides=()
prefix=""

# The seconds of an RL step were measured at paper scale only, with random weights; docs/runs.md has the keys.
plan() {
    local seconds=() rows=() rl row
    if [ "$SCALE" = paper ]; then
        seconds=(seconds.rl=4.0 "source=one H200, 32 responses per pass: benchmarks/RESULTS.md")
        if [ "${VARIANT:-}" = published ]; then seconds=(seconds.rl=20.6 "source=one H200, baseline: benchmarks/RESULTS.md"); fi
    fi
    rl="$(config_for training/fine_grained_config.yml)"
    rows=(sft:"$(config_for training/sft_config.yml)")
    for row in rel fact; do rows+=(segment:"$(config_for reward_modeling/${row}_rm_config.yml)"); done
    for row in comp baseline; do rows+=(sequence:"$(config_for reward_modeling/${row}_rm_config.yml)"); done
    rows+=(rl:"$(config_for training/baseline_config.yml)@holistic")
    for row in fine_grained without_relevance without_factuality without_completeness relevance_low relevance_middle relevance_high; do
        rows+=(rl:"$rl@$row")
    done
    rows+=(dpo:"$(config_for training/dpo_config.yml)" dpo:"$(config_for training/fine_grained_dpo_config.yml)")
    python -m fgrlhf.cli.main plan "tasks.$TASK" "${rows[@]}" ${seconds[@]+"${seconds[@]}"} "$@"
}

case "$name" in
    plan) plan "$@"; exit ;;
    sft) script= ;;
    sft_full) script=train_sft.sh; overrides=(data.train_file="$DATA_DIR/train.json" logging.save_dir="$OUTPUT_DIR/sft_full") ;;
    holistic) script=train_baseline.sh ;;
    fine_grained) ;;
    without_relevance | without_factuality | without_completeness) overrides=(reward."${name#without_}"_model.weight=0) ;;
    relevance_low) overrides=(reward.relevance_model.weight=0.5) ;;
    relevance_middle) overrides=(reward.relevance_model.weight=1.0) ;;
    relevance_high) overrides=(reward.relevance_model.weight=2.0) ;;
    dpo) script=train_dpo.sh ;;
    fine_grained_dpo) script=train_finegrained_dpo.sh ;;
    corrected_sft) script=train_corrected_sft.sh ;;
    *)
        unknown "\`$name\` is not an experiment" "$name" plan sft sft_full corrected_sft dpo fine_grained_dpo holistic fine_grained \
            without_relevance without_factuality without_completeness relevance_low relevance_middle relevance_high
        ;;
esac
case "$name" in
    fine_grained | holistic | without_* | relevance_*) if [ "${VARIANT:-default}" = published ]; then prefix=published_; fi ;;
esac
case "$name" in without_* | relevance_*) overrides+=(logging.save_dir="$OUTPUT_DIR/$prefix$name" logging.run_name="$prefix$name") ;; esac
case "$name" in
    holistic) folder="$OUTPUT_DIR/${prefix}baseline/best" ;;
    sft | sft_full | corrected_sft) folder="$OUTPUT_DIR/$name" ;;
    *) folder="$OUTPUT_DIR/$prefix$name/best" ;;
esac

if [ -n "$script" ]; then bash "$here/$script" ${overrides[@]+"${overrides[@]}"} "$@"; fi
for split in dev test; do bash "$here/evaluate.sh" policy="$folder" name="$prefix$name" split="$split"; done
