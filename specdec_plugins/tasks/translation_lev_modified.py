"""The published name of the task, for published command lines and checkpoints."""

from __future__ import annotations

from fairseq.tasks import register_task

from specdec_plugins.tasks.specdec_config import TranslationSpecdecConfig
from specdec_plugins.tasks.translation_specdec import TranslationSpecdecTask


@register_task("translation_lev_modified", dataclass=TranslationSpecdecConfig)
class TranslationLevModifiedTask(TranslationSpecdecTask):
    """``translation_specdec`` under its published name."""
