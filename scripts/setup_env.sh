#!/usr/bin/env bash
# Make the project's own virtual environment, .venv in the project root.
#
#   scripts/setup_env.sh [base|test|dev]     (default: test)
#
# base is what the package and its fastest engines need, test adds pytest, dev ruff and mypy as well.
# It returns at once when nothing is left to do, and goes on after an interruption.
#
#   PYTHON           the interpreter, 3.10 to 3.12; default: the newest one found
#   TORCH_INDEX_URL  where torch's CPU build is tried first on a machine without a GPU
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
venv=$root/.venv
py=$venv/bin/python
stamp=$venv/.specdec-ready
torch=torch==2.13.0
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1

case ${1:-test} in
  base) rank=0 extras=int8,ctranslate2 ;;
  test) rank=1 extras=int8,ctranslate2,test ;;
  dev) rank=2 extras=dev ;;
  *) sed -n '2,10s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2; exit 2 ;;
esac

say() { printf 'setup_env: %s\n' "$*" >&2; }
die() { say "error: $*"; exit 1; }

# Prints the version, as 3.11, of an interpreter that works and is supported; else fails.
supported_version() {
  "$1" -c 'import sys, venv; v = sys.version_info[:2]
if not (3, 10) <= v <= (3, 12): sys.exit(1)
print("%d.%d" % v)' 2>/dev/null
}

# A folder that was copied, moved or half made is not usable: scripts in bin/ name their interpreter.
venv_works() {
  grep -qsF "$venv/bin/python" "$venv/bin/pip" && supported_version "$py" >/dev/null &&
    "$py" -m pip --version >/dev/null 2>&1
}

# Says the first argument, and runs the others, with a clock; shows what they print if they fail.
run() {
  say "$1"
  local output status=0 begin=$SECONDS
  while [ -t 2 ] && kill -0 $$ 2>/dev/null; do
    printf '\r  %d s' $((SECONDS - begin)) >&2
    sleep 1
  done &
  output=$("${@:2}" 2>&1 </dev/null) || status=1
  { kill $! && wait $!; } 2>/dev/null || [ ! -t 2 ] || echo >&2
  [ "$status" = 0 ] || { printf '%s\n' "$output" >&2; return 1; }
}

# Modules are compiled when they are imported, which takes less time: most never are.
install() { run "$1" "$py" -m pip install -q --no-compile "${@:2}"; }

install_torch() {
  if ! nvidia-smi -L 2>/dev/null | grep -q GPU; then
    # With little patience: an index that cannot be reached must not cost minutes.
    local index=${TORCH_INDEX_URL:-https://download.pytorch.org/whl/cpu}
    if install "installing $torch, CPU build (about 200 MB)" --index-url "$index" --retries 1 \
      --timeout 10 "$torch"; then return; fi
  fi
  install "installing $torch from pip's default index (several GB)" "$torch"
}

if [ -n "${PYTHON:-}" ] && ! supported_version "$PYTHON" >/dev/null; then
  die "PYTHON=$PYTHON is not a working Python 3.10, 3.11 or 3.12 (with the venv module)"
fi
made_with=$(cat "$root"/{setup.py,pyproject.toml} "${BASH_SOURCE[0]}" | cksum)
if venv_works; then
  version=$(supported_version "$py")
  [ -z "${PYTHON:-}" ] || [ "$(supported_version "$PYTHON")" = "$version" ] ||
    die "$venv holds Python $version, not that of $PYTHON; remove it to change"
  { read -r sum && read -r done_rank; } 2>/dev/null <"$stamp" || sum='' done_rank=-1
  if [ "$sum" = "$made_with" ] && [ "$done_rank" -ge "$rank" ]; then exit 0; fi
else
  version=''
  for python in ${PYTHON:+"$PYTHON"} python3.12 python3.11 python3.10 python3; do
    # Run it, since a version manager's stub exists on the path for versions it will not start.
    if version=$(supported_version "$python"); then break; fi
  done
  [ -n "$version" ] ||
    die "no Python 3.10, 3.11 or 3.12 was found; install one, or name it: PYTHON=/path/to/python $0"
  run "making $venv with Python $version" "$python" -m venv --clear "$venv"
fi
rm -f "$stamp"

# fairseq 0.12.2 needs omegaconf 2.0, whose metadata newer versions of pip refuse to read.
old_pip=()
if [ "$version" = 3.10 ]; then old_pip=('pip>=23.2,<24.1'); fi
install "installing build tools" 'setuptools>=77.0.3' wheel ${old_pip[@]+"${old_pip[@]}"}
"$py" -c 'import sys, torch
sys.exit(tuple(map(int, torch.__version__.split(".")[:2])) < (2, 11))' 2>/dev/null || install_torch
if [ "$version" = 3.10 ]; then
  # In isolation: seeing torch, it would build extensions whose sources its archive lacks.
  CFLAGS=-g0 CXXFLAGS=-g0 install "compiling fairseq, which takes minutes" fairseq==0.12.2
fi
install "installing specdec and what it needs" --no-build-isolation -e "$root[$extras]"
run "trying it" env -u PYTHONDONTWRITEBYTECODE "$py" -c "import specdec_plugins.inference"

printf '%s\n%s\n' "$made_with" "$rank" >"$stamp"
say "ready: $venv"
