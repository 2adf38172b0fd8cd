"""The verifier for those systems of a benchmark that are CTranslate2's."""

from __future__ import annotations

import logging
from pathlib import Path

from specdec_plugins.decoding.generator import SpeculativeGenerator
from specdec_plugins.evaluation.benchmark.systems import CTRANSLATE2, BenchmarkSystem
from specdec_plugins.files.errors import InferenceError
from specdec_plugins.inference import Translator
from specdec_plugins.inference.ctranslate2_model import convert_verifier

logger = logging.getLogger(__name__)


def convert_for(
    systems: list[BenchmarkSystem], verifier: Translator, folder: Path
) -> tuple[list[BenchmarkSystem], Path | None, dict[str, str]]:
    """Convert the verifier where a system asks for that.

    Args:
        verifier: our AR, in float32 on the CPU.
        folder: for the model.

    Returns:
        the systems that there can be, the model's folder, and what is left out and why.
    """
    if not any(system.family == CTRANSLATE2 for system in systems):
        return systems, None, {}
    generator, codec = verifier.generator, verifier.codec
    assert isinstance(generator, SpeculativeGenerator)
    assert generator.model is not None
    model = folder / "model"
    try:
        convert_verifier(generator.model, codec.source, codec.target, model)
    except InferenceError as error:
        logger.warning("%s; goes on without it", error)
        others = [system for system in systems if system.family != CTRANSLATE2]
        return others, None, {CTRANSLATE2: str(error)}
    return systems, model, {}
