"""The report says with what a run was made: everything, by construction."""

from __future__ import annotations

import hashlib
import json
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from specdec_plugins.decoding.acceptance import RelaxedRule
from specdec_plugins.decoding.controllers.simple import AcceptanceHeadController
from specdec_plugins.decoding.limits import GenerationLimits
from specdec_plugins.decoding.options import option_fields
from specdec_plugins.decoding.statistics import DecodingStatistics
from specdec_plugins.files.output import write_json
from specdec_plugins.inference import Settings
from specdec_plugins.inference.report import format_report, full_report

NAMES = ("verifier.pt", "drafter.pt", "head.pt", "codes", "dict.en.txt", "dict.de.txt")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Of which no field has its default, but where only one of two can be."""
    for name in NAMES:
        (tmp_path / name).write_text(name, "utf-8")
    return Settings(
        data=str(tmp_path),
        ar_path=str(tmp_path / "verifier.pt"),
        path=str(tmp_path / "drafter.pt"),
        ar_backend="ours",
        as_transformer=True,
        batch=3,
        beam=7,
        block_size=4,
        rule=RelaxedRule(3, 1.5),
        controller=AcceptanceHeadController(
            stop_threshold=0.5,
            acceptance_head=str(tmp_path / "head.pt"),
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


def report_of(settings: Settings, tmp_path: Path, **run: Any) -> dict[str, Any]:
    """As it is read again from its file."""
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
    report = full_report(translator, **run)
    said = format_report(report).splitlines()
    assert {"engine: cuda-graphs and eager", "settings.rule.beta: 3"} <= {*said}
    write_json(tmp_path / "stats.json", report)
    found: dict[str, Any] = json.loads((tmp_path / "stats.json").read_text("utf-8"))
    return found


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


def test_every_setting_is_reported(settings: Settings, tmp_path: Path) -> None:
    report = report_of(settings, tmp_path, resumed_after=40, seed=5)
    assert report["resumed_after_line"] == 40
    found = report["settings"]
    assert (found["seed"], found["beam"]) == (5, None)
    of_beams = ("beam", "nbest")
    unset = "data", *of_beams, "strategy", "drafts", "device", "rule", "controller"
    check(settings, found, unset)
    assert found["rule"] == {"beta": 3, "tau": 1.5}
    controller = settings.controller
    assert found["controller"] == controller.describe()
    for option in option_fields(type(controller)).values():
        assert found["controller"][option.name] != option.default, option.name
    assert (found["data"], found["strategy"], found["device"]) == (str(tmp_path), "specdec", "cpu")


def test_files_are_reported_by_name_and_content(settings: Settings, tmp_path: Path) -> None:
    found = report_of(settings, tmp_path)["files"]
    paths = {
        name: {"path": str(tmp_path / name), "sha256": hashlib.sha256(name.encode()).hexdigest()}
        for name in NAMES
    }
    assert list(found.values()).count(paths["codes"]) == 2
    assert found["verifier"] == paths["verifier.pt"]
    assert found["drafter"] == paths["drafter.pt"]
    assert found["acceptance_head"] == paths["head.pt"]
    assert found["dict.de.txt"] == paths["dict.de.txt"]
