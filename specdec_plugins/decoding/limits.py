"""Options of generation that limit and score output: fairseq's, and the repetition penalty.

No fairseq in here.
"""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from specdec_plugins.decoding.options import FINITE, check_options, option, option_fields
from specdec_plugins.host.fairseq_types import NetInput

if TYPE_CHECKING:
    from fairseq.dataclass import FairseqDataclass

#: Key of ``net_input``: ``(rows,)`` maximum lengths in place of those of :class:`GenerationLimits`.
MAX_LENGTHS = "max_lengths"
#: fairseq's options that only its search honours: name, flag, value for nothing. A 0 that is given
#: replaces the number of a folder of transformers.
OF_SEARCH = (
    ("no_repeat_ngram_size", "--no-repeat-ngram-size", None),
    ("match_source_len", "--match-source-len", False),
    ("constraints", "--constraints", None),
    ("diverse_beam_groups", "--diverse-beam-groups", -1),
    ("diverse_beam_strength", "--diverse-beam-strength", 0.5),
    ("diversity_rate", "--diversity-rate", -1.0),
)
#: Those that change output and are not honoured.
REFUSED = (
    ("lm_path", "--lm-path", None),
    ("score_reference", "--score-reference", False),
    ("retain_dropout", "--retain-dropout", False),
    ("print_alignment", "--print-alignment", None),
    ("replace_unk", "--replace-unk", None),
)
#: The largest whole number of an option: more is not for Python's iterators, or C's.
LARGEST = 2**31 - 1
#: The lowest temperature: below, scores that are divided by it may overflow.
COLDEST = 1e-6


@dataclass(frozen=True)
class GenerationLimits:
    """fairseq's generation options under fairseq's names, and the repetition penalty.

    A row's maximum length is ``max_len_a * source length + max_len_b``, EOS counted in the source
    and not in the maximum. fairseq takes the length of the batch's longest source; here each row
    has its own, so that output does not depend on what else is in the batch.
    """

    max_len_a: float = option(0.0, "", 0, FINITE)
    max_len_b: int = option(200, "", 0, LARGEST)
    min_len: int = option(1, "", 0, LARGEST)
    unkpen: float = option(0.0, "", -FINITE)
    temperature: float = option(1.0, "", COLDEST, FINITE)
    lenpen: float = option(1.0, "", -FINITE, FINITE)
    normalize_scores: bool = True
    repetition_penalty: float = option(
        1.0,
        "divide the scores of tokens already in the output by this (multiply negative scores)",
        COLDEST,
        1 / COLDEST,
    )

    def __post_init__(self) -> None:
        check_options(self)

    def max_lengths(self, net_input: NetInput, sources: list[int], positions: int) -> list[int]:
        """Return the maximum lengths of rows: those that the batch came with, or those for sources
        of so many tokens, EOS counted."""
        if MAX_LENGTHS in net_input:
            return net_input[MAX_LENGTHS].tolist()
        if fault := self.fault(min(sources), positions):
            raise ValueError(fault)
        return [self.max_length(source, positions) for source in sources]

    def max_length(self, source: int, positions: int) -> int:
        """Return the maximum length, EOS not counted, for a source of so many tokens, EOS counted,
        and a model of so many target positions."""
        return int(min(self.max_len_a * source + self.max_len_b, positions - 1))

    def fault(self, source: int, positions: int) -> str | None:
        """Return the message if a source of so many tokens, EOS counted, can have no output."""
        if self.min_len <= (longest := self.max_length(source, positions)):
            return None
        return (
            f"--min-len {self.min_len}: is above the maximum length of a source of {source} "
            f"tokens, {longest}"
        )

    @classmethod
    def from_config(cls, args: FairseqDataclass | Namespace) -> GenerationLimits:
        """Read fairseq's generation config or a namespace; absent options have their defaults."""
        for name, flag, nothing in (*OF_SEARCH, *REFUSED):
            value = getattr(args, name, nothing)
            if value and value != nothing:
                raise ValueError(f"{flag} {value}: not supported by speculative decoding")
        if (nbest := getattr(args, "nbest", 1)) != 1:
            raise ValueError(f"--nbest {nbest}: speculative decoding gives one hypothesis")
        values = {name: getattr(args, name) for name in option_fields(cls) if hasattr(args, name)}
        return cls(**values, normalize_scores=not getattr(args, "unnormalized", False))


def check_stock_search(options: Mapping[str, Any]) -> None:
    """Refuse options that fairseq's search lacks."""
    instead = "translate with a drafter, or by --strategy AR of specdec-translate"
    if (penalty := options.get("repetition_penalty", 1)) != 1:
        raise ValueError(f"--repetition-penalty {penalty}: is not in fairseq's search; {instead}")
    if options.get("sampling_topk", -1) > 0 and options.get("sampling_topp", -1) > 0:
        raise ValueError(f"--sampling-topk, --sampling-topp: fairseq takes one of them; {instead}")


@dataclass(frozen=True)
class TokenBans:
    """The limits as changes of scores, as fairseq makes them."""

    limits: GenerationLimits
    pad: int
    unk: int
    eos: int

    def apply(
        self,
        scores: Tensor,
        positions: Tensor | None,
        max_lengths: Tensor | None,
        free_from: Tensor | None = None,
        by_tensors: bool = False,
    ) -> None:
        """Forbid tokens in ``(rows, slots, vocab)`` scores, in place.

        Args:
            positions: ``(rows, slots)`` target tokens before each slot; None if no limit is near.
            max_lengths: ``(rows,)`` where only EOS may come; None if no slot is that far.
            free_from: ``(rows,)`` positions before which there is no minimum length.
            by_tensors: use tensor code alone, which can be recorded.
        """
        if scores.device.type == "cpu" and not by_tensors:
            # numpy's is twice as fast as torch's.
            scores.numpy()[..., self.pad] = -np.inf
        else:
            scores[..., self.pad] = -math.inf
        if self.limits.unkpen:
            scores[..., self.unk] -= self.limits.unkpen
        if positions is None:
            return
        if self.limits.min_len:
            short = positions < self.limits.min_len
            if free_from is not None:
                short &= positions >= free_from[:, None]
            scores[..., self.eos].masked_fill_(short, -math.inf)
        if max_lengths is not None:
            full = positions >= max_lengths[:, None]
            ends = scores[..., self.eos].clone()
            scores.masked_fill_(full[..., None], -math.inf)
            scores[..., self.eos] = ends


def penalised(
    scores: Tensor,
    penalty: float,
    committed: Tensor,
    lengths: Tensor,
    drafted: Tensor,
    ancestors: Tensor,
) -> Tensor:
    """Return a verifier's scores with a penalty on tokens that the output has already.

    A score is divided by the penalty if it is positive, and multiplied if not (CTRL, Keskar et al.,
    2019, §4.1, as in Transformers), before temperature and softmax. Only generated tokens count:
    the committed ones, and for a slot the drafted tokens that lead to it, itself included.

    Args:
        scores: ``(rows, slots + 1, vocab)`` after the last committed token and each drafted one.
        committed: ``(rows, n)`` tokens, of which each row has ``lengths`` ``(rows,)``.
        drafted, ancestors: those of the draft.
    """
    if penalty == 1:
        return scores
    rows, width, vocabulary = scores.shape
    # An additional token stands for none.
    padding = torch.arange(committed.size(1), device=scores.device) >= lengths[:, None]
    before = scores.new_zeros(rows, vocabulary + 1, dtype=torch.bool)
    before.scatter_(1, committed.masked_fill(padding, vocabulary), True)
    after = ancestors[..., 1:].expand(rows, -1, -1)
    drafts = drafted[:, None].expand(-1, width, -1).masked_fill(~after, vocabulary)
    seen = before[:, None].expand(-1, width, -1).scatter(2, drafts, True)
    lowered = torch.where(scores > 0, scores / penalty, scores * penalty)
    return torch.where(seen[..., :vocabulary], lowered, scores)
