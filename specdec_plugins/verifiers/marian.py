"""``marian``: Marian's models (OPUS-MT), of one direction, or told the target by the text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from specdec_plugins.files.output import JsonObject
from specdec_plugins.verifiers.family import Family, Vocabulary
from specdec_plugins.verifiers.folder import read_json
from specdec_plugins.verifiers.pieces import Pieces, sentencepiece, symbol_of

#: fairseq's learned positions begin after its PAD.
OFFSET = 2
#: The tables of positions.
POSITIONS = ("encoder.embed_positions.weight", "decoder.embed_positions.weight")


class Marian(Family):
    """Post-norm; positions by formula; targets begin with PAD, and its output has a bias."""

    model_type = "marian"
    options: ClassVar[JsonObject] = {
        "encoder_normalize_before": False,
        "decoder_normalize_before": False,
        "encoder_learned_pos": True,
        "decoder_learned_pos": True,
    }
    segmentation: ClassVar[dict[str, str]] = sentencepiece("source.spm")

    @property
    def languages(self) -> tuple[str, str]:
        return self.tokenizer.source_lang or "source", self.tokenizer.target_lang or "target"

    def tokens(self, side: str) -> Mapping[str, int]:
        has_other = side == "target" and self.tokenizer.separate_vocabs
        name = "target_vocab.json" if has_other else "vocab.json"
        return read_json(self.folder / name, Vocabulary)

    def pieces(self) -> Pieces:
        # As transformers does: it joins by the source's model where vocabularies are shared.
        source = target = self.folder / "source.spm"
        if self.tokenizer.separate_vocabs:
            target = self.folder / "target.spm"
        return CodedPieces(source, target, ["<unk>", "<pad>", "</s>"])

    def positions(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return both tables; they are not saved, but in older folders.

        In float64, then rounded, sines first; the frequencies are those of Vaswani et al. (2017).
        """
        exponents = np.arange(0, self.config.d_model, 2) / self.config.d_model
        positions = np.arange(self.config.max_position_embeddings)[:, None]
        angles = positions / np.power(10000, exponents)  # (positions, channels / 2)
        table = torch.from_numpy(np.concatenate([np.sin(angles), np.cos(angles)], 1))
        return {
            name: F.pad(tensors.get(name, table).float(), (0, 0, OFFSET, 0)) for name in POSITIONS
        }


class CodedPieces(Pieces):
    """Pieces of a text that may begin with its target language, such as ``>>fra<<``, a token."""

    def encode(self, x: str) -> str:
        code, end, rest = x.partition("<<")
        if end and code.startswith(">>"):
            return f"{symbol_of(code + end)} {super().encode(rest)}"
        return super().encode(x)
