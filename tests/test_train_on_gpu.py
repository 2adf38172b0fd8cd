"""``scripts/train_on_gpu.py``, tried without a GPU."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from helpers.runs.scripts_here import SCRIPTS, load_script, run
from torch import nn

from specdec_plugins.files.lines import Line
from specdec_plugins.inference import Settings, Translator, load_translator
from specdec_plugins.models import training_pass

ROOT = SCRIPTS.parent
PAIR = ROOT / "checkpoints" / "multi30k.en-de"
TEXTS = [ROOT / "data" / f"captions.{language}" for language in ("en", "de")]


@pytest.fixture(scope="module")
def scripts() -> Iterator[SimpleNamespace]:
    """The scripts, which import each other by their names."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SCRIPTS))
        for name in ("gpu_parcel", "gpu_training", "gpu_validation", "symbols"):
            patch.setitem(sys.modules, name, load_script(name))
        patch.setattr(training_pass, "CHUNK", training_pass.CHUNK)  # which the script changes
        yield SimpleNamespace(
            parcel=sys.modules["gpu_parcel"],
            training=sys.modules["gpu_training"],
            train=load_script("train_on_gpu"),
        )
        logging.disable(logging.NOTSET)  # the script turns logs off, for its process


@pytest.fixture(scope="module")
def translator() -> Translator:
    settings = Settings.of_model(PAIR, engine="eager", precision="float32", device="cpu")
    return load_translator(settings)


@pytest.fixture(scope="module")
def segmented(translator: Translator, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The captions as the pair's tokens."""
    folder = tmp_path_factory.mktemp("segmented")
    made = []
    for text in TEXTS:
        path = folder / text.name
        lines = text.read_text("utf-8").splitlines()
        segment = translator.codec.segment
        path.write_text("".join(f"{segment(line)}\n" for line in lines), "utf-8")
        made.append(path)
    return made


def test_the_verifiers_loss_is_fairseqs(
    scripts: SimpleNamespace, translator: Translator, segmented: list[Path]
) -> None:
    words, model = translator.codec.target, translator.verifier.eval()
    numbers = scripts.parcel.token_numbers(PAIR, segmented)
    text = scripts.training.Text(numbers, torch.device("cpu"))
    batch = text.batch(torch.arange(10), 48)
    criterion = LabelSmoothedCrossEntropyCriterion(
        SimpleNamespace(target_dictionary=words), False, scripts.training.SMOOTHING
    )
    net_input = {"src_tokens": batch.source, "src_lengths": (batch.source != words.pad()).sum(1)}
    count = int((batch.target != words.pad()).sum())
    net_input["prev_output_tokens"] = batch.before
    with torch.no_grad():
        expected, *_ = criterion(
            model, {"net_input": net_input, "target": batch.target, "ntokens": count}
        )
        nothing = torch.zeros(len(words), dtype=torch.bool)
        loss, unlikelihood = scripts.training.verifier_loss(model, batch, nothing)
        everything = scripts.training.verifier_loss(model, batch, ~nothing)[1]
    torch.testing.assert_close(loss, expected / count, rtol=1e-5, atol=0)
    assert unlikelihood == 0 < everything


def test_joined_pairs_are_whole_and_a_tenth(scripts: SimpleNamespace) -> None:
    draw = np.random.default_rng(1)
    sides = [np.append(draw.integers(4, 99, 30), 2) for _ in range(400)]
    tokens = scripts.training.with_joined_pairs(np.concatenate(sides).astype(np.uint16), draw)
    text = scripts.training.Text(tokens, torch.device("cpu"))
    joined = text.sizes[200:]
    assert len(joined) > 1
    assert (joined.min(), joined.max()) > (90, 0)
    assert 0 <= joined.sum() - 400 * 31 // 10 < 2 * 300
    known = {tuple(side[:-1]) for side in sides}
    last = text.padded(torch.tensor([2 * len(text.sizes) - 1]), int(joined[-1, 1]))[0].tolist()
    assert last.pop() == 2
    assert all(tuple(last[at : at + 30]) in known for at in range(0, len(last), 30))


def test_an_epoch_has_every_pair_in_batches_of_fixed_sizes(scripts: SimpleNamespace) -> None:
    draw = np.random.default_rng(1)
    sides = [np.append(draw.integers(4, 99, n), 2) for n in draw.integers(1, 60, 300)]
    text = scripts.training.Text(np.concatenate(sides).astype(np.uint16), torch.device("cpu"))
    chosen = np.arange(120)
    batches = list(text.epoch(chosen, 200, draw))
    assert set(np.concatenate([pairs for _, pairs in batches])) == set(chosen)
    for length, pairs in batches:
        assert text.sizes[pairs].max() <= length
        assert len(pairs) == max(1, 200 // length)


def test_a_short_text_is_one_long_input(scripts: SimpleNamespace) -> None:
    joined = sys.modules["gpu_validation"].joined
    assert joined(["A dog .", "A cat ."]) == ["A dog . A cat ."]
    assert [len(line.split()) for line in joined(["A dog ."] * 60)] == [81, 81]


def test_a_stop_while_a_model_is_stored_leaves_a_whole_one(
    scripts: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parcel = scripts.parcel
    monkeypatch.setattr(parcel, "PART", 160)
    model = nn.Linear(9, 9)
    parcel.store(tmp_path, "verifier", model)
    old = parcel.newest(tmp_path, "verifier")
    parts = len(list(tmp_path.iterdir()))
    assert parts > 10  # part 10 comes after part 2
    seen = []

    def write(path: Path, content: bytes) -> None:
        for end in (len(content) // 2, len(content)):
            with path.open("wb") as file:
                file.write(content[:end])
            seen.append(parcel.newest(tmp_path, "verifier"))

    def unlink(path: Path) -> None:
        os.remove(path)
        seen.append(parcel.newest(tmp_path, "verifier"))

    monkeypatch.setattr(Path, "write_bytes", write)
    monkeypatch.setattr(Path, "unlink", unlink)
    # The same weights again must not overwrite their only parts.
    parcel.store(tmp_path, "verifier", model)
    parcel.store(tmp_path, "verifier", nn.Linear(9, 9))
    new = seen[-1]
    assert new != old
    # The last half of its last part makes the new model whole; then the old parts go.
    assert seen == [old] * (3 * parts + 2 * parts - 1) + [new] * (1 + parts)


def test_the_shipped_verifier_is_three_parts(scripts: SimpleNamespace) -> None:
    """Two of it, a drafter of one part and the results are eight files of at most 16 MiB."""
    size = (ROOT / "checkpoints" / "wmt.en-de" / "verifier.pt").stat().st_size
    assert size <= 3 * scripts.parcel.PART < 3 * 16 * 2**20


def test_a_parcel_over_its_limit_is_refused(
    scripts: SimpleNamespace,
    segmented: list[Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    packed = tmp_path / "packed"
    texts = ["--text", *segmented, "--more", *segmented]
    monkeypatch.setattr(scripts.parcel, "write_compressed", Path.write_bytes)  # at once
    assert scripts.parcel.main(["pack", str(PAIR), str(packed), *map(str, texts), "--limit", "5"])
    fault = capsys.readouterr().err
    assert re.search(r"packed: \S+ MiB is more than --limit 5; give fewer", fault)
    assert not packed.exists()


def test_a_model_is_stored_once_a_minute(
    scripts: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(second=0)
    trained = Mock()
    stored = []

    def store(_out: Path, _name: str, model: object) -> None:
        stored.append((clock.second, model))

    monkeypatch.setattr(scripts.train, "time", Mock(monotonic=lambda: clock.second))
    monkeypatch.setattr(scripts.train.gpu_parcel, "store", store)
    for _ in scripts.train.Bench.ticks(Mock(), "verifier", 200, trained, torch.zeros(1)):
        clock.second += 1
    # It looks at the clock at every tenth update, and stores at the end, too.
    assert stored == [(70, trained.averaged), (140, trained.averaged), (200, trained.averaged)]


def test_the_average_follows_the_weights_slowly(scripts: SimpleNamespace) -> None:
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    trained = scripts.training.Trained(model, 0.1, torch.device("cpu"))
    trained.set_rate(0.5)
    trained.update(lambda: trained.model.weight.sum())
    followed = trained.averaged.weight / trained.model.weight
    assert 0.001 < followed.item() < 0.1


def test_a_parcel_of_what_does_not_belong_together_is_not_begun(
    scripts: SimpleNamespace,
    segmented: list[Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Nor of a pair whose files would run code."""
    short = tmp_path / "short.de"
    short.write_text("a\n")
    pair = tmp_path / "pair"
    pair.mkdir()
    for path in PAIR.glob("dict.*"):
        shutil.copy(path, pair)

    class Bomb:
        def __reduce__(self) -> tuple[object, ...]:
            return os.mkdir, (str(tmp_path / "ran"),)

    torch.save({"model": Bomb()}, pair / "verifier.pt")
    packed = str(tmp_path / "packed")
    more = ["--more", *map(str, segmented)]
    assert scripts.parcel.main(
        ["pack", str(PAIR), packed, "--text", str(segmented[0]), str(short), *more]
    )
    assert "has 40 lines, and " in capsys.readouterr().err
    assert scripts.parcel.main(["pack", str(pair), packed, "--text", *more[1:], *more])
    assert "verifier.pt" in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == {"short.de", "pair"}


def test_what_cannot_be_validated_is_found_first(
    scripts: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not after all training."""
    (tmp_path / "de").write_text("Ein Hund .\n\nEine Katze .\n")
    valid = ["--valid", str(tmp_path / "de"), str(tmp_path / "de")]
    out = tmp_path / "out"
    assert scripts.train.main([str(tmp_path), str(out), *valid, "--device", "cpu"]) == 1
    assert "de: line 2 is blank" in capsys.readouterr().err
    assert not out.exists()


def test_all_stages_run_on_a_cpu(
    scripts: SimpleNamespace,
    segmented: list[Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    packed, out, new = (tmp_path / name for name in ("packed", "out", "new"))
    texts = ["--text", *segmented, "--more", *segmented]
    scripts.parcel.main(["pack", str(PAIR), str(packed), *map(str, texts)])
    flags = "--device cpu --small --rows 4 --tokens 96 --drafter-tokens 96 --sources 2"
    seconds = "--verifier-seconds 1 --drafter-seconds 1 --rehearsal 0.1"
    valid = ["--valid", *map(str, TEXTS)]
    # With nothing but the packed folder: its own script, its own package.
    script = packed / "scripts" / "train_on_gpu.py"
    done = run(
        *(sys.executable, "-v", script, packed, out, *valid, *flags.split(), *seconds.split()),
        folder=tmp_path,
        status=0,
        PYTHONPATH="",
    )
    assert {*re.findall(r"(\S+)/specdec_plugins/__init__\.py", done.stderr)} == {str(packed)}
    results = [json.loads(line) for line in (out / "results.jsonl").open()]
    stages = [result["part"] for result in results if result.get("done") == 1]
    assert stages == ["verifier", "drafter", "verifier", "drafter"]
    validated = [result["lines"] for result in results if result["part"] == "validation"]
    assert validated == [20, 20]
    assert results[-2]["bleu"] > 10
    assert results[-1]["tokens_a_step"] > 1.5

    scripts.parcel.main(["join", str(out), str(PAIR), str(new)])
    sizes = [(folder / "verifier.pt").stat().st_size for folder in (PAIR, new)]
    assert abs(sizes[1] - sizes[0]) < 0.1 * sizes[0]
    assert not [*new.glob("acceptance_head*")]  # they are of the models before
    settings = Settings.of_model(new, engine="eager", precision="float32", device="cpu")
    assert load_translator(settings).codec.encode(Line(1, "A dog .")) is not None

    part = next(out.glob("drafter.*.part"))
    part.write_bytes(part.read_bytes()[:-1])
    capsys.readouterr()
    assert scripts.parcel.main(["join", str(out), str(PAIR), str(tmp_path / "cut")]) == 1
    assert "no drafter is whole" in capsys.readouterr().err
    assert not [*tmp_path.glob("cut*")]
