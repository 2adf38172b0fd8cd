"""A family of verifiers: what all have in common, and what each file of a family adds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import msgspec
from fairseq.data import Dictionary
from torch import Tensor

from specdec_plugins.checkpoints.archive import warn_once
from specdec_plugins.checkpoints.multilingual import Multilingual
from specdec_plugins.files.errors import CheckpointError
from specdec_plugins.files.output import JsonObject
from specdec_plugins.host.activations import SWISH
from specdec_plugins.verifiers.folder import CONFIG, read_json, read_optional
from specdec_plugins.verifiers.generation import read_generation
from specdec_plugins.verifiers.pieces import BytePieces, Pieces, SavedPieces, symbol_of

Size = Annotated[int, msgspec.Meta(ge=1, le=1 << 20)]
Count = Annotated[int, msgspec.Meta(ge=1, le=1024)]
Token = Annotated[int, msgspec.Meta(ge=0, lt=1 << 20)]
#: Numbers of tokens by token.
Vocabulary = dict[str, Token]

#: fairseq's names of transformers' activations.
ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_accurate",
    "swish": SWISH,
    "silu": SWISH,
}
#: Numbers of fairseq's special symbols.
BOS, PAD, EOS, UNK = range(4)


class Config(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The options of ``config.json`` that the families share."""

    vocab_size: Size
    d_model: Size
    encoder_layers: Count
    decoder_layers: Count
    encoder_attention_heads: Count
    decoder_attention_heads: Count
    encoder_ffn_dim: Size
    decoder_ffn_dim: Size
    max_position_embeddings: Annotated[int, msgspec.Meta(ge=1, le=1 << 16)]
    activation_function: Literal["relu", "gelu", "gelu_new", "swish", "silu"]
    pad_token_id: Token
    eos_token_id: Token
    decoder_start_token_id: Token | None = None
    bos_token_id: Token | None = None
    decoder_vocab_size: Size | None = None
    scale_embedding: bool = False
    share_encoder_decoder_embeddings: bool = True
    tie_word_embeddings: bool = True


class AddedToken(msgspec.Struct):
    """An added token of ``tokenizer_config.json``."""

    content: str


class Tokenizer(msgspec.Struct):
    """A ``tokenizer_config.json``, or a ``special_tokens_map.json``."""

    #: The languages of M2M-100, NLLB and mBART.
    src_lang: str | None = None
    tgt_lang: str | None = None
    #: Marian's.
    source_lang: str | None = None
    target_lang: str | None = None
    separate_vocabs: bool = False
    #: Added tokens by their numbers.
    added_tokens_decoder: dict[Token, AddedToken] = {}
    additional_special_tokens: list[str] | None = None
    #: True of older NLLB: a source's language follows its EOS.
    legacy_behaviour: bool = False
    tokenizer_class: str | None = None


class Family(ABC):
    """A folder of a family, as a fairseq Transformer and its dictionaries."""

    model_type: ClassVar[str]
    #: fairseq's options that all networks of the family have.
    options: ClassVar[JsonObject]
    #: fairseq's options that segment text as the family does; files are in the folder.
    segmentation: ClassVar[dict[str, str]]

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = read_json(folder / CONFIG, Config)
        self.generation = read_generation(folder, self.config.eos_token_id)
        #: The token with which targets begin, as the folder says.
        self.stated_start = self.generation.decoder_start_token_id
        if self.stated_start is None:
            self.stated_start = self.config.decoder_start_token_id

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The options of the tokenizer."""
        return read_optional(self.folder / "tokenizer_config.json", Tokenizer)

    @abstractmethod
    def tokens(self, side: str) -> Mapping[str, int]:
        """Return the numbers of a side's tokens in the folder, by token."""

    @abstractmethod
    def pieces(self) -> Pieces | BytePieces:
        """Return what segments text."""

    @cached_property
    def saved(self) -> SavedPieces | None:
        """The segmenter where its own files are missing: transformers 5 saves one for all."""
        path = self.folder / "tokenizer.json"
        for name in self.segmentation.values():
            if (self.folder / name).is_file():
                return None
        return SavedPieces(path) if path.is_file() else None

    @property
    def languages(self) -> tuple[str | None, str | None]:
        """The languages of source and target, as far as the folder names them."""
        return "source", "target"

    @property
    def multilingual(self) -> Multilingual | None:
        """The languages of a model of several directions, or BOS where sentences begin with it."""
        if self.generation.forced_bos_token_id is not None:
            token = self.generation.forced_bos_token_id
            warn_once(f"{self.folder}: its forced_bos_token_id {token} is not followed")
        return None

    def positions(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return learned tables of positions; ``_tensors``: the folder's weights."""
        return {}

    def size(self, side: str) -> int:
        """Return the number of tokens of a side."""
        if side == "target" and self.config.decoder_vocab_size:
            return self.config.decoder_vocab_size
        return self.config.vocab_size

    @cached_property
    def start(self) -> int:
        """The token that a decoder reads as EOS at a target's beginning."""
        if self.stated_start is None:
            raise CheckpointError(f"{self.folder / CONFIG}: has no decoder_start_token_id")
        return self.stated_start

    def order(self, side: str) -> list[int]:
        """Return the folder's number of each of fairseq's tokens; -1 for none."""
        config = self.config
        size = self.size(side)
        unk = self.tokens(side).get("<unk>", -1)
        bos = config.bos_token_id
        if bos in (None, config.pad_token_id, config.eos_token_id, unk):
            bos = -1
        special = [bos, config.pad_token_id, config.eos_token_id, unk]
        if max(*special, self.start) >= size:
            raise CheckpointError(
                f"{self.folder / CONFIG}: a special token is not among the {size} of vocab_size"
            )
        return [*special, *(i for i in range(size) if i not in special)]

    def dictionary(self, side: str) -> Dictionary:
        """Return a side's dictionary; tokens without a name have a made-up one."""
        names = {i: token for token, i in self.tokens(side).items()}
        dictionary = Dictionary()
        for index in self.order(side)[UNK + 1 :]:
            symbol = symbol_of(names.get(index, "<unk>"))
            if symbol in dictionary:
                symbol = f"madeupword{index}"
            dictionary.add_symbol(symbol)
        return dictionary
