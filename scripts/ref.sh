#!/usr/bin/env bash
# BLEU of a translation against its reference, in the paper's way and in sacreBLEU's.
#
#   scripts/ref.sh [--raw] [--lang LANG] HYP REF      (--help says more)
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
python=$root/.venv/bin/python
[ -x "$python" ] || python=python3
exec "$python" "$root/scripts/ref_bleu.py" "$@"
