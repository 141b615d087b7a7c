"""Processes that share a table on S3 by leases: one sleeps past the end of its lease, and another goes on."""

from __future__ import annotations

import json
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from phantombase.compactor_daemon.attempt.compact_instant import compact_instant, pending_instants
from phantombase.compactor_daemon.execution.runners import LocalRunner
from phantombase.timeline.errors import AttemptDeadError, LockError
from phantombase.timeline.locks.table_lock import HUDI_LOCK, table_lock
from phantombase.timeline.read.table_read import read_table
from phantombase.timeline.storage import object_lease
from phantombase.timeline.storage.object_store import ObjectStorage
from phantombase.timeline.table.table import Table
from tests.support.compaction_steps import OPTIONS, OUTPUT
from tests.support.compare_rows import assert_same_rows
from tests.support.failing_storage import Call, HookedStorage
from tests.support.golden_tables import unzip_golden
from tests.support.servers.s3_server import S3Server


def compact(table: Table) -> None:
    """Every pending instant, under the table's own lock."""
    for instant in pending_instants(table):
        compact_instant(
            table,
            instant,
            lock=table_lock(table.storage, None),
            runner=LocalRunner(1),
            progress=lambda done, total: None,
            output=OUTPUT,
            options=OPTIONS,
        )


@pytest.mark.parametrize(
    ("name", "part", "ends"),
    [("put_if_absent", "/reserved-", pytest.raises(AttemptDeadError)), ("put_if_absent", ".commit", nullcontext())],
)
def test_a_compactor_sleeps_past_its_lease(
    name: str, part: str, ends: Any, s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before its decision it stops; before its completed file it finds what it decided done."""
    steady = time.monotonic
    monkeypatch.setattr(object_lease, "RENEW_S", 600)  # who sleeps renews nothing
    path = unzip_golden("v9_pending", tmp_path)
    url = s3.upload(path, s3.new_bucket(), "t")
    slept: list[str] = []

    def asleep(call: Call) -> Any:
        if call.name == name and part in call.path and not slept:
            slept.append(call.path)
            monkeypatch.setattr(time, "monotonic", lambda: steady() + 60)
            ended = {"expired": False, "validUntil": round(time.time() * 1000) - 1000, "owner": "the sleeper"}
            ObjectStorage(url).overwrite(HUDI_LOCK, json.dumps(ended).encode())
            compact(Table.open(url))
        return call.do()

    with ends as error:
        compact(Table.on(HookedStorage(ObjectStorage(url), asleep)))
    assert slept
    if error is not None:
        assert isinstance(error.value.__cause__, LockError)
    table = Table.open(url)
    assert pending_instants(table) == ()
    expected = path.with_name(f"{path.name}.expected") / "snapshot_after_compaction.parquet"
    assert_same_rows(read_table(table), pq.read_table(expected))
