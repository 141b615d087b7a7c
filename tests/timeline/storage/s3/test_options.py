"""Options of an object store reach every command, reader, writer and daemon, and the store; secrets do not travel."""

from __future__ import annotations

import pickle
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

import phantombase
from phantombase.compactor_daemon.cli.main import app as daemon
from phantombase.compactor_daemon.execution.spark_session import hadoop_conf
from phantombase.compactor_daemon.options import ExecuteOptions, Executor
from phantombase.timeline.cli.main import app as timeline
from phantombase.timeline.errors import StorageError, UsageError
from phantombase.timeline.storage import object_clients, server_clock
from phantombase.timeline.storage.object_store import ObjectStorage
from phantombase.timeline.storage.open_storage import open_storage
from phantombase.timeline.storage.storage_options import StorageOptions
from phantombase.timeline.table.table import Table
from phantombase.writer_hooks.write.writer import writer
from tests.support.golden_tables import unzip_golden
from tests.support.servers.azure_server import KEY, AzureServer
from tests.support.servers.s3_server import S3Server
from tests.support.trips import rows, trips

SECRET = "hidden-secret/with+signs"


@pytest.fixture(autouse=True)
def _little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """What no server answers is asked again for a second, not for half a minute."""
    monkeypatch.setitem(object_clients._PATIENCE, "retry_timeout", timedelta(seconds=1))


@pytest.fixture
def options(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """All that is known of the server; the environment says nothing, and leads nowhere."""
    for name in s3.environment():
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:9")
    return {
        "endpoint": s3.url,
        "region": "us-east-1",
        "allow_http": "true",
        "access_key_id": "hidden-key",
        "secret_access_key": SECRET,
    }


def pairs(options: dict[str, str]) -> list[str]:
    """As on the command line."""
    return [word for name, value in options.items() for word in ("--storage-option", f"{name}={value}")]


def test_requests_are_spread_over_time(s3: S3Server, options: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of all threads and tables of a bucket together."""
    now_s, slept = [100.0], list[float]()
    monkeypatch.setattr(server_clock, "time", SimpleNamespace(monotonic=lambda: now_s[0], sleep=slept.append))
    bucket, given = s3.new_bucket(), options | {"max_requests_per_second": "5"}
    one, two = (open_storage(f"s3://{bucket}/{name}", given) for name in "ab")
    assert [storage.find("x") for storage in (one, two, one)] == [None] * 3
    made = len(slept)
    assert slept == pytest.approx([n / 5 for n in range(made)])
    now_s[0] += made / 5 - 0.1
    one.find("x")
    assert slept[made] == pytest.approx(0.1)
    for wrong in ("4", "inf", "nan", "many"):
        with pytest.raises(UsageError, match="not a max_requests_per_second; expected a number from 5 on; found"):
            open_storage(f"s3://{bucket}/a", options | {"max_requests_per_second": wrong})


def test_every_command_takes_them(s3: S3Server, options: dict[str, str], tmp_path: Path) -> None:
    """Nothing else says where the table is."""
    url = s3.upload(unzip_golden("v9_two_pending", tmp_path), s3.new_bucket(), "t")
    instant = Table.open(url, options).load_timeline().pending_merges[0].requested_time
    commands = (
        (daemon, ["status", url]),
        (daemon, ["claims", url]),
        (daemon, ["schedule", url, "--dry-run"]),
        (daemon, ["release", url, instant]),
        (daemon, ["compact", url, "--executor", "local", "--instant", instant]),
        (daemon, ["run", url, "--once", "--executor", "local"]),
        (timeline, ["show", url]),
        (timeline, ["slices", url]),
        (timeline, ["plan", url, instant]),
        (timeline, ["audit", url]),
        (timeline, ["validate", url]),
        (timeline, ["repair-times", url, "--dry-run"]),
        (timeline, ["read", url, "--output", str(tmp_path / "all.parquet")]),
    )
    for app, args in commands:
        done = CliRunner().invoke(app, [*args, *pairs(options)])
        assert done.exit_code == 0, f"{args}: {done.output} {done.exception}"
        assert "hidden" not in done.output
    # Refused, but by what they find there:
    done = CliRunner().invoke(daemon, ["unschedule", url, instant, "--sole-writer", *pairs(options)])
    assert instant in f"{done.exception}"
    assert Table.open(url, options).load_timeline().pending_merges == ()


def test_readers_writers_and_compactors_take_them(s3: S3Server, options: dict[str, str]) -> None:
    url = f"s3://{s3.new_bucket()}/t"
    for ts in (1, 2, 3):
        described = trips(rows((1, ts, float(ts)), (2, ts, 2.0)), 9)
        written = writer(described.source, storage_options=options)
        written = replace(written, given=described.given, options=described.options)
        assert "hidden" not in repr(written)
        (written.compact_inline(max_delta_commits=1) if ts == 3 else written).upsert(url)
    assert phantombase.read_table(url, storage_options=options).num_rows == 2
    assert Table.open(url, options).load_timeline().pending_merges == ()
    phantombase.schedule(url, storage_options=options, sole_writer=True)
    local = ExecuteOptions(executor=Executor.LOCAL, threads=1)
    phantombase.compact(url, execute=local, storage_options=options)
    schedule = partial(phantombase.schedule, sole_writer=True)
    for use in (phantombase.read_table, schedule, phantombase.compact, Table.open):
        with pytest.raises(UsageError, match="Did you mean"):
            use(url, storage_options={"endpont": "x"})


def test_hadoops_configuration_is_below_the_options(s3: S3Server, options: dict[str, str]) -> None:
    """That of the Spark to be started, without starting it: `--spark-conf spark.hadoop.fs.s3a...`."""
    bucket = s3.new_bucket()
    given = {name: options[name] for name in ("access_key_id", "secret_access_key", "region")}
    conf = (("spark.hadoop.fs.s3a.endpoint", s3.url), ("spark.hadoop.fs.s3a.path.style.access", "true"))
    execute = ExecuteOptions(executor=Executor.LOCAL, threads=1, spark_conf=conf)
    with pytest.raises(phantombase.NotATableError):
        phantombase.compact(f"s3://{bucket}/t", execute=execute, storage_options=given)


class JvmConf:
    """A Hadoop configuration of a JVM: values, and the files that they come from."""

    def __init__(self, **values: tuple[str, str]) -> None:
        self.values = {name.replace("_", "."): value for name, value in values.items()}

    def get(self, name: str) -> str | None:
        return self.values.get(name, (None, ""))[0]

    def getPropertySources(self, name: str) -> list[str]:
        return [self.values[name][1]]


def test_hadoops_own_defaults_are_left_alone() -> None:
    """Else its default of path style would be an option that was given."""

    class Context:
        class _jsc:
            @staticmethod
            def hadoopConfiguration() -> JvmConf:
                return JvmConf(
                    fs_s3a_path_style_access=("false", "core-default.xml"),
                    fs_s3a_endpoint=("minio:9000", "programmatically"),
                )

    assert hadoop_conf(Context(), "s3a://b/t") == {"fs.s3a.endpoint": "minio:9000"}
    assert hadoop_conf(Context(), "/data/t") == {}


# --- what reaches the store


def test_encryption_and_payer_are_in_every_request_that_needs_them(s3: S3Server) -> None:
    """A multipart upload and a copy within the store are encrypted by how they begin; parts say nothing."""
    options = {"server_side_encryption": "aws:kms", "sse_kms_key_id": "key-1", "request_payer": "true"}
    storage = ObjectStorage(f"s3://{s3.new_bucket()}/t", StorageOptions.of(options))
    s3.asked.clear()
    storage.put_if_absent("small", b"x")
    file = storage.open_output("large")
    for _ in range(4):
        file.write(b"x" * (5 << 20))
    storage.close_output(file)
    storage.place("large", "placed")
    storage.overwrite("small", b"y")
    storage.list("")
    storage.read("small")
    # A PUT of an object, or the begin of an upload; not its parts, not its end, not a removal.
    begins = [asked for asked in s3.asked if (asked.method, asked.query) in (("PUT", ""), ("POST", "uploads="))]
    assert {asked.path.rpartition("/")[2] for asked in begins} >= {"small", "large", "placed"}
    for asked in begins:
        assert asked.headers["x-amz-server-side-encryption"] == "aws:kms", asked
        assert asked.headers["x-amz-server-side-encryption-aws-kms-key-id"] == "key-1", asked
    assert [asked for asked in s3.asked if asked.headers.get("x-amz-request-payer") != "requester"] == []


def test_given_keys_go_without_the_environments_token(
    s3: S3Server, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of one user's credentials and half of another's are refused by every store."""
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of-another")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "of-another")
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    s3.asked.clear()
    storage = ObjectStorage(f"s3://{s3.new_bucket()}/table", StorageOptions.of(options))
    storage.put_if_absent("x", b"")
    asked = [one for one in s3.asked if storage.prefix in one.path]
    assert asked
    assert all("hidden-key/" in one.headers["authorization"] for one in asked)
    assert all("x-amz-security-token" not in one.headers for one in asked)
    with pytest.raises(UsageError, match="half of a key"):
        ObjectStorage("s3://b/t", StorageOptions.of({"access_key_id": "k"}))


def test_a_given_key_of_azure_signs_although_the_environment_asks_for_no_signature() -> None:
    storage = ObjectStorage("abfs://c@catalog.dfs.core.windows.net/t", StorageOptions.of({"account_key": "aGlkZGVu"}))
    assert storage.clients.patient.config["skip_signature"] == "false"


def test_a_bucket_in_the_name_of_the_host(s3: S3Server) -> None:
    """An endpoint is one for all buckets, as Hadoop's is."""
    options = {"virtual_hosted_style_request": "true", "endpoint": "http://localhost:1"}
    with pytest.raises(StorageError, match=r"http://lake\.localhost:1/"):
        ObjectStorage("s3://lake/t", StorageOptions.of(options)).read("x")


def test_anonymous_requests_are_not_signed(s3: S3Server) -> None:
    bucket = s3.new_bucket()
    s3.asked.clear()
    with pytest.raises(phantombase.MissingFileError):
        ObjectStorage(f"s3://{bucket}/t", StorageOptions.of({"skip_signature": "true"})).read("x")
    assert all("authorization" not in asked.headers for asked in s3.asked)


# --- secrets


def test_secrets_do_not_travel(s3: S3Server, options: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A task has URL and options; without secrets of its own it says which, and where to put them."""
    url = f"s3://{s3.new_bucket()}/t"
    storage = open_storage(url, options)
    storage.put_if_absent("x", b"1")
    sent = pickle.dumps(storage)
    assert b"hidden" not in sent
    assert s3.url.encode() in sent
    there = pickle.loads(sent)
    with pytest.raises(StorageError, match=r"AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY.*executor"):
        there.read("x")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "own")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "own")
    assert pickle.loads(pickle.dumps(there)).read("x") == b"1"


def test_no_message_shows_a_secret(azure: AzureServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shared access signature is part of each request's URL."""
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_KEY")
    url = azure.url(azure.new_bucket(), "t")
    signature = f"sv=2021-08-06&ss=b&srt=sco&sp=rwdlac&se=2099-01-01T00:00:00Z&sig={SECRET}"
    for options in ({"sas_key": signature}, {"account_key": KEY[:-8] + "AAAAAA=="}, {"account_key": SECRET}):
        with pytest.raises((StorageError, UsageError)) as refused:
            open_storage(url, options).read("x")
        shown = f"{refused.value} {refused.value!r}"
        assert "hidden" not in shown
        assert KEY[:20] not in shown
    clients = ObjectStorage(url, StorageOptions.of({"account_key": KEY})).clients
    assert clients.text(ValueError(f"of another library: {KEY}\n!")) == "of another library: *** !"
