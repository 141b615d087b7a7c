"""Windows beside a stitching that completes at a time that a dead process decided: it lies in the window, while it is
read. All rows are there, and none is a change."""

from __future__ import annotations

import shutil
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from phantombase.timeline.read.changes import plan
from phantombase.timeline.read.table_read import Query, ReadOptions
from phantombase.timeline.storage.contract import Storage
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.table.table import consistent
from tests.support.archived_tables import one_row, upsert
from tests.support.clustered_tables import forget_heartbeats, small_files, stitch
from tests.support.compaction_steps import open_table
from tests.support.failing_storage import Call, HookedStorage, ProcessDied, die_at_nth
from tests.support.interleaving import serial_pools
from tests.support.selection import deep

READS = {"incremental": (Query.INCREMENTAL, False), "changes": (Query.CHANGES, False), "net": (Query.CHANGES, True)}
USUAL = {(9, "incremental"), (9, "changes")}


def _decided(path: Path, version: int) -> None:
    """A stitching whose process died right before it completed it, and a write behind the time that it decided."""
    small_files(path, version)
    with pytest.raises(ProcessDied):
        stitch(path, HookedStorage(LocalStorage(str(path)), die_at_nth(1, "put_if_absent", ".replacecommit")))
    upsert(path, one_row("later", 50))
    forget_heartbeats(path)


def _rows(path: Path, options: ReadOptions, storage: Storage | None = None) -> list[str]:
    """The keys, of changes with what became of them."""
    rows = consistent(lambda: plan(open_table(path, storage), options).to_table()).to_pylist()
    return sorted(r["id"] if "id" in r else f"{r['op']} {(r['after'] or r['before'])['id']}" for r in rows)


@pytest.mark.parametrize(
    ("version", "read"), [one if one in USUAL else deep(*one) for one in ((v, r) for v in (9, 8, 6) for r in READS)]
)
def test_all_rows(version: int, read: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process completes it at each listing of a read. On version 6 the window may reach farther behind it."""
    serial_pools(monkeypatch)
    made, path = tmp_path / "made/trips", tmp_path / "read/trips"
    made.parent.mkdir()
    _decided(made, version)
    timeline = open_table(made).load_timeline()
    moments = sorted(timeline.moment_of(w) for w in timeline.completed)
    query, net = READS[read]
    options = ReadOptions(query=query, begin=moments[0], end=moments[-1], net=net)
    before = _rows(made, options)

    def hook(call: Call, at: int, listed: list[str]) -> Any:
        if call.name == "list":
            listed.append(call.path)
            if len(listed) == at:
                stitch(path)
        return call.do()

    for at in count(1):
        shutil.rmtree(path.parent, ignore_errors=True)
        shutil.copytree(made, path)
        listed = list[str]()
        found = _rows(path, options, HookedStorage(LocalStorage(str(path)), partial(hook, at=at, listed=listed)))
        assert found in (before, _rows(path, options)), f"completed at listing {at} of the read"
        if len(listed) < at:
            assert at > 3
            break
