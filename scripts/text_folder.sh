# Shared by prepare_data.sh and distill.sh, which make folders of text; they source it.
die() { echo "${0##*/}: $1" >&2; exit "${2:-1}"; }
usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//p}' "$0" >&2; exit 2; }
refuse_returns() {
  local broken
  if broken=$(LC_ALL=C grep -snHm 1 $'\r.' "$@" | cut -d: -f1,2) && [ -n "$broken" ]; then
    die "${broken%%$'\n'*}: holds a carriage return, at which fairseq-preprocess would end the line"
  fi
}
lock_folder() {
  mkdir -p "$1"
  exec {lock}>>"$1/.lock"
  flock -n "$lock" || die "$1: another run is at work there"
}
# binarise OUT SRC TGT FLAG...: make OUT/bin of the text in OUT/bpe, whole or not at all.
binarise() {
  rm -rf "$1/bin" "$1/bin.part"
  fairseq-preprocess --source-lang "$2" --target-lang "$3" --trainpref "$1/bpe/train" \
    --validpref "$1/bpe/valid" --workers "$workers" --destdir "$1/bin.part" "${@:4}"
  mv "$1/bin.part" "$1/bin"
}
