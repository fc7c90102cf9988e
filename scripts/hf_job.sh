#!/usr/bin/env bash
# A command on a rented GPU of Hugging Face Jobs. Call it from a folder that holds only your files (config, prompts, rewards):
#   RESULTS=OWNER/BUCKET bash path/to/scripts/hf_job.sh fgrlhf rl config.yml
# The job gets the library's last commit and a copy of that folder, and runs the command in it. What it writes to outputs/ is
# copied to the bucket when it ends, or ten minutes before its time is over; another job with the same RESULTS continues.
# Input   RESULTS  the bucket of the results (create it with `hf buckets create OWNER/BUCKET`)
#         FLAVOR   the hardware, one of `hf jobs hardware`; default h200
#         HOURS    time limit; default 8
#         DRY_RUN  1: only print the job
set -euo pipefail

fail() {
    printf 'error: %s\n' "$*" >&2
    exit 2
}

library="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
hours="${HOURS:-8}"
if [ "$#" -eq 0 ]; then fail "name the command: RESULTS=OWNER/BUCKET bash $0 fgrlhf rl config.yml"; fi
case "${RESULTS:-}" in
    ?*/?*) ;;
    *) fail "RESULTS=${RESULTS:-} is not a bucket: set RESULTS=OWNER/BUCKET (\`hf buckets create OWNER/BUCKET\` makes one)" ;;
esac
case "$hours" in
    *[!0-9]* | 0*) fail "HOURS=$hours is not a number of hours: set HOURS=8, for example" ;;
esac
if [ "$PWD" -ef "$library" ]; then
    fail "this is the library's folder, which the job gets anyway: call $0 from a folder that holds only your files"
fi
if ! command -v hf >/dev/null; then fail "there is no program hf: activate $library/.venv"; fi

# shellcheck disable=SC2016  # the job expands it
inside='set -euo pipefail
cp -r /library /fgrlhf
cp -r /mine /work
mkdir -p /work/outputs
cp -r /results/. /work/outputs
make -C /fgrlhf setup
source /fgrlhf/.venv/bin/activate
cd /work
trap "cp -r outputs/. /results" EXIT
timeout --signal=INT "$MINUTES"m "$@"'

copy="$(mktemp -d)"
trap 'rm -rf "$copy"' EXIT
git -C "$library" archive HEAD | tar -x -C "$copy"
hf jobs run ${DRY_RUN:+--dry-run} --flavor "${FLAVOR:-h200}" --timeout "${hours}h" --env MINUTES="$((hours * 60 - 10))" \
    --secrets HF_TOKEN --volume "$copy:/library:ro" --volume "$PWD:/mine:ro" --volume "hf://buckets/$RESULTS:/results" \
    python:3.11 bash -c "$inside" job "$@"
