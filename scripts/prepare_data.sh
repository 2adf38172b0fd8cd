#!/usr/bin/env bash
# Raw text -> Moses tokens -> joint BPE -> fairseq's binary format.
#
#   scripts/prepare_data.sh RAW_DIR OUT_DIR SRC TGT [MERGES]
#
# RAW_DIR holds {train,valid,test}.{SRC,TGT}, one sentence a line. OUT_DIR receives `codes`,
# tok/ and bpe/ (text), and bin/ (what fairseq-train reads, dictionaries included).
# The tokenisation is that of fairseq's `--tokenizer moses`, so that raw text given to
# inference.py is cut as the training text was.
set -euo pipefail
if [ $# -lt 4 ]; then sed -n '2,9s/^# \{0,1\}//p' "$0" >&2; exit 2; fi
raw=$1 out=$2 src=$3 tgt=$4 merges=${5:-4000}
die() { echo "prepare_data.sh: $1" >&2; exit 1; }
[[ $merges =~ ^[1-9][0-9]*$ ]] || die "MERGES $merges: give a whole number from 1 on, 4000 for instance"
# Text is UTF-8 in every locale.
export PYTHONUTF8=1; unset PYTHONIOENCODING
for split in train valid test; do
  for lang in "$src" "$tgt"; do
    [ -s "$raw/$split.$lang" ] || die "$raw/$split.$lang is missing or empty"
  done
  [ "$(wc -l <"$raw/$split.$src")" = "$(wc -l <"$raw/$split.$tgt")" ] ||
    die "$raw/$split.$src and .$tgt differ in number of lines"
done
mkdir -p "$out/tok" "$out/bpe"

for lang in "$src" "$tgt"; do
  for split in train valid test; do
    sacremoses -q -l "$lang" tokenize -a <"$raw/$split.$lang" >"$out/tok/$split.$lang"
  done
done

subword-nmt learn-joint-bpe-and-vocab -s "$merges" -o "$out/codes" \
  --input "$out/tok/train.$src" "$out/tok/train.$tgt" \
  --write-vocabulary "$out/bpe/vocab.$src" "$out/bpe/vocab.$tgt"
for lang in "$src" "$tgt"; do
  for split in train valid test; do
    subword-nmt apply-bpe -c "$out/codes" <"$out/tok/$split.$lang" >"$out/bpe/$split.$lang"
  done
done

rm -rf "$out/bin"
fairseq-preprocess --source-lang "$src" --target-lang "$tgt" --joined-dictionary \
  --trainpref "$out/bpe/train" --validpref "$out/bpe/valid" --testpref "$out/bpe/test" \
  --destdir "$out/bin" --workers 2
