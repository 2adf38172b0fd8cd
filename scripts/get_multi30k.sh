#!/usr/bin/env bash
# Multi30k, English-German image captions: {train,valid,test}.{en,de}, raw and cased.
#
#   scripts/get_multi30k.sh OUT_DIR [SOURCE_DIR]
#
# With SOURCE_DIR the text is taken from there: a folder with train.en, valid.en (or val.en),
# test2016.en (or test_2016_flickr.en) and their German sides, plain or .gz, or a clone of the
# corpus's repository (data/task1/raw/). Without, it is downloaded from that repository, at a
# fixed commit; MULTI30K_URL names another place with the same files. `test` is
# test_2016_flickr. The captions are for non-commercial research: see the corpus's own page,
# https://github.com/multi30k/dataset.
set -euo pipefail
. "$(dirname "$0")/lib_download.sh"
if [ $# -lt 1 ] || [ $# -gt 2 ]; then usage; fi
source_dir=${2:-}
mirror=MULTI30K_URL
own_text="text of your own needs no script: give its source side to specdec-make-pair, or a folder of {train,valid,test}.{en,de} to prepare_data.sh"
url=${MULTI30K_URL:-https://raw.githubusercontent.com/multi30k/dataset/a3d2e0d26b56f3846f66a952536ffed4e401d05a/data/task1/raw}
if [ -n "$source_dir" ] && [ ! -d "$source_dir" ]; then
  die "SOURCE_DIR $source_dir is not a folder: give one that holds the corpus, or none to download it"
fi
open_out "$1"

# find_source LANG NAME...: the first file of SOURCE_DIR that has one of the NAMEs.
find_source() {
  local lang=$1 name folder end
  shift
  for folder in "$source_dir" "$source_dir/data/task1/raw"; do
    for name in "$@"; do
      for end in "" .gz; do
        if [ -s "$folder/$name.$lang$end" ]; then echo "$folder/$name.$lang$end"; return; fi
      done
    done
  done
  die "SOURCE_DIR $source_dir holds no $1.$lang: Multi30k has train, valid and test2016, .en and .de; $own_text"
}

# plain FILE: its text, unpacked where need be, every line ending in one newline.
plain() {
  case $1 in *.gz) gzip -dc "$1" ;; *) cat "$1" ;; esac | LC_ALL=C awk '{ sub(/\r$/, ""); print }'
}

# get SPLIT LINES NAME...: NAME is what the repository, then other copies, call the split.
get() {
  local split=$1 lines=$2 lang file
  shift 2
  for lang in en de; do
    if [ -n "$source_dir" ]; then
      file=$(find_source "$lang" "$@")
    else
      if [ -s "$out/$split.$lang" ] && [ "$(count_lines "$out/$split.$lang")" = "$lines" ]; then continue; fi
      file=$store/$1.$lang.gz
      fetch "$url/$1.$lang.gz" "$file"
    fi
    plain "$file" >"$out/$split.$lang.part" || die "$file cannot be unpacked: delete it and run again"
    check_lines "$out/$split.$lang.part" "$lines" "$file" "$own_text"
    mv "$out/$split.$lang.part" "$out/$split.$lang"
  done
}

get train 29000 train
get valid 1014 val valid
get test 1000 test_2016_flickr test2016
next_step en de 4000
