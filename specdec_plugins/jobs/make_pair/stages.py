"""The stages of a pair's making.

A stage takes the job and the facts about the stages before it, and returns its own facts; among
them ``files``, which it has made. It can be stopped anywhere: run again, it goes on, or makes the
same once more.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from specdec_plugins.checkpoints.export import Training, export_checkpoint
from specdec_plugins.evaluation.texts import decode, read_text
from specdec_plugins.files.errors import InferenceError, counted
from specdec_plugins.files.lines import Line
from specdec_plugins.files.output import JsonObject, write_json, write_whole
from specdec_plugins.inference import Settings
from specdec_plugins.inference.backends import obstacle
from specdec_plugins.inference.pair_folder import (
    ENCODERS,
    IN_FOLDER,
    SEGMENTATION,
    copy_segmentation,
    files_in_folder,
)
from specdec_plugins.inference.report import describe_verifier
from specdec_plugins.inference.settings import CTRANSLATE2, PLAIN
from specdec_plugins.inference.systems import parse_system
from specdec_plugins.jobs.loading import load
from specdec_plugins.jobs.make_pair import text
from specdec_plugins.jobs.make_pair.job import Done, PairJob
from specdec_plugins.jobs.make_pair.training import BEST, watch
from specdec_plugins.jobs.resume import resume_path
from specdec_plugins.machine import cores
from specdec_plugins.verifiers.export import write_dictionaries
from specdec_plugins.verifiers.folder import is_folder

logger = logging.getLogger(__name__)

#: Sentences that are distilled at a time.
BATCH = 64
#: Lines by which the verifier is checked, and the pair is compared with it at the end.
CHECKED = 20
COMPARED = 200


def check(job: PairJob, _done: Done) -> JsonObject:
    """Put the verifier and its segmentation into the pair's folder, and try it there."""
    layout = job.layout
    verifier = job.verifier
    if is_folder(verifier.data):
        files = {*write_dictionaries(verifier.data, layout.pair, job.languages)}
        files |= {*copy_segmentation(Path(verifier.data), layout.pair)}
    else:
        files = copied(job)
    export_checkpoint(
        str(verifier.ar_path),
        str(layout.verifier),
        Training(job.languages, str(layout.pair)),
        None,
        verifier.as_transformer,
        job.half,
    )
    translator = load(job.settings(), job.quiet)
    decoder = translator.verifier.decoder
    widths = {decoder.embed_tokens.embedding_dim, decoder.layers[0].embed_dim}
    if widths != {decoder.output_embed_dim}:
        raise InferenceError(f"VERIFIER {verifier.ar_path}: has an output of another width")
    lines = [line for line in read_text(str(job.sources), CHECKED) if line.text.strip()]
    differ = differing(job, job.settings(), layout.verifier, lines)
    result = (
        f"in float64, our greedy search and stock fairseq's differ in {differ} of "
        f"{counted(len(lines), 'line')} of {job.sources.name}"
    )
    if differ:
        raise InferenceError(f"VERIFIER {verifier.ar_path}: {result}; report it")
    return {
        "files": [*sorted(files), layout.verifier],
        "verifier": list(describe_verifier(translator)),
        "checked": f"For the verifier: {result}.",
    }


def copied(job: PairJob) -> set[Path]:
    """Copy a verifier's dictionaries and segmentation into the pair's folder; return the copies."""
    layout = job.layout
    verifier = job.verifier
    options: JsonObject = dict(verifier.encoder_options)
    if verifier.bpe:
        options = files_in_folder(verifier.data) | options
    files: dict[Path, Path] = {}
    for name, path in options.items():
        if os.path.isfile(str(path)):
            options[name] = IN_FOLDER[name][0] if name in IN_FOLDER else Path(path).name
            files[layout.pair / options[name]] = Path(path)
    for language in job.languages:
        files[layout.pair / f"dict.{language}.txt"] = Path(verifier.data) / f"dict.{language}.txt"
    for target, path in files.items():
        write_whole(target, [path.read_bytes()])
    options |= {name: getattr(verifier, name) for name in ENCODERS}
    segmentation = {n: str(v) for n, v in options.items() if v not in (None, False, "")}
    write_json(layout.pair / SEGMENTATION, segmentation)
    return {*files, layout.pair / SEGMENTATION}


def differing(job: PairJob, pair: Settings, checkpoint: object, lines: Sequence[Line]) -> int:
    """Return how many lines settings decode unlike stock fairseq by a checkpoint, in float64."""
    plain: JsonObject = {**PLAIN, "precision": "float64", "batch": 16, "keep_bpe": True}
    pair = replace(pair, **plain)
    stock = replace(job.verifier, **plain, ar_path=str(checkpoint), strategy="fairseq", beam=1)
    outputs = decode(load(pair, job.quiet), lines, job.quiet)
    expected = decode(load(stock, job.quiet), lines, job.quiet)
    return sum(a != b for a, b in zip(outputs, expected, strict=True))


def distil(job: PairJob, done: Done) -> JsonObject:
    """Have the verifier translate the text greedily, and binarise the outputs to learn.

    Another way to translate, such as a GPU in place of a CPU, begins with the first line again.
    """
    layout = job.layout
    shards = layout.work / "shards"
    way = way_to_distil(job)
    asked = {"flags": way, "workers": job.workers is not None}
    if not layout.way.exists() or json.loads(layout.way.read_bytes()) != asked:
        shutil.rmtree(shards, ignore_errors=True)
        for file in (layout.outputs, resume_path(str(layout.outputs))):
            file.unlink(missing_ok=True)
        write_json(layout.way, asked)
    flags = distil_flags(job, way)
    if not job.workers:
        outputs = ["--output-path", layout.outputs, "--resume", "--stats-json", layout.distilling]
        job.run("inference", [*flags, *outputs])
    elif not layout.outputs.exists():
        outputs = ["--output-path", shards, "--workers", job.workers]
        job.run("translate_corpus", [*flags, *outputs])
        os.replace(shards / layout.sources.name, layout.outputs)
    facts = text.collect(job, done["segment"]["lines"])
    shutil.rmtree(layout.bin, ignore_errors=True)
    source, target = job.languages
    command = [
        *("fairseq-preprocess", "-s", source, "-t", target, "--destdir", layout.bin),
        *("--srcdict", layout.pair / f"dict.{source}.txt"),
        *("--tgtdict", layout.pair / f"dict.{target}.txt"),
        *("--trainpref", layout.text / "train", "--validpref", layout.text / "valid"),
        *("--workers", cores()),
    ]
    watch(job, command, layout.work / "preprocess.log")
    files = [layout.outputs, *layout.text.iterdir()]
    files += [path for path in layout.bin.iterdir() if path.suffix != ".log"]
    return {**facts, "files": files}


def way_to_distil(job: PairJob) -> list[str]:
    """Return the flags of what decodes on this machine: CTranslate2 where it can."""
    precision = "float32" if job.on_cpu else "float16"
    settings = job.settings(
        precision=precision, device=job.verifier.device, limits=text.LIMITS, batch=BATCH
    )
    backend = "ours" if obstacle(settings) else CTRANSLATE2
    return ["--AR-backend", backend, "--precision", precision]


def distil_flags(job: PairJob, way: Sequence[str]) -> list[object]:
    """Return the flags of a translation of all lines."""
    layout = job.layout
    limits = text.LIMITS
    return [
        *(layout.pair, "--AR-path", layout.verifier, "--strategy", "AR"),
        *(*way, "--batch", BATCH),
        *("--max-len-a", limits.max_len_a, "--max-len-b", limits.max_len_b),
        *("--segmented", "--keep-bpe", "--quiet", *job.flags),
        *("--input-path", layout.sources),
    ]


def export(job: PairJob, _done: Done) -> JsonObject:
    """Write the best drafter into the pair's folder; it drafts the frequent tokens."""
    layout = job.layout
    dictionary = layout.pair / f"dict.{job.languages[1]}.txt"
    entries = dictionary.read_bytes().splitlines()
    count = text.frequent_tokens(layout.learned, len(entries))
    draft_from = None if count is None else (count, str(layout.learned))
    export_checkpoint(
        str(layout.training / BEST),
        str(layout.drafter),
        Training(job.languages, str(layout.pair)),
        draft_from,
        half=True,
    )
    return {"files": [layout.drafter], "draft_vocabulary": count}


def measure(job: PairJob, _done: Done) -> JsonObject:
    """Measure how fast the pair is here, its acceptance lengths, and how exact it is."""
    layout = job.layout
    speed = ""
    if job.on_cpu:
        speed = job.run("tune", [layout.pair, *job.flags])
    lines = [line for line in read_text(str(layout.valid_text), None) if line.text.strip()]
    whole = Settings.of_model(layout.pair, batch=16, device=job.verifier.device)
    lengths = {}
    for name in ("constant", "tree@tree_nodes=8"):
        translator = load(parse_system(name, whole), job.quiet)
        decode(translator, lines, job.quiet)
        lengths[name] = translator.statistics.acceptance_length
    compared = lines[:COMPARED]
    checkpoint = Path(str(job.verifier.ar_path))
    differ = differing(
        job, job.settings(path=str(layout.drafter), strategy="specdec"), checkpoint, compared
    )
    exact = (
        f"In float64, the pair translates {differ} of {counted(len(compared), 'held-out line')} "
        f"unlike fairseq's greedy search with {checkpoint.name}."
    )
    if differ and not job.half:
        logger.warning(exact)
    else:
        job.say(exact)
    return {"speed": speed, "acceptance_length": lengths, "exact": exact, "files": []}
