#!/usr/bin/env bash
# Try what a user installs: a wheel with the extras of README's first line, outside the clone.
#
#   scripts/clean_room.sh [VERSION ...]     (default: 3.11 3.12)
#
# The first Python runs every command, the others install and translate. A missing one is skipped.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
if [ $# = 0 ]; then set -- 3.11 3.12; fi
room=$(mktemp -d)
trap 'rm -rf "$room"' EXIT
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
interactive() { fairseq-interactive multi30k.en-de "${models[@]}" <few.en | grep '^D-3'; }
corpus() {
  specdec-translate-corpus multi30k.en-de --input-path few.en --output-path corpus 2>said ||
    pip install --dry-run "$(grep -o 'specdec-plugins\[[a-z]*\]' said)"
}
snippet="from specdec_plugins.inference import Settings, load_translator
assert [*load_translator(Settings.of_model('multi30k.en-de')).translate(['A dog.'])][0].text"

# What README's first line of installation says after the folder: extras, and the index of torch.
line=$(grep -m 1 '^    pip install' "$root/README.md")
extras=$(grep -o '\[[a-z0-9,]*\]' <<<"$line")
read -ra index <<<"${line##*"'"}"

mkdir "$room/source"
cp -r "$root"/{setup.py,pyproject.toml,README.md,LICENSE,specdec_plugins} "$room/source"
cp -rL "$root"/checkpoints/{multi30k,wmt}.en-de "$room"
cd "$room"
head -4 "$root/data/captions.en" >few.en
for number in 1 2 3 4 5; do sed "s/^/$number /" "$root/data/captions.en"; done >text.en
for version; do
  if ! find_python "$version"; then echo "clean_room: skipped, no Python $version"; continue; fi
  "$python" -m venv "$version"
  PATH=$room/$version/bin:$PATH
  try pip wheel --no-deps -w wheel ./source
  try pip install "$(echo wheel/*.whl)$extras" "${index[@]}"
  try translate multi30k.en-de && try translate wmt.en-de
  if [ "$version" != "$1" ]; then continue; fi
  try specdec-check multi30k.en-de --lines 4
  try specdec-make-pair multi30k.en-de text.en made --updates 4 --cpu && try translate made/pair
  try specdec-make-pair multi30k.en-de text.en dry --updates 4 --cpu --dry-run
  try specdec-tune multi30k.en-de
  try specdec-evaluate multi30k.en-de --input-path few.en --output-path sweep --rounds 1 --no-plots
  models=(--user-dir specdec_plugins --task translation_specdec --beam 1 -s en -t de)
  models+=(--path multi30k.en-de/drafter.pt:multi30k.en-de/verifier.pt)
  try fairseq-generate made/work/bin "${models[@]}" --gen-subset valid
  try interactive && try python -c "$snippet" && try corpus
done
