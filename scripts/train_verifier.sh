#!/usr/bin/env bash
# Train the verifier: an ordinary fairseq Transformer.
#
#   scripts/train_verifier.sh BIN_DIR SAVE_DIR [--recipe NAME] [fairseq-train flags ...]
#
# NAME is a recipe, config/NAME.yaml (multi30k_verifier unless another is given: wmt_cpu_verifier,
# wmt14_verifier, wmt16_verifier), or a file. Flags override it; --no-SWITCH turns off a switch that
# it turns on. Stop it at any time: the same command resumes from SAVE_DIR/checkpoint_last.pt.
set -euo pipefail
if [ $# -lt 2 ]; then sed -n '2,8s/^# \{0,1\}//p' "$0" >&2; exit 2; fi
bin=$1 save=$2; shift 2
here=$(cd "$(dirname "$0")" && pwd)
die() { echo "train_verifier.sh: $1" >&2; exit 1; }
compgen -G "${bin%%:*}/dict.*.txt" >/dev/null ||
  die "BIN_DIR $bin: holds no dict.*.txt; give the bin/ that prepare_data.sh or distill.sh made"
exec python3 "$here/train.py" "$bin" --save-dir "$save" --recipe multi30k_verifier "$@"
