"""Resume an output that was not finished, in the same way as it was begun.

``OUTPUT.resume`` lies beside an output that is being written and says what it is made of: version,
models, settings and input. It stays with an output that was finished with ``--resume``,
so that the same command finds nothing to do and another one is refused.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from contextlib import nullcontext
from itertools import islice
from pathlib import Path

from specdec_plugins.files.errors import InferenceError
from specdec_plugins.files.lines import InputLines, OutputLines
from specdec_plugins.files.output import JsonObject, as_read, differing, file_digest, write_json
from specdec_plugins.inference.report import describe_settings
from specdec_plugins.inference.settings import Settings
from specdec_plugins.inference.translator import Translation


def describe_run(settings: Settings, seed: int, lines: InputLines) -> JsonObject:
    """Return all that the output depends on; input or drafts are None if they can be read only
    once."""
    digests = {"input": _digest(lines)}
    if lines.drafts is not None:
        digests["drafts"] = _digest(lines.drafts)
    return as_read({**describe_settings(settings, seed), **digests})


def _digest(lines: InputLines) -> str | None:
    if lines.path is None or not os.path.isfile(lines.path):
        return None
    return file_digest(lines.path)


def resume_path(output: str) -> Path:
    """Return the file beside an output."""
    return Path(os.path.realpath(output) + ".resume")


class Resume:
    """The file beside an output, and the point at which to go on."""

    def __init__(self, output: OutputLines, about: JsonObject, resumed: bool) -> None:
        """Look at the files of an earlier run; ``about`` is :func:`describe_run`'s."""
        self._output = output
        self._about = about
        self._resumed = resumed
        self._path = resume_path(output.path) if output.resumable else None
        before = None
        if self._path is not None and self._path.exists():
            try:
                before = json.loads(self._path.read_bytes())
                before["specdec_plugins"]  # a name that every description has
            except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
                raise InferenceError(
                    f"{self._path}: is not ours, and in the way; move it away"
                ) from error
        if not output.done:
            return
        fault = f"--resume: {output.path}"
        if before is None or None in (about["input"], about.get("drafts", "")):
            raise InferenceError(
                f"{fault}: cannot be resumed, for its models, input or drafts are not recorded; "
                "leave out --resume to start again"
            )
        if other := differing(before, about):
            raise InferenceError(f"{fault}: was begun with other {other}; name another output")

    def skip(self, lines: InputLines, window: int) -> bool:
        """Pass over the input lines whose translations stay; return whether there is more to do.

        The last ``window`` of lines that are translated together is done again, so that its batches
        are the same.
        """
        if self._output.done and self._output.done == lines.total():
            return False
        self._output.keep(self._output.done // window * window)
        for _ in islice(lines, self._output.done):
            pass
        lines.check()
        return True

    def write(self, results: Iterable[Translation], trace: OutputLines | None) -> None:
        """Write each translation as soon as it is known, its trace first."""
        if trace is not None:
            trace.keep(self._output.done)
        with self._output, trace or nullcontext():
            # The output is open by now, so that nothing of an earlier run is there.
            if self._path is not None and not self._output.done:
                write_json(self._path, self._about)
            for result in results:
                if trace is not None and result.trace is not None:
                    trace.write(result.trace.to_json())
                self._output.write(result.line)

    def finish(self) -> None:
        """Remove the file of a complete output that nobody resumes."""
        if self._path is not None and not self._resumed:
            self._path.unlink(missing_ok=True)
