# Shared by prepare_data.sh and distill.sh, which make folders of text; they source it.
die() { echo "${0##*/}: $1" >&2; exit "${2:-1}"; }
usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//p}' "$0" >&2; exit 2; }
# check_number FLAG VALUE
check_number() { [[ $2 =~ ^[1-9][0-9]*$ ]] || die "$1 $2: must be a number of at least 1" 2; }
# What a script makes is named by its languages.
refuse_same() {
  [ "$1" != "$2" ] || die "$1: is SRC and TGT, and their files would have the same names; name the target otherwise, \
${2}_out for instance, also its text and its dictionary (dict.${2}_out.txt)" 2
}
# refuse_unreadable FILE...: what fairseq-preprocess would read otherwise; files may be missing.
refuse_unreadable() {
  local broken file
  broken=$(LC_ALL=C grep -snHm 1 $'\r.' "$@" | cut -d: -f1,2) || true # no file is broken, or one is missing
  [ -z "$broken" ] ||
    die "${broken%%$'\n'*}: holds a carriage return, at which fairseq-preprocess would end the line"
  for file; do
    [ ! -e "$file" ] || iconv -f utf-8 -t utf-8 "$file" >/dev/null 2>&1 || die "$file: is not UTF-8"
  done
}
# same_lines FILE FILE
same_lines() { [ "$(lines "$1")" = "$(lines "$2")" ] || die "$1 and $2 differ in number of lines"; }
# awk counts a last line that no line feed ends, as all programs that read the text do.
lines() { LC_ALL=C awk 'END { print NR }' "$1"; }
# need PROGRAM...
need() {
  local program
  for program; do
    command -v "$program" >/dev/null || die "$program is not found; activate the environment: . .venv/bin/activate"
  done
}
# own_folder OUT FILE: lock a new folder, or one in which the script has made FILE.
own_folder() {
  [ -e "$1/$2" ] || [ -z "$(ls "$1" 2>/dev/null)" ] || die "$1: holds something else; name a new folder"
  mkdir -p "$1"
  exec {lock}>>"$1/.lock"
  flock -n "$lock" || die "$1: another run is at work there"
}
# run COMMAND...: run a command that ends when the script does. It has a process group of its own, so
# that programs that it starts end, too.
set -m
child=''
run() { "$@" & child=$!; wait "$child"; }
stop() {
  if [ -n "$child" ]; then kill -TERM -- "-$child" 2>/dev/null && wait "$child" || true; fi
  exit "$1"
}
trap 'stop 129' HUP; trap 'stop 130' INT; trap 'stop 143' TERM
# binarise OUT SRC TGT FLAG...: make OUT/bin of the text in OUT/bpe, whole or not at all.
binarise() {
  rm -rf "$1/bin" "$1/bin.part"
  run fairseq-preprocess --source-lang "$2" --target-lang "$3" --trainpref "$1/bpe/train" \
    --validpref "$1/bpe/valid" --workers "$workers" --destdir "$1/bin.part" "${@:4}"
  mv "$1/bin.part" "$1/bin"
}
