#!/usr/bin/env bash
# Translate with a shipped pair, and show how much faster that is than fairseq.
# Sets up .venv by itself the first time; flags and input are those of scripts/demo.py.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
"$root/scripts/setup_env.sh" base </dev/null
exec "$root/.venv/bin/python" "$root/scripts/demo.py" "$@"
