"""Pieces of a part of a run of all tests, which take about the same time, by what tests took before (`seconds.json`).

    PHANTOMBASE_SECONDS=1   a run of all tests, or of a part or piece, notes in that file what its tests took

A test that takes long is noted by its name; the others of its file by their mean."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from tests.support.selection import place

_NOTED = Path(__file__).with_name("seconds.json")
_LONG_S = 8.0
"""A test that takes longer is noted by its name."""
_UNKNOWN_S = {"hudi/": 15.0, "outside/": 10.0, "": 1.0}
"""What a test counts that no run has noted, by where it lies."""
_WHOLE = 5
"""A file stays in one piece if it takes less than this part of one: fewer files are imported, fewer JVMs start."""


def noted() -> dict[str, float]:
    """Seconds by name of a test, or of a file of tests: the mean of those without an own entry."""
    found: dict[str, float] = json.loads(_NOTED.read_text())
    return found


def seconds_of(nodeid: str, known: Mapping[str, float]) -> float:
    """What a test takes."""
    name = place(nodeid)
    for key in (name, name.partition("::")[0]):
        if key in known:
            return known[key]
    return next(seconds for folder, seconds in _UNKNOWN_S.items() if name.startswith(folder))


def shares(nodeids: Collection[str], count: int, known: Mapping[str, float], *, whole: bool = False) -> dict[str, int]:
    """Parts tests into shares of about the same time, from 0; the longest first, each to the share that has least so
    far. `whole`: a file is never parted."""
    files: defaultdict[str, list[str]] = defaultdict(list)
    for nodeid in sorted(nodeids):  # each worker comes to the same, also where seconds are equal
        files[nodeid.partition("::")[0]].append(nodeid)
    took = {nodeid: seconds_of(nodeid, known) for of in files.values() for nodeid in of}
    most = sum(took.values()) / count / _WHOLE
    units = list[tuple[float, list[str]]]()
    for of in files.values():
        total = sum(took[nodeid] for nodeid in of)
        units += [(total, of)] if whole or total <= most else [(took[nodeid], [nodeid]) for nodeid in of]
    filled, found = [0.0] * count, dict[str, int]()
    for seconds, of in sorted(units, key=lambda unit: (-unit[0], unit[1])):
        share = filled.index(min(filled))
        filled[share] += seconds
        found.update(dict.fromkeys(of, share))
    return found


def note(took: Mapping[str, float]) -> None:
    """Notes what the tests of a run took, by their names."""
    known, rest = noted(), defaultdict[str, list[float]](list)
    for nodeid, seconds in took.items():
        name = place(nodeid)
        known.pop(name, None)
        if seconds >= _LONG_S:
            known[name] = round(seconds)
        else:
            rest[name.partition("::")[0]].append(seconds)
    known.update({file: round(sum(of) / len(of), 2) for file, of in rest.items()})
    _NOTED.write_text(json.dumps(dict(sorted(known.items())), indent=0) + "\n")


def without_tests(files: Iterable[str]) -> list[str]:
    """The names that are noted of files that are not among these, given by their places below `tests`."""
    there = set(files)
    return [name for name in noted() if name.partition("::")[0] not in there]
