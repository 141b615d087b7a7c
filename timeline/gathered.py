"""Values by their keys (pure)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


def gathered(pairs: Iterable[tuple[K, V]]) -> dict[K, tuple[V, ...]]:
    """The values of each key; keys and values are in the order in which they came first."""
    found: defaultdict[K, list[V]] = defaultdict(list)
    for key, value in pairs:
        found[key].append(value)
    return {key: tuple(values) for key, values in found.items()}
