#!/usr/bin/env bash
# Train the verifier: an ordinary fairseq Transformer.
#
#   scripts/train_verifier.sh BIN_DIR SAVE_DIR [fairseq-train flags ...]
#
# The defaults are those of the shipped Multi30k pair; flags given after SAVE_DIR override
# them. Stop it at any time: the same command resumes from SAVE_DIR/checkpoint_last.pt.
set -euo pipefail
if [ $# -lt 2 ]; then sed -n '2,7s/^# \{0,1\}//p' "$0" >&2; exit 2; fi
bin=$1 save=$2; shift 2
here=$(cd "$(dirname "$0")/.." && pwd)
die() { echo "train_verifier.sh: $1" >&2; exit 1; }
compgen -G "${bin%%:*}/dict.*.txt" >/dev/null ||
  die "BIN_DIR $bin: holds no dict.*.txt; give the bin/ that prepare_data.sh or distill.sh made"
# With the plugin's task the checkpoint says which dictionaries it was trained with, no sentence is left
# out, and stock fairseq can resume on torch 2.6 and later.
exec fairseq-train "$bin" --save-dir "$save" --user-dir "$here/specdec_plugins" --task translation_specdec --arch transformer \
  --encoder-layers 3 --decoder-layers 4 \
  --encoder-embed-dim 256 --encoder-ffn-embed-dim 512 --encoder-attention-heads 4 \
  --decoder-embed-dim 256 --decoder-ffn-embed-dim 512 --decoder-attention-heads 4 \
  --encoder-normalize-before --decoder-normalize-before --share-all-embeddings \
  --dropout 0.2 --criterion label_smoothed_cross_entropy --label-smoothing 0.1 \
  --optimizer adam --adam-betas '(0.9, 0.98)' --clip-norm 1.0 \
  --lr 2e-3 --lr-scheduler polynomial_decay --warmup-updates 600 \
  --total-num-update 5500 --max-update 5500 --max-tokens 2560 \
  --save-interval-updates 500 --keep-interval-updates 5 --no-epoch-checkpoints \
  --seed 1 --log-format simple --log-interval 50 "$@"
