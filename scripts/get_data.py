#!/usr/bin/env python3
"""Bring a public corpus: {train,valid,test}.{SRC,TGT}, raw and cased.

    scripts/get_data.py multi30k runs/raw
    scripts/get_data.py wmt14 runs/raw --direction de-en

multi30k: English-German captions, for non-commercial research (https://github.com/multi30k/dataset).
wmt14: English-German, 4.5 million pairs (5 GB of disk), newstest2013 and newstest2014. wmt16:
English-Romanian, 0.6 million pairs, newsdev2016 and newstest2016. WMT's training pairs are cleaned:
no empty sides, no bytes that are not UTF-8, at most 250 words, and neither side more than 1.5 times
as long as the other. --mirror names a folder or URL that has the same files. Repeat the command
after an interruption.
"""

from __future__ import annotations

import gzip
import shutil
import subprocess
import sys
import tarfile
import urllib.request
import zipfile
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import zip_longest
from pathlib import Path

import installed  # noqa: F401 (first)

from specdec_plugins.files.command import Parser, command, tell
from specdec_plugins.files.errors import InferenceError
from specdec_plugins.files.output import whole_file

MULTI30K = (
    "https://raw.githubusercontent.com/multi30k/dataset/"
    "a3d2e0d26b56f3846f66a952536ffed4e401d05a/data/task1/raw/"
)
SPLITS = {"train": ("train", 29000), "valid": ("val", 1014), "test": ("test_2016_flickr", 1000)}
STATMT = "https://www.statmt.org/"
STATMT16 = "https://data.statmt.org/wmt16/translation-task/"
WMT = {
    "wmt14": {
        f"{STATMT}wmt13/training-parallel-europarl-v7.tgz": "europarl-v7.de-en",
        f"{STATMT}wmt13/training-parallel-commoncrawl.tgz": "commoncrawl.de-en",
        f"{STATMT}wmt14/training-parallel-nc-v9.tgz": "news-commentary-v9.de-en",
    },
    "wmt16": {
        f"{STATMT16}training-parallel-ep-v8.tgz": "europarl-v8.ro-en",
        "https://object.pouta.csc.fi/OPUS-SETIMES/v2/moses/en-ro.txt.zip": "SETIMES.en-ro",
    },
}
TESTS = {"wmt14": ("wmt13", "wmt14/full"), "wmt16": ("wmt16/dev", "wmt16")}
LANGUAGES = {"wmt14": ["en", "de"], "wmt16": ["en", "ro"]}


def fetch(url: str, out: Path, mirror: str | None) -> Path:
    """Download a file to ``out/download``, unless it is there."""
    path = out / "download" / url.rpartition("/")[2]
    if not path.exists():
        if mirror:
            base = mirror if "://" in mirror else Path(mirror).resolve().as_uri()
            url = f"{base}/{path.name}"
        tell(f"downloading {url}")
        try:
            with urllib.request.urlopen(url) as response, whole_file(path) as file:
                shutil.copyfileobj(response, file)
                size = int(response.headers["Content-Length"] or file.tell())
                if file.tell() < size:
                    raise InferenceError(f"{url}: {file.tell()} of {size} bytes came; repeat it")
        except OSError as error:
            raise InferenceError(f"{url}: {error}; repeat the command") from error
    return path


def extract(archive: Path, name: str) -> Path:
    """Bring the file of this name, from whatever folder of an archive, beside it."""
    path = archive.with_name(name)
    if path.exists():
        return path
    with ExitStack() as stack:
        if archive.suffix == ".zip":
            zipped = stack.enter_context(zipfile.ZipFile(archive))
            source = zipped.open(member_of(archive, zipped.namelist(), name))
        else:
            packed = stack.enter_context(tarfile.open(archive))
            source = packed.extractfile(member_of(archive, packed.getnames(), name))
        with whole_file(path) as file:
            shutil.copyfileobj(source, file)
    return path


def member_of(archive: Path, members: list[str], name: str) -> str:
    """Return the member of an archive that has this name, in whatever folder."""
    for member in members:
        if Path(member).name == name:
            return member
    raise InferenceError(f"{archive}: holds no {name}")


def is_clean(source: str, target: str) -> bool:
    """Return whether a pair is long and short enough, and UTF-8."""
    shorter, longer = sorted((len(source.split()), len(target.split())))
    return "\ufffd" not in source + target and shorter > 0 and longer <= min(250, 1.5 * shorter)


def get_multi30k(out: Path, mirror: str | None) -> None:
    """Download Multi30k."""
    for split, (name, count) in SPLITS.items():
        for lang in ("en", "de"):
            with gzip.open(fetch(f"{MULTI30K}{name}.{lang}.gz", out, mirror)) as packed:
                lines = [line.rstrip(b"\r\n") + b"\n" for line in packed]
            if len(lines) != count:
                raise InferenceError(f"{name}.{lang}.gz has {len(lines)} lines, not {count}")
            with whole_file(out / f"{split}.{lang}") as file:
                file.writelines(lines)


def get_wmt(corpus: str, out: Path, direction: str, mirror: str | None) -> None:
    """Download a WMT corpus and its test sets, and clean its training pairs."""
    for split, name in zip(("valid", "test"), TESTS[corpus]):
        for lang, side in zip(direction.split("-"), ("src", "ref")):
            with whole_file(out / f"{split}.{lang}") as file:
                flags = ["-t", name, "-l", direction, "--echo", side]
                subprocess.run([sys.executable, "-m", "sacrebleu", *flags], stdout=file, check=True)
    with ExitStack() as stack:
        languages = LANGUAGES[corpus]
        paths = [out / f"train.{lang}" for lang in languages]
        texts = [stack.enter_context(whole_file(path)) for path in paths]
        for url, name in WMT[corpus].items():
            archive = fetch(url, out, mirror)
            sides = [extract(archive, f"{name}.{lang}") for lang in languages]
            # A line ends at a line feed and nowhere else.
            how = {"encoding": "utf-8", "errors": "replace", "newline": "\n"}
            files = [stack.enter_context(side.open(**how)) for side in sides]
            for pair in zip_longest(*files):
                if None in pair:
                    raise InferenceError(f"the sides of {name} differ in number of lines")
                if is_clean(*pair):
                    for text, line in zip(texts, pair):
                        cleaned = " ".join(line.split())
                        text.write(cleaned.encode() + b"\n")


@command()
def main(argv: Sequence[str]) -> None:
    """Bring the corpus that the command line names."""
    parser = Parser(__doc__)
    parser.add_argument("corpus", choices=["multi30k", *WMT])
    parser.add_argument("out", type=Path, metavar="OUT_DIR")
    parser.add_argument("--direction", help="of WMT's test sets (en-de or en-ro)")
    parser.add_argument("--mirror", metavar="FOLDER|URL")
    args = parser.parse_args(argv)
    languages = LANGUAGES.get(args.corpus, [])
    direction = args.direction or "-".join(languages)
    if sorted(direction.split("-")) != sorted(languages or [""]):
        parser.error(f"--direction {direction}: is not of {args.corpus}")
    (args.out / "download").mkdir(parents=True, exist_ok=True)
    if args.corpus == "multi30k":
        get_multi30k(args.out, args.mirror)
    else:
        get_wmt(args.corpus, args.out, direction, args.mirror)


if __name__ == "__main__":
    sys.exit(main())
