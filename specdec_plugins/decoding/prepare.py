"""What is done before each batch, for controllers that have to be told something."""

from __future__ import annotations

from specdec_plugins.decoding.controllers.constant import Constant
from specdec_plugins.decoding.controllers.oracle import Oracle
from specdec_plugins.decoding.generator import SpeculativeGenerator
from specdec_plugins.decoding.statistics import DecodingStatistics
from specdec_plugins.host.fairseq_types import Sample


def look_ahead(generator: SpeculativeGenerator, sample: Sample) -> None:
    """Decode the batch with whole blocks, neither timed nor counted, and tell the oracle what they
    came to."""
    oracle = generator.controller
    assert isinstance(oracle, Oracle)
    found = generator.decode(sample, Constant(oracle.needs.most), DecodingStatistics())
    oracle.tell([hypothesis["accepted"] for (hypothesis,) in found])
