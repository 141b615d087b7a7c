"""Requests while a table moves: synchronisation, pending writes, errors."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from phantombase.compactor_daemon.clustering import cluster as clustering
from phantombase.timeline.errors import StorageError, UsageError
from phantombase.timeline.service import served_tables
from phantombase.timeline.service.loading import load_state
from phantombase.timeline.service.routes import PREFIX
from phantombase.timeline.service.served_tables import ServedTables, tables_of
from phantombase.timeline.service.table_state import ServedState
from phantombase.timeline.storage.contract import Entry
from phantombase.timeline.storage.local import LocalStorage
from phantombase.timeline.table.table import Table
from tests.support.archived_tables import cluster, small_files
from tests.support.change_feeds import request
from tests.support.golden_tables import one_of, unzip_golden
from tests.support.places import capture_logs
from tests.support.service_client import LATEST, Reply, ServiceClient, known, put, take_back_last

ALL_SLICES = f"{PREFIX}slices/all"
GROUPS = f"{PREFIX}filegroups/all/partition/stateless/"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return unzip_golden("v9_pending", tmp_path)


def logs(reply: Reply) -> list[str]:
    assert reply.status == 200, reply.text
    found: list[Any] = [s for x in reply.json() for s in x.get("slices", [x])]
    return sorted(log["path"].rpartition("/")[2] for s in found for log in s["logFiles"])


def test_a_client_one_delta_commit_behind_is_answered_from_its_state(table: Path) -> None:
    files = take_back_last(table)
    before = known(table)
    client = ServiceClient.of(table)
    old = client.ask(LATEST, partition="north", **before)
    put(files)
    new = client.ask(LATEST, partition="north", **known(table))
    assert len(logs(new)) == len(logs(old)) + 1
    assert client.ask(LATEST, partition="north", **before).body == old.body


def test_a_client_behind_a_state_that_was_never_seen_is_refused_with_both_timelines(table: Path) -> None:
    files = take_back_last(table)
    before = known(table)
    put(files)
    reply = ServiceClient.of(table).ask(LATEST, partition="north", **before)
    assert reply.status == 400
    assert reply.text.startswith(f"Last known instant from client was {before['lastinstantts']} but server has")


def test_files_of_pending_delta_commits_are_answered_where_hudi_does(table: Path) -> None:
    completed = logs(ServiceClient.of(table).ask(LATEST, partition="north", **known(table)))
    take_back_last(table)
    client, now = ServiceClient.of(table), known(table)
    assert len(logs(client.ask(LATEST, partition="north", **now))) == len(completed) - 1
    for route in (ALL_SLICES, GROUPS, f"{PREFIX}slices/partition/latest/inflight/"):
        assert set(completed) <= set(logs(client.ask(route, partition="north", **now))), route


def test_a_stateless_list_shows_a_base_file_that_came_with_a_pending_write(table: Path) -> None:
    client, now = ServiceClient.of(table), known(table)
    assert len(client.ask(GROUPS, partition="north", **now).json()) == 1
    begun = "20991121091340983"
    (table / f".hoodie/timeline/{begun}.deltacommit.requested").touch()
    source = next((table / "north").glob("*.parquet"))
    for token in ("0-1-2", "0-1-3"):  # two attempts of one task
        shutil.copy(source, table / f"north/new-0_{token}_{begun}.parquet")
    found = client.ask(GROUPS, partition="north", **now).json()
    assert "new-0" in {g["fileId"] for g in found}
    assert "new-0" not in {g["fileId"] for g in client.ask(LATEST, partition="north", **now).json()}
    merged = f"{PREFIX}slices/merged/beforeoron/inflight/latest/"
    reply = client.ask(merged, partition="north", maxinstant=begun, currentinstant=begun, **now)
    assert "new-0" not in {s["fileId"] for s in reply.json()}  # log files only


def test_log_files_of_all_pending_writes_are_merged_where_hudi_does(tmp_path: Path) -> None:
    """In the order of their instants, whichever of them is asked for; and a phantom slice of pending logs is none."""
    table = unzip_golden("v9_two_pending", tmp_path)
    times = [next(iter(take_back_last(table))).rpartition("/")[2].partition("_")[0] for _ in range(2)]
    client, now = ServiceClient.of(table), known(table)
    merged = f"{PREFIX}slices/merged/beforeoron/inflight/latest/"
    for current in (*times, "20981121091340983"):
        reply = client.ask(merged, partition="north", maxinstant=times[0], currentinstant=current, **now)
        (slice_,) = reply.json()
        shown = [log["path"].rpartition("_0-")[0].rpartition("_")[2] for log in slice_["logFiles"]]
        assert shown[0] == f"{times[0]}.log.1"
        assert shown == sorted(shown, reverse=True)
    before = f"{PREFIX}slices/beforeoron/latest/"
    asked = {"partition": "south", "maxinstant": times[1], **now}
    (slice_,) = client.ask(before, includependingcompaction="true", **asked).json()
    assert (slice_["baseInstant"], slice_["baseFile"] is None) == ("20261121091345649", False)
    assert client.ask(before, includependingcompaction="false", **asked).json() == []


def test_requests_that_come_in_at_once_share_one_load(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loads: list[Table] = []

    def counting(table: Table, before: ServedState | None, **options: bool) -> ServedState:
        loads.append(table)
        return load_state(table, before, **options)

    monkeypatch.setattr(served_tables, "load_state", counting)
    client = ServiceClient.of(table)
    client.ask(LATEST, partition="north", **known(table))
    query = {**known(table), "timelinehash": "of a later timeline", "partition": "north"}
    assert {r.status for r in client.all_at_once(LATEST, [query] * 20)} == {400}
    assert len(loads) == 3  # the first, one for the request that came in first, one for all others


def test_a_lost_base_file_is_an_error_with_its_reason(tmp_path: Path) -> None:
    table = unzip_golden("v9_compacted_cleaned", tmp_path)
    now = known(table)
    file = max(table.glob("north/*.parquet"), key=lambda p: p.name.rpartition("_")[2])
    data = file.read_bytes()
    file.unlink()
    client = ServiceClient.of(table)
    reply = client.ask(LATEST, partition="north", **now)
    assert reply.status == 500
    assert file.name in reply.text
    assert client.ask(LATEST, partition="south", **now).status == 200
    file.write_bytes(data)
    assert client.ask(LATEST, partition="north", **now).status == 200


@pytest.mark.parametrize(
    ("path", "query", "status", "reason"),
    [
        ("slices/partition/latest/", {"partition": "../.."}, 400, "not a partition path"),
        ("slices/partition/latest/", {"partition": "/etc"}, 400, "not a partition path"),
        ("slices/partition/latest/", {"partition": ".hoodie"}, 400, "not a partition path"),
        ("slices/partition/latest/", {"basepath": "/etc"}, 404, "no table is served"),
        ("slices/partition/latest/", {"partition": "none"}, 200, "[]"),
        ("slices/partition/latest/stateless", {"partition": "none"}, 200, "[]"),
        ("slices/file/latest", {"partition": "north"}, 400, "fileid is missing"),
        ("slices/none", {}, 404, "Not found"),
        ("slices//all", {}, 404, "Not found"),
        ("refresh/", {}, 404, "Not found"),
    ],
)
def test_bad_requests_get_a_reason(table: Path, path: str, query: dict[str, str], status: int, reason: str) -> None:
    reply = ServiceClient.of(table).ask(PREFIX + path, **{**known(table), **query})
    assert (reply.status, reason in reply.text) == (status, True), reply.text


def test_base_paths_are_known_in_each_spelling(table: Path) -> None:
    client = ServiceClient.of(table)
    for form in (str(table), f"{table}/", f"file:{table}", f"file://{table}/"):
        reply = client.ask(LATEST, **{**known(table), "basepath": form, "partition": "north"})
        (found,) = reply.json()
        assert found["logFiles"][0]["path"].startswith(f"file:{table}/north/"), form


def test_a_table_is_known_by_its_real_path_too(table: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(table)
    client = ServiceClient.of(tmp_path / "link")
    assert client.ask(LATEST, partition="north", **known(table)).status == 200


def test_what_is_no_table_stops_no_other(table: Path, tmp_path: Path) -> None:
    client = ServiceClient.of(table, tmp_path / "none")
    assert client.ask(LATEST, **{**known(table), "basepath": f"{tmp_path}/none"}).status == 404
    assert client.ask(LATEST, partition="north", **known(table)).status == 200


def test_a_bootstrapped_table_is_not_found(table: Path) -> None:
    """It is not read exactly, so a REMOTE_FIRST client goes on by itself; the reason names the setting."""
    properties = table / ".hoodie/hoodie.properties"
    properties.write_text(f"{properties.read_text()}\nhoodie.bootstrap.base.path=/elsewhere\n")
    reply = ServiceClient.of(table).ask(LATEST, partition="north", basepath=str(table), refreshoff="true")
    assert (reply.status, "hoodie.bootstrap.base.path" in reply.text) == (404, True), reply.text


def test_long_lists_of_instants_fit_and_too_long_ones_are_refused(table: Path) -> None:
    client, now = ServiceClient.of(table), known(table)
    for count, status in ((3000, 200), (3700, 414)):
        instants = ",".join(["20261121091340983"] * count)
        assert client.ask(f"{PREFIX}slices/range/latest/", instants=instants, **now).status == status


def test_answers_without_gzip_and_pretty(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phantombase.timeline.service.asgi.GZIP_FROM_BYTES", 1)  # at any length of paths
    client, now = ServiceClient.of(table), {**known(table), "partition": "north"}
    zipped = client.ask(LATEST, **now)
    assert zipped.headers["content-encoding"] == "gzip"
    plain = client.ask_with({"accept-encoding": "identity"}, LATEST, **now)
    assert "content-encoding" not in plain.headers
    assert plain.body == zipped.body
    pretty = client.ask(LATEST, pretty="", **now)
    assert pretty.json() == plain.json()
    assert b"\n" in pretty.body


def test_an_answer_that_is_kept_goes_when_its_partition_moves(table: Path) -> None:
    files = take_back_last(table)
    client = ServiceClient.of(table)
    before = known(table)
    old = [client.ask(LATEST, partition="north", refreshoff="true", **before) for _ in range(3)]
    assert len({reply.body for reply in old}) == 1
    put(files)
    client.ask(LATEST, partition="north", **known(table))
    new = client.ask(LATEST, partition="north", refreshoff="true", **before)
    assert len(logs(new)) == len(logs(old[0])) + 1


def test_looking_at_a_table_often_does_not_forget_what_clients_know(table: Path) -> None:
    """A load that finds the same timeline takes the place of the newest state, not of an older one."""
    files = take_back_last(table)
    before = known(table)
    client = ServiceClient.of(table)
    old = client.ask(LATEST, partition="north", **before)
    put(files)
    for _ in range(10):
        assert client.ask("/api/tables/pending").status == 200  # loads
    assert client.ask(LATEST, partition="north", **before).body == old.body


@one_of("version", 9, 6)
@pytest.mark.parametrize("refresh_off", [True, False])
def test_plans_that_a_client_does_not_compare_are_looked_for(
    refresh_off: bool, version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hash of a client's timeline counts neither pending clusterings nor pending log compactions."""
    small_files(tmp_path / "t", version)
    logged = unzip_golden(f"v{version}_plain", tmp_path)
    asked = ((tmp_path / "t", "clustering/pending/"), (logged, "logcompactions/pending/"))
    client = ServiceClient.of(*(path for path, _ in asked))

    def answers() -> list[Any]:
        more = {"refreshoff": "true"} if refresh_off else {}
        return [client.ask(PREFIX + route, **known(path), **more).json() for path, route in asked]

    before = [known(path) for path, _ in asked]
    assert answers() == answers() == [[], []]
    monkeypatch.setattr(clustering._Work, "execute", _dead)
    with pytest.raises(SystemExit):
        cluster(tmp_path / "t")
    request(Table.open(str(logged)))
    assert [known(path) for path, _ in asked] == before
    assert all(answers())


def _dead(*_: Any, **__: Any) -> Any:
    raise SystemExit


# Many tables: found by patterns while the service runs, bounded in memory, and none stops another.


@pytest.fixture
def catalog(tmp_path: Path) -> Path:
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
def test_patterns_name_tables(catalog: Path, pattern: str, names: list[str]) -> None:
    assert sorted(tables_of(f"{catalog}/{pattern}")) == [f"{catalog}/{name}" for name in names]


def test_tables_come_and_go_while_the_service_runs(catalog: Path) -> None:
    tables = ServedTables([f"{catalog}/*/orders", str(catalog / "sales/rides")])
    client = ServiceClient.of_tables(tables)

    def names() -> list[str]:
        tables.follow(tables.snapshot())
        return sorted(row["path"] for row in client.ask("/api/tables").json()["tables"])

    first = [f"{catalog}/hr/orders", f"{catalog}/sales/orders", f"{catalog}/sales/rides"]
    assert names() == first
    shutil.move(catalog / "hr", catalog / "it")
    assert names() == [f"{catalog}/it/orders", *first[1:]]
    asked = {"refreshoff": "true", "partition": "north"}
    path = f"{PREFIX}slices/partition/latest/"
    assert client.ask(path, basepath=first[0], **asked).status == 404
    assert client.ask(path, basepath=f"{catalog}/it/orders", **asked).status == 200
    assert names() == [f"{catalog}/it/orders", *first[1:]]


def test_a_pattern_that_matches_no_table_is_named_once(catalog: Path) -> None:
    """Not one whose tables have gone since, and no path that is named."""
    tables = ServedTables([f"{catalog}/none/*", f"{catalog}/hr/*", f"{catalog}/sales/rides"])
    with capture_logs() as logs:
        tables.follow(tables.snapshot())
        shutil.rmtree(catalog / "hr")
        tables.follow(tables.snapshot())
    told = [log for log in logs if log["log_level"] == "warning"]
    assert [(log["event"], log["pattern"]) for log in told] == [("pattern matches no table", f"{catalog}/none/*")]


def test_a_table_that_is_named_stays_also_where_a_pattern_found_it(catalog: Path) -> None:
    tables = ServedTables([f"{catalog}/hr/orders", f"{catalog}/hr/*"])
    tables.follow(tables.snapshot())
    assert [t.path for t in tables.by_name.values()] == [f"{catalog}/hr/orders"]
    tables.follow([])
    assert len(tables.by_name) == 1


def test_a_listing_that_fails_is_an_error_and_changes_nothing(catalog: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = ServedTables([f"{catalog}/*/*"])
    tables.follow(tables.snapshot())

    def fails(self: LocalStorage, folder: str) -> list[Entry]:
        raise StorageError("storage failed", path=folder)

    monkeypatch.setattr(LocalStorage, "list", fails)
    with pytest.raises(StorageError):
        tables.snapshot()
    assert len(tables.by_name) == 3


def test_a_path_is_given_once(catalog: Path) -> None:
    with pytest.raises(UsageError, match="twice"):
        ServedTables([str(catalog / "hr/orders"), f"{catalog}/hr/orders/"])


def test_states_that_were_used_longest_ago_go_when_memory_is_short(catalog: Path) -> None:
    paths = [f"{catalog}/{name}" for name in ("hr/orders", "sales/orders", "sales/rides")]
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
