#!/usr/bin/env bash
# Translate with a shipped pair, and show how much faster that is; flags are scripts/demo.py's.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
"$root/scripts/setup_env.sh" base </dev/null
echo "demo: loading its libraries" >&2
exec "$root/.venv/bin/python" "$root/scripts/demo.py" "$@"
