"""fairseq's checkpoints, each whole from the moment it has its name."""

from __future__ import annotations

import os
import shutil

from fairseq.file_io import PathManager

from specdec_plugins.files.output import whole_file

_copy = PathManager.copy


def copy_whole(src_path: str, dst_path: str, overwrite: bool = False) -> bool:
    """As fairseq's, and whole or not at all where both are ordinary files.

    fairseq writes one checkpoint whole, and copies it over ``checkpoint_best.pt`` and
    ``checkpoint_last.pt``: killed meanwhile, a training would leave half a file there, and could
    not be gone on with.
    """
    if not os.path.isfile(src_path) or not os.path.isdir(os.path.dirname(dst_path) or "."):
        return bool(_copy(src_path, dst_path, overwrite))
    with open(src_path, "rb") as source, whole_file(dst_path) as target:
        shutil.copyfileobj(source, target)
    return True


def copy_checkpoints_whole() -> None:
    """Have fairseq copy so."""
    PathManager.copy = staticmethod(copy_whole)
