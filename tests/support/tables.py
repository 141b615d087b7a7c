"""Which tables a test takes: of the versions that it holds for one in the usual run; tables made once and copied."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from phantombase.timeline.locks.table_lock import ProcessLock
from tests.support.selection import deep

LOCK = ProcessLock("tests")
"""A table lock of this process."""

_made: dict[object, Path] = {}


def one_of(name: str, usual: object, *others: object, indirect: bool = False) -> pytest.MarkDecorator:
    """Parametrizes a test that holds for each of these, mostly table versions; the usual run takes the first.

    Of a folder's tests some take an old version, so that both have what is general to them. A test in which the version
    matters says `pytest.mark.parametrize` instead.
    """
    return pytest.mark.parametrize(name, [usual, *map(deep, others)], indirect=indirect)


def template(name: object, into: Path, make: Callable[[Path], object]) -> Path:
    """A table that is made once for all tests of a process that give this name; a copy of it in `into`.

    Its files and instants are as old as the first copy: not for tests to which it matters that they are young.
    """
    if name not in _made:
        folder = into.parent.with_name(f"made-{len(_made)}") / into.name
        folder.parent.mkdir()
        make(folder)
        _made[name] = folder
    return shutil.copytree(_made[name], into)
