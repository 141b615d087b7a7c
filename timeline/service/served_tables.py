"""The tables that one process serves, by name and by the base paths that clients send."""

from __future__ import annotations

import os
from collections.abc import Iterable

from ..errors import UsageError
from ..storage.access.storage_options import Given
from .served_table import ServedTable


class UnknownTableError(Exception):
    """No such table is served."""


def spelled(base_path: str) -> str:
    """A base path as a client sends it, without `file:` and without slashes at its end."""
    plain = base_path.removeprefix("file:")
    if plain != base_path:
        plain = "/" + plain.lstrip("/")
    return plain.rstrip("/")


class ServedTables:
    """See the module. UsageError: a path is given twice."""

    def __init__(self, paths: Iterable[str], storage_options: Given = None) -> None:
        self.by_name: dict[str, ServedTable] = {}
        self._by_path: dict[str, ServedTable] = {}
        for given in paths:
            local = "://" not in given or given.startswith("file:")
            path = os.path.abspath(spelled(given)) if local else given.rstrip("/")
            if path in self._by_path:
                raise UsageError("a table is given twice", path=path)
            table = ServedTable(path, storage_options)
            table.name = self._free_name(table.name)
            self.by_name[table.name] = table
            for form in {path, os.path.realpath(path)} if local else _forms(path):
                self._by_path.setdefault(form, table)

    def _free_name(self, name: str) -> str:
        """The name, with a number behind it if another table has it."""
        numbered, number = name, 1
        while numbered in self.by_name:
            number += 1
            numbered = f"{name}-{number}"
        return numbered

    def at(self, base_path: str) -> ServedTable:
        """The table at a base path. UnknownTableError: it is not served; nothing is looked up on storage."""
        found = self._by_path.get(spelled(base_path))
        if found is None:
            raise UnknownTableError(f"no table is served at {base_path!r}")
        return found


def _forms(url: str) -> set[str]:
    """The schemes under which Hadoop and others name the same object store."""
    scheme, _, rest = url.partition("://")
    same = next((s for s in _SCHEMES if scheme in s), frozenset({scheme}))
    return {f"{other}://{rest}" for other in same}


_SCHEMES = (frozenset({"s3", "s3a", "s3n"}), frozenset({"gs", "gcs"}))
