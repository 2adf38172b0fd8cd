#!/usr/bin/env bash
# Raw text -> Moses tokens -> joint BPE -> fairseq's binary format.
#
#   scripts/prepare_data.sh RAW_DIR OUT_DIR SRC TGT [MERGES] [options]
#
# RAW_DIR holds {train,valid,test}.{SRC,TGT}, one sentence a line. OUT_DIR receives `codes`,
# tok/ and bpe/ (text), and bin/ (what fairseq-train reads, dictionaries included). Text is
# tokenised as fairseq's `--tokenizer moses` does it. Repeat the command after an interruption.
#
#   MERGES           BPE operations to learn (4000)
#   --codes FILE     BPE codes to take instead, those of published checkpoints for instance
#   --srcdict FILE   fairseq dictionary of SRC, and of TGT too unless --tgtdict is given; without,
#   --tgtdict FILE   one for both is made of the training text
#   --tokenized      RAW_DIR is tokenised already
#   --workers N      processes that tokenise and binarise (all cores)
set -euo pipefail
. "$(dirname "$0")/text_folder.sh"
[ $# -ge 4 ] || usage
raw=$1 out=$2 src=$3 tgt=$4 merges=4000 codes='' srcdict='' tgtdict='' tokenized=''
shift 4
refuse_same "$src" "$tgt"
case ${1:---} in --*) ;; *) merges=$1; shift ;; esac
check_number MERGES "$merges"
workers=$(env -u OMP_NUM_THREADS nproc)
while [ $# -gt 0 ]; do
  case $1 in
    --tokenized) tokenized=yes; shift; continue ;;
    --codes | --srcdict | --tgtdict | --workers) ;;
    *) die "$1: no such option" 2 ;;
  esac
  [ $# -gt 1 ] || die "$1: give a value" 2
  printf -v "${1#--}" %s "$2"
  shift 2
done
check_number --workers "$workers"
[ -z "$tgtdict" ] || [ -n "$srcdict" ] || die "--tgtdict $tgtdict: give --srcdict, too" 2
export PYTHONUTF8=1; unset PYTHONIOENCODING
texts=("$raw"/{train,valid,test}.{"$src","$tgt"})
given=(${codes:+"$codes"} ${srcdict:+"$srcdict"} ${tgtdict:+"$tgtdict"})
for file in "${texts[@]}" ${given[@]+"${given[@]}"}; do
  [ -s "$file" ] || die "$file: is missing or empty"
done
for split in train valid test; do same_lines "$raw/$split".{"$src","$tgt"}; done
refuse_unreadable "${texts[@]}"
need sacremoses subword-nmt fairseq-preprocess
[ -z "$codes" ] || subword-nmt apply-bpe -c "$codes" </dev/null >/dev/null 2>&1 || die "$codes: holds no BPE codes"

own_folder "$out" made_with
made_with=$(cat "${texts[@]}" ${given[@]+"${given[@]}"} | cksum && echo "$src $tgt $merges ${#given[@]} $tokenized")
if [ -e "$out/made_with" ]; then
  [ "$(cat "$out/made_with")" = "$made_with" ] || die "$out: was begun with other text or flags; give those, or name a new folder"
fi
printf '%s\n' "$made_with" >"$out/made_with"
mkdir -p "$out/tok" "$out/bpe"

# make FILE COMMAND...: write the output of COMMAND to FILE, whole or not at all.
make() {
  if [ -e "$1" ]; then return; fi
  run "${@:2}" >"$1.part"
  mv "$1.part" "$1"
}
tokenize() {
  if [ -n "$tokenized" ]; then LC_ALL=C awk 1 "$2"; return; fi
  sacremoses -q -l "$1" -j "$workers" tokenize -a <"$2"
}
learn_bpe() { cat "$out/tok/train.$src" "$out/tok/train.$tgt" | subword-nmt learn-bpe -s "$merges"; }
segment() { subword-nmt apply-bpe -c "$out/codes" <"$1"; }
for text in "${texts[@]##*/}"; do make "$out/tok/$text" tokenize "${text#*.}" "$raw/$text"; done
if [ -n "$codes" ]; then make "$out/codes" cat "$codes"; else make "$out/codes" learn_bpe; fi
for text in "${texts[@]##*/}"; do make "$out/bpe/$text" segment "$out/tok/$text"; done

if [ -e "$out/bin" ]; then exit; fi
dictionaries=(--joined-dictionary)
if [ -n "$tgtdict" ]; then dictionaries=(--tgtdict "$tgtdict"); fi
if [ -n "$srcdict" ]; then dictionaries+=(--srcdict "$srcdict"); fi
binarise "$out" "$src" "$tgt" "${dictionaries[@]}" --testpref "$out/bpe/test"
