#!/usr/bin/env bash
# Train an acceptance head, on the verifier's output for sources that the drafter was not trained on.
# It is for strict acceptance, unless --beta B --tau T or --sampling name another rule.
#
#   scripts/train_head.sh BIN_DIR VERIFIER DRAFTER SAVE_DIR [--recipe NAME] [fairseq-train flags ...]
#
# Then specdec-calibrate-head makes acceptance_head.pt of SAVE_DIR/checkpoint_best.pt.
set -euo pipefail
if [ $# -lt 4 ]; then sed -n '2,7s/^# \{0,1\}//p' "$0" >&2; exit 2; fi
exec python3 "$(dirname "$0")/train.py" "$1" --save-dir "$4" --AR-path "$2" --drafter "$3" \
  --recipe multi30k_head "${@:5}"
