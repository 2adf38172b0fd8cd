"""The report says with what a run was made: everything, by construction."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from specdec_plugins.decoding.acceptance import RelaxedRule
from specdec_plugins.decoding.controllers.simple import AcceptanceHeadController
from specdec_plugins.decoding.limits import GenerationLimits
from specdec_plugins.decoding.statistics import DecodingStatistics
from specdec_plugins.files.output import write_json
from specdec_plugins.inference import Settings
from specdec_plugins.inference.report import format_report, full_report


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Settings that differ from their defaults, and their files."""
    for name in ("verifier.pt", "drafter.pt", "head.pt", "codes", "dict.en.txt", "dict.de.txt"):
        (tmp_path / name).write_text(name, "utf-8")
    return Settings(
        data=str(tmp_path),
        ar_path=str(tmp_path / "verifier.pt"),
        path=str(tmp_path / "drafter.pt"),
        ar_backend="ours",
        as_transformer=True,
        batch=3,
        block_size=4,
        rule=RelaxedRule(3, 1.5),
        controller=AcceptanceHeadController(
            stop_threshold=0.5, acceptance_head=str(tmp_path / "head.pt")
        ),
        limits=GenerationLimits(0.5, 20, 2, 0.1, 1.5, 0.9, False, 1.25),
        source_lang="en",
        target_lang="de",
        target_prefix="__de__",
        engine="onnxruntime",
        precision="int8",
        drafter_precision="int8",
        tokenizer="moses",
        bpe="subword_nmt",
        encoder_options={"bpe_codes": str(tmp_path / "codes")},
        post_process="sentencepiece",
        keep_bpe=True,
        trace=True,
    )


UNUSED = {"beam", "nbest"}
"""Settings of another strategy alone."""


def test_every_setting_and_file_is_reported(settings: Settings, tmp_path: Path) -> None:
    translator: Any = SimpleNamespace(
        engine="cuda-graphs and eager",
        threads=1,
        generator=SimpleNamespace(
            engines=SimpleNamespace(fallbacks=["--trace tells of every draft"])
        ),
        precision="float32",
        not_by_ctranslate2=None,
        settings=settings,
        statistics=DecodingStatistics(),
    )
    written = full_report(translator, resumed_after=40, seed=5)
    lines = {*format_report(written).splitlines()}
    assert {"engine: cuda-graphs and eager", "settings.rule.beta: 3"} <= lines
    write_json(tmp_path / "stats.json", written)
    report = json.loads((tmp_path / "stats.json").read_text("utf-8"))
    found = report["settings"]
    assert (report["resumed_after_line"], found["seed"], found["beam"]) == (40, 5, 1)
    for name in {field.name for field in fields(settings)} - UNUSED:
        value = getattr(settings, name)
        if name == "drafts":
            value = "drafter"
        elif name == "controller":
            value = value.describe()
        elif name == "ensemble":
            value = list(value)
        assert found[name] == (asdict(value) if is_dataclass(value) else value), name
    files = {
        "verifier": "verifier.pt",
        "drafter": "drafter.pt",
        "acceptance_head": "head.pt",
        **{name: name for name in ("dict.en.txt", "dict.de.txt", "codes")},
    }
    for label, name in files.items():
        digest = hashlib.sha256(name.encode()).hexdigest()
        assert report["files"][label] == {"path": str(tmp_path / name), "sha256": digest}
