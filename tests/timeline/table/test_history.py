"""The history of a table: rows that are put once, packed beside readers and other packers, and bounded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from phantombase.timeline.clocks import clock_ms
from phantombase.timeline.errors import MissingFileError, UsageError
from phantombase.timeline.prefetch import at_once
from phantombase.timeline.storage.contract import count_requests, counted_requests
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.table import history
from phantombase.timeline.table.history import (
    PACKS,
    ROWS,
    PriceOptions,
    WorkDone,
    WorkHistory,
    history_rows,
    history_table,
    pack_rows,
    put_work,
    read_history,
    sums,
)
from tests.support.failing_storage import Call, HookedStorage, ProcessDied
from tests.support.places import capture_logs

NOW = clock_ms()


def work(number: int, **facts: Any) -> WorkDone:
    """The unit that ended `number` ms before or after now."""
    own = {"kind": "compaction", "outcome": "done", "who": "host:7", "started_ms": NOW + number - 1}
    return WorkDone(**{**own, "id": f"{number & 0xFFFFFF:016x}", "ended_ms": NOW + number, **facts})


def filled(path: Path, numbers: range) -> LocalStorage:
    storage = LocalStorage(str(path))
    for number in numbers:
        put_work(storage, work(number))
    return storage


def ends(storage: Any, **how: Any) -> list[int]:
    return [one.ended_ms - NOW for one in read_history(storage, **how).work]


def test_rows_come_back_whole_in_the_order_of_their_ends(tmp_path: Path) -> None:
    one = work(2, why="w" * 900, instant="20260101", bytes_read=3, core_seconds=0.5)
    storage = LocalStorage(str(tmp_path))
    assert read_history(storage).work == ()
    for each in (one, work(1)):
        put_work(storage, each)
        put_work(storage, each)  # the same row again is the same row
    found = read_history(storage).work
    assert [each.ended_ms - NOW for each in found] == [1, 2]
    assert (found[1].why, found[1].bytes_read, found[1].core_seconds) == ("w" * 500, 3, 0.5)


def test_a_row_of_a_later_release_is_read(tmp_path: Path) -> None:
    storage = filled(tmp_path, range(1))
    (path,) = (tmp_path / ROWS).iterdir()
    path.write_bytes(path.read_bytes().replace(b"{", b'{"carbon":1,', 1))
    assert ends(storage) == [0]


@pytest.mark.parametrize("torn", [b"", b'{"id":', b"[]", b"\x1f\x8b\x08\x00half"])
def test_torn_files_are_left_out_counted_and_said(tmp_path: Path, torn: bytes) -> None:
    storage = filled(tmp_path, range(2))
    (tmp_path / ROWS / f"{NOW:013d}-{'f' * 16}.json").write_bytes(torn)
    (tmp_path / PACKS).mkdir()
    (tmp_path / PACKS / f"{NOW:013d}-{NOW:013d}-{'f' * 16}.1.gz").write_bytes(torn)
    with capture_logs() as logs:
        found = read_history(storage)
    assert (len(found.work), found.unreadable) == (2, 2)
    assert [log["files"] for log in logs if log["event"] == "history_unreadable"] == [2]
    pack_rows(storage, least=1)  # what is torn stays until it is old
    assert (ends(storage), read_history(storage).unreadable) == ([0, 1], 2)


def test_a_pack_holds_the_same_rows(tmp_path: Path) -> None:
    storage = filled(tmp_path, range(20))
    before = read_history(storage)
    pack_rows(storage)  # too few
    assert not (tmp_path / PACKS).exists()
    pack_rows(storage, least=20)
    assert [*(tmp_path / ROWS).iterdir()] == []
    assert len([*(tmp_path / PACKS).iterdir()]) == 1
    assert read_history(storage) == before
    put_work(storage, work(30))
    assert ends(storage) == [*range(20), 30]


def test_a_row_by_chance_packs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "ASKED_EVERY", 16)
    storage = filled(tmp_path, range(65))  # ids are numbers: the one of 64 looks
    assert (len([*(tmp_path / ROWS).iterdir()]), ends(storage)) == (0, [*range(65)])


def test_whichever_call_of_packing_dies_each_row_is_there_once(tmp_path: Path) -> None:
    number, died = 0, True
    while died:
        inner = filled(tmp_path / str(number), range(5))

        def hook(call: Call, last: int = number) -> Any:
            if call.number == last:
                raise ProcessDied
            return call.do()

        try:
            pack_rows(HookedStorage(inner, hook), least=5)
            died = False
        except ProcessDied:
            assert ends(inner) == [0, 1, 2, 3, 4]
            pack_rows(inner, least=1)  # another process goes on
        assert ends(inner) == [0, 1, 2, 3, 4]
        number += 1
    assert number > 10  # each read, the put, each removal


def test_two_that_pack_at_once_double_nothing(tmp_path: Path) -> None:
    inner = filled(tmp_path, range(4))

    def hook(call: Call) -> Any:
        if call.name == "put_if_absent":
            pack_rows(inner, least=1)
        return call.do()

    pack_rows(HookedStorage(inner, hook), least=1)
    assert len([*(tmp_path / PACKS).iterdir()]) == 2
    assert ends(inner) == [0, 1, 2, 3]


@pytest.mark.parametrize("moment", ["list", "read"])
def test_a_reader_misses_nothing_that_is_packed_meanwhile(tmp_path: Path, moment: str) -> None:
    inner, packed = filled(tmp_path, range(4)), list[str]()

    def hook(call: Call) -> Any:
        done = call.do() if moment == "list" else None
        if call.name == moment and not packed:
            packed.append(call.path)
            pack_rows(inner, least=1)
        return done if moment == "list" else call.do()

    assert ends(HookedStorage(inner, hook)) == [0, 1, 2, 3]
    assert packed


def test_the_history_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = -(history.KEPT_S * 1000) - 60_000
    storage = filled(tmp_path, range(old, old + 3))
    torn = tmp_path / ROWS / f"{NOW + old:013d}-{'f' * 16}.json"
    torn.write_bytes(b"{")
    pack_rows(storage, least=1)
    assert (ends(storage), torn.exists()) == ([], False)
    monkeypatch.setattr(history, "KEPT_ROWS", 5)
    for first in (0, 10, 20):
        pack_rows(filled(tmp_path, range(first, first + 3)), least=1)
    assert ends(storage) == [10, 11, 12, 20, 21, 22]  # the pack that reaches the bound stays


def test_the_newest_rows_are_found_without_reading_all(tmp_path: Path) -> None:
    inner, read = filled(tmp_path, range(40)), list[str]()
    pack_rows(inner, least=1)
    for number in range(100, 120):
        put_work(inner, work(number))

    def hook(call: Call) -> Any:
        read.extend([call.path] if call.name == "read" else [])
        return call.do()

    assert ends(HookedStorage(inner, hook), last=3) == [117, 118, 119]
    assert len(read) == 8
    assert ends(inner, last=21) == [39, *range(100, 120)]
    assert ends(inner, since_ms=NOW + 118) == [118, 119]


def test_estimates_are_what_the_last_work_took_for_its_planned_bytes(tmp_path: Path) -> None:
    took = {"bytes_read": 300, "bytes_written": 100, "rows_written": 10, "core_seconds": 2.0, "requests": 6}
    storage = LocalStorage(str(tmp_path))
    put_work(storage, work(1, planned_bytes=100, peak_memory=5, **took))
    put_work(storage, work(2, planned_bytes=100, outcome="failed", core_seconds=50.0))  # says nothing of the next
    put_work(storage, work(9, planned_bytes=200))
    put_work(storage, work(12, kind="clean"))
    prices = PriceOptions(price_core_hour=3.6, price_gb=1e6, price_request=0.5)
    rows = history_rows(read_history(storage), prices)
    names = [f"estimated_{name}" for name in ("bytes", "rows_written", "core_seconds", "requests", "peak_memory")]
    assert [[row[name] for name in names] for row in rows[::2]] == [[None] * 5, [800, 20, 4.0, 12, 5]]
    assert [row["cost"] for row in rows[::3]] == [pytest.approx(0.002 + 0.4 + 3.0), 0.0]
    assert rows[2]["estimated_cost"] == pytest.approx(0.004 + 0.8 + 6.0)
    assert [row["cost"] for row in history_rows(read_history(storage))] == [None] * 4
    assert [(one["kind"], one["units"], one["failed"], one["core_seconds"]) for one in sums(rows)] == [
        ("compaction", 3, 1, 52.0),
        ("clean", 1, 0, 0.0),
    ]


def test_estimates_of_many_rows_look_at_the_last_ones_only() -> None:
    asked = []

    class Time(int):
        def __le__(self, other: int) -> bool:
            asked.append(self)
            return int(self) < other + 1

    rows = tuple(work(n, planned_bytes=1) for n in range(100))
    ended = tuple(replace(one, ended_ms=Time(one.ended_ms)) for one in rows)
    assert history_rows(WorkHistory(table="t", work=ended)) == history_rows(WorkHistory(table="t", work=rows))
    assert len(asked) < 1100


def test_a_file_that_is_listed_and_never_there_hides_no_other_row(tmp_path: Path) -> None:
    inner, gone = filled(tmp_path, range(3)), f"{NOW + 1:013d}"

    def hook(call: Call) -> Any:
        if call.name == "read" and gone in call.path:
            raise MissingFileError("no such file", path=call.path)
        return call.do()

    found = read_history(HookedStorage(inner, hook))
    assert ([one.ended_ms - NOW for one in found.work], found.unreadable) == ([0, 2], 1)


def test_arrow_has_the_same_columns_without_a_row(tmp_path: Path) -> None:
    table = history_table(history_rows(read_history(filled(tmp_path, range(1)))))
    assert table.schema == history_table(()).schema
    assert (table.num_rows, table.schema.field("ended").type) == (1, pa.timestamp("ms", "UTC"))
    assert table.select(["host", "pid"]).to_pylist() == [{"host": "host", "pid": 7}]


def test_a_price_is_a_number_from_zero_on() -> None:
    for wrong in (-1.0, float("nan"), float("inf")):
        with pytest.raises(UsageError, match="price-gb"):
            PriceOptions(price_gb=wrong)


def test_requests_of_threads_count_and_those_of_an_inner_count_too() -> None:
    count_requests()  # nothing counts
    with counted_requests() as outer:
        at_once(range(20), lambda _: count_requests(2))
        with counted_requests() as inner:
            count_requests()
    assert (outer.number, inner.number) == (41, 1)
