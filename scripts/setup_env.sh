#!/usr/bin/env bash
# Make the project's own virtual environment, .venv in the project root.
#
#   scripts/setup_env.sh [base|test|dev]     (default: test)
#
# base is what the package and its fastest engines need, test adds pytest, dev ruff and mypy as well.
# Call it from other scripts and then use .venv/bin/...: it returns at once when nothing is
# left to do, and after an interruption it takes up the work again. It reports on stderr.
#
#   PYTHON           the interpreter, 3.10 to 3.12; default: the newest one found
#   TORCH_INDEX_URL  where torch's CPU build is tried first on a machine without a GPU
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
venv=$root/.venv
py=$venv/bin/python
stamp=$venv/.specdec-ready
level=${1:-test}
torch_index=${TORCH_INDEX_URL:-https://download.pytorch.org/whl/cpu}
torch_version=2.13.0
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1

case $level in
  base) rank=0 extras=int8,ctranslate2 ;;
  test) rank=1 extras=int8,ctranslate2,test ;;
  dev) rank=2 extras=dev ;;
  *) sed -n '2,11s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2; exit 2 ;;
esac

say() { printf 'setup_env: %s\n' "$*" >&2; }
die() { say "error: $*"; exit 1; }

# Says the first argument, and then runs the others, which may take minutes.
doing() { say "$1"; "${@:2}"; }

# Prints the version, as 3.11, of an interpreter that works and is supported; else fails.
supported_version() {
  "$1" -c 'import sys, venv; v = sys.version_info[:2]
if not (3, 10) <= v <= (3, 12): sys.exit(1)
print("%d.%d" % v)' 2>/dev/null
}

find_python() {
  local candidate
  if [ -n "${PYTHON:-}" ]; then
    supported_version "$PYTHON" >/dev/null ||
      die "PYTHON=$PYTHON is not a working Python 3.10, 3.11 or 3.12 (with the venv module)"
    echo "$PYTHON"
    return
  fi
  for candidate in python3.12 python3.11 python3.10 python3; do
    # Run it, since a version manager's stub exists on the path for versions it will not start.
    if supported_version "$candidate" >/dev/null; then echo "$candidate"; return; fi
  done
  die "no Python 3.10, 3.11 or 3.12 was found; install one, or name it: PYTHON=/path/to/python $0"
}

# A folder that was copied, moved or half made is not usable: scripts in bin/ name their interpreter.
venv_works() {
  grep -qsF "$venv/bin/python" "$venv/bin/pip" && supported_version "$py" >/dev/null &&
    "$py" -m pip --version >/dev/null 2>&1
}

# Quiet unless it fails: pip warns of much that does not matter here.
pip_install() {
  local output
  output=$("$py" -m pip install -q "$@" 2>&1 </dev/null) || {
    printf '%s\n' "$output" >&2
    return 1
  }
}

has_torch() {
  "$py" -c 'import sys, torch
sys.exit(tuple(map(int, torch.__version__.split(".")[:2])) < (2, 6))' 2>/dev/null
}

has_gpu() { nvidia-smi -L 2>/dev/null | grep -q GPU; }

install_torch() {
  if has_gpu; then
    doing "installing torch $torch_version for the GPU (several GB)" \
      pip_install "torch==$torch_version"
    return
  fi
  if doing "installing torch $torch_version, CPU build (about 200 MB)" install_cpu_torch; then
    return
  fi
  doing "no CPU build at $torch_index; taking torch from pip's default index (maybe several GB)" \
    pip_install "torch==$torch_version"
}

install_cpu_torch() {
  # Ask first, with little patience: an index that cannot be reached must not cost minutes.
  "$py" -m pip index versions torch --index-url "$torch_index" --retries 0 --timeout 5 \
    </dev/null >/dev/null 2>&1 &&
    pip_install --retries 1 --index-url "$torch_index" "torch==$torch_version" 2>/dev/null
}

# Prints what specdec and its extras need, but for fairseq.
requirements() {
  "$py" -c 'import sys
from importlib.metadata import requires
from pip._vendor.packaging.requirements import Requirement
for need in map(Requirement, requires("specdec-plugins")):
    wanted = need.marker is None or any(need.marker.evaluate({"extra": e}) for e in sys.argv[1:])
    if wanted and need.name != "ve-fairseq": print(str(need).split(";")[0])' ${extras//,/ }
}

wanted="$(cat "$root/setup.py" "${BASH_SOURCE[0]}" | cksum)"
if venv_works; then
  if [ -n "${PYTHON:-}" ]; then
    python=$(find_python)
    asked=$(supported_version "$python")
    has=$(supported_version "$py")
    [ "$asked" = "$has" ] || die "$venv holds Python $has, not $asked; remove it to change"
  fi
  if [ -f "$stamp" ]; then
    { read -r done_sum; read -r done_rank; } <"$stamp" || true
    if [ "${done_sum:-}" = "$wanted" ] && [ "${done_rank:--1}" -ge "$rank" ]; then exit 0; fi
  fi
else
  python=$(find_python)
  doing "making $venv with Python $(supported_version "$python")" \
    "$python" -m venv --clear "$venv" </dev/null >&2
fi
rm -f "$stamp"

build_tools=('setuptools>=77.0.3' wheel)
# fairseq 0.12.2 needs omegaconf 2.0, whose metadata newer versions of pip refuse to read.
if [ "$(supported_version "$py")" = 3.10 ]; then build_tools+=('pip>=23.2,<24.1'); fi
doing "installing build tools" pip_install "${build_tools[@]}"
doing "looking for torch" has_torch || install_torch
if [ "$(supported_version "$py")" = 3.10 ]; then
  # In isolation: seeing torch, it would build extensions whose sources its archive lacks.
  CFLAGS=-g0 CXXFLAGS=-g0 doing "compiling fairseq, which takes minutes" pip_install fairseq==0.12.2
fi
if "$py" -m pip show -q fairseq-fixed 2>/dev/null; then
  # It has the folder that ve-fairseq would be installed to, and stays.
  pip_install --no-build-isolation --no-deps -e "$root"
  packages=($(requirements))
else
  packages=(-e "$root[$extras]")
fi
doing "installing specdec and what it needs" pip_install --no-build-isolation "${packages[@]}"

printf '%s\n%s\n' "$wanted" "$rank" >"$stamp"
say "ready: $venv"
