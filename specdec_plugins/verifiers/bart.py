"""``bart``: BART, whose sentences begin with BOS."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import ClassVar

from specdec_plugins.checkpoints.multilingual import BOS, Multilingual
from specdec_plugins.files.errors import CheckpointError
from specdec_plugins.files.output import JsonObject
from specdec_plugins.verifiers.family import Family, Vocabulary
from specdec_plugins.verifiers.folder import read_json, reading
from specdec_plugins.verifiers.m2m import MASK, SPECIAL
from specdec_plugins.verifiers.pieces import BytePieces

VOCABULARY = "vocab.json"
MERGES = "merges.txt"


class Bart(Family):
    """Post-norm, and a norm of embeddings; positions are learned, with two rows of offset, as
    fairseq's. Symbols are numbers, as those of fairseq's own BART."""

    model_type = "bart"
    options: ClassVar[JsonObject] = {
        "encoder_normalize_before": False,
        "decoder_normalize_before": False,
        "encoder_learned_pos": True,
        "decoder_learned_pos": True,
        "layernorm_embedding": True,
    }
    segmentation: ClassVar[dict[str, str]] = {
        "bpe": "gpt2",
        "gpt2_encoder_json": VOCABULARY,
        "gpt2_vocab_bpe": MERGES,
    }

    @property
    def multilingual(self) -> Multilingual:
        forced = self.generation.forced_bos_token_id
        if forced not in (None, self.config.bos_token_id):
            raise CheckpointError(
                f"{self.folder}: forced_bos_token_id {forced} is not BOS; only BOS is supported"
            )
        target = None if forced is None else BOS
        return Multilingual(langs=(), source_spec=BOS, target_spec=target)

    @cached_property
    def vocabulary(self) -> dict[str, int]:
        """The numbers of pieces, and of special tokens."""
        return read_json(self.folder / VOCABULARY, Vocabulary)

    def tokens(self, side: str) -> Mapping[str, int]:
        if self.saved is not None:
            return self.saved.vocabulary
        return {
            name if name in (*SPECIAL, MASK) else str(i): i for name, i in self.vocabulary.items()
        }

    def pieces(self) -> BytePieces:
        path = self.folder / MERGES
        vocabulary = self.vocabulary
        with reading(path):
            merges = [
                tuple(line.split())
                for line in path.read_text("utf-8").splitlines()
                if line and not line.startswith("#version")
            ]
            return BytePieces(vocabulary, merges)
