#!/usr/bin/env bash
# Use the process reward model at inference: the best of n sampled solutions, and a beam search over steps.
#   search.sh [policy=$OUTPUT_DIR/sft]      SAMPLES=8 is the number of samples, and beams x continuations in the search
source "$(dirname "${BASH_SOURCE[0]}")/../../../scripts/env.sh"
needs "$DATA_DIR/test.json" "" "data_dir split" "$@"
needs "$OUTPUT_DIR/sft" training/train_sft.sh policy "$@"
needs "$OUTPUT_DIR/prm" reward_modeling/train_prm.sh "" "$@"
samples="${SAMPLES:-8}"
scorer="{kind: segment_classifier, ckpt: $OUTPUT_DIR/prm, aggregate: min}"
evaluate() {
    launch -m fgrlhf.cli.evaluate "tasks.$TASK" data_dir="$DATA_DIR" output_dir="$OUTPUT_DIR" \
        config="$(config_for training/process_config.yml)" policy="$OUTPUT_DIR/sft" do_sample=true "$@"
}
evaluate name=samples num_samples="$samples" evaluation_metrics="[{name: score, key: prm, scorer: $scorer, better: high}]" "$@"
python -m fgrlhf.pipeline.best_of_n output_dir="$OUTPUT_DIR" source=samples metric=prm \
    split="$(setting split test "$@")"
evaluate name=search search="{scorer: $scorer, beams: 2, samples: $((samples / 2))}" "$@"
