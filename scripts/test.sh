#!/usr/bin/env bash
# Run the tests, with line coverage of the package. Sets up .venv by itself the first time.
#
#   scripts/test.sh                      all but the slow ones
#   scripts/test.sh --slow               all
#   scripts/test.sh -m slow              the slow ones only
#   scripts/test.sh tests/decoding -x    anything else is passed on to pytest
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
if [ "${1:-}" = -h ] || [ "${1:-}" = --help ]; then sed -n '2,7s/^# \{0,1\}//p' "$0"; exit 0; fi
scripts/setup_env.sh test

arguments=()
for argument in "$@"; do
  # An empty -m overrides the "not slow" of pyproject.toml.
  if [ "$argument" = --slow ]; then arguments+=(-m ""); else arguments+=("$argument"); fi
done
exec .venv/bin/python -m pytest --cov=specdec_plugins --cov-report=term \
  ${arguments[@]+"${arguments[@]}"}
