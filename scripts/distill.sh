#!/usr/bin/env bash
# Sequence-level distillation: the verifier translates the training source, and what it says
# becomes the target that a drafter is trained on.
#
#   scripts/distill.sh [--keep-valid] [--interpolate] [--workers N] VERIFIER DICT_DIR BPE_DIR OUT_DIR SRC TGT \
#       [inference.py flags ...]
#
# DICT_DIR holds the dictionaries that VERIFIER was trained with, BPE_DIR the segmented text
# {train,valid,test}.{SRC,TGT}, as scripts/prepare_data.sh makes them (bin/ and bpe/). OUT_DIR
# receives bpe/, the text, and bin/, which fairseq-train reads, with the same dictionaries.
# train and valid get the verifier's translations as targets; test, where there is one, keeps its
# references, and so does valid with --keep-valid. Stopped, the same command goes on.
#
# The verifier translates greedily, 64 sentences at a time (--strategy AR --batch 64), since that is
# what strict acceptance compares drafts with. Flags change that: for beam search, with which the
# paper's verifier and drafter were distilled, give --strategy fairseq --beam 5. With --interpolate
# too, the target is that output of the beam which is most like the reference (closest.py).
#
# With --workers translate_corpus.py does it, in N processes, one a GPU if any, and takes its flags
# too (--shard-lines, --threads); its shards stay in OUT_DIR/shards. Needs Ray: its page says how.
set -euo pipefail
. "$(dirname "$0")/lib_text.sh"
splits=(train valid) workers='' interpolate=''
while :; do
  case ${1:-} in
    --keep-valid) splits=(train); shift ;;
    --interpolate) interpolate=yes; shift ;;
    --workers) workers=${2:-}; shift $(($# > 1 ? 2 : 1))
      [[ $workers =~ ^[1-9][0-9]*$ ]] || die "--workers $workers: give a whole number from 1 on" ;;
    *) break ;;
  esac
done
if [ $# -lt 6 ]; then sed -n '2,22s/^# \{0,1\}//p' "$0" >&2; exit 2; fi
verifier=$1 dict=$2 text=$3 out=$4 src=$5 tgt=$6
shift 6
root=$(cd "$(dirname "$0")/.." && pwd)
if ! command -v fairseq-preprocess >/dev/null && [ -x "$root/.venv/bin/fairseq-preprocess" ]; then
  PATH=$root/.venv/bin:$PATH
fi
needed=("$verifier" "$dict/dict.$src.txt" "$dict/dict.$tgt.txt" "$text/train.$src" "$text/valid.$src" "$text/valid.$tgt")
references=()
if [ -n "$interpolate" ]; then
  for split in "${splits[@]}"; do references+=("$text/$split.$tgt"); done
fi
for file in "${needed[@]}" ${references[@]+"${references[@]}"}; do
  [ -s "$file" ] || die "$file is missing or empty"
done
kept=()
if [ ${#splits[@]} = 1 ]; then kept+=(valid); fi
if [ -s "$text/test.$src" ] && [ -s "$text/test.$tgt" ]; then kept+=(test); fi
for split in "${splits[@]}"; do check_line_ends "$text/$split.$src"; done
for split in ${kept[@]+"${kept[@]}"}; do
  check_line_ends "$text/$split".{"$src","$tgt"}
  check_same_lines "$text/$split".{"$src","$tgt"}
done
# Nothing that is read may be among what is written or removed, by whatever name.
outputs=()
for output in "$out"/{bpe,bin,bin.part,shards,made_with,preprocess.log}; do
  if [ -e "$output" ]; then outputs+=("$output"); fi
done
for file in "$verifier" "$dict"/dict.* "$text"/{train,valid,test}.{"$src","$tgt"}; do
  if [ ${#outputs[@]} != 0 ] && [ -e "$file" ]; then
    same=$(find -L "${outputs[@]}" -samefile "$file" -print -quit)
    [ -z "$same" ] || die "$file: is the same file as $same, which is to be written: give another OUT_DIR"
  fi
done
mkdir -p "$out/bpe" || die "cannot write to $out: give another OUT_DIR"
reserve "$out"

# Lines made by another verifier, of another text or in another way are not gone on with. Where there
# are no lines yet, the flags may have been wrong.
made_with=$(cat "$verifier" "$dict"/dict.* "$text/train.$src" "$text/valid.$src" \
  ${references[@]+"${references[@]}"} | cksum &&
  printf '%s\n' "${splits[*]}${workers:+ shards}${interpolate:+ interpolated} $*")
if [ -s "$out/bpe/train.$tgt" -o -s "$out/bpe/train.$tgt.beam" ] && [ "$(cat "$out/made_with" 2>/dev/null)" != "$made_with" ]; then
  die "$out was begun with another verifier, text or flags: remove it, or give another OUT_DIR"
fi
printf '%s\n' "$made_with" >"$out/made_with.part" && mv "$out/made_with.part" "$out/made_with"

# copy FILE NAME: FILE as $out/bpe/NAME, whole or not at all.
copy() {
  cp "$1" "$out/bpe/$2.part" && mv "$out/bpe/$2.part" "$out/bpe/$2" && return
  rm -f "$out/bpe/$2.part"
  die "$out/bpe/$2: cannot be written: make room, or give another OUT_DIR"
}
# Interpolation chooses among the whole beam, 5 unless the flags say another size.
nbest=() beam=5
for ((i = 1; i < $#; i++)); do
  if [ "${!i}" = --beam ]; then j=$((i + 1)) beam=${!j}; fi
done
for flag in "$@"; do
  if [[ $flag == --beam=* ]]; then beam=${flag#--beam=}; fi
done
if [ -n "$interpolate" ]; then nbest=(--nbest "$beam"); fi
for split in "${splits[@]}"; do
  copy "$text/$split.$src" "$split.$src"
  # What was chosen of a beam is there as a whole, or not at all.
  if [ -n "$interpolate" ] && [ -s "$out/bpe/$split.$tgt" ]; then continue; fi
  echo "distill.sh: translating $split" >&2
  made=$split.$tgt${interpolate:+.beam}
  command=("$dict" --AR-path "$verifier" -s "$src" -t "$tgt" --segmented --keep-bpe --strategy AR --batch 64 "$@"
    --input-path "$text/$split.$src" ${nbest[@]+"${nbest[@]}"})
  if [ -n "$workers" ]; then
    python3 "$root/scripts/translate_corpus.py" "${command[@]}" --workers "$workers" \
      --output-path "$out/shards/$split"
    copy "$out/shards/$split/$split.$src" "$made"
  else
    python3 "$root/scripts/inference.py" "${command[@]}" --output-path "$out/bpe/$made" --resume
  fi
  if [ -n "$interpolate" ]; then
    python3 "$root/scripts/closest.py" "$out/bpe/$made" "$text/$split.$tgt" >"$out/bpe/$split.$tgt.part"
    mv "$out/bpe/$split.$tgt.part" "$out/bpe/$split.$tgt"
    rm "$out/bpe/$made"
  fi
done
test_set=()
for split in ${kept[@]+"${kept[@]}"}; do
  copy "$text/$split.$src" "$split.$src"
  copy "$text/$split.$tgt" "$split.$tgt"
  if [ "$split" = test ]; then test_set=(--testpref "$out/bpe/test"); fi
done

rm -rf "$out/bin" "$out/bin.part"
fairseq-preprocess --source-lang "$src" --target-lang "$tgt" \
  --srcdict "$dict/dict.$src.txt" --tgtdict "$dict/dict.$tgt.txt" \
  --trainpref "$out/bpe/train" --validpref "$out/bpe/valid" ${test_set[@]+"${test_set[@]}"} \
  --destdir "$out/bin.part" --workers "$(env -u OMP_NUM_THREADS nproc)" >"$out/preprocess.log" 2>&1 ||
  die "fairseq-preprocess failed: $(tail -n 1 "$out/preprocess.log")"
mv "$out/bin.part" "$out/bin"
echo "$out/bin: $(count_lines "$out/bpe/train.$tgt") training pairs"
