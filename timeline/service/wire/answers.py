"""Answers as bytes, kept with their compressed form."""

from __future__ import annotations

import gzip
import json
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from threading import Lock

import orjson

GZIP_FROM_BYTES = 1500
"""From this size on Hudi's server compresses an answer."""

_GZIP_LEVEL = 1
"""A tenth of the time of level 6, for a quarter more bytes."""

_OVERHEAD_BYTES = 500
"""About what an answer takes besides its bytes."""


@dataclass(frozen=True, slots=True)
class Answer:
    """JSON bytes; of a large answer the compressed form only."""

    body: bytes
    compressed: bool

    def plain(self) -> bytes:
        """The JSON text."""
        return gzip.decompress(self.body) if self.compressed else self.body


def encoded(value: object) -> Answer:
    """A JSON value as an answer."""
    try:
        body = orjson.dumps(value)
    except TypeError:  # a path that is not UTF-8
        body = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogateescape")
    if len(body) < GZIP_FROM_BYTES:
        return Answer(body, compressed=False)
    return Answer(gzip.compress(body, _GZIP_LEVEL, mtime=0), compressed=True)


class AnswerCache:
    """Answers by key, up to `max_bytes`; those that were used longest ago go first."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._answers: OrderedDict[Hashable, Answer] = OrderedDict()
        self._lock = Lock()

    def find(self, key: Hashable) -> Answer | None:
        """The answer, if it is kept."""
        with self._lock:
            if key in self._answers:
                self._answers.move_to_end(key)
            return self._answers.get(key)

    def keep(self, key: Hashable, answer: Answer) -> None:
        """Keeps an answer."""
        with self._lock:
            if key not in self._answers:
                self._answers[key] = answer
                self._bytes += len(answer.body) + _OVERHEAD_BYTES
            while self._bytes > self._max_bytes and self._answers:
                self._bytes -= len(self._answers.popitem(last=False)[1].body) + _OVERHEAD_BYTES
