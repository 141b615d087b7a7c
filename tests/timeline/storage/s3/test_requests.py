"""What a command asks of an object store: a budget for each, counted at an S3 server."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from phantombase.compactor_daemon.claims.table_claims import TableClaims
from phantombase.compactor_daemon.daemon.dispatch import Order
from phantombase.compactor_daemon.daemon.table_on_storage import ServedTable, Settings
from phantombase.compactor_daemon.options import AttemptOptions
from phantombase.compactor_daemon.records.failures import RetryOptions
from phantombase.timeline.audit.group_ledger import audit_path
from phantombase.timeline.locks.table_lock import table_lock
from phantombase.timeline.parquet.output_options import OutputOptions
from phantombase.timeline.planning.options import ScheduleOptions
from phantombase.timeline.storage import object_clients
from phantombase.timeline.storage.object_store import ObjectStorage
from phantombase.timeline.table.table import Table
from tests.support.s3_table import on_s3, run
from tests.support.selection import deep
from tests.support.servers.s3_server import Asked, S3Server
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


@pytest.fixture
def unproved() -> None:
    """As in a process that has not tried a store yet."""
    object_clients.forget()


@pytest.fixture
def proved(s3: S3Server, unproved: None) -> Callable[[str], str]:
    """Tries the store of a table, as a process does once."""

    def prove(url: str) -> str:
        ObjectStorage(url).prove()
        return url

    return prove


def test_trying_a_store_is_cheap_and_done_once(s3: S3Server, unproved: None) -> None:
    storage, count = ObjectStorage(f"s3://{s3.new_bucket()}/t"), Count(s3)
    storage.prove()
    count.assert_at_most(21, 0)
    storage.prove()
    assert count.others <= 21


@pytest.mark.parametrize(("name", "data"), [deep("v6_pending", 22), ("v9_pending", 22)])
def test_a_plan_of_two_file_groups(
    name: str, data: int, s3: S3Server, proved: Callable[[str], str], tmp_path: Path
) -> None:
    """With 2 log files each, which are read twice: the headers before anything changes, then the entries."""
    url = proved(on_s3(s3, name, tmp_path)[1])
    count = Count(s3)
    run("compact", url, "--executor", "local")
    count.assert_at_most(82, data)


def test_old_compactions_cost_nothing(s3: S3Server, proved: Callable[[str], str], tmp_path: Path) -> None:
    """The records that completed compactions leave are listed with the others; that of the services is one request."""
    url = proved(on_s3(s3, "v9_pending", tmp_path)[1])
    for n in range(30):
        for name in ("1/open", "1/fate", f"reserved-1-202601010000{n:02d}000"):
            s3.put(f"{url.removeprefix('s3://')}/.hoodie/.phantombase/202601010000{n:02d}000/{name}", b"{}")
    count = Count(s3)
    run("status", url)
    count.assert_at_most(41, 0)


def test_a_plan_that_is_requested(s3: S3Server, proved: Callable[[str], str], tmp_path: Path) -> None:
    url = proved(on_s3(s3, "v9_bucket_nonpart", tmp_path)[1])
    count = Count(s3)
    run("schedule", url, "--sole-writer")
    count.assert_at_most(22, 0)


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
def served(s3: S3Server, tmp_path: Path) -> ServedTable:
    """A table that waits for nothing."""
    _, url = on_s3(s3, "v9_bucket_nonpart", tmp_path)
    run("compact", url, "--executor", "local")
    table = Table.open(url)
    settings = Settings(
        who="test",
        output=OutputOptions(),
        attempt=AttemptOptions(),
        retry=RetryOptions(),
        order=Order.EARLIEST,
        schedule=ScheduleOptions(),
    )
    return ServedTable(url, TableClaims(table, "test"), table_lock(table.storage, None), lambda *_: [], settings)


def test_many_instants_that_are_done_cost_one_listing(s3: S3Server, served: ServedTable) -> None:
    """Beside many daemons each finds that others have done what it was about to claim."""
    table = Table.open(served.path)
    done = [i.requested_time for i in table.load_timeline().completed if i.action == "commit"]
    others = [f"2020010100000000{n}" for n in range(9)]
    for instant in others:
        table.storage.put_if_absent(audit_path(instant), b"{}")
    count = Count(s3)
    assert served.done_among(done) == frozenset(done)
    alone, count = count.others, Count(s3)
    assert served.done_among([*done, *others]) == frozenset([*done, *others])
    assert count.others == alone + len(others), count.table


def test_an_idle_daemon_asks_for_the_names_and_the_settings(s3: S3Server, served: ServedTable) -> None:
    """One listing of the timeline and one read of the settings for each look, but for the first."""
    served.look()
    count = Count(s3)
    served.look()
    assert (count.others, count.data) == (2, 0), count.table
