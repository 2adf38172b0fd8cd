#!/usr/bin/env bash
# Train a drafter on the verifier's own output (scripts/distill.sh) by a recipe in config/, or a file.
#
#   scripts/train_drafter.sh BIN_DIR VERIFIER SAVE_DIR [--recipe NAME] [fairseq-train flags ...]
set -euo pipefail
if [ $# -lt 3 ]; then sed -n '2,4s/^# \{0,1\}//p' "$0" >&2; exit 2; fi
exec python3 "$(dirname "$0")/train.py" "$1" --save-dir "$3" --AR-path "$2" \
  --recipe multi30k_drafter "${@:4}"
