#!/usr/bin/env bash
# Raw text -> Moses tokens -> joint BPE -> fairseq's binary format.
#
#   scripts/prepare_data.sh RAW_DIR OUT_DIR SRC TGT [MERGES] [options]
#
# RAW_DIR holds {train,valid,test}.{SRC,TGT}, one sentence a line. OUT_DIR receives `codes`,
# tok/ and bpe/ (text), and bin/ (what fairseq-train reads, dictionaries included).
# The tokenisation is that of fairseq's `--tokenizer moses`, so that raw text given to
# inference.py is cut as the training text was. Stopped, the same command goes on.
#
#   MERGES           BPE operations to learn (4000)
#   --codes FILE     BPE codes to take instead, those of published checkpoints for instance
#   --srcdict FILE   fairseq dictionary of SRC, and of TGT too unless --tgtdict is given; without,
#   --tgtdict FILE   one for both is made of the training text
#   --tokenized      RAW_DIR is tokenised already
#   --workers N      processes (all cores); BPE is learnt by one
set -euo pipefail
. "$(dirname "$0")/lib_text.sh"
usage() { sed -n '2,17s/^# \{0,1\}//p' "$0" >&2; exit 2; }
if [ $# -lt 4 ]; then usage; fi
raw=$1 out=$2 src=$3 tgt=$4 merges=4000 codes='' srcdict='' tgtdict='' tokenized=''
shift 4
case ${1:---} in --*) ;; *) merges=$1; shift ;; esac
workers=$(env -u OMP_NUM_THREADS nproc)
while [ $# -gt 0 ]; do
  case $1 in
    --tokenized) tokenized=yes; shift; continue ;;
    --codes | --srcdict | --tgtdict | --workers) ;;
    *) echo "prepare_data.sh: $1: no such option" >&2; usage ;;
  esac
  [ $# -gt 1 ] || die "$1: give a value"
  printf -v "${1#--}" %s "$2"
  shift 2
done
[[ $merges =~ ^[1-9][0-9]*$ ]] || die "MERGES $merges: give a whole number from 1 on, 4000 for instance"
[[ $workers =~ ^[1-9][0-9]*$ ]] || die "--workers $workers: give a whole number from 1 on"
[ -z "$tgtdict" ] || [ -n "$srcdict" ] || die "--tgtdict $tgtdict: give --srcdict, too"
given=()
for flag in codes srcdict tgtdict; do
  if [ -n "${!flag}" ]; then
    [ -s "${!flag}" ] || die "--$flag ${!flag}: is missing or empty"
    given+=("${!flag}")
  fi
done
# Text is UTF-8 in every locale.
export PYTHONUTF8=1; unset PYTHONIOENCODING
texts=()
for split in train valid test; do
  for lang in "$src" "$tgt"; do
    [ -s "$raw/$split.$lang" ] || die "$raw/$split.$lang is missing or empty"
    texts+=("$raw/$split.$lang")
  done
  check_same_lines "$raw/$split.$src" "$raw/$split.$tgt"
done
check_line_ends "${texts[@]}"
for made in "$out/tok" "$out/bpe"; do
  [ ! "$raw" -ef "$made" ] || die "RAW_DIR $raw: is to be written: give another OUT_DIR"
done

mkdir -p "$out" || die "cannot write to $out: give another OUT_DIR"
reserve "$out"

# What has its final name is whole, and is not made again: it must be of the same text and flags.
made_with=$(cat "${texts[@]}" ${given[@]+"${given[@]}"} | cksum && echo "$src $tgt $merges ${#given[@]} $tokenized")
if [ -e "$out/tok" ] && [ "$(cat "$out/made_with" 2>/dev/null)" != "$made_with" ]; then
  die "$out was begun with other text or flags: remove it, or give another OUT_DIR"
fi
printf '%s\n' "$made_with" >"$out/made_with.part" && mv "$out/made_with.part" "$out/made_with"
mkdir -p "$out/tok" "$out/bpe"
parts=$out/parts pids=()
trap 'kill ${pids[@]+"${pids[@]}"} 2>/dev/null || true; rm -rf "$parts" "$out/.lock"' EXIT

# in_parallel INPUT OUTPUT COMMAND...: OUTPUT is what COMMAND makes of INPUT, line by line.
in_parallel() {
  local input=$1 output=$2 part pid lines made count
  shift 2
  if [ -e "$output" ]; then return; fi
  rm -rf "$parts"; mkdir "$parts"; pids=()
  lines=$(count_lines "$input")
  count=$((lines / 5000 + 1))  # to start a process takes as long as hundreds of lines
  split -n "l/$((count < workers ? count : workers))" "$input" "$parts/in."
  for part in "$parts"/in.*; do
    "$@" <"$part" >"$parts/out.${part##*.}" & pids+=($!)
  done
  for pid in "${pids[@]}"; do wait "$pid" || die "$input: $1 failed"; done
  pids=()
  cat "$parts"/out.* >"$output.part"
  made=$(count_lines "$output.part")
  [ "$made" = "$lines" ] ||
    die "$input: $1 made $made lines of $lines"
  mv "$output.part" "$output"
}

for lang in "$src" "$tgt"; do
  for split in train valid test; do
    tokenize=(sacremoses -q -l "$lang" tokenize -a)
    if [ -n "$tokenized" ]; then tokenize=(env LC_ALL=C awk 1); fi  # which ends the last line, too
    in_parallel "$raw/$split.$lang" "$out/tok/$split.$lang" "${tokenize[@]}"
  done
done

if [ ! -e "$out/codes" ]; then
  if [ -n "$codes" ]; then
    cp "$codes" "$out/codes.part"
  else
    cat "$out/tok/train.$src" "$out/tok/train.$tgt" | subword-nmt learn-bpe -s "$merges" -o "$out/codes.part"
  fi
  mv "$out/codes.part" "$out/codes"
fi
for lang in "$src" "$tgt"; do
  for split in train valid test; do
    in_parallel "$out/tok/$split.$lang" "$out/bpe/$split.$lang" subword-nmt apply-bpe -c "$out/codes"
  done
done

if [ -e "$out/bin" ]; then exit; fi
dictionaries=(--joined-dictionary)
if [ -n "$tgtdict" ]; then dictionaries=(--tgtdict "$tgtdict"); fi
if [ -n "$srcdict" ]; then dictionaries+=(--srcdict "$srcdict"); fi
rm -rf "$out/bin.part"
fairseq-preprocess --source-lang "$src" --target-lang "$tgt" "${dictionaries[@]}" \
  --trainpref "$out/bpe/train" --validpref "$out/bpe/valid" --testpref "$out/bpe/test" \
  --destdir "$out/bin.part" --workers "$workers"
mv "$out/bin.part" "$out/bin"
