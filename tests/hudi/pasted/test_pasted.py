"""Dictionaries of options as people have them: each runs, or one error says what must change, and with that it runs.
A usual run takes as many as have each name.

`dictionaries.json`: names and values from Hudi's documentation, issues and public jobs, and from where. `{path}` is the
table's, `{metastore}` and `{zookeeper}` are servers. `change`: what must change, null for an option that must go.
`types`: of columns other than text. `deletes`: the job deletes the rows of its keys."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from phantombase import read, writer
from phantombase.compactor_daemon.catalogs.options import SYNC, SYNC_ENABLED, names_glue
from phantombase.compactor_daemon.hudi_names import hudi_names, setting
from phantombase.compactor_daemon.services.hudi_conf import properties
from phantombase.timeline.errors import UnsupportedError, UsageError
from tests.support.selection import ALL
from tests.support.servers.glue_catalog import MemoryGlue
from tests.support.servers.hive_metastore import MemoryMetastore

DICTIONARIES = json.loads(Path(__file__).with_name("dictionaries.json").read_text(encoding="utf-8"))


def _enough(jobs: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """As few of them as have each name, and each name that must change, once; what has most of them comes first."""
    asks = [{*job["options"], *(("change", name) for name in job.get("change", {}))} for job in jobs]
    left, chosen = set[Any]().union(*asks), list[Mapping[str, Any]]()
    while left:
        most = max(range(len(jobs)), key=lambda number: len(asks[number] & left))
        chosen.append(jobs[most])
        left -= asks[most]
    return chosen


RUN = DICTIONARIES if ALL else _enough(DICTIONARIES)
_WRITE = "hoodie.datasource.write."
_VALUES = {
    "long": 1_700_000_000_000,
    "seconds": 1_700_000_000,
    "text": "2020-01-06 12:12:12",
    "zoned": "2022-01-13 16:57:05.659 +0100",
    "slashed": "2024/01/02",
}
_KEYS = (f"{_WRITE}recordkey.field", "hoodie.table.recordkey.fields")
_OTHERS = (
    f"{_WRITE}precombine.field",
    "hoodie.table.ordering.fields",
    "hoodie.clustering.plan.strategy.sort.columns",
    "hoodie.metadata.index.column.stats.column.list",
)


def columns(options: Mapping[str, Any], *names: str) -> list[str]:
    return [part.partition(":")[0] for name in names for part in str(options.get(name, "")).split(",") if part]


def rows(options: Mapping[str, Any], types: Mapping[str, str], ts: int, keys: str) -> pa.Table:
    """One row for each letter, with the columns that the options name."""
    made: dict[str, list[Any]] = {name: list(keys) for name in columns(options, *_KEYS)}
    for name in columns(options, f"{_WRITE}partitionpath.field"):
        made.setdefault(name, [_VALUES[types[name]] if name in types else "x"] * len(keys))
    for name in columns(options, *_OTHERS):
        made.setdefault(name, [ts] * len(keys))
    return pa.table({**made, "value": [f"{key}{ts}" for key in keys]})


def run(job: Mapping[str, Any], options: Mapping[str, Any], path: Path) -> None:
    """Makes the table and writes again, in a way that shows whether keys, order and rows are right."""
    first, second = (rows(options, job.get("types", {}), ts, keys) for ts, keys in ((1, "abc"), (2, "ad")))
    if job.get("deletes"):
        writer(first).conf(options).upsert(path)
        writer(second).conf(options).write(path)
        expected = ["b1", "c1"]
    else:
        writer(first).conf(options).write(path)
        writer(second).conf(options).upsert(path)
        expected = ["a2", "b1", "c1", "d2"]
    assert sorted(read(path).to_arrow()["value"].to_pylist()) == expected


def check_refusal(text: str, options: Mapping[str, Any], change: Mapping[str, Any]) -> None:
    """The error names what must change, and nothing else, and says to what."""
    for name, value in change.items():
        assert name in text or setting(name) in text, (name, text)
        assert str(options.get(name, "")) in text or f"{name}={value}" in text, (name, text)
        if value is None:
            assert any(words in text for words in ("eave it out", "Did you mean")), (name, text)
        else:
            assert any(words in text for words in (str(value), f"{name}=", f"{name}?", f"expected {name}")), text
    assert not [name for name in options.keys() - change.keys() if f"found {name}=" in text], text


@pytest.mark.parametrize("group", sorted({job["group"] for job in DICTIONARIES}))
def test_a_pasted_dictionary_runs(
    group: str, memory_metastore: MemoryMetastore, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    for number, job in enumerate(one for one in RUN if one["group"] == group):
        path, file = tmp_path / f"{number}" / "t", tmp_path / "job.properties"
        memory_metastore.clear()
        options = filled(job["options"], path, memory_metastore, request)
        glue: MemoryGlue | None = request.getfixturevalue("memory_glue") if names_glue(options) else None
        if glue is not None:
            glue.clear()
        if job["form"] == "properties":
            file.write_text("".join(f"{name}={value}\n" for name, value in options.items()))
            options = properties(file)
        if change := filled(job.get("change", {}), path, memory_metastore, request):
            with pytest.raises((UsageError, UnsupportedError)) as refused:
                run(job, options, path)
            check_refusal(str(refused.value), options, change)
            assert not path.exists(), job["source"]
        options = {name: value for name, value in {**options, **change}.items() if value is not None}
        run(job, options, path)
        if any(str(options.get(name)).lower() == "true" for name in SYNC_ENABLED):
            name = options.get(f"{SYNC}table") or options["hoodie.table.name"]
            database = options.get(f"{SYNC}database", "default")
            if glue is not None:
                assert glue.raw(database, name)["StorageDescriptor"]["Location"] == f"file:{path}", job["source"]
            else:
                assert memory_metastore.table(database, name).sd.location.endswith(str(path)), job["source"]


def filled(
    options: Mapping[str, Any], path: Path, metastore: MemoryMetastore, request: pytest.FixtureRequest
) -> dict[str, Any]:
    """With the servers and the place of this run."""
    places: dict[str, Callable[[], str]] = {
        "{path}": lambda: str(path),
        "{metastore}": lambda: f"thrift://127.0.0.1:{metastore.port}",
        "{zookeeper}": lambda: request.getfixturevalue("zookeeper").hosts,
    }
    return {name: places.get(value, lambda value=value: value)() for name, value in options.items()}


def test_what_the_dictionaries_are() -> None:
    sources = [job["source"] for job in DICTIONARIES]
    assert len(set(sources)) == len(sources) >= 100
    assert sum("apache/hudi" in source for source in sources) >= 30
    known = {name for job in DICTIONARIES for name in job["options"]} & hudi_names().keys()
    assert len(known) >= 150
