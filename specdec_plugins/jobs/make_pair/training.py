"""The training stage: a recipe sized from the verifier, and fairseq-train in its own process."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from fairseq.models.transformer import TransformerModelBase
from omegaconf import OmegaConf

from specdec_plugins.checkpoints.loading import load_state
from specdec_plugins.checkpoints.pair import load_verifier
from specdec_plugins.files.errors import InferenceError
from specdec_plugins.files.output import JsonObject, write_whole
from specdec_plugins.inference.loading import build_task
from specdec_plugins.jobs import progress
from specdec_plugins.jobs.make_pair.job import Done, PairJob
from specdec_plugins.machine import processor_name, python_program

#: Maximum validations of a training, and minimum updates between two.
VALIDATIONS = 20
BETWEEN = 50
LAST = "checkpoint_last.pt"
BEST = "checkpoint_best.pt"
UPDATES = re.compile(r'"num_updates": "(\d+)"')
VALIDATION = re.compile(r'"valid_acceptance_length": "([\d.]+)".*"valid_num_updates": "(\d+)"')
#: Ends a child, and all that it has started, with its parent: it leads a group of processes, which
#: a terminal does not interrupt. A read of ``sys.stdin`` would hold a lock for which Python waits,
#: and aborts, when the child is done.
CHILD = """\
import os, signal, threading
end = lambda: (os.read(0, 1), os.killpg(0, signal.SIGKILL))
threading.Thread(target=end, daemon=True).start()
"""
#: Code of the commands that run in a process of their own.
PROGRAMS = {
    "specdec-train": "from specdec_plugins.cli.train import main; sys.exit(main())",
    "fairseq-preprocess": "from fairseq_cli.preprocess import cli_main; cli_main()",
}
#: Updates by which the speed is measured.
FIRST = 60
#: Share of the time of a training that is left to validations.
SHARE = 0.1
#: Seconds reserved for exporting and measuring; at most a quarter of all.
FINISH = 180.0
#: Highest learning rate, up to this width; wider drafters take less, in proportion.
PEAK = 2e-3
WIDTH = 384
#: Maximum updates of rising learning rate; a tenth of all, if that is fewer.
WARMUP = 500
#: The first layers of the verifier's decoder whose states are read beside its last.
FEATURE_LAYERS = 2
#: Processors that multiply matrices faster in bfloat16 than in float32.
BFLOAT16 = ("avx512_bf16", "amx")
#: Settings of every drafter's training; they were measured to learn fastest.
RECIPE = """\
common:
  user_dir: specdec_plugins
  log_format: json
task:
  _name: translation_specdec
  total_up: ${optimization.max_update}
  block_size: 8
  blocks_per_sentence: 4
  start_p: 0.0
  minus_p: 0.0
model:
  _name: block_causal
  share_verifier_encoder: true
  verifier_features: true
  previous_token_head: true
  decoder_layers: 2
  decoder_normalize_before: true
  dropout: 0.0
criterion:
  _name: glat_loss
  verifier_labels: true
  slot_decay: 4.0
optimizer:
  _name: adam
  adam_betas: (0.9, 0.98)
lr_scheduler:
  _name: polynomial_decay
  total_num_update: ${optimization.max_update}
optimization:
  clip_norm: 1.0
dataset:
  max_tokens: 6500
  max_tokens_valid: 16000
  validate_interval: 1000000
  skip_invalid_size_inputs_valid_test: true
checkpoint:
  save_interval: 1000000
  no_epoch_checkpoints: true
  keep_interval_updates: 1
  best_checkpoint_metric: acceptance_length
  maximize_best_checkpoint_metric: true
"""


def train(job: PairJob, done: Done) -> JsonObject:
    """Write the drafter's recipe, and train it; interrupted, it ends with the best so far.

    The first updates tell how many fit into the hours.
    """
    begin = time.monotonic()
    layout = job.layout
    interrupted = False
    command = [
        *("specdec-train", layout.bin, "--recipe", layout.recipe),
        *("--save-dir", layout.training),
    ]
    verifier = load_verifier(layout.verifier, build_task(job.settings()))
    updates, seconds = trained(layout.training / LAST)
    total = job.updates or 0
    hours = 0.0
    pace = None
    if job.hours is not None:
        if updates < FIRST:
            whole = 10 * WARMUP
            write_recipe(job, verifier, whole, FIRST)
            flags = [
                *(f"--total-up={whole}", f"--total-num-update={whole}"),
                *(f"--max-update={FIRST}", f"--stop-time-hours={job.hours}"),
            ]
            pace = watch(job, [*command, *flags], layout.log, FIRST)
        spent = sum(done[name]["seconds"] for name in ("check", "segment", "distil"))
        left = time_to_train(job, spent + seconds + time.monotonic() - begin)
        updates, seconds = trained(layout.training / LAST)
        # A training that goes on has its time in the checkpoint, validations and all.
        pace = pace or max(1e-3, seconds * (1 - SHARE) / max(1, updates))
        total = updates + int(left * (1 - SHARE) / pace)
        hours = (seconds + left) / 3600
    total = max(total, updates)
    interval = max(BETWEEN, -(-total // VALIDATIONS))
    if total < 2 * interval:
        interval = total  # two validations of almost the same drafter would tell nothing
    write_recipe(job, verifier, total, interval, hours)
    try:
        if updates < total:
            pace = watch(job, command, layout.log, total)
    except KeyboardInterrupt as stop:
        # A signal other than Ctrl-C leaves no time for an export.
        if stop.args or not (layout.training / BEST).exists():
            raise
        interrupted = True
    lengths = VALIDATION.findall(layout.log.read_text("utf-8", "replace"))
    points = {int(after): float(length) for length, after in lengths}
    return {
        "files": [layout.training / BEST],
        "points": sorted(points.items()),
        "hours": trained(layout.training / LAST)[1] / 3600,
        "pace": pace,
        "interrupted": interrupted,
        "processor": processor_name(),
    }


def time_to_train(job: PairJob, spent: float) -> float:
    """Return the seconds that ``--hours`` leave when so many are spent."""
    assert job.hours is not None
    whole = 3600 * job.hours
    left = whole - spent - min(FINISH, whole / 4)
    if left <= 0 and not (job.layout.training / BEST).exists():
        raise InferenceError(
            f"--hours {job.hours:g}: {spent / 60:.1f} minutes are spent, and the last stages need "
            "the rest; give more hours (finished work is kept)"
        )
    return max(0.0, left)


def write_recipe(
    job: PairJob, verifier: TransformerModelBase, updates: int, interval: int, hours: float = 0.0
) -> None:
    """Write the settings of a drafter's training; widths are the verifier's.

    It ends after ``updates``, at a learning rate of 0, or after ``hours``, if they are not 0.
    """
    layers = verifier.decoder.layers
    width = int(verifier.decoder.output_embed_dim)
    features = range(1, len(layers))[:FEATURE_LAYERS]
    source, target = job.languages
    recipe = OmegaConf.create(RECIPE)
    sized: dict[str, JsonObject] = {
        "common": {"log_interval": max(1, min(10, updates // 4))},
        "task": {
            "AR_path": str(job.layout.verifier.absolute()),
            "source_lang": source,
            "target_lang": target,
            "max_source_positions": int(verifier.encoder.max_positions()),
            "max_target_positions": int(verifier.decoder.max_positions()) + recipe.task.block_size,
        },
        "model": {
            "encoder_embed_dim": int(verifier.encoder.layers[0].embed_dim),
            "verifier_embed_dim": width,
            "decoder_embed_dim": width,
            "decoder_ffn_embed_dim": 2 * width,
            "decoder_attention_heads": int(layers[0].self_attn.num_heads),
            "verifier_feature_layers": ",".join(map(str, features)),
        },
        "lr_scheduler": {"warmup_updates": max(1, min(WARMUP, updates // 10))},
        "optimization": {
            "lr": [round(PEAK * min(1.0, WIDTH / width), 6)],
            "max_update": updates,
            "stop_time_hours": round(hours, 5),
        },
        "dataset": {"validate_interval_updates": interval},
        "checkpoint": {"save_interval_updates": interval},
    }
    if job.on_cpu:
        sized["common"]["cpu"] = True
        sized["dataset"]["num_workers"] = 0
        if any(name in processor_name() for name in BFLOAT16):
            sized["task"]["autocast"] = "bfloat16"
    else:
        sized["common"]["fp16"] = True
    text = OmegaConf.to_yaml(OmegaConf.merge(recipe, sized))
    write_whole(job.layout.recipe, [text.encode("utf-8")])


def trained(checkpoint: Path) -> tuple[int, float]:
    """Return the updates and seconds of a checkpoint's training; 0 where there is none."""
    if not checkpoint.exists():
        return 0, 0.0
    state = load_state(checkpoint)
    seconds = state["extra_state"].get("previous_training_time")
    return state["num_updates"], seconds if isinstance(seconds, float) else 0.0


def watch(
    job: PairJob, command: Sequence[object], log: Path, total: int | None = None
) -> float | None:
    """Run a command in a process of its own, which ends with this one and adds to a log.

    Shows the progress of a training of ``total`` updates, and returns the seconds of an update, if
    the log has two lines of updates.
    """
    name, *arguments = command
    code = f"sys.argv[0] = {name!r}\n{CHILD}{PROGRAMS[str(name)]}"
    last = ""
    times = list[tuple[int, float]]()
    shown = {} if total is None else {"unit": "update", "total": total}
    with (
        open(log, "a", encoding="utf-8") as file,
        progress(job.quiet, str(name), **shown) as bar,
        subprocess.Popen(
            python_program(code, *arguments),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONUTF8": "1"},
            start_new_session=True,
        ) as child,
    ):
        assert child.stdout is not None
        try:
            for line in (line.decode("utf-8", "replace") for line in child.stdout):
                file.write(line)
                file.flush()
                last = line.strip() or last
                if match := UPDATES.search(line):
                    times.append((int(match[1]), time.monotonic()))
                    bar.update(times[-1][0] - bar.n)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
    if child.wait():
        raise InferenceError(f"{last}; its full output is in {log}")
    if len(times) < 2:
        return None
    (first, begin) = times[0]
    (updates, end) = times[-1]
    return (end - begin) / (updates - first)
