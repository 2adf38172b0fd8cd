#!/usr/bin/env bash
# The main job: translate with a shipped pair and show how much faster it is than beam search.
# Sets up .venv by itself the first time. Pipe or type English sentences to see them translated.
#
#   ./scripts/demo.sh [--precision int8] [--engine eager] [--repeats N]
#       [--model checkpoints/multi30k.en-de]
#   echo "The train to Berlin leaves in ten minutes." | ./scripts/demo.sh
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
"$root/scripts/setup_env.sh" base </dev/null
exec "$root/.venv/bin/python" "$root/scripts/demo.py" "$@"
