"""Many tables: found by patterns while the service runs, bounded in memory, and none stops another."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from phantombase.timeline.errors import StorageError, UsageError
from phantombase.timeline.service.discovery import TablePattern
from phantombase.timeline.service.routes import PREFIX
from phantombase.timeline.service.served_tables import ServedTables
from phantombase.timeline.storage.contract import Entry
from phantombase.timeline.storage.local import LocalStorage
from tests.support.golden_tables import unzip_golden
from tests.support.service_client import ServiceClient


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """Tables `sales/orders`, `sales/rides`, `hr/orders`; and folders that are none."""
    made = unzip_golden("v9_plain", tmp_path / "zip")
    for name in ("sales/orders", "sales/rides", "hr/orders"):
        shutil.copytree(made, tmp_path / "lake" / name)
    (tmp_path / "lake/sales/empty/.hoodie").mkdir(parents=True)
    (tmp_path / "lake/file").touch()
    return tmp_path / "lake"


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("*/*", ["hr/orders", "sales/orders", "sales/rides"]),
        ("*/o*", ["hr/orders", "sales/orders"]),
        ("sales/[or]*", ["sales/orders", "sales/rides"]),
        ("*/orders/", ["hr/orders", "sales/orders"]),
        ("*", []),
        ("none/*", []),
        ("sales/orders/*", []),  # its partitions are no tables
    ],
)
def test_patterns_name_tables(lake: Path, pattern: str, names: list[str]) -> None:
    assert sorted(TablePattern(f"{lake}/{pattern}").tables()) == [f"{lake}/{name}" for name in names]


def test_tables_come_and_go_while_the_service_runs(lake: Path) -> None:
    tables = ServedTables([f"{lake}/*/orders", str(lake / "sales/rides")])
    client = ServiceClient.of_tables(tables)

    def names() -> list[str]:
        tables.follow(tables.look())
        return sorted(row["path"] for row in client.ask("/api/tables").json()["tables"])

    first = [f"{lake}/hr/orders", f"{lake}/sales/orders", f"{lake}/sales/rides"]
    assert names() == first
    shutil.move(lake / "hr", lake / "it")
    assert names() == [f"{lake}/it/orders", *first[1:]]
    asked = {"refreshoff": "true", "partition": "north"}
    path = f"{PREFIX}slices/partition/latest/"
    assert client.ask(path, basepath=first[0], **asked).status == 404
    assert client.ask(path, basepath=f"{lake}/it/orders", **asked).status == 200
    assert names() == [f"{lake}/it/orders", *first[1:]]


def test_a_table_that_is_named_stays_also_where_a_pattern_found_it(lake: Path) -> None:
    tables = ServedTables([f"{lake}/hr/orders", f"{lake}/hr/*"])
    tables.follow(tables.look())
    assert [t.path for t in tables.by_name.values()] == [f"{lake}/hr/orders"]
    tables.follow([])
    assert len(tables.by_name) == 1


def test_a_listing_that_fails_is_an_error_and_changes_nothing(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = ServedTables([f"{lake}/*/*"])
    tables.follow(tables.look())

    def fails(self: LocalStorage, folder: str) -> list[Entry]:
        raise StorageError("storage failed", path=folder)

    monkeypatch.setattr(LocalStorage, "list", fails)
    with pytest.raises(StorageError):
        tables.look()
    assert len(tables.by_name) == 3


def test_a_path_is_given_once(lake: Path) -> None:
    with pytest.raises(UsageError, match="twice"):
        ServedTables([str(lake / "hr/orders"), f"{lake}/hr/orders/"])


def test_states_that_were_used_longest_ago_go_when_memory_is_short(lake: Path) -> None:
    paths = [f"{lake}/{name}" for name in ("hr/orders", "sales/orders", "sales/rides")]
    one = ServedTables(paths[:1])
    ServiceClient.of_tables(one).ask("/api/tables")
    (size,) = (t.bytes for t in one.by_name.values())
    tables = ServedTables(paths, max_bytes=int(size * 2.5))
    client = ServiceClient.of_tables(tables)
    for path in (*paths, paths[1]):
        reply = client.ask(f"{PREFIX}timeline/instants/all", basepath=path, refreshoff="true")
        assert reply.status == 200
    assert [t.newest is not None for t in tables.by_name.values()] == [False, True, True]
    assert client.ask(f"{PREFIX}timeline/instants/all", basepath=paths[0]).status == 200
    assert [t.newest is not None for t in tables.by_name.values()] == [True, True, False]
