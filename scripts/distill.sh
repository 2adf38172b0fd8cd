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
# output of the beam that is most like the reference, a line of BPE_DIR's text in TGT
# (scripts/closest.py). --workers distils by Ray in N processes, one a GPU if there are any
# (specdec-translate-corpus).
set -euo pipefail
. "$(dirname "$0")/text_folder.sh"
splits=(train valid) workers='' interpolate=''
while :; do
  case ${1:-} in
    --keep-valid) splits=(train); shift ;;
    --interpolate) interpolate=yes; shift ;;
    --workers) check_number --workers "${2-}"; workers=$2; shift 2 ;;
    *) break ;;
  esac
done
[ $# -ge 6 ] || usage
verifier=$1 dict=$2 text=$3 out=$4 src=$5 tgt=$6
shift 6
refuse_same "$src" "$tgt"
for file in "$verifier" "$dict"/dict.{"$src","$tgt"}.txt "$text"/{train,valid}.{"$src","$tgt"}; do
  [ -e "$file" ] || [ "$file" = "$text/train.$tgt" ] || die "$file: is missing"
done
refuse_unreadable "$text"/{train,valid,test}.{"$src","$tgt"}
references=()  # the splits of whose text in TGT a line belongs to each source
if [ ${#splits[@]} = 1 ]; then references+=(valid); fi
if [ -e "$text/test.$tgt" ]; then references+=(test); fi
made=$out/greedy beam=()
if [ -n "$interpolate" ]; then
  [[ " $*" =~ \ --(beam|strategy)[=\ ] ]] || die "--interpolate: chooses from a beam; give --strategy fairseq --beam 5" 2
  references+=("${splits[@]}")
  made=$out/beam beam=(--nbest "$(grep -oP '(^| )--beam[= ]\K\d+' <<<"$*" || echo 5)")
fi
for split in ${references[@]+"${references[@]}"}; do
  for file in "$text/$split".{"$src","$tgt"}; do [ -e "$file" ] || die "$file: is missing"; done
  same_lines "$text/$split".{"$src","$tgt"}
done
need specdec-translate fairseq-preprocess
[ ! "$text" -ef "$out/bpe" ] || die "$out/bpe: is with the input; name another folder"
own_folder "$out" bpe
mkdir -p "$out/bpe" "$made"
for split in "${splits[@]}"; do
  command=("$dict" --AR-path "$verifier" -s "$src" -t "$tgt" --segmented --keep-bpe --strategy AR --batch 64 "$@"
    --input-path "$text/$split.$src" ${beam[@]+"${beam[@]}"})
  output=$made/$split
  if [ -n "$workers" ]; then
    run specdec-translate-corpus "${command[@]}" --workers "$workers" --output-path "$out/shards/$split"
    output=$out/shards/$split/$split.$src
  else
    run specdec-translate "${command[@]}" --output-path "$output" --resume
  fi
  if [ -n "$interpolate" ]; then
    run python3 "$(dirname "$0")/closest.py" "$output" "$text/$split.$tgt" >"$out/bpe/$split.$tgt"
  else
    cp "$output" "$out/bpe/$split.$tgt"
  fi
done
cp "$text"/{train,valid}."$src" "$out/bpe/"
if [ ${#splits[@]} = 1 ]; then cp "$text/valid.$tgt" "$out/bpe/"; fi # the references
tests=()
if [ -e "$text/test.$tgt" ]; then
  cp "$text"/test.{"$src","$tgt"} "$out/bpe/"
  tests=(--testpref "$out/bpe/test")
fi
workers=$(env -u OMP_NUM_THREADS nproc)
binarise "$out" "$src" "$tgt" --srcdict "$dict/dict.$src.txt" --tgtdict "$dict/dict.$tgt.txt" \
  ${tests[@]+"${tests[@]}"}
