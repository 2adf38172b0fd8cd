#!/usr/bin/env bash
# Train a verifier, an ordinary fairseq Transformer, by a recipe: config/NAME.yaml, or a file.
#
#   scripts/train_verifier.sh BIN_DIR SAVE_DIR [--recipe NAME] [fairseq-train flags ...]
set -euo pipefail
if [ $# -lt 2 ]; then sed -n '2,4s/^# \{0,1\}//p' "$0" >&2; exit 2; fi
exec python3 "$(dirname "$0")/train.py" "$1" --save-dir "$2" --recipe multi30k_verifier "${@:3}"
