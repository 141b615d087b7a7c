"""Processes that are killed in the middle of an upload: nothing of it is visible, and a sweep aborts it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pyarrow.parquet as pq
import pytest

from phantombase.compactor_daemon.attempt import finish
from phantombase.compactor_daemon.attempt.finish import abort_abandoned_uploads
from phantombase.compactor_daemon.cleaning.orphan_choice import OrphanOptions
from phantombase.compactor_daemon.cleaning.orphans import remove_orphans
from phantombase.timeline.read.table_read import read_table
from phantombase.timeline.storage.object_clients import forget
from phantombase.timeline.storage.object_store import ObjectStorage
from phantombase.timeline.storage.open_storage import open_storage
from phantombase.timeline.storage.storage_options import StorageOptions
from phantombase.timeline.table.table import Table
from tests.support.compare_rows import assert_same_rows
from tests.support.golden_tables import LOCK, one_of, unzip_golden
from tests.support.places import ROOT, capture_logs
from tests.support.s3_table import end_leases, fares, run
from tests.support.selection import deep
from tests.support.servers.real_s3_server import REAL, RealS3Server
from tests.support.servers.s3_server import Asked, Fault, S3Server
from tests.support.trips import rows, trips

_SMALL_PARTS = "from phantombase.timeline.storage import object_clients; object_clients._PART_BYTES = 1 << 16; "
_COMPACT = "from phantombase.compactor_daemon.cli.main import main; main()"
_WRITE = (
    "import sys; from tests.writer_hooks.write.test_writer import rows, trips; "
    "trips(rows(*((3 * n, 2, n / 7) for n in range(20_000))), 9).upsert(sys.argv[1])"
)


@pytest.fixture
def uploads(s3: S3Server) -> Uploads:
    return Uploads(s3)


class Uploads:
    """The unfinished uploads of a server."""

    def __init__(self, s3: S3Server) -> None:
        keys = {"aws_access_key_id": "tests", "aws_secret_access_key": "tests"}
        self._client: Any = boto3.client("s3", endpoint_url=s3.url, region_name="us-east-1", **keys)

    def begin(self, bucket: str, key: str) -> None:
        self._client.create_multipart_upload(Bucket=bucket, Key=key)

    def of(self, bucket: str) -> list[str]:
        return sorted(u["Key"] for u in self._client.list_multipart_uploads(Bucket=bucket).get("Uploads", ()))


@pytest.fixture
def storage(s3: S3Server) -> ObjectStorage:
    return ObjectStorage(f"s3://{s3.new_bucket()}/tables/t")


def die_in_an_upload(s3: S3Server, code: str, *args: str, where: str, part: int) -> None:
    """Runs code in a process that is killed when it sends that part of an upload whose path has that pattern."""
    command = [sys.executable, "-c", (_SMALL_PARTS if part > 1 else "") + code, *args]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)

    def kill(asked: Asked) -> Fault:
        if re.search(where, asked.path) and f"partNumber={part}&" in f"{asked.query}&" and asked.method == "PUT":
            os.kill(process.pid, signal.SIGKILL)
        return Fault.NONE

    s3.faults = kill
    _, said = process.communicate()
    assert process.returncode == -signal.SIGKILL, said.decode()
    s3.faults = lambda asked: Fault.NONE


@pytest.mark.parametrize(
    ("where", "part"),
    [
        deep(r"\.phantombase/.*\.parquet", 3, id="a staged file"),
        pytest.param(r"/t/north/.*\.parquet", 1, id="a copy to a final name"),
    ],
)
def test_a_compactor_is_killed_in_an_upload(
    where: str, part: int, s3: S3Server, uploads: Uploads, tmp_path: Path
) -> None:
    path = unzip_golden("v9_pending", tmp_path)
    expected = path.with_name(f"{path.name}.expected")
    bucket = s3.new_bucket()
    url = s3.upload(path, bucket, "tables/t")
    die_in_an_upload(s3, _COMPACT, "compact", url, "--executor", "local", where=where, part=part)
    left, storage = uploads.of(bucket), ObjectStorage(url)
    assert any(re.search(where, f"/{key}") for key in left)
    assert not {storage.key(path) for path, _ in storage.list_below("")} & set(left)
    assert_same_rows(read_table(Table.open(url)), pq.read_table(expected / "snapshot.parquet"))
    for lease in (".hoodie/.phantombase/claim.lock", ".hoodie/.locks/table_lock.json"):  # their time has ended
        storage.delete(lease)
    end_leases(url)
    run("compact", url, "--executor", "local")
    assert_same_rows(read_table(Table.open(url)), pq.read_table(expected / "snapshot_after_compaction.parquet"))
    assert uploads.of(bucket) == []


def test_a_writer_is_killed_in_an_upload(s3: S3Server, uploads: Uploads) -> None:
    bucket = s3.new_bucket()
    url = f"s3://{bucket}/tables/t"
    trips(rows((3, 1, 1.0)), 9).upsert(url)
    die_in_an_upload(s3, _WRITE, url, where=r"\.phantombase/writes/", part=2)
    assert uploads.of(bucket) != []
    assert fares(url) == {"k0003": 1.0}
    trips(rows((3, 3, 1.5)), 9).upsert(url)
    abort_abandoned_uploads(ObjectStorage(url))
    assert fares(url) == {"k0003": 1.5}
    assert uploads.of(bucket) == []


OURS = (
    ".hoodie/.phantombase/20260101000000000/1/0-ab.parquet",
    ".hoodie/.phantombase/writes/20260101000000000/ab.log",
    "north/.phantombase-probe",
    "north/f-0_3-1-990000000_20260101000000000.parquet",
    "f-0_0-980000000-77_20260101000000000.parquet",
    "a/b/.f-0_20260101000000000.log.1_0-980000000-77",
)
THEIRS = (
    "north/f-0_3-1-99_20260101000000000.parquet",
    ".f-0_20260101000000000.log.1_0-98-77",
    ".f-0_20260101000000000.log.1",
    ".hoodie/timeline/20260101000000000.commit.requested",
    "north/not-ours.parquet",
    "north/__magic/job/990000000/part-0.parquet",
)


def test_only_uploads_of_this_table_and_of_phantombase_are_aborted(storage: ObjectStorage, uploads: Uploads) -> None:
    for path in (*OURS, *THEIRS):
        uploads.begin(storage.clients.bucket, storage.key(path))
    others = ["tables/t2/" + OURS[0], OURS[0]]
    for key in others:
        uploads.begin(storage.clients.bucket, key)
    abort_abandoned_uploads(storage)
    assert uploads.of(storage.clients.bucket) == sorted([*others, *map(storage.key, THEIRS)])


def test_tables_of_a_bucket_share_one_client(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """To make one takes longer than all else that a sweep of an idle table does."""
    bucket, made, client = s3.new_bucket(), list[str](), boto3.client

    def counted(service: str, **how: Any) -> Any:
        made.append(service)
        return client(service, **how)

    monkeypatch.setattr(boto3, "client", counted)
    for name in ("t", "u"):
        abort_abandoned_uploads(ObjectStorage(f"s3://{bucket}/tables/{name}"))
    assert made == ["s3"]


def test_a_bucket_may_be_a_table(s3: S3Server, uploads: Uploads) -> None:
    storage = ObjectStorage(f"s3://{s3.new_bucket()}")
    uploads.begin(storage.clients.bucket, OURS[0])
    abort_abandoned_uploads(storage)
    assert uploads.of(storage.clients.bucket) == []


@one_of("version", 9, 6)
def test_uploads_of_an_undone_write_are_orphans(version: int, s3: S3Server, uploads: Uploads) -> None:
    """Also those of Hudi; not those of a completed or pending write, or of one that may have just begun."""
    bucket = s3.new_bucket()
    storage = ObjectStorage(trips_at(f"s3://{bucket}/tables/t", version))
    table = Table.on(storage)
    first, second = sorted(table.load_timeline().completed_writes)
    undone, pending, later = (str(int(time) + 1) for time in (first, second, "3" + second[1:]))
    storage.put_if_absent(f"{table.config.timeline_folder}/{pending}.deltacommit.inflight", b"")
    base, log = "north/f-0_3-1-99_{}.parquet", "north/.f-0_{}.log.1_0-98-77"
    gone = [name.format(undone) for name in (base, log)]
    staged = (".hoodie/.phantombase/{}/1/0-ab.parquet", ".hoodie/.phantombase/writes/{}/ab.log")
    for path in (name.format(time) for name in staged for time in (pending, later)):  # their process may be at work
        uploads.begin(bucket, storage.key(path))
    gone += [".hoodie/.phantombase/tmp/ab", *(name.format(undone) for name in staged)]
    for path in (*gone, *(name.format(time) for name in (base, log) for time in (first, pending, later)), *THEIRS):
        uploads.begin(bucket, storage.key(path))
    before = uploads.of(bucket)
    over = set(map(storage.key, gone if version == 9 else [name for name in gone if ".log." not in name]))
    assert remove_orphans(table, OrphanOptions(), LOCK, dry_run=True).uploads == len(over)
    assert uploads.of(bucket) == before
    assert remove_orphans(table, OrphanOptions(), LOCK).uploads == len(over)
    assert uploads.of(bucket) == sorted(set(before) - over)


def trips_at(url: str, version: int) -> str:
    for number in (1, 2):
        trips(rows((3, number, 1.0)), version).upsert(url)
    return url


def test_an_upload_that_may_be_under_way_stays(
    storage: ObjectStorage, uploads: Uploads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server of these tests says of all uploads that they began in 2010."""
    monkeypatch.setattr(finish, "_UPLOAD_S", 100 * 365 * 86_400)
    uploads.begin(storage.clients.bucket, storage.key(OURS[0]))
    abort_abandoned_uploads(storage)
    assert uploads.of(storage.clients.bucket) == [storage.key(OURS[0])]


@pytest.fixture
def logged() -> Iterator[list[dict[str, Any]]]:
    """What is logged of uploads that stay."""
    forget()
    with capture_logs() as found:
        yield found


def test_without_boto3_the_bucket_needs_a_rule(
    storage: ObjectStorage, uploads: Uploads, monkeypatch: pytest.MonkeyPatch, logged: list[dict[str, Any]]
) -> None:
    """Logged once a process."""
    uploads.begin(storage.clients.bucket, storage.key(OURS[0]))
    monkeypatch.setitem(sys.modules, "botocore.exceptions", None)
    for _ in range(2):
        abort_abandoned_uploads(storage)
    assert len(uploads.of(storage.clients.bucket)) == 1
    [entry] = logged
    assert "boto3" in entry["why"]
    assert "AbortIncompleteMultipartUpload" in entry["todo"]


def test_a_server_that_does_not_list_uploads(
    storage: ObjectStorage, s3: S3Server, logged: list[dict[str, Any]]
) -> None:
    """No error: the bucket's rule does it."""
    s3.faults = lambda asked: Fault.SLOW_DOWN if "uploads" in asked.query else Fault.NONE
    abort_abandoned_uploads(storage)
    [entry] = logged
    assert "AbortIncompleteMultipartUpload" in entry["todo"]


@pytest.mark.parametrize("name", REAL)
def test_the_options_of_the_table_are_used(
    name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, logged: list[dict[str, Any]]
) -> None:
    """This server knows who asks: without the key it would refuse."""
    server: RealS3Server = request.getfixturevalue(name)
    url, environment = f"s3://{server.new_bucket()}/t", server.environment()
    for name in environment:
        monkeypatch.delenv(name)
    options = {n.removeprefix("AWS_").lower(): v for n, v in environment.items() if n.startswith("AWS_")}
    options["endpoint"] = options.pop("endpoint_url")
    abort_abandoned_uploads(open_storage(url, StorageOptions.of(options)))
    assert logged == []
