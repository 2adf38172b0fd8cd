#!/usr/bin/env bash
# WMT14 English-German or German-English: {train,valid,test}.{en,de}, raw and cased.
#
#   scripts/get_wmt14_en_de.sh OUT_DIR [en-de|de-en]
#
# train: Europarl v7, Common Crawl and News Commentary v9, about 4.5 million pairs before
# cleaning. valid: newstest2013. test: newstest2014, all 3003 lines (sacrebleu's wmt14/full).
# Downloads about 1.6 GB and needs about 5 GB of disk; WMT_URL names a mirror of
# https://www.statmt.org. Give each direction an OUT_DIR of its own (they may share one download/,
# by a link). The next step is printed at the end.
set -euo pipefail
. "$(dirname "$0")/lib_download.sh"
choose_direction en de "$@"
mirror=WMT_URL
url=${WMT_URL:-https://www.statmt.org}
use_project_python
open_out "$1"

for lang in en de; do
  side=ref
  if [ "$lang" = "$source" ]; then side=src; fi
  benchmark wmt13 "$source-$target" "$side" "$out/valid.$lang" 3000
  benchmark wmt14/full "$source-$target" "$side" "$out/test.$lang" 3003
done

# corpus PATH NAME: PATH is the archive's place below the base URL.
corpus() {
  fetch "$url/$1" "$store/${1##*/}"
  extract "$store/${1##*/}" "$2.en" "$2.de"
}
corpus wmt13/training-parallel-europarl-v7.tgz europarl-v7.de-en
corpus wmt13/training-parallel-commoncrawl.tgz commoncrawl.de-en
corpus wmt14/training-parallel-nc-v9.tgz news-commentary-v9.de-en
clean_train en de europarl-v7.de-en commoncrawl.de-en news-commentary-v9.de-en
next_step "$source" "$target" 32000
