"""Files that somebody else may have made: good ones, changed at a place of their structure."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

ODD: list[object] = [
    *(None, True, -1, 0, 10**9, 1 << 70, 1.5, 1e308, float("nan"), float("inf"), "", "text"),
    *([], {}, [None], [[]], {"a": 1}, "\x1b[31m", "${oc.env:HOME}", [1] * 50, 10**400),
]


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every container inside ``value``, with every key or index of it."""
    if not isinstance(value, (dict, list)):
        return []
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    inner = [item for key in keys for item in places(value[key])]
    return [(value, key) for key in keys] + inner


def mutations(value: object, count: int, seed: int = 0) -> list[object]:
    """Copies of a JSON value with one thing replaced, taken away or added."""
    numbers = random.Random(seed)
    changed = []
    for _ in range(count):
        fresh = copy.deepcopy(value)
        container, key = numbers.choice(places(fresh))
        action = numbers.random()
        if action < 0.7:
            container[key] = copy.deepcopy(numbers.choice(ODD))
        elif action < 0.9:
            del container[key]
        elif isinstance(container, dict):
            container["unheard of"] = copy.deepcopy(numbers.choice(ODD))
        else:
            container.append(copy.deepcopy(numbers.choice(ODD)))
        changed.append(fresh)
    return changed


def texts(value: object, count: int, seed: int = 0) -> list[str]:
    """Return :func:`mutations` as JSON, and texts that are no JSON at all."""
    good = json.dumps(value)
    broken = [
        "",
        "{",
        "[" * 100_000,
        good[:-1],
        good[: len(good) // 2],
        good * 2,
        "null",
        "3",
        '"x"',
    ]
    return [json.dumps(item) for item in mutations(value, count, seed)] + broken
