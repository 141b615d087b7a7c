"""Serves one module of a process with another text, without a change on the disk."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType


class _Text(SourceFileLoader):
    """Loads a module's code from a text, past all caches of byte code."""

    def __init__(self, name: str, path: str, text: bytes) -> None:
        super().__init__(name, path)
        self._text = text

    def get_code(self, fullname: str) -> CodeType | None:
        return self.source_to_code(self._text, self.path)


class _Finder(MetaPathFinder):
    def __init__(self, name: str, text: bytes) -> None:
        self._name, self._text = name, text

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        spec = PathFinder.find_spec(fullname, path)
        if spec is not None and spec.origin is not None:
            spec.loader = _Text(fullname, spec.origin, self._text)
        return spec


def install(name: str, text_path: str) -> None:
    """From now on the module of that name, which nothing may have imported yet, has the text of that file."""
    if name in sys.modules:
        raise RuntimeError(f"{name} is imported already")
    sys.meta_path.insert(0, _Finder(name, Path(text_path).read_bytes()))
