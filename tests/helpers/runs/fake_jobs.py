"""Jobs for processes of systems, which import this without torch."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

from specdec_plugins.evaluation.worker import Decoded


@dataclass(frozen=True)
class EchoJob:
    """Says what process it is in; or fails where it is told to."""

    fault: str = ""

    def load(self) -> None:
        if self.fault == "loading":
            raise ValueError("--flag: cannot be\nsecond line")

    def decode(self, batches: int, seed: int = 1) -> Decoded:
        if self.fault == "decoding":
            os._exit(3)
        heavy = [name for name in ("torch", "fairseq", "numpy") if name in sys.modules]
        threads = [f"{name}={os.environ[name]}" for name in ("OMP_NUM_THREADS", "OMP_WAIT_POLICY")]
        print("noise")
        return Decoded(1.0, [heavy, threads, [str(batches)]])
