# Shared by the scripts that make data: sourced by them, never run.

die() { echo "${0##*/}: $1" >&2; exit 1; }

# reserve FOLDER: have it for this run alone, until this script and what it has started have ended.
reserve() {
  exec {lock}>>"$1/.lock"
  # Who has the lock of a file that was removed meanwhile has nothing.
  flock -n "$lock" && [ "$1/.lock" -ef "/dev/fd/$lock" ] ||
    die "$1: another run is at work there: wait for it, or give another OUT_DIR"
  reserved=$1
  trap 'rm -f "$reserved/.lock"' EXIT
}

# count_lines FILE: its lines, whether or not a line feed ends the last one.
count_lines() { LC_ALL=C awk 'END { print NR }' "$1"; }

# check_line_ends FILE...: refuse a file in which not all programs find the same lines.
check_line_ends() {
  local file line
  for file in "$@"; do
    line=$(LC_ALL=C awk '/\r./ { print NR; exit }' "$file")
    [ -z "$line" ] ||
      die "$file: line $line holds a carriage return, at which fairseq-preprocess would end it: remove it"
  done
}

# check_same_lines ONE OTHER: refuse two sides that do not match line by line.
check_same_lines() {
  [ "$(count_lines "$1")" = "$(count_lines "$2")" ] ||
    die "$1 and $2 differ in number of lines: give files that match line by line"
}
