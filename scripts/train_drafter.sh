#!/usr/bin/env bash
# Train a block_causal drafter for a verifier.
#
#   scripts/train_drafter.sh BIN_DIR VERIFIER SAVE_DIR [fairseq-train flags ...]
#
# BIN_DIR is binarised text, best the verifier's own output (scripts/distill.sh). The defaults are
# close to those of the shipped Multi30k pair, whose card has the differences: the widths are the
# verifier's, whose encoder and target table are shared. Flags given after SAVE_DIR override them.
# The checkpoint kept as best is the one with the highest acceptance length on the valid set. Stop
# it at any time: the same command resumes.
set -euo pipefail
if [ $# -lt 3 ]; then sed -n '2,10s/^# \{0,1\}//p' "$0" >&2; exit 2; fi
bin=$1 verifier=$2 save=$3; shift 3
here=$(cd "$(dirname "$0")/.." && pwd)
die() { echo "train_drafter.sh: $1" >&2; exit 1; }
compgen -G "${bin%%:*}/dict.*.txt" >/dev/null ||
  die "BIN_DIR $bin: holds no dict.*.txt; give the bin/ that prepare_data.sh or distill.sh made"
[ -s "$verifier" ] || die "VERIFIER $verifier: is missing or empty; give a checkpoint"
exec fairseq-train "$bin" --save-dir "$save" --user-dir "$here/specdec_plugins" \
  --task translation_specdec --AR-path "$verifier" --noise block_mask --block-size 12 \
  --blocks-per-sentence 4 --start-p 0 --minus-p 0 \
  --arch block_causal --share-verifier-encoder --verifier-features --previous-token-head \
  --encoder-embed-dim 256 --verifier-embed-dim 256 \
  --decoder-layers 2 --decoder-embed-dim 256 --decoder-ffn-embed-dim 512 \
  --decoder-attention-heads 4 --decoder-normalize-before --dropout 0 \
  --criterion glat_loss --verifier-labels --slot-decay 4 \
  --optimizer adam --adam-betas '(0.9, 0.98)' --clip-norm 1.0 \
  --lr 2e-3 --lr-scheduler polynomial_decay --warmup-updates 500 \
  --total-num-update 20000 --max-update 20000 --max-tokens 6500 --max-tokens-valid 16000 \
  --save-interval-updates 1000 --keep-interval-updates 3 --no-epoch-checkpoints \
  --validate-interval 1000 --save-interval 1000 --best-checkpoint-metric acceptance_length \
  --maximize-best-checkpoint-metric --seed 1 --log-format simple --log-interval 100 "$@"
