"""A table on S3 that real Hudi and we work on."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from phantombase.compactor_daemon.cli.main import app
from phantombase.compactor_daemon.cli.main import app as daemon
from phantombase.timeline.audit.audit import audit, audited_instants
from phantombase.timeline.cli.main import app as timeline
from phantombase.timeline.errors import PhantombaseError
from phantombase.timeline.format.file_name import BaseFileName, parse_data_file
from phantombase.timeline.read.table_read import read_table
from phantombase.timeline.storage import object_clients
from phantombase.timeline.storage.folders import RECORDS
from phantombase.timeline.storage.object_store import ObjectStorage
from phantombase.timeline.storage.staged_file import PLACED
from phantombase.timeline.table.table import Table
from phantombase.writer_hooks import options as writing
from phantombase.writer_hooks.engine.engine import LocalEngine
from phantombase.writer_hooks.options import Operation, WriteOptions
from phantombase.writer_hooks.write.write import write
from tests.hudi.cases.shared_table import SharedAnywhere
from tests.hudi.judge.table_files import TablePath, copy_on_s3
from tests.support.compare_rows import assert_same_rows
from tests.support.failing_storage import Call, Failure, Hook, ProcessDied
from tests.support.golden_tables import DECIMALS_SPOILT_BY_HUDI, unzip_golden
from tests.support.servers.azure_server import AzureServer
from tests.support.servers.fault_proxy import Fault, FaultProxy, Faults
from tests.support.servers.real_s3_server import RealS3Server
from tests.support.servers.s3_server import S3Server
from tests.support.trips import rows, trips
from tests.support.written_tables import impatient


@dataclass(frozen=True, kw_only=True)
class S3Table(SharedAnywhere):
    """At an `s3a://` URL."""

    url: str

    @property
    def place(self) -> TablePath:
        return self.url

    def copy(self) -> Self:
        url = f"{self.url}-copy"
        copy_on_s3(self.url, url)
        return replace(self, url=url)


PLANNED = {6: "v6_pending", 8: "v8_pending", 9: "v9_pending"}
"""A plan of two file groups."""
STAYS = re.compile(r"(open|outcome|revoked|claim|claim\.lock|table\.lock|table-id|reserved-.*|.*\.json)")
"""Records of phantombase that outlive a compaction."""


class Compaction:
    """A table with a plan, and what must come out of it."""

    def __init__(self, version: int, s3: S3Server, tmp_path: Path) -> None:
        self._path, self._s3 = unzip_golden(PLANNED[version], tmp_path), s3
        expected = self._path.with_name(f"{self._path.name}.expected")
        self._before, self._after = (
            pq.read_table(expected / f"snapshot{part}.parquet") for part in ("", "_after_compaction")
        )

    def requests(self, proxy: FaultProxy) -> int:
        """How many requests change something when none is spoilt."""
        assert not self.spoilt(proxy, lambda asked: Fault.NONE)
        return self._changes

    def spoilt(self, proxy: FaultProxy, faults: Faults) -> bool:
        """Compacts a fresh copy while requests are spoilt, then again; checks all. Whether a request was spoilt."""
        url = self._s3.upload(self._path, self._s3.new_bucket(), "tables/t")
        [plan] = Table.open(url).load_timeline().pending_merges
        object_clients.forget()
        proxy.restart(faults)
        command = ["compact", url, "--executor", "local"]
        done = CliRunner().invoke(app, command)
        spoilt, self._changes = bool(proxy.spoilt), proxy.changes()
        proxy.restart()
        assert done.exit_code == 0 or isinstance(done.exception, PhantombaseError), repr(done.exception)
        self.ended_well = done.exit_code == 0
        is_done = not Table.open(url).load_timeline().pending_merges
        assert is_done or done.exit_code != 0
        assert_same_rows(read_table(Table.open(url)), self._after if is_done else self._before)
        end_leases(url)
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 0, f"{done.output} {done.exception}"
        table = Table.open(url)
        assert_same_rows(read_table(table), self._after)
        timeline = table.load_timeline()
        assert timeline.pending_merges == ()
        assert len(table.files.completed_commits(plan.requested_time)) == 1
        assert all(audit(table, instant).good for instant in audited_instants(table))
        assert litter(url) == []
        return spoilt


class Write:
    """An upsert of new and old keys, or an insert that makes the table; and what must come out of it."""

    def __init__(self, version: int, new: bool, s3: S3Server, tmp_path: Path) -> None:
        self._version, self._new, self._s3, self._path = version, new, s3, tmp_path / "t"
        trips(rows((1, 1, 1.0), (2, 1, 2.0), (3, 1, 3.0)), version).upsert(str(self._path))
        self._before = {"k0001": 1.0, "k0002": 2.0, "k0003": 3.0}
        self._written = {"k0002": 2.5, "k0004": 4.0, "k0005": 5.0}

    def requests(self, proxy: FaultProxy) -> int:
        """How many requests change something when none is spoilt."""
        assert not self.spoilt(proxy, lambda asked: Fault.NONE)
        return self._changes

    def spoilt(self, proxy: FaultProxy, faults: Faults) -> bool:
        """Writes while requests are spoilt, to a new table or a fresh copy; again if it failed. As `Compaction`."""
        bucket = self._s3.new_bucket()
        url = f"s3://{bucket}/tables/t" if self._new else self._s3.upload(self._path, bucket, "tables/t")
        before = {} if self._new else self._before
        object_clients.forget()
        proxy.restart(faults)
        try:
            self._write(url)
            failed = None
        except PhantombaseError as error:
            failed = error
        spoilt, self._changes = bool(proxy.spoilt), proxy.changes()
        proxy.restart()
        self.ended_well = failed is None
        if failed is not None:
            assert fares(url) == before, failed
            self._write(url)
        assert fares(url) == {**before, **self._written}
        writes = Table.open(url).load_timeline().completed_writes
        assert len(writes) == 1 + (not self._new)
        if litter(url):
            self._write_later(url)
        assert fares(url) == {**before, **self._written}
        assert litter(url) == []
        return spoilt

    def _write(self, url: str) -> None:
        trips(_ROWS, self._version).upsert(url)

    def _write_later(self, url: str) -> None:
        """As when the heartbeat of a write has expired whose own rollback failed: the next write undoes it."""
        options = impatient(WriteOptions(slots=1, lazy_rollback=False))
        write(Table.open(url), LocalEngine(_ROWS, slots=1), writing.Write(operation=Operation.UPSERT, options=options))


_ROWS = rows((2, 2, 2.5), (4, 2, 4.0), (5, 2, 5.0))


def end_leases(url: str) -> None:
    """As if their time had ended."""
    storage = ObjectStorage(url)
    claims = [f"{RECORDS}/{path}" for path, _ in storage.list_below(RECORDS) if path.endswith("/claim")]
    storage.delete_all([*claims, ".hoodie/.locks/table_lock.json"])


def fares(url: str) -> dict[str, float]:
    """Key to fare, nothing where nothing was written; a key twice is an error."""
    is_made = ObjectStorage(url).find(".hoodie/hoodie.properties") is not None
    if not is_made or not Table.open(url).load_timeline().completed_writes:
        return {}
    table = read_table(Table.open(url))
    keys = table.column("id").to_pylist()
    assert len(set(keys)) == len(keys), "doubled rows"
    return dict(zip(keys, table.column("fare").to_pylist(), strict=True))


def litter(url: str) -> list[str]:
    """What no finished command leaves: files of phantombase, but records that stay and what a sweep removes later."""
    found, records = [path for path, _ in ObjectStorage(url).list_below("")], ".hoodie/.phantombase/"
    ours = [path for path in found if path.startswith(records) and not path.startswith(f"{records}tmp/")]
    left = [path for path in ours if not STAYS.fullmatch(path.rpartition("/")[2])]
    left += [path for path in found if path.startswith((".hoodie/.heartbeat/", ".hoodie/.temp/"))]
    left += [path for path in found if path.endswith(PLACED)]
    names = [parse_data_file(path.rpartition("/")[2]) for path in found if not path.startswith(records)]
    bases = Counter((name.file_id, name.instant) for name in names if isinstance(name, BaseFileName))
    return left + [str(base) for base, files in bases.items() if files > 1]


AnyServer: TypeAlias = S3Server | AzureServer | RealS3Server


@pytest.fixture(autouse=True)
def no_local_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing becomes a file in the working directory, and nothing is read from a disk by mistake."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)


def run(*args: str) -> str:
    """One command, which must end well."""
    app = timeline if args[0] in ("show", "read", "audit", "validate") else daemon
    done = CliRunner().invoke(app, args)
    assert done.exit_code == 0, f"{args}: {done.output} {done.exception}"
    return done.output


def on_s3(s3: AnyServer, name: str, tmp_path: Path) -> tuple[Path, str]:
    """A golden table on disk, and the URL of its copy."""
    path = unzip_golden(name, tmp_path)
    return path, s3.upload(path, s3.new_bucket(), "tables/t")


def die_before_change(number: int) -> Hook:
    """Dies before the n-th call (from 0) that changes something; a dead process makes no more calls."""
    left = number

    def hook(call: Call) -> Any:
        nonlocal left
        if left < 0 or ((changes := Failure.AFTER.can_hit(call.name)) and left == 0):
            left = -1
            raise ProcessDied(f"{call.name} {call.path}")
        left -= changes
        return call.do()

    return hook


def check_read_and_compacted(name: str, server: AnyServer, tmp_path: Path) -> None:
    """By the commands: the same rows as on disk, before and after, and as Hudi read them."""
    path, url = on_s3(server, name, tmp_path)
    run("read", url, "--output", f"{tmp_path}/before.parquet")
    local = read_table(Table.open(str(path)))
    assert_same_rows(pq.read_table(tmp_path / "before.parquet"), local)
    planned = Table.open(url).load_timeline().pending_merges
    if not planned:
        run("schedule", url, "--sole-writer", "--drop-metadata-table")
    run("compact", url, "--executor", "local", "--drop-metadata-table")
    run("read", url, "--output", f"{tmp_path}/after.parquet")
    check_compacted(name, path, url, local, pq.read_table(tmp_path / "after.parquet"))
    assert list((tmp_path / "elsewhere").iterdir()) == []


def check_compacted(name: str, path: Path, url: str, before: pa.Table, after: pa.Table) -> None:
    """Nothing is pending, audits are good, and the rows are what Hudi read after its compaction, or those before."""
    table = Table.open(url)
    assert table.load_timeline().pending_merges == ()
    hudis = path.with_name(f"{path.name}.expected") / "snapshot_after_compaction.parquet"
    expected = pq.read_table(hudis) if hudis.exists() else before
    if spoilt := DECIMALS_SPOILT_BY_HUDI.get(name):
        expected, after = expected.drop_columns([spoilt]), after.drop_columns([spoilt])
    assert_same_rows(after, expected)
    assert all(audit(table, instant).good for instant in audited_instants(table))
