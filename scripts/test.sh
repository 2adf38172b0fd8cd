#!/usr/bin/env bash
# Run the tests, on all cores. Sets up .venv by itself the first time.
#
#   scripts/test.sh                      all but the slow ones
#   scripts/test.sh --cov                the same, with line coverage of the package; a quarter slower
#   scripts/test.sh --slow               all
#   scripts/test.sh -m slow              the slow ones only
#   scripts/test.sh tests/decoding -x    anything else is passed on to pytest; -n 0: in one process
#   SPECDEC_PUBLISHED_PAIR=FOLDER scripts/test.sh   also against the published pair's files
#   SPECDEC_ANNALOG=FOLDER scripts/test.sh          also against ANNalog's published weights; so
#                                                   does the package (pip install annalog --no-deps)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
if [ "${1:-}" = -h ] || [ "${1:-}" = --help ]; then sed -n '2,11s/^# \{0,1\}//p' scripts/test.sh; exit 0; fi
scripts/setup_env.sh test

arguments=()
for argument in "$@"; do
  case $argument in
    --slow) arguments+=(-m "") ;; # which overrides the "not slow" of pyproject.toml
    --cov) arguments+=(--cov=specdec_plugins --cov-report=term) ;;
    *) arguments+=("$argument") ;;
  esac
done
# A core each: whatever a test starts would else have threads for all of them.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
exec .venv/bin/python -m pytest -n auto --dist worksteal ${arguments[@]+"${arguments[@]}"}
