"""Cleaning on an object store: deaths at a sample of its requests, lost answers, and a pin."""

from __future__ import annotations

from itertools import count

import pytest

from phantombase.compactor_daemon.cleaning.clean import clean_table
from phantombase.timeline.pins.hold import HeldPin
from phantombase.timeline.pins.pin import PinOptions
from phantombase.timeline.planning.options import PLAN_NOW
from phantombase.timeline.planning.schedule import schedule_compaction
from phantombase.timeline.table.table import Table
from phantombase.timeline.windows.state import load_state
from tests.support.archived_tables import one_row, rows_at, upsert_at
from tests.support.cleaned_tables import ONE
from tests.support.compaction_steps import run_all
from tests.support.failing_storage import HookedStorage, ProcessDied, die_at
from tests.support.selection import deep
from tests.support.servers.s3_server import Asked, Fault, S3Server
from tests.support.tables import LOCK
from tests.support.written_tables import Rows


def old_table(s3: S3Server, version: int) -> tuple[str, Rows]:
    """Two slices of a base file and a log in one file group, and its rows."""
    url = f"s3://{s3.new_bucket()}/a trip=1%20"
    upsert_at(url, version, one_row("k0", 0))
    for number in (1, 2):
        upsert_at(url, version, one_row("k1", number))
        schedule_compaction(Table.open(url), LOCK, PLAN_NOW)
        run_all(Table.open(url))
    upsert_at(url, version, one_row("k1", 3))
    return url, rows_at(url)


def names(url: str) -> set[str]:
    view = Table.open(url).load_view()
    return {file.path for group in view.groups for slice_ in group.slices for file in slice_.files}


@pytest.mark.parametrize("version", [deep(6), 9])
def test_it_is_finished_after_a_death_at_any_request(version: int, s3: S3Server) -> None:
    """Every seventh call; the next run goes on where the last one died."""
    url, rows = old_table(s3, version)
    state = load_state(Table.open(url), "9" * 17, None, Table.open(url).load_timeline(archived=True))
    needed = {file.path for _, slice_ in state.slices() for file in slice_.files}
    before = names(url)
    for number in count(0, 7):
        try:
            clean_table(Table.on(HookedStorage(Table.open(url).storage, die_at(number))), ONE, LOCK)
            ended = True
        except ProcessDied:
            ended = False
        assert rows_at(url) == rows
        if ended:
            break
    assert needed <= names(url) < before
    assert not Table.open(url).load_timeline().pending("clean")


@pytest.mark.parametrize("fault", [Fault.LOST, deep(Fault.CUT)])
def test_lost_answers(fault: Fault, s3: S3Server) -> None:
    """Of every other request that changes something."""
    url, rows = old_table(s3, 9)
    asked = count()

    def faults(one: Asked) -> Fault:
        return fault if one.changes and next(asked) % 2 else Fault.NONE

    s3.faults = faults
    assert clean_table(Table.open(url), ONE, LOCK).files > 0
    s3.faults = lambda one: Fault.NONE
    assert rows_at(url) == rows
    assert not Table.open(url).load_timeline().pending("clean")
    assert clean_table(Table.open(url), ONE, LOCK).instant is None


def test_a_pin_keeps_its_state(s3: S3Server) -> None:
    url, _ = old_table(s3, 9)
    before = names(url)
    pin = HeldPin(Table.open(url).storage, PinOptions(name="reader", for_s=600), "")
    assert clean_table(Table.open(url), ONE, LOCK).why == "a pin holds it"
    assert names(url) == before
    pin.remove()
    assert clean_table(Table.open(url), ONE, LOCK).files > 0
