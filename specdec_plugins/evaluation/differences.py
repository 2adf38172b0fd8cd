"""Outputs that should be equal: how many lines differ, and how close the two tokens were."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from tqdm import tqdm

from specdec_plugins.decoding.generator import SpeculativeGenerator
from specdec_plugins.decoding.limits import penalised
from specdec_plugins.files.lines import Line
from specdec_plugins.inference import Translator

Tokens = list[str]


def decode(translator: Translator, lines: Sequence[Line]) -> list[Tokens]:
    """Return the output for each line, in tokens where the translator keeps them (``keep_bpe``)."""
    results, name = translator.translate(lines), translator.settings.strategy
    bar = tqdm(results, total=len(lines), desc=name, leave=False, disable=None)
    return [translation.text.split() for translation in bar]


def gap(judge: Translator, line: Line, a: Tokens, b: Tokens, penalty: float = 1.0) -> float:
    """Return by how many nats the verifier prefers one of two outputs where they first differ.

    Args:
        judge: decodes by the verifier alone.
        penalty: the repetition penalty of both outputs.
    """
    generator = judge.generator
    assert isinstance(generator, SpeculativeGenerator)
    assert generator.model is not None
    dictionary = judge.codec.target
    source = judge.codec.encode(line)
    assert source is not None
    first = next(i for i, (x, y) in enumerate(zip([*a, ""], [*b, ""])) if x != y)
    tokens = judge.codec.tokens
    begin = dictionary.eos() if tokens.begin is None else tokens.begin
    prefix = [begin, *tokens.forced, *map(dictionary.index, a[:first])]
    options = [dictionary.index(t[first]) if first < len(t) else dictionary.eos() for t in (a, b)]
    with torch.no_grad():
        logits, _ = generator.model(
            source[None], torch.tensor([len(source)]), torch.tensor([prefix])
        )
    committed = torch.tensor([prefix[1:]]).long()
    none, alone = committed[:, :0], torch.ones(1, 1, dtype=torch.bool)
    known = torch.tensor([committed.size(1)])
    last = penalised(logits[:, -1:], penalty, committed, known, none, alone)
    scores = last[0, 0].log_softmax(-1)
    return abs(float(scores[options[0]] - scores[options[1]]))
