"""The greedy output of transformers itself, to compare with."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from importlib.machinery import ModuleSpec
from itertools import takewhile
from time import perf_counter
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from specdec_plugins.checkpoints.archive import one_line
from specdec_plugins.checkpoints.multilingual import LanguageTokens
from specdec_plugins.files.errors import CheckpointError
from specdec_plugins.files.output import Location
from specdec_plugins.verifiers.families import family_of
from specdec_plugins.verifiers.family import EOS

UNUSED = "torchaudio"
#: Classes that are imported when they are asked for.
CLASSES = ("AutoModelForSeq2SeqLM", "MarianMTModel", "M2M100ForConditionalGeneration")


def import_transformers() -> Any:
    """Return transformers.

    It imports torchaudio, which it does not need here, and which fails if it is for another torch.
    """
    stub = ModuleType(UNUSED)
    stub.__spec__ = ModuleSpec(UNUSED, None)
    absent = sys.modules.setdefault(UNUSED, stub) is stub
    try:
        import transformers

        for name in CLASSES:
            getattr(transformers, name)
        return transformers
    except ImportError as error:
        raise CheckpointError(f"transformers: cannot be imported ({one_line(error)})") from error
    finally:
        if absent:
            del sys.modules[UNUSED]


@torch.no_grad()
def greedy_output(
    folder: Location,
    sources: Iterable[Tensor],
    lengths: Sequence[int],
    language: LanguageTokens,
    min_len: int,
    dtype: torch.dtype = torch.float64,
) -> tuple[list[list[int]], float]:
    """Return what transformers writes between ``begin`` and EOS for each source, and the seconds
    that this takes.

    A repetition penalty is the folder's.

    Args:
        sources: ``(n,)`` tokens each, EOS and the language included, in fairseq's numbers.
        lengths: the numbers of tokens, at most.
        language: what outputs begin with.
        min_len: tokens of an output before which there is no EOS.
    """
    model = import_transformers().AutoModelForSeq2SeqLM.from_pretrained(
        folder, dtype=dtype, local_files_only=True
    )
    family = family_of(folder)
    order = family.order("target")
    numbers = {number: index for index, number in enumerate(order)}
    read = torch.tensor(family.order("source"))
    start = family.start if language.begin is None else order[language.begin]
    begin = [order[token] for token in language.forced]
    first = torch.tensor([[start, *begin]])
    begins = first.size(1)
    outputs = []
    began = perf_counter()
    for source, length in zip(sources, lengths, strict=True):
        output = model.eval().generate(
            input_ids=read[source][None],
            decoder_input_ids=first,
            # Else transformers puts its own before them.
            decoder_start_token_id=start,
            num_beams=1,
            do_sample=False,
            no_repeat_ngram_size=0,
            repetition_penalty=family.generation.repetition_penalty,
            bad_words_ids=[[family.config.pad_token_id], *family.generation.bad_words_ids],
            # Not of new tokens: transformers would warn of each line that the folder has these.
            min_length=begins + max(min_len - len(begin), 0),
            # One more, since EOS may be forced at the last.
            max_length=begins + length + 1,
            max_new_tokens=None,  # the folder's would win
        )
        written = output[0, begins:].tolist()
        tokens = [numbers[token] for token in written[:length]]
        outputs.append(list(takewhile(lambda token: token != EOS, tokens)))
    return outputs, perf_counter() - began
