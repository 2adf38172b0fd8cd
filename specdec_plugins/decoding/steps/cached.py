"""Steps over what is cached, as an engine wants them."""

from __future__ import annotations

from collections.abc import Collection

from fairseq.models.transformer import TransformerModelBase

from specdec_plugins.decoding.steps.drafter import CachedDrafter
from specdec_plugins.decoding.steps.padded_drafter import PaddedDrafter
from specdec_plugins.decoding.steps.padded_verifier import PaddedVerifier
from specdec_plugins.decoding.steps.verifier import CachedVerifier
from specdec_plugins.engines.engine import Engine
from specdec_plugins.models.drafter import Drafter


def cached_verifier(
    model: TransformerModelBase,
    padding: int,
    engine: Engine,
    feature_layers: Collection[int] = (),
) -> CachedVerifier:
    """A verifier whose steps the engine runs; ``feature_layers``: as of the drafter.

    Raises:
        UnsupportedModelError: a model that cannot be run exactly.
    """
    if engine.sizes is None:
        return CachedVerifier(model, padding, engine, feature_layers)
    return PaddedVerifier(model, padding, engine, feature_layers, engine.sizes)


def cached_drafter(
    model: Drafter, engine: Engine, verifier: TransformerModelBase | None = None
) -> CachedDrafter:
    """A drafter whose steps the engine runs.

    Args:
        verifier: is attached to the drafter first.

    Raises:
        ValueError: the drafter does not fit the verifier.
    """
    if verifier is not None:
        model.attach_verifier(verifier)
    if engine.sizes is None:
        return CachedDrafter(model, engine)
    return PaddedDrafter(model, engine, engine.sizes)
