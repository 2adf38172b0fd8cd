"""What a run did and with what: a block to read, and JSON."""

from __future__ import annotations

import json
import platform
from typing import Any

import fairseq
import torch

import specdec_plugins
from specdec_plugins.decoding.probabilities import Sampling
from specdec_plugins.inference.settings import InferenceError, Settings
from specdec_plugins.inference.translator import Translator
from specdec_plugins.whole_file import whole_file

# Nothing is accepted where nothing judges the drafts, and nothing drafted without a drafter.
UNJUDGED = (
    "verified_tokens",
    "accepted_tokens",
    "acceptance_length",
    "verification_rate",
    "discard_rate",
    "acceptance_histogram",
)
UNDRAFTED = ("drafted_tokens", "drafter_calls", *UNJUDGED)


def full_report(translator: Translator, **settings: Any) -> dict[str, Any]:
    """The statistics, and what is needed to repeat the run; None for what there is not.

    Args:
        settings: more to record under ``settings``.
    """
    asked, controller = translator.settings, translator.settings.controller
    judges = asked.strategy == "specdec"
    named = controller.controller if judges else None
    trees = judges and controller.drafts_trees
    absent = UNJUDGED if asked.strategy == "drafter" else ()
    return {
        **translator.statistics.report(),
        **dict.fromkeys(absent if asked.drafts else UNDRAFTED),
        "settings": {
            "strategy": asked.strategy,
            "block_size": translator.block_size,
            "beta": asked.rule.beta if judges else None,
            "tau": asked.rule.tau if judges else None,
            **_sampling(asked),
            "controller": named,
            "tree_nodes": controller.tree_nodes if trees else None,
            # As text, since JSON has no infinity.
            "redraft_below": f"{controller.redraft_below:g}" if named == "tree" else None,
            "output_depends_on_batch": _depends_on_batch(asked) if judges else None,
            "batch": asked.batch,
            "beam": asked.beam if asked.strategy == "fairseq" else None,
            **vars(asked.limits),
            **settings,
        },
        "device": device_name(asked.device),
        "dtype": asked.dtype,
        "threads": torch.get_num_threads(),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "fairseq": fairseq.__version__,
            "specdec_plugins": specdec_plugins.__version__,
        },
    }


def _depends_on_batch(settings: Settings) -> bool:
    """Whether it would do so in exact arithmetic too, by which drafts a row is given."""
    return settings.rule.name == "relaxed" and settings.controller.looks_around


def _sampling(settings: Settings) -> dict[str, Any]:
    """fairseq's options of sampling, which stock search has of its own."""
    given = settings.rule.sampling
    drawn = given or Sampling()
    own = {
        "sampling": given is not None,
        "sampling_topk": drawn.topk,
        "sampling_topp": drawn.topp,
    }
    return {name: settings.search_options.get(name, value) for name, value in own.items()}


def format_report(report: dict[str, Any]) -> str:
    """A report of :func:`full_report` in a few lines of text."""
    settings, seconds, latency = report["settings"], report["seconds"], report["latency_ms"]
    title = f"{settings['strategy']}, batch {settings['batch']}"
    if settings["beam"]:
        title += f", beam {settings['beam']}"
    if settings["block_size"]:
        title += f", block size {settings['block_size']}"
    if settings["sampling"]:
        drawn = Sampling(settings["sampling_topk"], settings["sampling_topp"])
        title += f", {drawn} at temperature {settings['temperature']:g}"
    elif settings["beta"]:
        strict = settings["beta"] == 1
        title += ", strict" if strict else f", beta {settings['beta']}, tau {settings['tau']}"
    if settings["controller"] not in (None, "constant"):
        title += f", {settings['controller']}"
    if settings["tree_nodes"]:
        title += f", {settings['tree_nodes']} nodes"
    if settings["controller"] == "oracle":
        title += " (told by a first pass: not a real decoder)"
    threads = f", {report['threads']} threads" if report["device"] == "cpu" else ""
    rows = [
        f"{title}; {report['dtype']} on {report['device']}{threads}",
        f"  {report['sentences']} sentences, {report['committed_tokens']} tokens, "
        f"{report['steps']} steps, {report['verifier_calls']} verifier calls"
        + ("" if report["drafter_calls"] is None else f", {report['drafter_calls']} drafter calls"),
        *_acceptance(report),
        "  seconds: " + ", ".join(f"{name} {value:.3f}" for name, value in seconds.items()),
        f"  {report['tokens_per_second']:.1f} tokens a second; latency of a sentence, ms: "
        + ", ".join(f"{name} {value:.1f}" for name, value in latency.items()),
    ]
    if settings["output_depends_on_batch"]:
        rows.append(
            "  relaxed output depends here on what else is in the batch, and on what came before"
            + (", and on timings" if settings["controller"] == "cost-aware" else "")
        )
    return "\n".join(rows)


def _acceptance(report: dict[str, Any]) -> list[str]:
    """What became of drafts; nothing where they are not judged."""
    if report["acceptance_length"] is None:
        return []
    return [
        f"  acceptance length {report['acceptance_length']:.2f} tokens a step, bonus included; "
        f"{report['drafted_tokens']} drafted, {report['verified_tokens']} verified, "
        f"{report['accepted_tokens']} accepted",
        f"  verification rate {report['verification_rate']:.3f}, "
        f"discard rate {report['discard_rate']:.3f} a committed token",
        f"  accepted a step: {_histogram(report['acceptance_histogram'])}",
    ]


def write_json(report: dict[str, Any], path: str) -> None:
    """Write a report to a file, whole or not at all.

    Raises:
        InferenceError: the file cannot be written.
    """
    try:
        with whole_file(path) as file:
            file.write(json.dumps(report, indent=2).encode() + b"\n")
    except OSError as error:
        raise InferenceError(
            f"--stats-json {path}: cannot be written to ({error.strerror}); name another file"
        ) from error


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
