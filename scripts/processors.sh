#!/usr/bin/env bash
# Runs the tests that compare numbers as if on other processors: `make processors`. Arguments go to pytest, such as
# `-k gpt2`; PROCESSORS="avx2 sse" selects rows of the table below.
#
# PyTorch, oneDNN and MKL choose their code by the processor's instructions, and each choice adds in another order.
# Environment variables restrict them to older instructions, so one machine can stand for several; it cannot stand for a
# newer one than it is. FGRLHF_KERNELS fixes the library that multiplies large matrices, which is otherwise chosen by its
# speed, and so by chance.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# name, threads, variables
SETTINGS="
native    1 FGRLHF_KERNELS=onednn
threads   2 FGRLHF_KERNELS=onednn
pytorch   2 FGRLHF_KERNELS=pytorch
avx512    1 FGRLHF_KERNELS=onednn ONEDNN_MAX_CPU_ISA=AVX512_CORE
avx2      1 FGRLHF_KERNELS=onednn ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2 MKL_ENABLE_INSTRUCTIONS=AVX2
avx2-two  2 FGRLHF_KERNELS=pytorch ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2 MKL_ENABLE_INSTRUCTIONS=AVX2
sse       1 FGRLHF_KERNELS=onednn ONEDNN_MAX_CPU_ISA=SSE41 ATEN_CPU_CAPABILITY=default MKL_ENABLE_INSTRUCTIONS=SSE4_2
"
# Every test file that compares tensors, except those whose subject is no number.
FILES=$(grep -lE 'assert_close|assert_equal_up_to_rounding' tests/test_*.py | grep -vE 'test_(plots|quantized|real_vllm)\.py')

failed=0
results=""
while read -r name threads variables; do
  [ -n "$name" ] || continue
  [[ " ${PROCESSORS:-$name} " == *" $name "* ]] || continue
  echo "== $name: OMP_NUM_THREADS=$threads $variables"
  log=$(mktemp)
  # shellcheck disable=SC2086  # lists of words
  env OMP_NUM_THREADS="$threads" $variables python -m pytest -q --numprocesses "${WORKERS:-2}" --dist loadfile \
    $FILES "$@" >"$log" 2>&1 </dev/null
  status=$?
  [ "$status" = 0 ] || { failed=1; grep -E '^(FAILED|ERROR)' "$log" || tail -n 20 "$log"; }
  results+=$(printf '%-9s %-8s %s' "$name" "$threads" "$(tail -n 1 "$log" | tr -d '=')")$'\n'
  rm -f "$log"
done <<<"$SETTINGS"
[ -n "$results" ] || { echo "error: PROCESSORS=$PROCESSORS names no row of scripts/processors.sh" >&2; exit 2; }
printf '\n%-9s %-8s %s\n%s' processor threads tests "$results"
exit "$failed"
