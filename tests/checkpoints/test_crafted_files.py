"""Files that somebody else may have made: each is taken, or refused in one line."""

from __future__ import annotations

import copy
import json
import os
import random
from argparse import Namespace
from collections.abc import Callable
from dataclasses import asdict
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from helpers.runs.experiments import make_run
from helpers.runs.mutations import ODD, mutations, texts
from models.test_acceptance_head import make_head
from test_head_file import DRAFTER, RULE
from test_loading import Payload, make_model_args, make_state, make_task

from specdec_plugins.checkpoints.head_file import load_head, save_head
from specdec_plugins.decoding.acceptance import Scoring
from specdec_plugins.decoding.step_result import StepTrace
from specdec_plugins.evaluation.experiment import read_runs
from specdec_plugins.files.errors import CheckpointError, InferenceError
from specdec_plugins.inference.trace_page import SentenceTrace, build_page, read_trace
from specdec_plugins.models.acceptance_head import fingerprint

COUNT = 100


def outcome(action: Callable[[], object], *refusals: type[Exception]) -> str | None:
    """The line by which something was refused; None if it was taken. Nothing else may happen."""
    try:
        action()
    except refusals as error:
        return str(error)
    return None


def check(path: Path, contents: list[str], action: Callable[[], object], *refusals: Any) -> None:
    outcomes = []
    for content in contents:
        path.write_text(content + "\n", "utf-8")
        outcomes.append(outcome(action, *refusals))
    refused = [message for message in outcomes if message is not None]
    assert all("\n" not in message and str(path.parent) in message for message in refused)
    # Else this would show nothing.
    assert len(refused) > COUNT / 4
    assert None in outcomes


def test_runs_of_an_experiment(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    good = json.loads(msgspec.json.encode(make_run("tree")))
    check(path, texts(good, COUNT), lambda: read_runs(path), InferenceError)


def test_traces(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    steps = [
        StepTrace(["x", "y"], 2, 1, "b", 1.0, None),
        StepTrace(["x", "y", "z"], 3, 2, "b", 1.0, [-1, 0, 1]),
    ]
    good = asdict(SentenceTrace("a source", "an output", steps))

    def reported() -> None:
        build_page(read_trace(str(path)), 10, "trace")

    check(path, texts(good, COUNT), reported, InferenceError)


class TestHeads:
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        path = tmp_path / "acceptance_head.pt"
        save_head(path, make_head(rule=RULE.values, drafter=fingerprint(DRAFTER)))
        return path

    def load(self, path: Path) -> str | None:
        fault = outcome(lambda: load_head(path, DRAFTER, Scoring(RULE).values), CheckpointError)
        assert fault is None or (fault.startswith(f"{path}: ") and "\n" not in fault)
        return fault

    def test_settings(self, path: Path) -> None:
        good = torch.load(path, weights_only=True)
        assert self.load(path) is None
        refused = 0
        for settings in mutations(good["acceptance_head"], COUNT):
            torch.save({**good, "acceptance_head": settings}, path)
            refused += self.load(path) is not None
        assert refused > COUNT / 2

    def test_weights(self, path: Path) -> None:
        good, numbers = torch.load(path, weights_only=True), random.Random(0)
        values = [*ODD, torch.zeros(3), torch.zeros(1).expand(1 << 20, 1 << 20), "weights"]
        for _ in range(60):
            weights = copy.copy(good["model"])
            weights[numbers.choice([*weights, "unheard of"])] = numbers.choice(values)
            torch.save({**good, "model": weights}, path)
            assert self.load(path) is not None
        for weights in ODD:
            torch.save({**good, "model": weights}, path)
            assert self.load(path) is not None


def crafted_checkpoints(trace: Path) -> dict[str, dict[str, object]]:
    """Changes to a good checkpoint that make it harmful, or useless, by kind."""
    code = f"[__import__('pathlib').Path({str(trace)!r}).touch() or 5, 6]"
    args, state = make_model_args(), make_state(make_task())
    task = {"_name": "translation", "source_lang": "en", "target_lang": "de"}

    def configured(**changes: object) -> dict[str, object]:
        return {"cfg": {"model": Namespace(**{**vars(args), **changes}), "task": task}}

    def weighted(value: object) -> dict[str, object]:
        return {"model": {**state["model"], "decoder.layers.0.fc1.bias": value}}

    return {
        "cutoff": configured(adaptive_softmax_cutoff=code),
        "fconv": configured(_name="fconv", arch="fconv", encoder_layers=code),
        "lightconv": configured(_name="lightconv", arch="lightconv", decoder_glu=code),
        "args": {"cfg": None, "args": Namespace(**vars(args), adaptive_softmax_cutoff=code)},
        "pickle": {"extra_state": {"x": Payload(os.system, f"touch {trace}")}},
        "task": {"cfg": {"model": args, "task": {**task, "_name": "language_modeling"}}},
        "layers": configured(encoder_layers=10**9),
        "list": {"model": [1, 2]},
        "text": weighted(code),
        "nan": weighted(torch.full((8,), float("nan"))),
        "large": weighted(torch.zeros(1).expand(1 << 40)),
    }


class TestCommands:
    """Every command that opens a checkpoint, with every kind of file."""

    @pytest.fixture(scope="class")
    def folder(self, tmp_path_factory: pytest.TempPathFactory) -> Path:
        folder = tmp_path_factory.mktemp("crafted")
        for language in ("en", "de"):
            make_task().source_dictionary.save(str(folder / f"dict.{language}.txt"))
        (folder / "in.en").write_text("word1 word2\n", "utf-8")
        good = {**make_state(make_task()), "cfg": {"model": make_model_args(), "task": {}}}
        torch.save(good, folder / "good.pt")
        for kind, changes in crafted_checkpoints(folder / "trace").items():
            torch.save({**good, **changes}, folder / f"{kind}.pt")
        return folder

    def commands(self, folder: Path, bad: Path) -> dict[str, list[object]]:
        """Command lines of every script in which ``bad`` stands where a checkpoint should."""
        texts = ["--input-path", folder / "in.en", "--output-path", folder / "out", "--cpu"]
        texts += ["--source-lang", "en", "--target-lang", "de"]
        good = folder / "good.pt"
        corpus = [folder, "--strategy", "AR", "--AR-path", bad, *texts]
        return {
            **({"translate_corpus": corpus} if find_spec("ray") else {}),
            "inference verifier": [folder, "--strategy", "AR", "--AR-path", bad, *texts],
            "inference drafter": [folder, "--path", bad, "--AR-path", good, *texts],
            "inference fairseq": [folder, "--strategy", "fairseq", "--AR-path", bad, *texts],
            "evaluate": [folder, "--path", bad, "--AR-path", good, "--no-plots", *texts],
            "export_checkpoint": [bad, folder / "new.pt"],
            "encoder_initial": [bad, folder / "new.pt"],
            "calibrate_head": [bad, folder / "new.pt"],
        }

    @pytest.mark.parametrize("kind", crafted_checkpoints(Path("unused")))
    def test_refuse(self, kind: str, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
        bad = folder / f"{kind}.pt"
        for name, arguments in self.commands(folder, bad).items():
            main = import_module(f"specdec_plugins.cli.{name.split()[0]}").main
            capfd.readouterr()
            status = main([str(argument) for argument in arguments])
            lines = capfd.readouterr().err.splitlines()
            assert status in (1, 2), name
            assert len(lines) == 1, (name, lines)
            assert str(bad) in lines[0]
            assert not (folder / "new.pt").exists()
        assert not (folder / "trace").exists()
