"""Fields of a phantombase record, a JSON object: read leniently, so that two releases can serve one table (pure).

A field that this release does not know is ignored: a later release uses it. A field that this release knows must exist
and have its type: the error names the file, what was expected, what was found, and what to do.

`gathered` is for records in any form: their values by their keys."""

from __future__ import annotations

import base64
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, get_args, get_type_hints

from .errors import MalformedError

Record = TypeVar("Record")
K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fields:
    """The fields of a record. `where`: its path; `what`: the error when it cannot be read; `todo`: what to do then."""

    values: Mapping[str, Any]
    where: str
    what: str
    todo: str | None = None

    @staticmethod
    def parse(data: bytes, where: str, what: str, todo: str | None = None) -> Fields:
        """The record in a file; MalformedError if the data is not a JSON object."""
        empty = Fields(values={}, where=where, what=what, todo=todo)
        try:
            values = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise empty.malformed("a JSON object", f"{len(data)} bytes: {error}") from error
        return empty.inner(values)

    def malformed(self, expected: str, found: str) -> MalformedError:
        return MalformedError(self.what, path=self.where, expected=expected, found=found, todo=self.todo)

    def inner(self, values: Any) -> Fields:
        """A record inside this one."""
        if not isinstance(values, dict):
            raise self.malformed("a JSON object", type(values).__name__)
        return Fields(values=values, where=self.where, what=self.what, todo=self.todo)

    def of(self, kind: type[Record], **given: Any) -> Record:
        """The record as a dataclass: each field is read by its type, but for those `given`. MalformedError."""
        return kind(**given, **{name: read(self, name) for name, read in _readers(kind).items() if name not in given})

    def text(self, name: str) -> str:
        found: str = self._typed(name, (str,), "text")
        return found

    def text_or_none(self, name: str) -> str | None:
        return None if self._get(name) is None else self.text(name)

    def whole(self, name: str) -> int:
        found: int = self._typed(name, (int,), "an integer")
        return found

    def whole_or_none(self, name: str) -> int | None:
        return None if self._get(name) is None else self.whole(name)

    def number(self, name: str) -> float:
        return float(self._typed(name, (int, float), "a number"))

    def data(self, name: str) -> bytes:
        """A field of bytes in base64."""
        text = self.text(name)
        try:
            return base64.b64decode(text, validate=True)
        except ValueError as error:
            raise self.malformed(f"{name}: base64", str(error)) from error

    def texts(self, name: str) -> tuple[str, ...]:
        found = self._typed(name, (list,), "a list of texts")
        if not all(isinstance(one, str) for one in found):
            raise self.malformed(f"{name}: a list of texts", repr(found))
        return tuple(found)

    def records(self, name: str) -> tuple[Fields, ...]:
        return tuple(self.inner(one) for one in self._typed(name, (list,), "a list of JSON objects"))

    def counts(self, name: str) -> dict[str, int]:
        inner = self.inner(self._get(name))
        return {key: inner.whole(key) for key in inner.values}

    def _get(self, name: str) -> Any:
        if name not in self.values:
            raise self.malformed(f"the field {name}", f"only {', '.join(sorted(self.values)) or 'an empty object'}")
        return self.values[name]

    def _typed(self, name: str, types: tuple[type, ...], expected: str) -> Any:
        found = self._get(name)
        if not isinstance(found, types) or isinstance(found, bool):
            raise self.malformed(f"{name}: {expected}", repr(found))
        return found


_Reader = Callable[[Fields, str], Any]
_READERS: Mapping[Any, _Reader] = {
    str: Fields.text,
    str | None: Fields.text_or_none,
    int: Fields.whole,
    int | None: Fields.whole_or_none,
    float: Fields.number,
    bytes: Fields.data,
    tuple[str, ...]: Fields.texts,
    Mapping[str, int]: Fields.counts,
}


_known: dict[type, Mapping[str, _Reader]] = {}


def _readers(kind: type) -> Mapping[str, _Reader]:
    if kind not in _known:
        hints = get_type_hints(kind)
        _known[kind] = {name: _READERS.get(hint) or _of_records(hint) for name, hint in hints.items()}
    return _known[kind]


def _of_records(hint: Any) -> _Reader:
    """Reads a tuple of dataclasses."""
    return lambda fields, name: tuple(one.of(get_args(hint)[0]) for one in fields.records(name))


def gathered(pairs: Iterable[tuple[K, V]]) -> dict[K, tuple[V, ...]]:
    """The values of each key; keys and values are in the order in which they came first."""
    found: defaultdict[K, list[V]] = defaultdict(list)
    for key, value in pairs:
        found[key].append(value)
    return {key: tuple(values) for key, values in found.items()}
