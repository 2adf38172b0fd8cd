#!/usr/bin/env bash
# Train the acceptance head of a drafter and its verifier.
#
#   scripts/train_head.sh BIN_DIR VERIFIER DRAFTER SAVE_DIR [fairseq-train flags ...]
#
# BIN_DIR is binarised text, best the verifier's own output (scripts/distill.sh) on sources that the
# drafter was not trained on. The head is for strict acceptance; for another rule give the flags
# that inference will be given, --beta B --tau T or --sampling (then distil with it too). Stop it at
# any time: the same command resumes.
# Then scripts/calibrate_head.py makes acceptance_head.pt of SAVE_DIR/checkpoint_best.pt.
set -euo pipefail
if [ $# -lt 4 ]; then sed -n '2,10s/^# \{0,1\}//p' "$0" >&2; exit 2; fi
bin=$1 verifier=$2 drafter=$3 save=$4; shift 4
here=$(cd "$(dirname "$0")/.." && pwd)
die() { echo "train_head.sh: $1" >&2; exit 1; }
compgen -G "${bin%%:*}/dict.*.txt" >/dev/null ||
  die "BIN_DIR $bin: holds no dict.*.txt; give the bin/ that prepare_data.sh or distill.sh made"
[ -s "$verifier" ] || die "VERIFIER $verifier: is missing or empty; give a checkpoint"
[ -s "$drafter" ] || die "DRAFTER $drafter: is missing or empty; give a checkpoint"
exec fairseq-train "$bin" --save-dir "$save" --user-dir "$here/specdec_plugins" \
  --task translation_specdec --AR-path "$verifier" --drafter "$drafter" \
  --arch acceptance_head --head-layers 3 --criterion acceptance_loss --mismatch-weight 6 \
  --blocks-per-sentence 4 \
  --optimizer adam --adam-betas '(0.9, 0.98)' --clip-norm 1.0 --weight-decay 0.01 \
  --lr 1e-3 --lr-scheduler polynomial_decay --warmup-updates 50 \
  --total-num-update 500 --max-update 500 --max-tokens 1500 --max-tokens-valid 4000 \
  --save-interval-updates 250 --keep-interval-updates 1 --no-epoch-checkpoints \
  --validate-interval 1000 --save-interval 1000 \
  --seed 1 --log-format simple --log-interval 50 "$@"
