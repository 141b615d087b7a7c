"""Markers of writers: durable lines of their own, contained below the served table."""

from __future__ import annotations

from pathlib import Path

import pytest

from phantombase.timeline.errors import StorageError
from phantombase.timeline.service import marker_app
from phantombase.timeline.service.marker_app import MARKER_PREFIX
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.table.traces import delete_markers, list_markers
from tests.support.golden_tables import unzip_golden
from tests.support.service_client import Reply, ServiceClient

INSTANT = "20991121091340983"


class Markers:
    """A client of the marker routes for one folder."""

    def __init__(self, table: Path) -> None:
        self.table = table
        self.folder = table / ".hoodie/.temp" / INSTANT
        self.restart()

    def restart(self) -> None:
        self.client = ServiceClient.of(self.table, markers=True)

    def ask(self, route: str, method: str = "GET", folder: object = None, **query: str) -> Reply:
        given = {"markerdirpath": str(folder or self.folder), **query}
        return self.client.ask(MARKER_PREFIX + route, method, **given)

    def create(self, *names: str) -> list[object]:
        queries = [{"markerdirpath": str(self.folder), "markername": name} for name in names]
        replies = self.client.all_at_once(f"{MARKER_PREFIX}create", queries, "POST")
        return [r.json() if r.status == 200 else r.status for r in replies]

    def lines(self) -> list[str]:
        files = [f for f in self.folder.iterdir() if f.name != "MARKERS.type" and not f.name.startswith(".")]
        assert all(f.read_text().endswith("\n") for f in files)
        return sorted(line for f in files for line in f.read_text().splitlines())


@pytest.fixture
def markers(tmp_path: Path) -> Markers:
    return Markers(unzip_golden("v9_plain", tmp_path))


def name(number: int, kind: str = "CREATE") -> str:
    return f"north/f{number}-0_0-1-2_{INSTANT}.parquet.marker.{kind}"


def test_a_write_from_its_first_marker_to_the_last(markers: Markers) -> None:
    assert markers.ask("dir/exists").json() is False
    assert markers.ask("all").json() == []
    assert markers.create(name(1)) == [True]
    assert (markers.folder / "MARKERS.type").read_text() == "TIMELINE_SERVER_BASED"
    assert markers.create(name(2, "MERGE"), name(3, "APPEND"), name(1)) == [True, True, False]
    assert markers.lines() == sorted([name(1), name(2, "MERGE"), name(3, "APPEND")])
    assert sorted(markers.ask("create-and-merge").json()) == [name(1), name(2, "MERGE")]
    assert markers.ask("append").json() == [name(3, "APPEND")]
    assert markers.ask("dir/exists").json() is True
    assert markers.ask("dir/delete", "POST").json() is True
    assert markers.ask("dir/delete", "POST").json() is False
    assert not markers.folder.exists()


def test_of_many_at_once_on_one_name_one_is_the_first(markers: Markers) -> None:
    assert sorted(map(str, markers.create(*[name(1)] * 20))) == ["False"] * 19 + ["True"]
    assert markers.lines() == [name(1)]


def test_markers_that_come_in_together_share_files(markers: Markers) -> None:
    assert markers.create(*map(name, range(200))) == [True] * 200
    assert len(list(markers.folder.glob("MARKERS[0-9]*"))) < 20
    assert markers.lines() == sorted(map(name, range(200)))


def test_a_restart_keeps_one_marker_a_line(markers: Markers) -> None:
    markers.create(*map(name, range(5)))
    markers.restart()
    assert markers.create(*map(name, range(3, 8))) == [False, False, True, True, True]
    assert markers.lines() == sorted(map(name, range(8)))
    assert len(list_markers(LocalStorage(str(markers.table)), INSTANT)) == 8


def test_a_folder_that_another_process_removed_begins_anew(markers: Markers) -> None:
    markers.create(name(1))
    delete_markers(LocalStorage(str(markers.table)), INSTANT)
    assert markers.create(name(1)) == [True]
    assert markers.lines() == [name(1)]


def test_a_type_file_of_a_killed_server_is_completed(markers: Markers) -> None:
    markers.folder.mkdir(parents=True)
    (markers.folder / "MARKERS.type").touch()
    assert markers.create(name(1)) == [True]
    assert (markers.folder / "MARKERS.type").read_text() == "TIMELINE_SERVER_BASED"


def test_a_failed_write_answers_an_error_to_all_and_the_next_one_succeeds(
    markers: Markers, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise StorageError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(marker_app, "append", fail)
        assert markers.create(name(1), name(1), name(2)) == [500, 500, 500]
    assert markers.create(name(1), name(2)) == [True, True]


@pytest.mark.parametrize(
    "folder",
    ["", "/", "/etc", "{table}", "{table}/.hoodie/.temp", "{table}/.hoodie/.temp/..", "{table}/.hoodie/timeline/1",
     "{table}/.hoodie/.temp/20991121091340983/..", "{table}/../x/.hoodie/.temp/20991121091340983",
     "{table}/.hoodie/.temp/2099112109134098x", "/other/.hoodie/.temp/20991121091340983"],
)  # fmt: skip
def test_folders_outside_are_refused(markers: Markers, folder: str) -> None:
    before = sorted(markers.table.parent.rglob("*"))
    place = folder.format(table=markers.table)
    for route, method in (("dir/delete", "POST"), ("create", "POST"), ("all", "GET"), ("dir/exists", "GET")):
        reply = markers.client.ask(f"{MARKER_PREFIX}{route}", method, markerdirpath=place, markername=name(1))
        assert (reply.status in (400, 404), bool(reply.text)) == (True, True), route
    assert sorted(markers.table.parent.rglob("*")) == before


def test_a_link_is_refused(markers: Markers, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    markers.folder.parent.mkdir(exist_ok=True)
    markers.folder.symlink_to(tmp_path / "outside")
    assert markers.ask("dir/delete", "POST").status == 400
    assert markers.create(name(1)) == [400]
    assert (tmp_path / "outside").exists()


@pytest.mark.parametrize(
    "bad", ["", "x", "../a.marker.CREATE", "a\nb.marker.CREATE", "a\x85b.marker.CREATE", "/a.marker.CREATE"]
)
def test_names_that_are_no_markers_are_refused(markers: Markers, bad: str) -> None:
    assert markers.create(bad) == [400]
    assert markers.ask("create", "POST").status == 400
    assert not markers.folder.exists()


def test_they_are_off_unless_asked_for(markers: Markers) -> None:
    client = ServiceClient.of(markers.table)
    query = {"markerdirpath": str(markers.folder), "markername": name(1)}
    assert client.ask(f"{MARKER_PREFIX}create", "POST", **query).status == 404
    assert not markers.folder.exists()
