#!/usr/bin/env bash
# Train a drafter for a verifier.
#
#   scripts/train_drafter.sh BIN_DIR VERIFIER SAVE_DIR [--recipe NAME] [fairseq-train flags ...]
#
# BIN_DIR is binarised text, best the verifier's own output (scripts/distill.sh). NAME is a recipe,
# config/NAME.yaml (multi30k_drafter, a block_causal drafter, unless another is given:
# wmt_cpu_drafter, wmt_cpu_block, wmt14_block_causal, wmt14_block, wmt16_block_causal, wmt16_block),
# or a file. Flags override it; --no-SWITCH turns off a switch that it turns on. The checkpoint kept
# as best is the one with the highest acceptance length on the valid set. Stop it at any time: the
# same command resumes.
set -euo pipefail
if [ $# -lt 3 ]; then sed -n '2,12s/^# \{0,1\}//p' "$0" >&2; exit 2; fi
bin=$1 verifier=$2 save=$3; shift 3
here=$(cd "$(dirname "$0")" && pwd)
die() { echo "train_drafter.sh: $1" >&2; exit 1; }
compgen -G "${bin%%:*}/dict.*.txt" >/dev/null ||
  die "BIN_DIR $bin: holds no dict.*.txt; give the bin/ that prepare_data.sh or distill.sh made"
[ -s "$verifier" ] || die "VERIFIER $verifier: is missing or empty; give a checkpoint"
exec python3 "$here/train.py" "$bin" --save-dir "$save" --AR-path "$verifier" \
  --recipe multi30k_drafter "$@"
