"""``copy``: text that a copy of the verifier in a lower precision writes."""

from __future__ import annotations

import logging
from copy import deepcopy
from functools import partial
from typing import TYPE_CHECKING

import torch

from specdec_plugins.decoding.acceptance import StrictRule
from specdec_plugins.decoding.controllers.base import Controller
from specdec_plugins.decoding.controllers.simple import Auto, NoDrafts
from specdec_plugins.decoding.drafting import DraftSource
from specdec_plugins.decoding.generator import SpeculativeGenerator
from specdec_plugins.decoding.limits import TokenBans
from specdec_plugins.decoding.text_drafting import CopyDrafting, Credit
from specdec_plugins.decoding.writer_drafting import writer_source
from specdec_plugins.engines.choice import choose_engine, engine_name, is_installed
from specdec_plugins.engines.engine import Engine
from specdec_plugins.inference.drafts.base import DraftKind, register
from specdec_plugins.inference.run_options import RunOptions

if TYPE_CHECKING:
    from fairseq.data import Dictionary
    from fairseq.models.transformer import TransformerModelBase

logger = logging.getLogger(__name__)

#: The largest batch in which drafts of a copy pay on a CPU (docs/benchmarks.md).
MAX_ROWS = 4


@register
class CopyDrafts(DraftKind):
    """Drafts what the verifier itself writes in int8, on a GPU in float16."""

    name = "copy"
    help = (
        "copy: by an int8 copy of the verifier (float16 on a GPU), the default on a CPU, and "
        "without a drafter"
    )

    def controller(self, options: RunOptions) -> Controller:
        """Return the controller; none where no engine can write, or where copies do not pay."""
        engine, precision = _engine(options)
        if not is_installed(engine_name(engine, precision, options.device)):
            logger.warning("no drafts: --drafts copy needs pip install 'specdec-plugins[int8]'")
            return NoDrafts()
        large = options.device == "cpu" and options.batch > MAX_ROWS
        if isinstance(options.controller, Auto) and (large or precision == options.precision):
            return NoDrafts()
        return super().controller(options)

    def source(
        self,
        options: RunOptions,
        source: Dictionary,
        target: Dictionary,
        verifier: TransformerModelBase,
        engine: Engine,
    ) -> DraftSource:
        """Return drafts by the writer, or by our loop where that cannot run the verifier."""
        limits = options.limits
        # Strict output does not depend on drafts, which may thus depend on earlier sentences.
        credit = Credit() if options.rule == StrictRule() else None
        name, precision = _engine(options)
        if precision == "int8" and limits.repetition_penalty == 1:
            written = writer_source(
                verifier, TokenBans(limits, target.pad(), target.unk(), target.eos()), credit
            )
            if written is not None:
                return written
        copied = choose_engine(name, precision, options.device)
        if copied.dtype != engine.dtype:
            verifier = deepcopy(verifier).to(copied.dtype)
        copy = SpeculativeGenerator(
            verifier, None, target, limits=limits, engine=copied, reads_sources=False
        )
        return DraftSource(partial(CopyDrafting, copy, credit=credit), copied)


def _engine(options: RunOptions) -> tuple[str, str]:
    """Return the engine and the precision of the copy."""
    precision = options.drafter_precision
    if precision is None:
        precision = "float16" if torch.device(options.device).type == "cuda" else "int8"
    if precision == "int8" and options.engine == "eager":  # which has none
        return "auto", precision
    return options.engine, precision
