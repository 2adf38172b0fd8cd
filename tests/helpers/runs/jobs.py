"""Translators and jobs for the tests of corpora and pairs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from specdec_plugins.files.lines import Line
from specdec_plugins.inference import Settings, Translation
from specdec_plugins.jobs.make_pair.job import PairJob


class Numberer:
    """``text`` in line 3 becomes ``3:text``."""

    def translate(self, lines: Iterable[Line]) -> Iterator[Translation]:
        for line in lines:
            yield Translation(f"{line.number}:{line.text}")


def pair_job(folder: Path) -> PairJob:
    """Return the making of a pair of which nothing is made yet; its text is ``folder/text``."""
    languages = {"source_lang": "en", "target_lang": "de"}
    verifier = Settings(str(folder), str(folder / "v.pt"), strategy="AR", **languages)
    job = PairJob(verifier, folder / "text", folder / "out", str, hours=1.0)
    job.layout.work.mkdir(parents=True)
    return job
