"""An engine whose steps get whole caches, in PyTorch."""

from __future__ import annotations

import math
from typing import Any

from specdec_plugins.engines.eager import EagerEngine
from specdec_plugins.engines.step import CachedStep, Run, Step


class WholeCacheEngine(EagerEngine):
    """PyTorch; it sees to it that masks are finite, and writes over what is not to be read any
    more."""

    whole_cache = True
    max_drafted_rows = 1

    def prepare(self, step: Step) -> Run:
        late: list[Any] = []

        def run(*inputs: Any) -> Any:
            if isinstance(step, CachedStep):
                mask = inputs[2]
                assert mask.isfinite().all()
                # Every new token sees one.
                assert (mask == 0).any(-1).all()
            for result in late:
                result.fill_(math.nan)
            results = step(*inputs)
            assert all(result.isfinite().all() for result in results)
            late[:] = results[: step.transient]
            return results

        return run


WHOLE_CACHE = WholeCacheEngine("float64")
