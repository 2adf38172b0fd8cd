"""Trainings: their recipes, sized from the verifier, and fairseq-train in a process of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from fairseq.models.transformer import TransformerModelBase
from fairseq.modules import LearnedPositionalEmbedding
from omegaconf import OmegaConf
from tqdm import tqdm

from specdec_plugins.checkpoints.loading import load_state
from specdec_plugins.files.errors import InferenceError
from specdec_plugins.files.output import JsonObject, write_whole
from specdec_plugins.jobs.make_pair.job import Command, PairJob, shown
from specdec_plugins.machine import processor_name, python_path, python_program

VALIDATIONS, BETWEEN = 20, 50
"""Maximum validations of a training, and minimum updates between two."""
LAST, BEST = "checkpoint_last.pt", "checkpoint_best.pt"
START = "$ "
"""The beginning of a log's line that shows the command which logs the next lines."""
LINE = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) \| INFO \| (?:train_inner|valid) \| (.*)")
CHILD = """\
import os, signal, threading
signal.signal(signal.SIGINT, signal.SIG_IGN)
threading.Thread(target=lambda: (os.read(0, 1), os._exit(1)), daemon=True).start()
"""
"""Ends a child with its parent, and leaves interruptions to the parent. A read of ``sys.stdin``
would hold a lock for which Python waits, and aborts, when the child is done."""
PROGRAMS = {
    "specdec-train": "from specdec_plugins.cli.train import main; sys.exit(main())",
    "fairseq-preprocess": "from fairseq_cli.preprocess import cli_main; cli_main()",
}
"""Code of the commands that run in a process of their own."""
PEAK, WIDTH = 2e-3, 384
"""Highest learning rate, up to this width; wider drafters take less, in proportion."""
WARMUP = 500
"""Maximum updates of rising learning rate; a tenth of all, if that is fewer."""
FEATURE_LAYERS = 2
"""The first layers of the verifier's decoder whose states are read beside its last."""
BFLOAT16 = ("avx512_bf16", "amx")
"""Processors that multiply matrices faster in bfloat16 than in float32."""
RECIPE = """\
common:
  user_dir: specdec_plugins
  seed: 1
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
"""Settings of every drafter's training; they were measured to learn fastest."""


def write_recipe(
    job: PairJob, verifier: TransformerModelBase, updates: int, interval: int, hours: float = 0.0
) -> None:
    """Write the settings of a drafter's training; widths are the verifier's.

    Args:
        updates: the update at which it ends, and its learning rate is 0.
        interval: updates between validations.
        hours: hours after which it stops; 0: it does not.
    """
    layer, width = verifier.decoder.layers[0], int(verifier.decoder.output_embed_dim)
    source, target = job.languages
    recipe = OmegaConf.create(RECIPE)
    sized: dict[str, JsonObject] = {
        "common": {
            "log_interval": max(1, min(10, updates // 4)),
            "cpu" if job.on_cpu else "fp16": True,
        },
        "task": {
            "AR_path": str(job.layout.verifier.absolute()),
            "source_lang": source,
            "target_lang": target,
            "max_source_positions": int(verifier.encoder.max_positions()),
            "max_target_positions": int(verifier.decoder.max_positions()) + recipe.task.block_size,
        },
        "model": {
            "verifier_embed_dim": width,
            "decoder_embed_dim": width,
            "decoder_ffn_embed_dim": 2 * width,
            "decoder_attention_heads": int(layer.self_attn.num_heads),
            **_encoder(verifier, width),
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
        sized["dataset"]["num_workers"] = 0
        if any(name in processor_name() for name in BFLOAT16):
            sized["task"]["autocast"] = "bfloat16"
    text = OmegaConf.to_yaml(OmegaConf.merge(recipe, sized))
    write_whole(job.layout.recipe, [text.encode("utf-8")])


def _encoder(verifier: TransformerModelBase, width: int) -> JsonObject:
    """Return the drafter's options about its encoder, and the layers of the verifier it reads."""
    encoder, decoder = verifier.encoder, verifier.decoder
    layer = encoder.layers[0]
    options: JsonObject = {"encoder_embed_dim": int(layer.embed_dim)}
    if {int(item.embed_dim) for item in decoder.layers} == {width} and len(decoder.layers) > 1:
        count = min(FEATURE_LAYERS, len(decoder.layers) - 1)
        options["verifier_feature_layers"] = ",".join(map(str, range(1, count + 1)))
    if decoder.embed_tokens.embedding_dim == width:
        return {**options, "share_verifier_encoder": True}
    learned = isinstance(encoder.embed_positions, LearnedPositionalEmbedding)
    options |= {
        "init_encoder_from": "${task.AR_path}",
        "encoder_layers": len(encoder.layers),
        "encoder_ffn_embed_dim": int(layer.fc1.out_features),
        "encoder_attention_heads": int(layer.self_attn.num_heads),
        "encoder_normalize_before": bool(layer.normalize_before),
        "encoder_learned_pos": learned,
        "layernorm_embedding": encoder.layernorm_embedding is not None,
        "no_scale_embedding": encoder.embed_scale == 1,
    }
    return {name: value for name, value in options.items() if value is not False}


def read_log(path: Path) -> tuple[dict[int, float], float]:
    """Return the acceptance length of each validation by update, and the seconds of an update."""
    points: dict[int, float] = {}
    seconds, count = 0.0, 0
    before: tuple[datetime, int] | None = None
    for line in path.read_text("utf-8", "replace").splitlines():
        if figures := read_line(line):
            time, updates, length = figures
            if length is not None:
                points[updates] = length
            elif before:
                seconds += (time - before[0]).total_seconds()
                count += updates - before[1]
            before = None if length is not None else (time, updates)
        elif line.startswith(START):
            before = None
    # Where nothing was counted the hours alone end the training.
    return points, max(1e-3, seconds / max(1, count))


def read_line(line: str) -> tuple[datetime, int, float | None] | None:
    """Return time, updates and a validation's acceptance length; None of other, damaged lines."""
    with suppress(ValueError, KeyError):
        if match := LINE.match(line):
            time, values = datetime.fromisoformat(match[1]), json.loads(match[2])
            if "num_updates" in values:
                return time, int(values["num_updates"]), None
            length = float(values["valid_acceptance_length"])
            return time, int(values["valid_num_updates"]), length
    return None


def trained(checkpoint: Path) -> tuple[int, float]:
    """Return the updates and seconds of a checkpoint's training; 0 where there is none."""
    if not checkpoint.exists():
        return 0, 0.0
    state = load_state(checkpoint)
    seconds = state["extra_state"].get("previous_training_time")
    return state["num_updates"], seconds if isinstance(seconds, float) else 0.0


def watch(job: PairJob, command: Command, log: Path, total: int | None = None) -> None:
    """Run a command in a process of its own, which ends with this one and adds to a log.

    Args:
        total: updates of a training, whose progress is shown.
    """
    name, *arguments = command
    program = python_program(f"{CHILD}{PROGRAMS[str(name)]}", *arguments)
    environment = {**os.environ, "PYTHONPATH": python_path(), "PYTHONUTF8": "1"}
    pipe, out = subprocess.PIPE, subprocess.STDOUT
    last = ""
    with (
        open(log, "a", encoding="utf-8") as file,
        tqdm(total=total, unit="update", disable=not job.bars or None) as bar,
        subprocess.Popen(program, stdin=pipe, stdout=pipe, stderr=out, env=environment) as child,
    ):
        assert child.stdout is not None
        file.write(f"{START}{shown(command)}\n")
        try:
            for line in (line.decode("utf-8", "replace") for line in child.stdout):
                file.write(line)
                file.flush()
                last = line.strip() or last
                if figures := read_line(line):
                    bar.update(figures[1] - bar.n)
                    if figures[2] is not None:
                        bar.set_postfix_str(f"acceptance length {figures[2]:.2f}")
        finally:
            child.kill()
    if child.wait():
        raise InferenceError(f"{last}; all that it said is in {log}")
