"""The options of generation that a folder of transformers brings, as ours."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec

from specdec_plugins.checkpoints.archive import shown, warn_once
from specdec_plugins.files.output import JsonObject
from specdec_plugins.verifiers.folder import CONFIG, read_json, reading

GENERATION = "generation_config.json"
#: Options that greedy output does not follow, each with the value that asks for nothing.
NOT_FOLLOWED = {
    "num_beams": 1,
    "num_beam_groups": 1,
    "do_sample": False,
    "stop_strings": None,
    "no_repeat_ngram_size": 0,
    "encoder_no_repeat_ngram_size": 0,
    "min_new_tokens": 0,
    "encoder_repetition_penalty": 1,
    "guidance_scale": 1,
    "watermarking_config": None,
    "exponential_decay_length_penalty": None,
    "begin_suppress_tokens": None,
    "force_words_ids": None,
    "sequence_bias": None,
}


Length = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]


class Generation(msgspec.Struct, omit_defaults=True):
    """A ``generation_config.json``; each field is one of transformers' options."""

    max_length: Length = 0
    max_new_tokens: Length = 0
    min_length: Length = 0
    repetition_penalty: Annotated[float, msgspec.Meta(gt=0)] = 1.0
    bad_words_ids: list[list[int]] = []
    suppress_tokens: list[int] = []
    no_repeat_ngram_size: int = 0
    forced_bos_token_id: int | None = None
    forced_eos_token_id: int | list[int] | None = None
    decoder_start_token_id: Annotated[int, msgspec.Meta(ge=0)] | None = None

    def limits(self) -> JsonObject:
        """Return options of :class:`~specdec_plugins.decoding.limits.GenerationLimits`.

        The lengths of transformers count the token with which a target begins. EOS is forced at the
        last position, or put after it.
        """
        # Unlike fairseq, transformers lets an output be empty.
        limits: JsonObject = {
            "min_len": max(self.min_length - 1, 0),
            "repetition_penalty": self.repetition_penalty,
        }
        longest = self.max_new_tokens or self.max_length - 1
        if longest > 0:
            limits["max_len_b"] = max(longest - (self.forced_eos_token_id is not None), 1)
        return limits

    def banned(self) -> set[int]:
        """Return tokens that are never put out."""
        words = [word[0] for word in self.bad_words_ids if len(word) == 1]
        return {*self.suppress_tokens, *words}


def read_generation(folder: Path, eos: int) -> Generation:
    """Return the options of a folder, and warn once of those that are not followed.

    Folders of older versions have them in ``config.json``.
    """
    path = folder / GENERATION
    if not path.is_file():
        path = folder / CONFIG
    # transformers writes null for its own default, too.
    values = {n: v for n, v in read_json(path, dict[str, object]).items() if v is not None}
    with reading(path):
        generation = msgspec.convert(values, Generation)
    followed = {**NOT_FOLLOWED, "eos_token_id": eos, "forced_eos_token_id": eos}
    ignored = [
        f"{name} {shown(values[name])}"
        for name, value in followed.items()
        if values.get(name, value) not in ([], {}, value, [value])
    ]
    if any(len(word) > 1 for word in generation.bad_words_ids):
        ignored.append("bad_words_ids of several tokens")
    if ignored:
        warn_once(
            f"{path}: greedy output does not follow its {', '.join(ignored)}; flags such as "
            "--beam and --no-repeat-ngram-size say how to search"
        )
    return generation
