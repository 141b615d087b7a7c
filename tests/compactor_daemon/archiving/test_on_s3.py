"""Archiving on an object store: deaths and lost answers at a sample of its requests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count

import pytest

from phantombase.compactor_daemon.archiving.archive import archive_table
from phantombase.timeline.format.instant import Instant
from phantombase.timeline.table.table import Table
from tests.support.archived_tables import SMALL, one_row, rows_at, upsert_at
from tests.support.failing_storage import HookedStorage, ProcessDied, die_at
from tests.support.selection import ALL, deep
from tests.support.servers.s3_server import S3Server
from tests.support.tables import LOCK


@pytest.mark.parametrize("version", [deep(6), 9])
def test_it_is_finished_after_a_death_at_any_request(version: int, s3: S3Server) -> None:
    """Every fifteenth call, with all tests every seventh; the table goes on where the last run died."""
    url = f"s3://{s3.new_bucket()}/trips"
    for number in range(4):
        upsert_at(url, version, one_row(f"k{number % 2}", number))
    for number in count(0, 7 if ALL else 15):
        before, rows = _completed(url), rows_at(url)
        table = Table.open(url)
        try:
            archive_table(Table.on(HookedStorage(table.storage, die_at(number))), SMALL, LOCK)
            ended = True
        except ProcessDied:
            ended = False
        assert _completed(url) == before
        assert rows_at(url) == rows
        if ended:
            break
        upsert_at(url, version, one_row("k0", 10 + number))
    timeline = Table.open(url).load_timeline(archived=True)
    assert len(timeline.instants) <= SMALL.max_instants
    assert not set(_keys(timeline.instants)) & set(_keys(timeline.archived))


def _completed(url: str) -> set[tuple[str, str]]:
    timeline = Table.open(url).load_timeline(archived=True)
    return {*_keys(timeline.archived), *_keys(i for i in timeline.instants if i.completed)}


def _keys(instants: Iterable[Instant]) -> Iterator[tuple[str, str]]:
    return ((i.requested_time, i.action) for i in instants)
