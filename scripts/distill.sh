#!/usr/bin/env bash
# Sequence-level distillation: translations by the verifier become the targets of a drafter.
#
#   scripts/distill.sh [--keep-valid] [--interpolate] [--workers N] VERIFIER DICT_DIR BPE_DIR OUT_DIR SRC TGT \
#       [specdec-translate flags ...]
#
# DICT_DIR holds the verifier's dictionaries, BPE_DIR the segmented text {train,valid,test}.{SRC,TGT}
# (bin/ and bpe/ of scripts/prepare_data.sh). OUT_DIR receives bpe/ and bin/, which fairseq-train
# reads. A test set keeps its references; so does the valid set with --keep-valid. Repeat the command
# after an interruption.
#
# The verifier translates greedily, 64 sentences at a time, because strict acceptance compares drafts
# with its greedy output; for beam search give --strategy fairseq --beam 5. --interpolate takes the
# output of the beam that is most like the reference (scripts/closest.py). --workers distils by Ray
# in N processes, one a GPU if there are any (specdec-translate-corpus).
set -euo pipefail
die() { echo "distill.sh: $1" >&2; exit 1; }
splits=(train valid) workers='' interpolate=''
while :; do
  case ${1:-} in
    --keep-valid) splits=(train); shift ;;
    --interpolate) interpolate=yes; shift ;;
    --workers) workers=${2:?--workers: give a number}; shift 2 ;;
    *) break ;;
  esac
done
if [ $# -lt 6 ]; then sed -n '2,17s/^# \{0,1\}//p' "$0" >&2; exit 2; fi
verifier=$1 dict=$2 text=$3 out=$4 src=$5 tgt=$6
shift 6
for file in "$verifier" "$dict"/dict.{"$src","$tgt"}.txt "$text"/{train,valid}.{"$src","$tgt"}; do
  [ -e "$file" ] || [ "$file" = "$text/train.$tgt" ] || die "$file: is missing"
done
if broken=$(LC_ALL=C grep -ls $'\r.' "$text"/{train,valid,test}.{"$src","$tgt"}); then
  die "${broken%%$'\n'*}: holds a carriage return, at which fairseq-preprocess would end the line"
fi
mkdir -p "$out"
exec {lock}>>"$out/.lock"
flock -n "$lock" || die "$out: another run is at work there"
[ -e "$out/bpe" ] || [ -z "$(ls "$out")" ] || die "$out: holds something else; name a new folder"
[ ! "$text" -ef "$out/bpe" ] || die "$out/bpe: is with the input; name another folder"
mkdir -p "$out/bpe"
beam=(--nbest "$(grep -oP '(^| )--beam[= ]\K\d+' <<<"$*" || echo 5)")
for split in "${splits[@]}"; do
  made=$out/beam/$split
  if [ -z "$interpolate" ]; then made=$out/bpe/$split.$tgt beam=(); fi
  mkdir -p "${made%/*}"
  command=("$dict" --AR-path "$verifier" -s "$src" -t "$tgt" --segmented --keep-bpe --strategy AR --batch 64 "$@"
    --input-path "$text/$split.$src" ${beam[@]+"${beam[@]}"})
  if [ -n "$workers" ]; then
    specdec-translate-corpus "${command[@]}" --workers "$workers" --output-path "$out/shards/$split"
    rm -f "$made.resume"  # it does not describe what comes now
    cp "$out/shards/$split/$split.$src" "$made"
  else
    specdec-translate "${command[@]}" --output-path "$made" --resume
  fi
  if [ -n "$interpolate" ]; then
    python3 "$(dirname "$0")/closest.py" "$made" "$text/$split.$tgt" >"$out/bpe/$split.$tgt"
  fi
done
for split in train valid test; do
  if [ -e "$text/$split.$src" ]; then cp "$text/$split.$src" "$out/bpe/"; fi
done
if [ ${#splits[@]} = 1 ]; then cp "$text/valid.$tgt" "$out/bpe/"; fi
tests=()
if [ -e "$text/test.$tgt" ]; then cp "$text/test.$tgt" "$out/bpe/"; tests=(--testpref "$out/bpe/test"); fi
rm -rf "$out/bin" "$out/bin.part"
fairseq-preprocess --source-lang "$src" --target-lang "$tgt" \
  --srcdict "$dict/dict.$src.txt" --tgtdict "$dict/dict.$tgt.txt" \
  --trainpref "$out/bpe/train" --validpref "$out/bpe/valid" ${tests[@]+"${tests[@]}"} \
  --destdir "$out/bin.part" --workers "$(env -u OMP_NUM_THREADS nproc)"
mv "$out/bin.part" "$out/bin"
