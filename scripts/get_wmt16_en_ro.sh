#!/usr/bin/env bash
# WMT16 English-Romanian or Romanian-English: {train,valid,test}.{en,ro}, raw and cased, diacritics
# kept.
#
#   scripts/get_wmt16_en_ro.sh OUT_DIR [en-ro|ro-en]
#
# train: Europarl v8 and SETIMES2, about 0.6 million pairs before cleaning. valid: newsdev2016.
# test: newstest2016. WMT16_URL names a mirror of https://data.statmt.org/wmt16/translation-task
# (Europarl), OPUS_URL one of https://object.pouta.csc.fi (SETIMES2). Give each direction an OUT_DIR of
# its own (they may share one download/, by a link). The next step is printed at the end.
set -euo pipefail
. "$(dirname "$0")/lib_download.sh"
choose_direction en ro "$@"
mirror="WMT16_URL or OPUS_URL"
wmt=${WMT16_URL:-https://data.statmt.org/wmt16/translation-task}
opus=${OPUS_URL:-https://object.pouta.csc.fi}
use_project_python
open_out "$1"

for lang in en ro; do
  side=ref
  if [ "$lang" = "$source" ]; then side=src; fi
  benchmark wmt16/dev "$source-$target" "$side" "$out/valid.$lang" 1999
  benchmark wmt16 "$source-$target" "$side" "$out/test.$lang" 1999
done

fetch "$wmt/training-parallel-ep-v8.tgz" "$store/training-parallel-ep-v8.tgz"
extract "$store/training-parallel-ep-v8.tgz" europarl-v8.ro-en.en europarl-v8.ro-en.ro
fetch "$opus/OPUS-SETIMES/v2/moses/en-ro.txt.zip" "$store/setimes2.en-ro.txt.zip"
extract "$store/setimes2.en-ro.txt.zip" SETIMES.en-ro.en SETIMES.en-ro.ro
clean_train en ro europarl-v8.ro-en SETIMES.en-ro
next_step "$source" "$target" 32000
