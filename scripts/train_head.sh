#!/usr/bin/env bash
# Train the acceptance head of a drafter and its verifier.
#
#   scripts/train_head.sh BIN_DIR VERIFIER DRAFTER SAVE_DIR [--recipe NAME] [fairseq-train flags ...]
#
# BIN_DIR is binarised text, best the verifier's own output (scripts/distill.sh) on sources that the
# drafter was not trained on. The head is for strict acceptance; for another rule give the flags
# that inference will be given, --beta B --tau T or --sampling (then distil with it too). NAME is a
# recipe, config/NAME.yaml (multi30k_head unless another is given), or a file; flags override it.
# Stop it at any time: the same command resumes.
# Then scripts/calibrate_head.py makes acceptance_head.pt of SAVE_DIR/checkpoint_best.pt.
set -euo pipefail
if [ $# -lt 4 ]; then sed -n '2,11s/^# \{0,1\}//p' "$0" >&2; exit 2; fi
bin=$1 verifier=$2 drafter=$3 save=$4; shift 4
here=$(cd "$(dirname "$0")" && pwd)
die() { echo "train_head.sh: $1" >&2; exit 1; }
compgen -G "${bin%%:*}/dict.*.txt" >/dev/null ||
  die "BIN_DIR $bin: holds no dict.*.txt; give the bin/ that prepare_data.sh or distill.sh made"
[ -s "$verifier" ] || die "VERIFIER $verifier: is missing or empty; give a checkpoint"
[ -s "$drafter" ] || die "DRAFTER $drafter: is missing or empty; give a checkpoint"
exec python3 "$here/train.py" "$bin" --save-dir "$save" --AR-path "$verifier" \
  --drafter "$drafter" --recipe multi30k_head "$@"
