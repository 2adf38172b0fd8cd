# Shared by the get_*.sh scripts: sourced by them, never run.
#
# A file is written as FILE.part and renamed when it is whole: what carries its final name is
# complete, an interrupted run leaves nothing half done, and a repeated one makes only what is
# missing.

. "$(dirname "${BASH_SOURCE[0]}")/lib_text.sh"

# usage: print the comment at the head of the calling script and stop.
usage() { awk 'NR > 1 { if (!/^#/) exit; sub(/^# ?/, ""); print }' "$0" >&2; exit 2; }

# choose_direction ONE OTHER OUT_DIR [DIRECTION]: set `source` and `target`, by default ONE and OTHER.
choose_direction() {
  if [ $# -lt 3 ] || [ $# -gt 4 ]; then usage; fi
  case ${4:-$1-$2} in
    "$1-$2") source=$1 target=$2 ;;
    "$2-$1") source=$2 target=$1 ;;
    *) die "$4: no such direction: give $1-$2 or $2-$1" ;;
  esac
}

# open_out DIR: set `out`, the folder that everything goes to, and `store`, where downloads stay.
open_out() {
  out=$1 store=$1/download
  mkdir -p "$store" 2>/dev/null && [ -w "$out" ] && [ -w "$store" ] ||
    die "cannot write to $out: give an OUT_DIR that can be created or written to"
  trap 'rm -f "$out"/{train,valid,test}.*.part "$store"/*.part || true; rmdir "$store" 2>/dev/null || true' EXIT
}

# use_project_python: let the project's own environment supply python3 and sacrebleu, unless one
# is active already.
use_project_python() {
  local bin
  bin=$(cd "$(dirname "$0")/.." && pwd)/.venv/bin
  if ! command -v sacrebleu >/dev/null && [ -x "$bin/sacrebleu" ]; then PATH=$bin:$PATH; fi
  command -v sacrebleu >/dev/null ||
    die "sacrebleu is not installed: activate the project's environment, or pip install sacrebleu"
}

# fetch URL FILE
fetch() {
  local url=$1 file=$2 noise=--silent
  if [ -s "$file" ]; then return; fi
  if [ -t 2 ]; then noise=--progress-bar; fi
  echo "downloading $url" >&2
  if command -v curl >/dev/null; then
    curl --fail --location --show-error "$noise" --retry 3 --output "$file.part" "$url"
  else
    python3 -c 'import sys, urllib.request
try:
    urllib.request.urlretrieve(sys.argv[1], sys.argv[2])
except OSError as error:
    sys.exit(str(error))' "$url" "$file.part"
  fi || die "could not download $url: check the network, or name a mirror with ${mirror:?}"
  mv "$file.part" "$file"
}

# check_lines FILE LINES NAME [HINT]: refuse FILE, called NAME in the message, unless it has LINES lines.
check_lines() {
  local found
  found=$(count_lines "$1")
  [ "$found" = "$2" ] || die "$3 has $found lines, not the $2 of the published corpus: delete it if it was downloaded, or give another source${4:+; $4}"
}

# extract ARCHIVE NAME...: take the members called NAME, in whatever folder, out of a tar or zip
# archive into `store`.
extract() {
  local archive=$1 name missing=()
  shift
  for name in "$@"; do
    if [ ! -s "$store/$name" ]; then missing+=("$name"); fi
  done
  if [ ${#missing[@]} = 0 ]; then return; fi
  echo "unpacking ${missing[*]} from ${archive##*/}" >&2
  python3 - "$archive" "$store" "${missing[@]}" 2>"$store/messages.part" <<'PY' ||
import shutil
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO


def members(archive: str) -> Iterator[tuple[str, IO[bytes] | None]]:
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as zipped:
            for name in zipped.namelist():
                yield name, zipped.open(name)
    else:
        with tarfile.open(archive) as tar:
            for member in tar:
                yield member.name, tar.extractfile(member)


archive, store, wanted = sys.argv[1], Path(sys.argv[2]), set(sys.argv[3:])
try:
    for path, stream in members(archive):
        name = path.rpartition("/")[2]
        if name in wanted and stream is not None:
            with open(store / (name + ".part"), "wb") as part:
                shutil.copyfileobj(stream, part)
            (store / (name + ".part")).rename(store / name)
            wanted.discard(name)
        if not wanted:
            break
except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, OSError) as error:
    reason = str(error).partition("\n")[0] or type(error).__name__
    sys.exit(f"{archive} cannot be unpacked ({reason})")
if wanted:
    sys.exit(f"{archive} does not hold {', '.join(sorted(wanted))}")
PY
    die "$(tail -n 1 "$store/messages.part"): delete it and run again"
}

# clean_train SRC TGT CORPUS...: join the CORPUS.{SRC,TGT} of `store` into train.{SRC,TGT}. Left
# out are pairs with an empty side, with more than 250 words, with one side more than 1.5 times
# as long as the other, or with bytes that are no UTF-8.
clean_train() {
  if [ -s "$out/train.$1" ] && [ -s "$out/train.$2" ]; then return; fi
  python3 - "$out" "$store" "$@" >&2 2>"$store/messages.part" <<'PY' ||
import sys
from itertools import zip_longest
from pathlib import Path

MAX_WORDS = 250
MAX_RATIO = 1.5

out, store = Path(sys.argv[1]), Path(sys.argv[2])
source_lang, target_lang, *corpora = sys.argv[3:]


def keep(source: str, target: str) -> bool:
    shorter, longer = sorted((len(source.split()), len(target.split())))
    if "\ufffd" in source or "\ufffd" in target:
        return False
    return shorter > 0 and longer <= MAX_WORDS and longer <= MAX_RATIO * shorter


parts = [out / f"train.{lang}.part" for lang in (source_lang, target_lang)]
source_out, target_out = (open(part, "w", encoding="utf-8") for part in parts)
with source_out, target_out:
    for corpus in corpora:
        kept = read = 0
        # A line ends at "\n" and nowhere else: web text holds other line separators, and
        # taking those for ends of lines would shift one side against the other.
        paths = [store / f"{corpus}.{lang}" for lang in (source_lang, target_lang)]
        sides = [open(path, encoding="utf-8", errors="replace", newline="\n") for path in paths]
        for source, target in zip_longest(*sides):
            if source is None or target is None:
                sys.exit(f"{paths[0]} and {paths[1]} differ in number of lines")
            read += 1
            if keep(source, target):
                kept += 1
                source_out.write(" ".join(source.split()) + "\n")
                target_out.write(" ".join(target.split()) + "\n")
        print(f"{corpus}: kept {kept} of {read} pairs", flush=True)
for part in parts:
    part.rename(part.with_suffix(""))
PY
    die "$(tail -n 1 "$store/messages.part"): delete both and run again"
}

# benchmark SET PAIR SIDE FILE LINES: a WMT test set, as sacrebleu publishes it (SIDE: src or ref).
benchmark() {
  local set=$1 pair=$2 side=$3 file=$4 lines=$5
  if [ -s "$file" ]; then return; fi
  echo "taking $set $pair ($side) from sacrebleu" >&2
  sacrebleu -t "$set" -l "$pair" --echo "$side" >"$file.part" 2>"$store/messages.part" ||
    die "sacrebleu could not supply $set $pair: check the network and run again ($(tail -n 1 "$store/messages.part"))"
  check_lines "$file.part" "$lines" "sacrebleu's $set $pair ($side)"
  mv "$file.part" "$file"
}

# next_step SRC TGT MERGES: say what was made and how to go on.
next_step() {
  local split
  for split in train valid test; do echo "$out/$split.{$1,$2}: $(count_lines "$out/$split.$1") pairs"; done
  echo "next: $(dirname "$0")/prepare_data.sh $out ${out%/}.prepared $1 $2 $3"
}
