#!/usr/bin/env bash
# Serve the feedback pages of a task to several annotators, by default at http://127.0.0.1:8765 (port=...).
#   TASK=NAME bash interface_html/serve.sh items=items.json db=feedback.sqlite per_item=3
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/env.sh"
exec python -m interface_html.serve task="$TASK" "$@"
