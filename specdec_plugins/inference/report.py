"""Records of a run: its files and settings, its report, and facts about its verifier."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import fairseq
import torch
from fairseq.modules import LearnedPositionalEmbedding

import specdec_plugins
from specdec_plugins.checkpoints.head_file import find_head
from specdec_plugins.decoding.acceptance import choose_rule
from specdec_plugins.decoding.controllers.base import CONTROLLERS
from specdec_plugins.decoding.generator import SpeculativeGenerator
from specdec_plugins.decoding.statistics import RATES
from specdec_plugins.files.errors import counted
from specdec_plugins.files.lock import NamedPaths, check_paths
from specdec_plugins.files.output import JsonObject, file_digest
from specdec_plugins.inference.pair_folder import SEGMENTATION, files_in_folder
from specdec_plugins.inference.settings import CTRANSLATE2, TRACED, Settings
from specdec_plugins.inference.translator import Translator

# Nothing is accepted where nothing judges the drafts, and nothing drafted without a drafter.
UNJUDGED = ("verified_tokens", "accepted_tokens", "acceptance_histogram", *RATES)
UNDRAFTED = ("drafted_tokens", "drafter_calls", *UNJUDGED)


def full_report(translator: Translator, resumed_after: int = 0, **run: object) -> JsonObject:
    """Return the report as JSON; values that a strategy lacks are None.

    Args:
        resumed_after: lines of an earlier run, whose figures are not among these.
        run: more to record under ``settings``, such as the seed.
    """
    settings = translator.settings
    absent = UNJUDGED if settings.strategy == "drafter" else ()
    device = settings.device
    if torch.device(device).type == "cuda":
        device = f"cuda ({torch.cuda.get_device_name(device)})"
    backend = {CTRANSLATE2: version(CTRANSLATE2)} if settings.by_ctranslate2 else {}
    return {
        "resumed_after_line": resumed_after,
        **translator.statistics.report(),
        **dict.fromkeys(absent if settings.uses_drafter or settings.drafts_text else UNDRAFTED),
        "settings": {**_settings(settings), "block_size": translator.block_size, **run},
        "files": {
            name: {"path": path, "sha256": file_digest(path)}
            for name, path in model_files(settings).items()
        },
        "device": device,
        "engine": translator.engine,
        "engine_fallbacks": translator.runner.fallbacks,
        "not_by_ctranslate2": translator.not_by_ctranslate2,
        "precision": translator.precision,
        "threads": translator.threads,
        "versions": {**versions(), **backend},
    }


def versions() -> dict[str, str]:
    """Return the versions of Python and the libraries; of extras, if they are installed."""
    installed = {}
    for name in ("fairseq-fixed", "onnxruntime"):
        with suppress(PackageNotFoundError):
            installed[name] = version(name)
    # The same package may be of one distribution or the other.
    stock = {} if "fairseq-fixed" in installed else {"fairseq": fairseq.__version__}
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        **stock,
        **installed,
        "specdec_plugins": specdec_plugins.__version__,
    }


def _settings(settings: Settings) -> JsonObject:
    """Return all settings; None in place of those that the strategy does not use."""
    judges = settings.strategy == "specdec"
    used = {
        "controller": judges,
        "beam": settings.strategy == "fairseq",
        "drafts": settings.drafts_text,
        "drafter_precision": settings.uses_drafter or settings.drafts_text,
        "ar_backend": settings.strategy in TRACED,
    }
    # Even in exact arithmetic a row's drafts may depend on other rows.
    depends = not settings.rule.lossless and settings.controller.depends_on_batch
    return {
        **settings.describe(),
        "drafts": settings.draft_kind,
        **{name: None for name, is_used in used.items() if not is_used},
        "output_depends_on_batch": depends if judges else None,
    }


def format_report(report: JsonObject) -> str:
    """Return a report of :func:`full_report` in a few lines of text."""
    settings, line = report["settings"], report["resumed_after_line"]
    absent = {name for name, value in report.items() if value is None}
    threads = f", {counted(report['threads'], 'thread')}" if report["device"] == "cpu" else ""
    counts = {"sentences": "sentence", "committed_tokens": "token", "steps": "step"}
    counts |= {"forced_tokens": "forced token"} if report["forced_tokens"] else {}
    counts |= {"verifier_calls": "verifier call", "drafter_calls": "drafter call"}
    known = (counted(report[name], noun) for name, noun in counts.items() if name not in absent)
    rows = [
        f"{_title(settings)}; {report['engine']}, {report['precision']} on "
        f"{report['device']}{threads}",
        *([f"  resumed after line {line}: figures are of what came after"] if line else []),
        f"  {', '.join(known)}",
        *_acceptance(report),
        "  seconds: " + ", ".join(f"{name} {s:.3f}" for name, s in report["seconds"].items()),
        f"  {report['tokens_per_second']:.1f} tokens a second; latency of a sentence, ms: "
        + ", ".join(f"{name} {value:.1f}" for name, value in report["latency_ms"].items()),
        *(f"  by eager: {reason}" for reason in report["engine_fallbacks"]),
    ]
    if reason := report["not_by_ctranslate2"]:
        rows.append(f"  by our own loop, not by CTranslate2: {reason}")
    if settings["output_depends_on_batch"]:
        rows.append("  relaxed output depends here on other lines of the batch, and earlier ones")
    return "\n".join(rows)


def _title(settings: JsonObject) -> str:
    """Return the strategy and the most important of its settings."""
    rule, controller = choose_rule(settings["rule"]), settings["controller"]
    limits = settings["limits"]
    parts = [settings["strategy"], f"batch {settings['batch']}"]
    named = {"beam": "beam", "block_size": "block size", "target_prefix": "target prefix"}
    parts += [f"{label} {settings[name]}" for name, label in named.items() if settings[name]]
    if rule.draws:
        parts.append(f"{rule} at temperature {limits['temperature']:g}")
    elif controller is not None:
        parts.append(str(rule))
    if limits["repetition_penalty"] != 1:
        parts.append(f"repetition penalty {limits['repetition_penalty']:g}")
    if controller is not None:
        if settings["drafts"]:
            parts.append(f"drafts: {settings['drafts']}")
        parts.append(controller["controller"])
        if "tree_nodes" in controller:
            parts.append(f"{controller['tree_nodes']} nodes")
        if not CONTROLLERS[controller["controller"]].real:
            parts.append("not a real decoder")
    return ", ".join(parts)


def _acceptance(report: JsonObject) -> list[str]:
    """Return lines on the drafts; none where they are not judged."""
    if report["acceptance_length"] is None:
        return []
    counts = report["acceptance_histogram"]
    shares = (
        f"{i}: {100 * count / report['steps']:.0f} %" for i, count in enumerate(counts) if count
    )
    return [
        f"  acceptance length {report['acceptance_length']:.2f} tokens a step, bonus included; "
        f"{report['drafted_tokens']} drafted, {report['verified_tokens']} verified, "
        f"{report['accepted_tokens']} accepted",
        f"  acceptance rate {report['acceptance_rate']:.3f} a verified token, "
        f"verification rate {report['verification_rate']:.3f}, "
        f"discard rate {report['discard_rate']:.3f} a committed token",
        f"  accepted a step: {'  '.join(shares)}",
    ]


def check_run(settings: Settings, outputs: NamedPaths, inputs: NamedPaths) -> None:
    """Check the paths of a run, whose models are inputs."""
    named: dict[str, str | None] = {
        f"the model's {name}": path for name, path in model_files(settings).items()
    }
    named |= {"--path": settings.path, "PAIR": str(Path(settings.data) / SEGMENTATION)}
    named["--drafts"] = settings.drafts_path
    named["--acceptance-head"] = getattr(settings.controller, "acceptance_head", None)
    check_paths(outputs, [*inputs, *named.items()])


def model_files(settings: Settings) -> dict[str, str]:
    """Return the models, dictionaries and codes that the output depends on, by name."""
    head = getattr(settings.controller, "acceptance_head", None)
    if settings.strategy != "specdec" or not settings.controller.asks_head:
        head = None
    elif head is None and settings.path is not None:
        head = find_head(settings.path, settings.rule.name)
    files = {
        "drafter": settings.path if settings.uses_drafter else None,
        "verifier": settings.ar_path,
        "acceptance_head": None if head is None else str(head),
    }
    paths = {name: path for name, path in files.items() if path}
    paths |= {path.name: str(path) for path in sorted(Path(settings.data).glob("dict.*.txt"))}
    paths |= {Path(path).name: path for path in files_in_folder(settings.data).values()}
    for name, value in settings.encoder_options.items():
        if isinstance(value, str) and os.path.isfile(value):
            paths[name] = value
    return paths


def describe_settings(settings: Settings, seed: int | None = None) -> JsonObject:
    """Return the package's version, the models' digests, and all other settings.

    Args:
        seed: None where it decides nothing.
    """
    described = settings.describe()
    models = model_files(settings)
    options = described.pop("encoder_options")
    for name in ("data", "path", "ar_path"):
        del described[name]
    if "acceptance_head" in models:
        del described["controller"]["acceptance_head"]
    return {
        "specdec_plugins": specdec_plugins.__version__,
        "models": {name: file_digest(path) for name, path in models.items()},
        "settings": {
            **described,
            "encoder_options": {k: v for k, v in options.items() if k not in models},
            **({} if seed is None else {"seed": seed}),
        },
    }


def describe_verifier(translator: Translator) -> Iterator[str]:
    """Yield a line each for encoder, decoder, dictionaries and language tokens."""
    assert isinstance(translator.generator, SpeculativeGenerator)
    model = translator.generator.model
    assert model is not None
    for name, part in (("encoder", model.encoder), ("decoder", model.decoder)):
        layer, positions = part.layers[0], part.embed_positions
        learned = isinstance(positions, LearnedPositionalEmbedding)
        kind = "no" if positions is None else "learned" if learned else "sinusoidal"
        yield (
            f"{name}: {counted(len(part.layers), 'layer')} of width {layer.fc1.in_features}, "
            f"feed-forward {layer.fc1.out_features}, {counted(layer.self_attn.num_heads, 'head')}, "
            f"{'pre' if layer.normalize_before else 'post'}-norm"
            f"{', a norm on embeddings' if part.layernorm_embedding is not None else ''}, "
            f"{kind} positions, at most {part.max_positions()} tokens"
        )
    tables = {
        "source": model.encoder.embed_tokens.weight,
        "target": model.decoder.embed_tokens.weight,
        "output": model.decoder.output_projection.weight,
    }
    everywhere = list(map(id, tables.values()))
    shared = [name for name, table in tables.items() if everywhere.count(id(table)) > 1]
    codec, settings = translator.codec, translator.settings
    yield (
        f"dictionaries: {settings.source_lang} {len(codec.source)} and "
        f"{settings.target_lang} {len(codec.target)} entries; "
        + (f"{', '.join(shared)} share a table" if shared else "tables are separate")
    )
    tokens = codec.tokens
    if tokens.source is not None:
        where = "in place of a source's EOS" if tokens.replace_eos else "before a source"
        yield f"language token: {codec.source[tokens.source]} {where}"
    if tokens.target is not None:
        where = "in place of" if tokens.replace_eos else "after"
        yield f"language token: {codec.target[tokens.target]} {where} the first EOS of targets"
