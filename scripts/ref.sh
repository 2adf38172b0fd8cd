#!/usr/bin/env bash
# BLEU of a translation against its reference, in the paper's way and in sacreBLEU's.
#
#   scripts/ref.sh [--raw] [--lang LANG] HYP REF
#
# HYP and REF: text, one sentence a line. By default both are Moses-tokenised, BPE removed; with
# --raw both are ordinary untokenised text. The first line printed is tokenised, case-sensitive,
# compound-split BLEU-4; the second detokenised sacreBLEU with its signature. `--help` says more.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
python=$root/.venv/bin/python
[ -x "$python" ] || python=python3
exec "$python" "$root/scripts/ref_bleu.py" "$@"
