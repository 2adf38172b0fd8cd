#!/usr/bin/env bash
# Try what a user does: README's installation, and the commands of the pages, outside the clone.
#
#   scripts/clean_room.sh [--all] [VERSION ...]     (default: 3.11 3.12)
#
# The first Python there is runs the commands of README, docs/translate.md and docs/wmt.md, or with
# --all of every page, by scripts/page_commands.py; the others install and translate. A missing
# Python is skipped; with none at all, it fails.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
cd "$root"
pages=(README.md docs/translate.md docs/wmt.md)
if [ "${1:-}" = --all ]; then
  shift
  # tests/test_extending.py runs the page that is left out: its examples are files.
  GLOBIGNORE=docs/extending.md
  pages=(README.md docs/*.md checkpoints/*/README.md data/README.md)
  unset GLOBIGNORE
fi
if [ $# = 0 ]; then set -- 3.11 3.12; fi
room=$(mktemp -d)
leave() {
  # page_commands.py's servers, if a page failed before it ended them.
  if [ -e "$room/clone/serve.pid" ]; then kill "$(cat "$room/clone/serve.pid")" 2>/dev/null || true; fi
  rm -rf "$room"
}
trap leave EXIT
export XDG_CACHE_HOME=$room/cache PIP_DISABLE_PIP_VERSION_CHECK=1
unset PYTHONPATH

find_python() {
  for python in "python$1" "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"$1".*/bin/python; do
    if "$python" -c 'import venv' 2>/dev/null; then return; fi
  done
  return 1
}
try() {
  local begin=$SECONDS
  "$@" >"$room/log" 2>&1 </dev/null || { cat "$room/log"; echo "clean_room: failed: $*"; exit 1; }
  echo "clean_room: $((SECONDS - begin)) s: $*"
}
translate() { specdec-translate "$1" --input-path few.en | grep -c . | grep -qx 4; }
# Without Ray it names the extra, which pip knows.
no_ray() {
  if specdec-translate-corpus multi30k.en-de --input-path few.en --output-path corpus 2>said; then return 1; fi
  pip install --dry-run "$(grep -o 'specdec-plugins\[[a-z]*\]' said)"
}

# README's first line of installation after the folder: extras, and the index of torch.
line=$(grep -m 1 '^    pip install' "$root/README.md")
extras=$(grep -o '\[[a-z0-9,]*\]' <<<"$line")
read -ra index <<<"${line##*"'"}"
# pip would try an index that cannot be reached again for every package.
if ! python3 -c 'import sys, urllib.request as r; r.urlopen(sys.argv[1], timeout=20)' "${index[1]}/" 2>/dev/null; then
  echo "clean_room: ${index[1]} cannot be reached, so torch comes from pip's default index"
  index=()
fi

mkdir "$room/source" "$room/clone"
cp -r "$root"/{setup.py,pyproject.toml,README.md,LICENSE,specdec_plugins} "$room/source"
# Without the package, so that scripts run what was installed.
cp -rL "$root"/{README.md,scripts,config,data,docs,checkpoints} "$room/clone"
cp -rL "$root"/checkpoints/{multi30k,wmt}.en-de "$room"
cd "$room"
head -4 "$root/data/captions.en" >few.en
tools=$PATH first=''
for version; do
  if ! find_python "$version"; then echo "clean_room: skipped, no Python $version"; continue; fi
  "$python" -m venv "$version"
  PATH=$room/$version/bin:$tools
  try pip wheel --no-deps -w wheel ./source
  try pip install "$(echo wheel/*.whl)$extras" ${index[@]+"${index[@]}"}
  python -c 'import torch; print("clean_room: torch", torch.__version__)'
  try translate multi30k.en-de
  try translate wmt.en-de
  if [ -n "$first" ]; then continue; fi
  first=$version
  try specdec-check multi30k.en-de --lines 4
  try specdec-evaluate multi30k.en-de --input-path few.en --output-path sweep --rounds 1 --no-plots
  try no_ray
  # What pages ask for where they need it.
  try pip install "$(echo wheel/*.whl)[ray,plot,subtitles,serve,hf]" ${index[@]+"${index[@]}"}
  cd clone
  for page in "${pages[@]}"; do
    rm -rf runs corpus.de SAVE_DIR pair
    mkdir runs # in which there are texts, where a page does not say so
    python scripts/page_commands.py "$page"
  done
  cd ..
done
[ -n "$first" ] || { echo "clean_room: there is no Python $*"; exit 1; }
echo "clean_room: $SECONDS s in all"
