"""The index of tables: what is found, in which order, on which page, and in one name."""

from __future__ import annotations

import asyncio
import json
import subprocess
import threading
from datetime import datetime
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from phantombase.timeline.dashboard import actions, table_rows
from phantombase.timeline.dashboard.details import PAGE, as_counted, tables_index
from phantombase.timeline.dashboard.pages import brief, tables_page, unmerged
from phantombase.timeline.dashboard.table_rows import TableRows
from phantombase.timeline.errors import UsageError
from phantombase.timeline.service.served_tables import ServedTables
from phantombase.timeline.terminal.text_table import Row
from tests.support.service_client import ServiceClient, rows_of


def names(index: dict[str, Any]) -> list[str]:
    return [row["served_as"] for row in index["tables"]]


def test_names_are_in_the_order_in_which_people_count() -> None:
    given = ["t10", "t2", "T1", "t2b", "a10/t", "a9/t", "²"]
    assert sorted(given, key=as_counted) == ["a9/t", "a10/t", "T1", "t2", "t2b", "t10", "²"]


def test_tables_are_found_by_name_path_state_and_pool() -> None:
    rows = rows_of(40)
    by_need, by_name = tables_index(rows, {}), tables_index(rows, {"sort": "name"})
    assert [row["health"] for row in by_need["tables"][:3]] == ["broken", "broken", "needs care"]
    assert names(by_name)[:3] == ["sales/orders_1", "sales/orders_2", "sales/orders_3"]
    assert (by_need["count"], by_need["counts"]) == (40, {"broken": 2, "needs care": 4, "well": 34})
    assert names(tables_index(rows, {"find": "ORDERS_3", "sort": "name"}))[:2] == ["sales/orders_3", "sales/orders_30"]
    care = tables_index(rows, {"state": "needs care", "pool": "sales/*"})
    assert {row["health"] for row in care["tables"]} == {"needs care"}
    assert care["totals"]["pending_compactions"] == 4
    assert [(one["pool"], one["tables"], one["troubled"]) for one in care["pools"]] == [("sales/*", 40, 6)]
    for wrong in ({"state": "ill"}, {"pool": "none"}, {"sort": "x"}, {"page": "2"}, {"page": "0"}):
        with pytest.raises(UsageError, match="no such"):
            tables_index(rows, wrong)


@pytest.mark.parametrize("count", [0, 1, 40, 2000])
def test_an_index_of_any_size_is_a_page(count: int) -> None:
    index = tables_index(rows_of(count), {"sort": "name", "page": str(max(1, -(-count // PAGE)))})
    text = tables_page(index, {"sort": "name"})
    assert (len(index["tables"]), text.count("<tr data-name")) == (min(count, PAGE),) * 2
    assert ('rel="prev"' in text, 'rel="next"' in text) == (count > PAGE, False)


def test_the_rows_of_many_tables_are_those_of_the_last_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page does not wait for a slow one, and says how old they are."""
    rows, tables = TableRows(None), list(ServedTables([f"/lake/t{n}" for n in range(201)]).by_name.values())
    monkeypatch.setattr(table_rows, "_PASS_S", 0.0)

    async def asked() -> list[int | None]:
        turn, found = asyncio.Event(), list[int | None]()

        async def slow(tables: object) -> list[Row]:
            await turn.wait()
            turn.clear()
            return rows_of(201)

        monkeypatch.setattr(rows, "all", slow)
        for _ in range(2):
            shown, age_s = await rows.listed(tables)
            found += [len(shown), None if age_s is None else round(age_s)]
            turn.set()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        return found

    assert asyncio.run(asked()) == [0, None, 201, 0]


def test_a_name_that_is_not_utf_8_is_a_page_and_hides_no_other(tmp_path: Path) -> None:
    client = ServiceClient.of(tmp_path / "bad\udcff", tmp_path / "b")
    assert 'href="/t/bad%FF"' in client.ask("/").text
    assert [client.ask(path).status for path in ("/t/bad%FF", "/metrics")] == [200, 200]


def test_pages_do_not_wait_for_a_fleet_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does the next question begin before the end of the last."""
    begun, turn, asked = threading.Event(), threading.Event(), list[Any]()

    def run(words: list[str], env: dict[str, str], **_: object) -> Any:
        asked.append((words, env["AWS_SECRET_ACCESS_KEY"]))
        begun.set()
        turn.wait(60)
        answer = {"tables": [{"table": "/t", "pool": "p", "served_by": ["d"]}], "daemons": []}
        return CompletedProcess((), 0, json.dumps(answer))

    monkeypatch.setattr(actions, "_FIRST_S", 0.0)
    monkeypatch.setattr(subprocess, "run", run)
    given = {"region": "r", "access_key_id": "k", "secret_access_key": "s"}
    fleet = actions.StatusFleet(["program"], ["--root", "s3://b"], given)
    assert [(fleet.placed("/t").pool, bool(fleet.fleet()["problem"])) for _ in range(2)] == [(None, True)] * 2
    assert begun.wait(60)
    assert [("region=r" in words, any("secret" in word for word in words), key) for words, key in asked] == [
        (True, False, "s")
    ]
    turn.set()
    with fleet._asking:  # the question has ended
        assert (fleet.placed("/t").pool, fleet.fleet()["problem"]) == ("p", None)


def test_a_name_does_not_depend_on_the_order_of_tables() -> None:
    paths = ["/lake/ops/rides", "/lake/archive/rides", "/lake/ops/orders"]
    both = [{t.path: t.name for t in ServedTables(given).by_name.values()} for given in (paths, paths[::-1])]
    assert both[0] == both[1] == dict(zip(paths, ("ops/rides", "archive/rides", "orders"), strict=True))


def test_a_trend_of_the_timeline_falls_when_a_compaction_completes() -> None:
    def at(second: int, kind: str = "deltacommit", took: int = 1) -> dict[str, Any]:
        time = "202601011200{:02}000".format
        return {"instant": time(second), "action": kind, "state": "completed", "completion_time": time(second + took)}

    steps = unmerged([at(1), at(3), at(5, "compaction", 5), at(7)], datetime(2026, 1, 1, 12, 0, 20))
    assert steps == [(18.0, 0), (18.0, 1), (16.0, 1), (16.0, 2), (12.0, 2), (12.0, 3), (10.0, 3), (10.0, 1), (0.0, 1)]


def test_a_reason_in_the_index_is_one_line() -> None:
    assert brief("no process works on compaction 20261121091347510 (requested for 9 d 8 h)") == (
        "no process works on compaction"
    )
    unreadable = "the table cannot be read (incomplete table properties; at /lake/t; found nothing)"
    assert brief(unreadable) == "the table cannot be read (incomplete table properties)"
