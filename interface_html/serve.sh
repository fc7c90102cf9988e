#!/usr/bin/env bash
# Serves the feedback pages of a task to several annotators, at http://127.0.0.1:8765 unless port=... is given.
#   TASK=NAME bash interface_html/serve.sh items=items.json db=feedback.sqlite per_item=3
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/env.sh"
exec python -m interface_html.serve task="$TASK" "$@"
