"""The head's file: what is written is what is read, and what does not fit is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from drafters import make_causal
from models.test_acceptance_head import inputs, make_head

from specdec_plugins.checkpoints.head_file import controller_head, find_head, load_head, save_head
from specdec_plugins.decoding.acceptance import (
    RelaxedRule,
    SamplingRule,
    Scoring,
    StrictRule,
)
from specdec_plugins.decoding.controllers.simple import AcceptanceHeadController
from specdec_plugins.files.errors import CheckpointError
from specdec_plugins.models.acceptance_head import AcceptanceHead, fingerprint

DRAFTER = make_causal().float()
RULE = RelaxedRule(3, 1.0)
SETTINGS: dict[str, Any] = {
    "rule": RULE.values,
    "temperature": 1.25,
    "bias": 0.5,
    "drafter": fingerprint(DRAFTER),
}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "acceptance_head.pt"
    save_head(path, make_head(**SETTINGS))
    return path


def test_a_head_is_read_as_it_was_written(saved: Path) -> None:
    head = load_head(saved, DRAFTER, Scoring(RULE), 4)
    expected = make_head(**SETTINGS)
    assert head.settings == expected.settings
    states, confidences = inputs()
    torch.testing.assert_close(
        head(states, confidences), expected.half().float()(states, confidences)
    )
    assert not head.training
    assert not any(p.requires_grad for p in head.parameters())


def test_the_head_beside_a_drafter_is_found(saved: Path) -> None:
    for rule in (RULE, StrictRule()):
        assert find_head(saved.parent / "drafter.pt", rule) == saved
        assert find_head(saved.parent / "elsewhere" / "drafter.pt", rule) is None
    relaxed = saved.rename(saved.with_name("acceptance_head.relaxed.pt"))
    assert find_head(saved.parent / "drafter.pt", RULE) == relaxed
    assert find_head(saved.parent / "drafter.pt", StrictRule()) is None
    saved.write_bytes(b"")
    assert find_head(saved.parent / "drafter.pt", RULE) == relaxed
    assert find_head(saved.parent / "drafter.pt", StrictRule()) == saved


def test_a_controllers_head_is_for_its_device(saved: Path) -> None:
    given = (AcceptanceHeadController(), DRAFTER, Scoring(RULE), 4)
    for device in ("cpu", "meta"):
        head = controller_head(*given, device, saved.parent / "drafter.pt")
        assert isinstance(head, AcceptanceHead)
        assert head.out.weight.device.type == device
    assert controller_head(*given, "cpu") is None


def test_heads_of_before_sampling_are_read(saved: Path) -> None:
    state = torch.load(saved, weights_only=True)
    assert (state["acceptance_head"]["beta"], state["acceptance_head"]["tau"]) == (3, 1.0)
    del state["acceptance_head"]["rule_temperature"]
    torch.save(state, saved)
    assert load_head(saved, DRAFTER, Scoring(RULE), 4).settings == make_head(**SETTINGS).settings


class TestSampling:
    RULE = SamplingRule(sampling_topk=3)

    @pytest.fixture
    def saved(self, tmp_path: Path) -> Path:
        path = tmp_path / "acceptance_head.sampling.pt"
        settings = {"rule": self.RULE.values, "rule_temperature": 0.5}
        save_head(path, make_head(**settings, drafter=fingerprint(DRAFTER)))
        return path

    def test_it_is_found_and_read(self, saved: Path) -> None:
        assert find_head(saved.parent / "drafter.pt", self.RULE) == saved
        assert find_head(saved.parent / "drafter.pt", StrictRule()) is None
        assert (
            load_head(saved, DRAFTER, Scoring(self.RULE, 0.5), 4).settings.rule == self.RULE.values
        )


def test_a_repetition_penalty_is_part_of_the_rule(saved: Path, tmp_path: Path) -> None:
    """Strict, too: the verifier's best token depends on it."""
    path = tmp_path / "penalised.pt"
    settings = {"repetition_penalty": 1.25, "drafter": fingerprint(DRAFTER)}
    save_head(path, make_head(**settings))
    assert (
        load_head(path, DRAFTER, Scoring(repetition_penalty=1.25), 4).settings.repetition_penalty
        == 1.25
    )
    for penalty, asked in ((1.0, "strict"), (2.0, "strict with repetition penalty 2")):
        fault = f"for strict with repetition penalty 1.25 acceptance, not {asked}; give --beta 1"
        with pytest.raises(CheckpointError, match=rf"{fault}.* --repetition-penalty 1\.25, or"):
            load_head(path, DRAFTER, Scoring(repetition_penalty=penalty), 4)
    with pytest.raises(CheckpointError, match=r"penalty 2; give .* --repetition-penalty 1, or"):
        load_head(saved, DRAFTER, Scoring(RULE, 1.0, 2.0), 4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"drafter": make_causal(seed=1).float()}, "another drafter"),
        (
            {"scoring": Scoring()},
            r"for relaxed \(beta 3, tau 1.0\) acceptance, not strict",
        ),
        ({"scoring": Scoring(RelaxedRule(3, 2.0))}, "--beta 3 --tau 1.0"),
        ({"block_size": 5}, "--block-size 4 or less"),
    ],
)
def test_other_uses_are_refused(saved: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message) as caught:
        load_head(
            saved, **{"drafter": DRAFTER, "scoring": Scoring(RULE), "block_size": 4, **changes}
        )
    assert str(caught.value).startswith(str(saved))
    assert "\n" not in str(caught.value)


class Evil:
    def __reduce__(self) -> Any:
        return print, ("was run",)


@pytest.mark.parametrize("content", [None, b"no checkpoint", {"model": {}}, [1], Evil(), "short"])
def test_files_that_are_no_heads(
    saved: Path, content: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is None:
        saved.unlink()
    elif content == "short":
        saved.write_bytes(saved.read_bytes()[:2000])
    elif isinstance(content, bytes):
        saved.write_bytes(content)
    else:
        torch.save(content, saved)
    why = "no such file|not an acceptance head|not a checkpoint|it holds a|would need to run"
    with pytest.raises(CheckpointError, match=why):
        load_head(saved, DRAFTER, Scoring(RULE), 4)
    assert "was run" not in capsys.readouterr().out


@pytest.mark.parametrize("change", [{"channels": -1}, {"layers": -1}, {"block_size": 0}])
def test_sizes_that_cannot_be(saved: Path, change: dict[str, int]) -> None:
    state = torch.load(saved, weights_only=True)
    state["acceptance_head"].update(change)
    torch.save(state, saved)
    with pytest.raises(CheckpointError, match="not an acceptance head"):
        load_head(saved, DRAFTER, Scoring(RULE), 4)
