"""Records of a run: its files and settings, its report, and facts about its verifier."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import fairseq
import torch

import specdec_plugins
from specdec_plugins.decoding.statistics import RATES
from specdec_plugins.files.errors import counted
from specdec_plugins.files.output import JsonObject, NamedPaths, check_paths
from specdec_plugins.inference.pair_folder import SEGMENTATION, files_in_folder
from specdec_plugins.inference.settings import CTRANSLATE2, Settings
from specdec_plugins.inference.translator import Translator
from specdec_plugins.verifiers.folder import model_digest

# Nothing is accepted where nothing judges the drafts, and nothing drafted without a drafter.
UNJUDGED = ("verified_tokens", "accepted_tokens", "acceptance_histogram", *RATES)
UNDRAFTED = ("drafted_tokens", "drafter_calls", *UNJUDGED)


def full_report(translator: Translator, resumed_after: int = 0, **run: object) -> JsonObject:
    """Return the report as JSON, with None for what a strategy lacks and ``run`` among the
    settings; its figures are of what came after ``resumed_after`` lines of an earlier run."""
    settings = translator.settings
    device = settings.device
    absent: Sequence[str] = ()
    if settings.kind is None:
        absent = UNDRAFTED
    elif settings.strategy == "drafter":
        absent = UNJUDGED
    if torch.device(device).type == "cuda":
        device = f"cuda ({torch.cuda.get_device_name(device)})"
    return {
        "resumed_after_line": resumed_after,
        **translator.statistics.report(),
        **dict.fromkeys(absent),
        "settings": {**_settings(settings), **run},
        "files": {
            name: {"path": path, "sha256": model_digest(path)}
            for name, path in model_files(settings).items()
        },
        "device": device,
        "engine": translator.engine,
        "engine_fallbacks": translator.generator.engines.fallbacks,
        "not_by_ctranslate2": translator.not_by_ctranslate2,
        "precision": translator.precision,
        "threads": torch.get_num_threads(),
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    """Return the versions of Python and the libraries; of extras, if they are installed."""
    installed = {}
    for name in ("fairseq-fixed", "onnxruntime", CTRANSLATE2):
        with suppress(PackageNotFoundError):
            installed[name] = version(name)
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "fairseq": fairseq.__version__,
        **installed,
        "specdec_plugins": specdec_plugins.__version__,
    }


def _settings(settings: Settings) -> JsonObject:
    """Return all settings; None in place of those that the strategy does not use."""
    described = settings.describe() | {
        "drafts": settings.drafts_name,
        "beam": settings.beams,
        "output_depends_on_batch": None,
    }
    if settings.speculates:
        # Even in exact arithmetic a row's drafts may depend on other rows.
        depends = not settings.rule.lossless and settings.controller.depends_on_batch
        described["output_depends_on_batch"] = depends
    else:
        described["controller"] = None
    return described


def format_report(report: JsonObject, prefix: str = "") -> str:
    """Return the values of a report, one a line, without files, versions and values of None."""
    lines = []
    for name, value in report.items():
        if isinstance(value, dict) and name not in ("files", "versions"):
            lines.append(format_report(value, f"{prefix}{name}."))
        elif value not in (None, [], {}) and not isinstance(value, dict):
            shown = f"{value:.3f}" if isinstance(value, float) else value
            lines.append(f"{prefix}{name}: {shown}")
    return "\n".join(filter(None, lines))


def check_run(settings: Settings, outputs: NamedPaths, inputs: NamedPaths) -> None:
    """Check the paths of a run, whose models are inputs."""
    models = [(f"the model's {name}", path) for name, path in model_files(settings).items()]
    files = {
        "--path": settings.path,
        "PAIR": os.path.join(settings.data, SEGMENTATION),
        "--drafts": settings.drafts_path,
    }
    check_paths(outputs, [*inputs, *models, *files.items()])


def model_files(settings: Settings) -> dict[str, str]:
    """Return the models, dictionaries and codes that the output depends on, by name."""
    files = {
        "drafter": settings.path if settings.has_drafter else None,
        "verifier": settings.ar_path,
        "acceptance_head": settings.head_path,
    }
    paths = {name: str(path) for name, path in files.items() if path}
    paths |= {f"verifier {number}": path for number, path in enumerate(settings.ensemble, 2)}
    dictionaries = sorted(Path(settings.data).glob("dict.*.txt"))
    paths |= {path.name: str(path) for path in dictionaries}
    paths |= {Path(path).name: path for path in files_in_folder(settings.data).values()}
    options = settings.encoder_options.items()
    return paths | {n: str(path) for n, path in options if os.path.isfile(str(path))}


def describe_settings(settings: Settings, seed: int | None = None) -> JsonObject:
    """Return the package's version, the models' digests, and all other settings."""
    described = settings.describe()
    models = model_files(settings)
    del described["data"], described["path"], described["ar_path"], described["ensemble"]
    described["encoder_options"] = {
        name: value for name, value in settings.encoder_options.items() if name not in models
    }
    if seed is not None:
        described["seed"] = seed
    described["controller"].pop("acceptance_head", None)
    return {
        "specdec_plugins": specdec_plugins.__version__,
        "models": {name: model_digest(path) for name, path in models.items()},
        "settings": described,
    }


def describe_verifier(translator: Translator) -> Iterator[str]:
    """Yield a line each for encoder, decoder and dictionaries."""
    model = translator.verifier
    codec = translator.codec
    for name, part in (("encoder", model.encoder), ("decoder", model.decoder)):
        layers = counted(len(part.layers), "layer")
        fc1 = part.layers[0].fc1
        yield (
            f"{name}: {layers} of widths {fc1.in_features} and {fc1.out_features}, "
            f"{part.max_positions()} positions"
        )
    languages = {
        translator.settings.source_lang: codec.source,
        translator.settings.target_lang: codec.target,
    }
    sizes = (f"{language} {len(words)}" for language, words in languages.items())
    yield f"dictionaries: {' and '.join(sizes)} entries"
