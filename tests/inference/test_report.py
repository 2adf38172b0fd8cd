"""The report says with what a run was made: everything, by construction."""

from __future__ import annotations

import hashlib
import json
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from specdec_plugins.decoding.acceptance import RelaxedRule
from specdec_plugins.decoding.controllers.simple import AcceptanceHeadController
from specdec_plugins.decoding.limits import GenerationLimits
from specdec_plugins.decoding.options import option_fields
from specdec_plugins.decoding.statistics import DecodingStatistics
from specdec_plugins.files.output import write_json
from specdec_plugins.inference import Settings
from specdec_plugins.inference.report import format_report, full_report

UNSET = ("data", "beam", "nbest", "strategy", "drafts", "device", "rule", "controller")
"""Fields that are checked one by one, or can have their default only."""


def unusual_settings(folder: Path) -> Settings:
    """Settings without a default among them, and their files."""
    for name in ("verifier.pt", "drafter.pt", "head.pt", "codes", "dict.en.txt", "dict.de.txt"):
        (folder / name).write_text(name, "utf-8")
    head = AcceptanceHeadController(stop_threshold=0.5, acceptance_head=str(folder / "head.pt"))
    texts = {"source_lang": "en", "target_lang": "de", "target_prefix": "__de__"}
    return Settings(
        data=str(folder),
        ar_path=str(folder / "verifier.pt"),
        path=str(folder / "drafter.pt"),
        ar_backend="ours",
        as_transformer=True,
        batch=3,
        beam=7,
        block_size=4,
        rule=RelaxedRule(3, 1.5),
        controller=head,
        limits=GenerationLimits(0.5, 20, 2, 0.1, 1.5, 0.9, False, 1.25),
        **texts,
        engine="onnxruntime",
        precision="int8",
        drafter_precision="int8",
        tokenizer="moses",
        bpe="subword_nmt",
        encoder_options={"bpe_codes": str(folder / "codes")},
        post_process="sentencepiece",
        keep_bpe=True,
        trace=True,
    )


def check(given: Any, reported: dict[str, Any], left_out: tuple[str, ...] = ()) -> None:
    for field in fields(given):
        value = getattr(given, field.name)
        if field.name in left_out:
            continue
        default = field.default_factory() if field.default is MISSING else field.default  # type: ignore[misc]
        assert value != default, f"{field.name}: give another value in this test"
        if is_dataclass(value):
            check(value, reported[field.name])
        else:
            assert reported[field.name] == value, field.name


def test_every_setting_and_file_is_reported(tmp_path: Path) -> None:
    settings = unusual_settings(tmp_path)
    translator: Any = SimpleNamespace(
        engine="cuda-graphs and eager",
        threads=1,
        runner=SimpleNamespace(fallbacks=["--trace tells of every draft"]),
        precision="float32",
        not_by_ctranslate2=None,
        settings=settings,
        statistics=DecodingStatistics(),
        block_size=settings.block_size,
    )
    written = full_report(translator, resumed_after=40, seed=5)
    lines = {*format_report(written).splitlines()}
    assert {"engine: cuda-graphs and eager", "settings.rule.beta: 3"} <= lines
    write_json(tmp_path / "stats.json", written)
    report = json.loads((tmp_path / "stats.json").read_text("utf-8"))
    found = report["settings"]
    assert (report["resumed_after_line"], found["seed"], found["beam"]) == (40, 5, None)
    check(settings, found, UNSET)
    assert found["rule"] == {"beta": 3, "tau": 1.5}
    assert found["controller"] == settings.controller.describe()
    for option in option_fields(type(settings.controller)).values():
        assert found["controller"][option.name] != option.default, option.name
    assert (found["data"], found["strategy"], found["device"]) == (str(tmp_path), "specdec", "cpu")
    files = {
        "verifier": "verifier.pt",
        "drafter": "drafter.pt",
        "acceptance_head": "head.pt",
        "dict.de.txt": "dict.de.txt",
    }
    for label, name in files.items():
        digest = hashlib.sha256(name.encode()).hexdigest()
        assert report["files"][label] == {"path": str(tmp_path / name), "sha256": digest}
    codes = {"path": str(tmp_path / "codes"), "sha256": hashlib.sha256(b"codes").hexdigest()}
    assert list(report["files"].values()).count(codes) == 2
