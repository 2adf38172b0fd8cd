"""Tiny random models and batches, built without a command line."""

from __future__ import annotations

import copy
import gc
import os
import sys
import zlib
from argparse import Namespace
from collections.abc import Iterable, Iterator
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import hypothesis
import pytest
import torch
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf

from specdec_plugins import register
from specdec_plugins.decoding.acceptance import Accepted
from specdec_plugins.host.fairseq_import import importing_fairseq
from specdec_plugins.host.fairseq_types import Sample

if TYPE_CHECKING:
    from helpers.models.trained import Trained

with importing_fairseq():  # without libraries that take longer than all of it
    import fairseq.dataclass.utils
    import fairseq.utils
    from fairseq.data import Dictionary
    from fairseq.models.transformer import (
        TransformerModel,
        TransformerModelBase,
        base_architecture,
    )

    from specdec_plugins.host.checkpoints import REDUNDANT, use_plain_encoder

# The suite starts a hundred processes, and each would compile the libraries' modules for itself.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

Model = TypeVar("Model", bound=torch.nn.Module)

register()
gc.freeze()  # as commands do
_parsed = cache(partial(OverridesParser.parse_rule, OverridesParser.create()))
# All of fairseq's options, three hundred a command, take hydra a quarter of a second to parse, and
# most of them are always the same.
OverridesParser.parse_rule = lambda self, text, rule: copy.copy(_parsed(text, rule))
_compose = fairseq.dataclass.utils.compose


@cache
def _composed(name: str, groups: tuple[str, ...]) -> DictConfig:
    return _compose(name, overrides=[*groups])


def compose_once(name: str, overrides: list[str], strict: bool) -> DictConfig:
    """Set options in a copy of what hydra made of the same groups, such as ``task=translation``.

    Making it takes hydra a quarter of a second, a copy of it a fifth of that.
    """
    groups = tuple(item for item in overrides if "." not in item.partition("=")[0])
    cfg = copy.deepcopy(_composed(name, groups))
    options = [item for item in overrides if item not in groups]
    parsed = OverridesParser.create().parse_overrides(options)
    ConfigLoaderImpl._apply_overrides_to_config(parsed, cfg)
    OmegaConf.set_struct(cfg, strict)
    return cfg


fairseq.dataclass.utils.compose = compose_once
pytest_plugins = [f"helpers.runs.{name}" for name in ("inference_runs", "served", "watched")]

# A busy machine makes an example slow, not wrong.
hypothesis.settings.register_profile("suite", deadline=None, max_examples=25)
hypothesis.settings.register_profile("slow", deadline=None, max_examples=200)


def pytest_configure(config: pytest.Config) -> None:
    """Draw few examples where slow tests are left out; others in every run."""
    hypothesis.settings.load_profile("suite" if "not slow" in config.option.markexpr else "slow")


def examples(count: int) -> hypothesis.settings:
    """Scale a test's examples: ``count`` where the profile has 100, and 10 at the least."""
    profile = hypothesis.settings.default
    assert profile is not None
    return hypothesis.settings(max_examples=max(10, count * profile.max_examples // 100))


def thinned(**axes: Iterable[object]) -> pytest.MarkDecorator:
    """Parametrise by all combinations of some values, most of them slow.

    The others have every combination of the values of all axes but one, whichever that is: their
    place on the shortest axis is the sum of those on the others, modulo its length.
    """
    names = sorted(axes, key=lambda name: len([*axes[name]]))
    cells = []
    for cell in product(*(enumerate(axes[name]) for name in names)):
        (place, *others), values = zip(*cell)
        quick = (sum(others) - place) % len([*axes[names[0]]]) == 0
        cells.append(pytest.param(*values, marks=[] if quick else [pytest.mark.slow]))
    return pytest.mark.parametrize(names, cells)


def make_dictionary(words: int = 20) -> Dictionary:
    dictionary = Dictionary()
    for index in range(words):
        dictionary.add_symbol(f"w{index}")
    return dictionary


def make_task(dictionary: Dictionary | None = None, **cfg: Any) -> Namespace:
    dictionary = dictionary or make_dictionary()
    settings: dict[str, object] = {"block_size": 4, "AR_path": None, **cfg}
    return Namespace(
        source_dictionary=dictionary,
        target_dictionary=dictionary,
        cfg=Namespace(**settings),
        verifier=None,
    )


def randomise(model: Model, seed: int) -> Model:
    """Draws every weight anew, for scores sharp enough to have no near-ties; in float64.

    A weight depends on its name and the seed alone: versions of fairseq differ in what a layer
    holds and in what is drawn while it is built.
    """
    for name, parameter in model.named_parameters():
        if "norm" not in name and not REDUNDANT.search(name):
            key = f"{type(model).__name__} {name} {seed}"
            generator = torch.Generator().manual_seed(zlib.crc32(key.encode()))
            torch.nn.init.normal_(parameter, std=0.3, generator=generator)
    use_plain_encoder(model)
    return model.double().eval()


SIDE = {"layers": 2, "embed_dim": 16, "ffn_embed_dim": 32, "attention_heads": 2}
SIZES: dict[str, object] = {
    **{f"{side}_{name}": size for side in ("encoder", "decoder") for name, size in SIDE.items()},
    "max_source_positions": 64,
    "max_target_positions": 64,
    "dropout": 0.0,
}
"""Sizes of small Transformers and drafters."""
ONE_LAYER = {"encoder_layers": 1, "decoder_layers": 1}
"""For what loads models again and again, and does not depend on their layers."""


def make_verifier(
    task: Namespace | None = None, seed: int = 0, **overrides: object
) -> TransformerModelBase:
    """A random fairseq Transformer in float64."""
    args = Namespace(**{**SIZES, **overrides})
    base_architecture(args)
    model = TransformerModel.build_model(args, task or make_task())
    return randomise(model, seed)


@torch.no_grad()
def vary_output(verifier: TransformerModelBase) -> TransformerModelBase:
    """Gives every token its turn, where a random decoder says one or two for ever.

    Its states have most in common; here the output layer is made to see all that differs, by
    undoing their second moments (over random sources and prefixes).
    """
    net_input = make_batch([9] * 40, seed=1)["net_input"]
    tokens = make_batch([12] * 40, seed=2)["net_input"]["src_tokens"].roll(1, dims=1)
    states = verifier(**net_input, prev_output_tokens=tokens, features_only=True)[0].flatten(0, 1)
    # A layer norm leaves one direction empty.
    moments = states.T @ states / len(states) + 1e-3 * torch.eye(states.size(1))
    root = torch.linalg.cholesky(moments)
    weight = verifier.decoder.output_projection.weight
    weight.copy_(weight @ torch.linalg.inv(root))
    return verifier


def make_batch(lengths: list[int], vocabulary: int = 24, seed: int = 0, pad: int = 1) -> Sample:
    """Random sources of these lengths (EOS included), left-padded as fairseq does."""
    generator = torch.Generator().manual_seed(seed)
    width = max(lengths)
    tokens = torch.full((len(lengths), width), pad)
    for row, length in enumerate(lengths):
        tokens[row, width - length : width - 1] = torch.randint(
            4, vocabulary, (length - 1,), generator=generator
        )
        tokens[row, width - 1] = 2
    return {
        "id": torch.arange(len(lengths)),
        "net_input": {"src_tokens": tokens, "src_lengths": torch.tensor(lengths)},
    }


@pytest.fixture(scope="session")
def session_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For what is made once, whatever the number of processes that run the tests."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    return folder


@pytest.fixture(scope="session")
def trained(session_folder: Path) -> Trained:
    """``trained.Trained``: a tiny pair and an acceptance head; its files are to be read only."""
    from helpers.models.trained import Trained, made_once, train

    return Trained(made_once(session_folder / "trained", train))


@pytest.fixture(scope="module")
def exact_softmax() -> Iterator[None]:
    """fairseq's cross-attention rounds its weights to float32, whatever the model's type."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fairseq.utils, "softmax", lambda x, dim, **_: torch.softmax(x, dim))
        yield


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Tiny matrices: threads only wait for each other."""
    torch.set_num_threads(1)


def counts_of(accepted: Accepted) -> list[list[int]]:
    """The counts of an ``Accepted``."""
    return [accepted.committed, accepted.accepted, accepted.verified]
