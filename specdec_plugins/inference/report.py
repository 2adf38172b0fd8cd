"""What a run did and with what: a block to read, and JSON."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version

import fairseq
import torch

import specdec_plugins
from specdec_plugins.decoding.acceptance import choose_rule
from specdec_plugins.decoding.controllers.base import CONTROLLERS
from specdec_plugins.decoding.statistics import RATES
from specdec_plugins.files.errors import counted
from specdec_plugins.files.output import JsonObject, file_digest
from specdec_plugins.inference.run_files import model_files
from specdec_plugins.inference.settings import CTRANSLATE2, TRACED, Settings
from specdec_plugins.inference.translator import Translator
from specdec_plugins.machine import cores, processor_name

# Nothing is accepted where nothing judges the drafts, and nothing drafted without a drafter.
UNJUDGED = ("verified_tokens", "accepted_tokens", "acceptance_histogram", *RATES)
UNDRAFTED = ("drafted_tokens", "drafter_calls", *UNJUDGED)


def full_report(translator: Translator, resumed_after: int = 0, **run: object) -> JsonObject:
    """The statistics, and what is needed to repeat the run; None for what there is not.

    Args:
        resumed_after: lines that an earlier run had written; their figures are not among these.
        run: more to record under ``settings``: the seed, for instance.

    Raises:
        InferenceError: a file that was used cannot be read any more.
    """
    asked = translator.settings
    absent = UNJUDGED if asked.strategy == "drafter" else ()
    return {
        "resumed_after_line": resumed_after,
        **translator.statistics.report(),
        **dict.fromkeys(absent if asked.drafts else UNDRAFTED),
        "settings": {**_settings(asked), "block_size": translator.block_size, **run},
        "files": {
            name: {"path": path, "sha256": file_digest(path)}
            for name, path in model_files(asked).items()
        },
        "device": device_name(asked.device),
        "engine": translator.engine,
        "engine_fallbacks": translator.engine_fallbacks,
        "not_by_ctranslate2": translator.not_by_ctranslate2,
        "precision": translator.arithmetic,
        "threads": translator.threads,
        "versions": {
            **versions(),
            **({CTRANSLATE2: version(CTRANSLATE2)} if asked.by_ctranslate2 else {}),
        },
    }


def versions() -> dict[str, str]:
    """The versions of what decodes, and of Python; of extras, if they are installed."""
    installed = {}
    for name in ("fairseq-fixed", "openvino", "onnxruntime"):
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


def where_and_when() -> JsonObject:
    """The machine, versions, and the time: of figures that were made now."""
    return {
        "processor": processor_name(),
        "cores": cores(),
        "versions": versions(),
        "last_run": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }


def _settings(settings: Settings) -> JsonObject:
    """All settings; None in place of those that the strategy has no use for."""
    judges = settings.strategy == "specdec"
    described = settings.describe()
    if not judges:
        described["controller"] = None
    if settings.strategy != "fairseq":
        described["beam"] = None
    if not settings.drafts:
        described["drafter_precision"] = None
    if settings.strategy not in TRACED:
        described["ar_backend"] = None
    depends = not settings.rule.lossless and settings.controller.depends_on_batch
    # In exact arithmetic too, by which drafts a row is given.
    return {**described, "output_depends_on_batch": depends if judges else None}


def _title(settings: JsonObject) -> str:
    """The strategy and the most important of its settings."""
    rule, controller = choose_rule(settings["rule"]), settings["controller"]
    limits = settings["limits"]
    parts = [settings["strategy"], f"batch {settings['batch']}"]
    named = {"beam": "beam", "block_size": "block size", "target_prefix": "target prefix"}
    parts += [f"{what} {settings[name]}" for name, what in named.items() if settings[name]]
    if rule.draws:
        parts.append(f"{rule} at temperature {limits['temperature']:g}")
    elif controller is not None:
        parts.append(str(rule))
    if limits["repetition_penalty"] != 1:
        parts.append(f"repetition penalty {limits['repetition_penalty']:g}")
    if controller is None:
        return ", ".join(parts)
    if controller["controller"] != "constant":
        parts.append(controller["controller"])
    if "tree_nodes" in controller:
        parts.append(f"{controller['tree_nodes']} nodes")
    if most := controller.get("max_rows"):
        parts.append(f"no drafts in batches of more than {most}")
    real = CONTROLLERS[controller["controller"]].real
    return ", ".join(parts) + ("" if real else " (told by a first pass: not a real decoder)")


def format_report(report: JsonObject) -> str:
    """A report of :func:`full_report` in a few lines of text."""
    settings, seconds, latency = report["settings"], report["seconds"], report["latency_ms"]
    line = report["resumed_after_line"]
    threads = f", {counted(report['threads'], 'thread')}" if report["device"] == "cpu" else ""
    rows = [
        f"{_title(settings)}; {report['engine']}, {report['precision']} on "
        f"{report['device']}{threads}",
        *([f"  resumed after line {line}: figures are of what came after"] if line else []),
        "  " + ", ".join(_counts(report)),
        *_acceptance(report),
        "  seconds: " + ", ".join(f"{name} {value:.3f}" for name, value in seconds.items()),
        f"  {report['tokens_per_second']:.1f} tokens a second; latency of a sentence, ms: "
        + ", ".join(f"{name} {value:.1f}" for name, value in latency.items()),
    ]
    rows += [f"  by eager: {reason}" for reason in report["engine_fallbacks"]]
    if reason := report["not_by_ctranslate2"]:
        rows.append(f"  by our own loop, not by CTranslate2: {reason}")
    if settings["output_depends_on_batch"]:
        rows.append(
            "  relaxed output depends here on what else is in the batch, and on what came before"
        )
    return "\n".join(rows)


def _counts(report: JsonObject) -> Iterator[str]:
    names = {"sentences": "sentence", "committed_tokens": "token", "steps": "step"}
    if report["forced_tokens"]:
        names["forced_tokens"] = "forced token"
    names |= {"verifier_calls": "verifier call", "drafter_calls": "drafter call"}
    yield from (counted(report[k], what) for k, what in names.items() if report[k] is not None)


def _acceptance(report: JsonObject) -> list[str]:
    """What became of drafts; nothing where they are not judged."""
    if report["acceptance_length"] is None:
        return []
    return [
        f"  acceptance length {report['acceptance_length']:.2f} tokens a step, bonus included; "
        f"{report['drafted_tokens']} drafted, {report['verified_tokens']} verified, "
        f"{report['accepted_tokens']} accepted",
        f"  acceptance rate {report['acceptance_rate']:.3f} a verified token, "
        f"verification rate {report['verification_rate']:.3f}, "
        f"discard rate {report['discard_rate']:.3f} a committed token",
        f"  accepted a step: {_histogram(report['acceptance_histogram'])}",
    ]


def _histogram(counts: list[int]) -> str:
    """Shares of steps by drafted tokens accepted, trailing zeros left out."""
    total = max(sum(counts), 1)
    used = max((i for i, count in enumerate(counts) if count), default=-1) + 1
    return "  ".join(f"{i}: {100 * count / total:.0f} %" for i, count in enumerate(counts[:used]))


def device_name(device: str) -> str:
    """``cpu``, or ``cuda`` with the name of the GPU."""
    if torch.device(device).type == "cuda":
        return f"cuda ({torch.cuda.get_device_name(device)})"
    return device
