"""A write on S3 whose last request is not answered: it may take effect later, so nothing of the write is removed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from phantombase.timeline.errors import StorageError, UnknownCommitError
from phantombase.timeline.storage.object_store import ObjectStorage
from phantombase.timeline.storage.server_clock import storage_ms
from phantombase.timeline.table.table import Table
from phantombase.writer_hooks.engine.engine import LocalEngine
from phantombase.writer_hooks.options import Operation, Write, WriteOptions
from phantombase.writer_hooks.write.write import write
from tests.support.failing_storage import Call, HookedStorage
from tests.support.s3_table import fares
from tests.support.servers.s3_server import S3Server
from tests.support.trips import rows, trips

UPSERT = Write(operation=Operation.UPSERT, options=WriteOptions(slots=1))


def unanswered(url: str) -> Callable[[], Any]:
    """An upsert whose completed file is not put, and no answer comes; returns what puts it after all."""
    under_way: list[Callable[[], Any]] = []

    def hook(call: Call) -> Any:
        if call.name == "put_if_absent" and call.path.endswith(".deltacommit"):
            under_way.append(call.do)
            raise StorageError("no answer", path=call.path)
        return call.do()

    table = Table.on(HookedStorage(ObjectStorage(url), hook))
    with pytest.raises(UnknownCommitError, match="may complete yet"):
        write(table, LocalEngine(rows((1, 2, 2.0)), slots=1), UPSERT)
    return under_way[0]


@pytest.fixture
def url(s3: S3Server) -> str:
    """A table of one row."""
    found = f"s3://{s3.new_bucket()}/t"
    trips(rows((1, 1, 1.0)), 9).upsert(found)
    return found


def test_it_takes_effect_later(url: str) -> None:
    """Then the write is there with all its files, and the next one too."""
    land = unanswered(url)
    assert fares(url) == {"k0001": 1.0}
    land()
    assert fares(url) == {"k0001": 2.0}
    trips(rows((2, 3, 3.0)), 9).upsert(url)
    assert fares(url) == {"k0001": 2.0, "k0002": 3.0}


def test_it_never_takes_effect(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next write leaves it alone while its heartbeat is fresh, and rolls it back afterwards."""
    unanswered(url)
    (pending,) = Table.open(url).load_timeline().pending_delta_commits
    trips(rows((2, 3, 3.0)), 9).upsert(url)
    assert Table.open(url).load_timeline().pending_delta_commits == (pending,)
    monkeypatch.setattr("phantombase.writer_hooks.write.write.storage_ms", lambda s: storage_ms(s) + 125_000)
    trips(rows((3, 4, 4.0)), 9).upsert(url)
    assert Table.open(url).load_timeline().pending_delta_commits == ()
    assert fares(url) == {"k0001": 1.0, "k0002": 3.0, "k0003": 4.0}
