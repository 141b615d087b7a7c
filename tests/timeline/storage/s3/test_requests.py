"""What a command asks of an object store: a budget for each, counted at an S3 server."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from phantombase.compactor_daemon.attempt.failures import RetryOptions
from phantombase.compactor_daemon.cli.main import app as daemon
from phantombase.compactor_daemon.daemon.served_table import DaemonSettings, TableOnStorage
from phantombase.compactor_daemon.daemon.table_state import DaemonOrder
from phantombase.compactor_daemon.fleet.claims import TableClaims
from phantombase.compactor_daemon.options import AttemptOptions
from phantombase.timeline import ranges
from phantombase.timeline.audit.audit import audit, audited_instants
from phantombase.timeline.audit.ledgers import audit_path
from phantombase.timeline.cli.main import app as timeline
from phantombase.timeline.codec.output_options import OutputOptions
from phantombase.timeline.codec.parquet_read import fetched_at_once, open_parquet, parquet_batches
from phantombase.timeline.errors import MissingFileError
from phantombase.timeline.locks.table_lock import table_lock
from phantombase.timeline.merge.slice_log import check_slice, log_entries
from phantombase.timeline.planning.options import ScheduleOptions
from phantombase.timeline.read.table_read import ReadOptions, plan_read, read_table
from phantombase.timeline.storage import object_clients, object_lease
from phantombase.timeline.storage.object_store import ObjectStorage
from phantombase.timeline.storage.staged_file import staged_output
from phantombase.timeline.table.table import Table
from phantombase.timeline.view import log_blocks
from tests.support.compare_rows import assert_same_rows
from tests.support.golden_tables import unzip_golden
from tests.support.s3_table import on_s3, run
from tests.support.selection import deep
from tests.support.servers.s3_server import Asked, Fault, S3Server
from tests.support.trips import rows, trips

_DATA = re.compile(r"\.parquet$|\.log\.[^/]*$|/\d+-[0-9a-f]{32}\.log$")
"""Base files, log files and staged files: what is asked of these grows with the plan."""


def kind(asked: Asked) -> str:
    """What a request is, in S3's words."""
    if asked.method == "GET" and "list-type" in asked.query:
        return "LIST"
    if asked.method == "POST" and asked.query.startswith("delete"):
        return "DELETE"
    return asked.method


class Count:
    """The requests since it was made, those for data files apart."""

    def __init__(self, s3: S3Server) -> None:
        self._s3, self._first = s3, len(s3.asked)

    @property
    def table(self) -> Counter[str]:
        """By kind and object."""
        asked = self._s3.asked[self._first :]
        return Counter(f"{kind(a)} {a.path} {a.query if kind(a) == 'LIST' else ''}" for a in asked)

    @property
    def data(self) -> int:
        """Those for data files."""
        return sum(bool(_DATA.search(a.path)) for a in self._s3.asked[self._first :])

    @property
    def others(self) -> int:
        """All others."""
        return self.table.total() - self.data

    def assert_at_most(self, others: int, data: int) -> None:
        """Or says what was asked how often."""
        table = "\n".join(f"{n:4} {what}" for what, n in self.table.most_common())
        is_within = self.others <= others and self.data <= data
        assert is_within, f"{self.others} requests and {self.data} for data:\n{table}"


@pytest.fixture(autouse=True)
def _leases_are_not_renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    """How often they are depends on how long a command takes."""
    monkeypatch.setattr(object_lease, "RENEW_S", 3600.0)


@pytest.fixture
def unproved() -> None:
    """As in a process that has not tried a store yet."""
    object_clients.forget()


@pytest.fixture
def proved(s3: S3Server, unproved: None) -> Callable[[str], str]:
    """Tries the store of a table, as a process does once."""

    def prove(url: str) -> str:
        ObjectStorage(url).verify()
        return url

    return prove


def test_trying_a_store_is_cheap_and_done_once(s3: S3Server, unproved: None) -> None:
    storage, count = ObjectStorage(f"s3://{s3.new_bucket()}/t"), Count(s3)
    storage.verify()
    count.assert_at_most(21, 0)
    storage.verify()
    assert count.others <= 21


@pytest.mark.parametrize(("name", "data"), [deep("v6_pending", 22), ("v9_pending", 22)])
def test_a_plan_of_two_file_groups(
    name: str, data: int, s3: S3Server, proved: Callable[[str], str], tmp_path: Path
) -> None:
    """With 2 log files each, which are read twice: the headers before anything changes, then the entries."""
    url = proved(on_s3(s3, name, tmp_path)[1])
    count = Count(s3)
    run("compact", url, "--executor", "local")
    count.assert_at_most(86, data)


def test_old_compactions_cost_nothing(s3: S3Server, proved: Callable[[str], str], tmp_path: Path) -> None:
    """The records that completed compactions leave are listed with the others; that of the services is one request."""
    url = proved(on_s3(s3, "v9_pending", tmp_path)[1])
    for n in range(30):
        for name in ("1/open", "1/outcome", f"reserved-1-202601010000{n:02d}000"):
            s3.put(f"{url.removeprefix('s3://')}/.hoodie/.phantombase/202601010000{n:02d}000/{name}", b"{}")
    count = Count(s3)
    run("status", url)
    count.assert_at_most(27, 12)  # with pins, and what says where the archive is


def test_a_plan_that_is_requested(s3: S3Server, proved: Callable[[str], str], tmp_path: Path) -> None:
    url = proved(on_s3(s3, "v9_bucket_nonpart", tmp_path)[1])
    count = Count(s3)
    run("schedule", url, "--sole-writer")
    count.assert_at_most(27, 0)


def test_a_snapshot_read(s3: S3Server, tmp_path: Path) -> None:
    """Each file is fetched whole, once: 2 base files and 10 log files. The timeline is listed before and behind the
    partitions."""
    _, url = on_s3(s3, "v9_pending", tmp_path)
    count = Count(s3)
    run("read", url, "--output", f"{tmp_path}/read.parquet")
    count.assert_at_most(19, 12)


def test_an_upsert(s3: S3Server, proved: Callable[[str], str]) -> None:
    """One file group gets one log file."""
    url = proved(f"s3://{s3.new_bucket()}/t")
    trips(rows((1, 1, 1.0), (2, 1, 2.0)), 9).upsert(url)
    count = Count(s3)
    trips(rows((1, 2, 1.5)), 9).upsert(url)
    count.assert_at_most(90, 12)


@pytest.fixture
def served(s3: S3Server, tmp_path: Path) -> TableOnStorage:
    """A table that waits for nothing."""
    _, url = on_s3(s3, "v9_bucket_nonpart", tmp_path)
    run("compact", url, "--executor", "local")
    table = Table.open(url)
    settings = DaemonSettings(
        who="test",
        output=OutputOptions(),
        attempt=AttemptOptions(),
        retry=RetryOptions(),
        order=DaemonOrder.EARLIEST,
        schedule=ScheduleOptions(),
    )
    return TableOnStorage(url, TableClaims(table, "test"), table_lock(table.storage, None), lambda *_: [], settings)


def test_the_tables_of_a_bucket_share_its_connections(s3: S3Server) -> None:
    """Else a daemon over thousands of tables has as many, and makes each of them again at each poll."""
    one, other = (ObjectStorage(f"s3://shared/lake/{name}") for name in "ab")
    assert one.clients.patient is other.clients.patient
    assert (one.location, other.location) == ("s3://shared/lake/a", "s3://shared/lake/b")
    assert ObjectStorage("s3://another/lake/a").clients.patient is not one.clients.patient


def test_many_instants_that_are_done_cost_one_listing(s3: S3Server, served: TableOnStorage) -> None:
    """Beside many daemons each finds that others have done what it was about to claim."""
    table = Table.open(served.path)
    done = [i.requested_time for i in table.load_timeline().completed if i.action == "commit"]
    others = [f"2020010100000000{n}" for n in range(9)]
    for instant in others:
        table.storage.put_if_absent(audit_path(instant), b"{}")
    served.snapshot()
    count = Count(s3)
    assert served.done_among(done[0], [*done, *others]) == frozenset(done)
    assert count.others == 2, count.table  # is it in the audit log, and the names of the timeline
    assert served.done_among(others[0], [*done, *others]) == frozenset([*done, *others])  # archived


def test_an_idle_daemon_asks_for_the_names_of_the_timeline(s3: S3Server, served: TableOnStorage) -> None:
    """One listing for each snapshot, but for the first: of the names after the last one, where that is old."""
    seen = served.snapshot()
    for _ in range(3):
        count = Count(s3)
        assert served.snapshot() is seen
        assert (count.others, count.data) == (1, 0), count.table
        assert "start-after" in next(iter(count.table))
    Table.open(served.path).storage.put_if_absent(".hoodie/timeline/29990101000000000.compaction.requested", b"{}")
    assert [one.instant for one in served.snapshot().pending] == ["29990101000000000"]


# What travels from an object store: parts of large files, and what is asked for at the same time.


_MIB = 1 << 20


def _bytes(asked: Asked, size: int) -> int:
    """What a request asks for of a file of that size."""
    found = re.fullmatch(r"bytes=(\d*)-(\d*)", asked.headers.get("range", ""))
    if found is None:
        return size
    first, last = found.groups()
    return int(last) - int(first) + 1 if first else min(int(last), size)


def test_of_a_large_base_file_only_the_wanted_columns_travel(s3: S3Server) -> None:
    """The end with the footer by one request, and each row group's columns by another."""
    random = np.random.default_rng(1)
    table = pa.table({f"c{n}": random.integers(0, 1 << 62, 120_000) for n in range(12)})
    storage = ObjectStorage(f"s3://{s3.new_bucket()}/t")
    with staged_output(storage, "base.parquet") as file:
        pa.parquet.write_table(table, file, row_group_size=60_000, use_dictionary=False)
    entry = storage.find("base.parquet")
    assert entry is not None
    assert not fetched_at_once(entry.size, 2, 12)
    first = len(s3.asked)
    with storage.open_input("base.parquet", whole=False) as source:
        batches = list(parquet_batches(source, open_parquet(source), ["c3", "c4"], 10_000))
    assert pa.Table.from_batches(batches).equals(table.select(["c3", "c4"]))
    asked = s3.asked[first:]
    assert len(asked) == 3, asked
    assert sum(_bytes(a, entry.size) for a in asked) < 3 * _MIB + 4 * _MIB // 10


def test_an_end_that_is_the_whole_file(s3: S3Server) -> None:
    """A file shorter than what is asked for, and an empty one."""
    storage = ObjectStorage(f"s3://{s3.new_bucket()}/t")
    for name, data in (("short", b"12345"), ("empty", b"")):
        storage.put_if_absent(name, data)
        with storage.open_input(name, whole=False) as file:
            assert (file.size(), file.read()) == (len(data), data)


@contextmanager
def both_at_once(s3: S3Server, *patterns: str) -> Iterator[list[str]]:
    """The first request for each of these waits for those for the others; gives what waited in vain."""
    together, waiting, alone = threading.Barrier(len(patterns)), set(patterns), list[str]()

    def wait(asked: Asked) -> Fault:
        target = f"{asked.method} {asked.path} {unquote(asked.query)}&"
        found = next((p for p in waiting if re.search(p, target)), None)
        if found is not None:
            waiting.discard(found)
            try:
                together.wait(60)
            except threading.BrokenBarrierError:
                alone.append(found)
        return Fault.NONE

    s3.faults = wait
    try:
        yield alone
    finally:
        s3.faults = lambda asked: Fault.NONE
    assert not waiting, f"never asked: {waiting}"


@pytest.mark.parametrize(
    "patterns",
    [
        (r"prefix=tables/t/\.hoodie/timeline/&", r"prefix=tables/t/\.hoodie/&"),
        (r"GET .*\d{17}_\d{17}\.deltacommit", r"GET .*compaction\.requested"),
        (r"GET .*\.log\.\d+_0", r"GET .*\.parquet"),
        (r"GET .*hoodie\.properties", r"HEAD .*\.deltacommit"),
    ],
)
def test_what_is_independent_is_asked_for_at_the_same_time(
    patterns: tuple[str, ...], s3: S3Server, tmp_path: Path
) -> None:
    table = Table.open(on_s3(s3, "v9_two_pending", tmp_path)[1])
    with both_at_once(s3, *patterns) as alone:
        read_table(table, ReadOptions(threads=1))
    assert alone == []


def test_settings_are_read_while_their_folder_is_listed(s3: S3Server, tmp_path: Path) -> None:
    _, url = on_s3(s3, "v9_two_pending", tmp_path)
    with both_at_once(s3, r"prefix=tables/t/\.hoodie/&", "GET .*/hoodie.properties") as alone:
        Table.open(url)
    assert alone == []


def test_of_large_logs_only_the_headers_travel_where_nothing_else_is_read(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, url = on_s3(s3, "v9_pending", tmp_path)
    for module, name, limit in (
        (log_blocks, "_WHOLE_LOG_BYTES", 100),
        (object_clients, "_END_BYTES", 50),
        (ranges, "_AHEAD_BYTES", 200),
    ):
        monkeypatch.setattr(module, name, limit)
    local, there = plan_read(Table.open(str(path)), ReadOptions()), plan_read(Table.open(url), ReadOptions())
    first = len(s3.asked)
    for mine, theirs in zip(local.slices, there.slices, strict=True):
        before = len(s3.asked)
        counted = log_entries(there.table.storage, theirs, there.rules.visibility)
        fronts = [a.path for a in s3.asked[before:] if re.match(r"bytes=1?\d?\d-", a.headers.get("range", ""))]
        assert len(fronts) == len(set(fronts)) == len(theirs.logs)
        assert counted == log_entries(local.table.storage, mine, local.rules.visibility)
        check_slice(there.table.storage, theirs, there.rules)
    asked = [a for a in s3.asked[first:] if ".log." in a.path]
    sizes = {log.path.rpartition("/")[2]: log.size for s in there.slices for log in s.logs}
    assert len(asked) > 2 * len(sizes)
    assert all("range" in a.headers for a in asked)


# Objects that s3a leaves where a folder is empty, `name/` of zero bytes: they are nothing to us.


HUDIS = (
    *(".hoodie/.temp", ".hoodie/.schema", ".hoodie/.aux/.bootstrap/.partitions", ".hoodie/.aux/.bootstrap/.fileids"),
    *(".hoodie/.heartbeat", ".hoodie/archived", ".hoodie/timeline/history", ".hoodie/.locks", ".hoodie/.aux"),
    *(".hoodie/metadata/.hoodie/.temp", ".hoodie/metadata/.hoodie/.heartbeat", ".hoodie/.index_defs"),
)
"""Seen beside Hudi 0.15.0 and 1.2.0."""


def mark(s3: S3Server, url: str, folders: set[str]) -> None:
    """A marker in each of these folders of a table; "" is its base path."""
    base = url.partition("://")[2]
    for folder in sorted(folders):
        s3.put(f"{base}/{folder}/" if folder else f"{base}/", b"")


def looked_at(url: str, *of: str) -> list[str]:
    """What the commands print of a table, but for its place."""
    done = [CliRunner().invoke(timeline, [command, url, "--json"]) for command in of]
    assert all(d.exit_code == 0 for d in done), done
    return [d.output.replace(url, "TABLE") for d in done]


@pytest.mark.parametrize("name", ["v9_with_metadata_table", *map(deep, ("v6_with_metadata_table", "v9_two_pending"))])
def test_they_change_nothing(name: str, s3: S3Server, tmp_path: Path) -> None:
    """Listings are those of the table without them; it is compacted, proved and written like that one."""
    path = unzip_golden(name, tmp_path)
    plain = s3.upload(path, s3.new_bucket(), "lake/t")
    marked = s3.upload(path, s3.new_bucket(), "lake/t")
    folders = {p.relative_to(path).as_posix() for p in path.rglob("*") if p.is_dir()} | {"", *HUDIS}
    if not (path / ".hoodie/metadata").exists():
        folders = {folder for folder in folders if "/metadata/" not in folder}
    mark(s3, marked, folders)

    bare, under = Table.open(plain), Table.open(marked)
    assert under.partitions() == bare.partitions()
    assert [i.file_name for i in under.load_timeline().instants] == [i.file_name for i in bare.load_timeline().instants]
    for folder in folders:
        assert files(under, folder) == files(bare, folder), folder
    # The times of a copy are not those that Hudi needs on version 6.
    commands = ("slices", "validate") if name == "v9_with_metadata_table" else ("slices",)
    assert looked_at(marked, *commands) == looked_at(plain, *commands)
    assert_same_rows(read_table(under), read_table(bare))

    done = CliRunner().invoke(daemon, ["compact", marked, "--executor", "local"])
    assert done.exit_code == 0, done.output
    expected = path.with_name(f"{path.name}.expected") / "snapshot_after_compaction.parquet"
    table = Table.open(marked)
    assert_same_rows(read_table(table), pq.read_table(expected) if expected.exists() else read_table(bare))
    assert audited_instants(table)
    assert all(audit(table, instant).good for instant in audited_instants(table))
    looked_at(marked, *commands)


def files(table: Table, folder: str) -> list[str]:
    """The names of files in a folder; none where there is no such folder."""
    try:
        return [entry.name for entry in table.storage.list(folder) if not entry.is_folder]
    except MissingFileError:
        return []


@pytest.mark.parametrize("version", [9, deep(6)])
def test_a_table_is_made_below_markers(version: int, s3: S3Server) -> None:
    """In folders that another tool made first; and they may come in between, as Hudi's services leave them."""
    url = f"s3://{s3.new_bucket()}/lake/t"
    mark(s3, url, {""})
    trips(rows((1, 1, 1.0), (2, 1, 2.0)), version).upsert(url)
    mark(s3, url, {"mon", "tue", "wed", *(f for f in HUDIS if "metadata" not in f)})
    trips(rows((1, 2, 3.0), (3, 2, 3.0)), version).compact_inline(max_delta_commits=1).upsert(url)
    found = read_table(url_table := Table.open(url))
    assert sorted(found["fare"].to_pylist()) == [2.0, 3.0, 3.0]
    assert set(url_table.partitions()) == {"mon", "tue", "wed"}
    assert all(audit(url_table, instant).good for instant in audited_instants(url_table))
